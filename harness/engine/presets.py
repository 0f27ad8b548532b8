"""Engines with a planted bottleneck, the traffic that meets it, and the cap that follows.

A closed loop of N users carries X(N) = min(N / (Z + R), capacity). Each preset is built so that its capacity
is a corner: the planted station serves at a fixed rate, everything else runs beside it, and N* = capacity *
(Z + R) lies on (or just under) a step of the ladder. That step is the cap, the next one the knee. The traffic
is part of the plan: another mix moves the corner.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.engine.config import (
    Batch,
    Caches,
    Decode,
    EngineConfig,
    Kv,
    Prefill,
    Preprocess,
    load_config,
)
from harness.profile import ImageSpec, PayloadSpec, TextSpec


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """An engine, what to send it, and the cap planted in the ladder 1, 2, 4, 6, 8, 12."""

    config: EngineConfig
    traffic: tuple[PayloadSpec, ...]
    max_tokens: int
    cap: int


_MIXED = (
    PayloadSpec(kind="text_only", weight=3, text=TextSpec(chars=240)),
    PayloadSpec(kind="one_image", weight=2, text=TextSpec(chars=60), images=ImageSpec(count=1, side=512)),
    PayloadSpec(kind="multi_image", weight=1, text=TextSpec(chars=60), images=ImageSpec(count=4, side=256)),
)


def _one_image(side: int) -> tuple[PayloadSpec, ...]:
    return (PayloadSpec(kind="one_image", text=TextSpec(chars=60), images=ImageSpec(count=1, side=side)),)


PRESETS: dict[str, Preset] = {
    # 6 places in the batch, and nothing else near its limit: cap 6.
    "demo": Preset(config=EngineConfig(), traffic=_MIXED, max_tokens=24, cap=6),
    # 2 CPU workers, 300 ms for each image of 1024 px, 18 ms for the rest: N* = 2 * 318 / 300 = 2.1, cap 2.
    "preprocess": Preset(
        config=EngineConfig(
            preprocess=Preprocess(workers=2, image_ms=37.0, mpixel_ms=251.0),
            batch=Batch(max_num_seqs=32),
            decode=Decode(step_ms=1.6, seq_ms=0.05, compute_ms=0.1),
            prefill=Prefill(token_us=2.0, vision_us=1.0),
        ),
        traffic=_one_image(1024),
        max_tokens=8,
        cap=2,
    ),
    # 4 places in the batch: cap 4.
    "queue": Preset(
        config=EngineConfig(batch=Batch(max_num_seqs=4)),
        traffic=_MIXED,
        max_tokens=24,
        cap=4,
    ),
    # Prefill of 2116 visual tokens takes 60 ms of the GPU and runs beside decoding, one prompt after the
    # other; 22 tokens and the rest take 174 ms: N* = (60 + 174) / 60 = 3.9, cap 4.
    "prefill": Preset(
        config=EngineConfig(
            batch=Batch(max_num_seqs=32),
            prefill=Prefill(token_us=14.0, vision_us=9.5, square_ns=2.0, slice_ms=7.5),
            decode=Decode(step_ms=7.8, seq_ms=0.02, compute_ms=0.01),
        ),
        traffic=_one_image(1280),
        max_tokens=22,
        cap=4,
    ),
    # Decoding is bound by compute from 4 sequences on (2.5 ms each against 10 ms for the weights): cap 4.
    "decode": Preset(
        config=EngineConfig(
            batch=Batch(max_num_seqs=32), decode=Decode(step_ms=10.0, seq_ms=0.0, compute_ms=2.5)
        ),
        traffic=(PayloadSpec(kind="text_only", text=TextSpec(tokens=120)),),
        max_tokens=64,
        cap=4,
    ),
    # The KV cache holds 4 sequences of 512 + 192 tokens; a fifth is admitted and pushes one out: cap 4.
    "kv": Preset(
        config=EngineConfig(
            batch=Batch(max_num_seqs=32),
            kv=Kv(tokens=2880),
            prefill=Prefill(token_us=10.0, slice_ms=6.0),
            decode=Decode(step_ms=6.0, seq_ms=0.05, compute_ms=0.1),
            caches=Caches(prefix=False),
        ),
        traffic=(PayloadSpec(kind="text_only", text=TextSpec(tokens=512)),),
        max_tokens=192,
        cap=4,
    ),
    # 4 places, of which long answers hold three quarters of the time; a prompt of 4 images of 768 px is
    # prefilled in one step of 110 ms, in which nobody else gets a token: short requests wait for long, cap 4.
    "long": Preset(
        config=EngineConfig(
            batch=Batch(max_num_seqs=4),
            prefill=Prefill(token_us=15.0, vision_us=15.0, slice_ms=0),
        ),
        traffic=(
            PayloadSpec(kind="text_only", weight=3, text=TextSpec(chars=60), max_tokens=8),
            PayloadSpec(
                kind="multi_image",
                weight=1,
                text=TextSpec(chars=60),
                images=ImageSpec(count=4, side=768),
                max_tokens=96,
            ),
        ),
        max_tokens=24,
        cap=4,
    ),
}


def named_config(name: str) -> EngineConfig:
    """Return a preset's engine, or read the YAML file of that name. Raises UserError."""
    return PRESETS[name].config if name in PRESETS else load_config(Path(name))
