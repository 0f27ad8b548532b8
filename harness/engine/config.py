"""What the simulated engine is made of: one frozen `EngineConfig`, from YAML or a preset's name.

The default is the engine of the demo. It carries 6 requests at once because its batch has 6 places, and
nothing else comes near its limit before: a decode step of 6 takes 4 % longer than one of 1, prefill runs
beside decoding, and preprocessing (which holds no place in the batch, so that it adds to the users needed to
fill 6 places) stays a few milliseconds of about 200. So throughput grows in step with users up to 6 and is
flat from there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from harness.errors import UserError
from harness.profile_reader import parse_struct

OnExceed = Literal["reject", "truncate", "downscale", "error500", "hang", "ignore"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every section refuses keys it does not know."""


class Preprocess(_Part, frozen=True):
    """CPU work before the queue; images take their turn on a few workers, text passes at once."""

    workers: int = 4
    request_ms: float = 0.2
    image_ms: float = 0.3  # per image
    mpixel_ms: float = 3.0  # per million pixels


class Batch(_Part, frozen=True):
    """Places in the continuous batch."""

    max_num_seqs: int = 6


class Prefill(_Part, frozen=True):
    """GPU work of t prompt tokens: request_ms + token_us * t + square_ns * t^2, and the vision encoder."""

    request_ms: float = 1.0
    token_us: float = 10.0  # per prompt token
    square_ns: float = 2.0  # per prompt token squared: attention
    vision_us: float = 20.0  # per visual token of an image that is not in the cache
    large_side: int | None = None  # px: an image with a longer side is encoded in overlapping tiles,
    large_factor: float = 4.0  # which takes so many times as long
    slice_ms: float = 6.0  # of prefill work in one step (chunked prefill); 0: a whole prompt in one step


class Decode(_Part, frozen=True):
    """One step of n sequences takes the longer of its memory and its compute time (roofline).

    Memory: step_ms + seq_ms * n. Compute: compute_ms * n, and the prefill work of the step.
    """

    step_ms: float = 9.0
    seq_ms: float = 0.07
    compute_ms: float = 0.5


class Kv(_Part, frozen=True):
    """The KV cache, in blocks."""

    tokens: int = 65_536
    block_tokens: int = 16


class Caches(_Part, frozen=True):
    """What is not computed twice."""

    prefix: bool = True  # leading blocks of a prompt
    prefix_tokens: int = 65_536
    images: bool = True  # by the hash of the encoded image
    image_items: int = 256


class Gpu(_Part, frozen=True):
    """The simulated GPU; with `preallocate` its used memory is flat, as where an engine reserves it."""

    uuid: str = "SIM-0"
    memory_bytes: int = 24 << 30
    weights_bytes: int = 15 << 30
    kv_token_bytes: int = 57_344  # 28 layers, 4 KV heads of 128, 16 bit: a 7B model
    preallocate: bool = False
    idle_w: float = 60.0
    busy_w: float = 280.0


class Limits(_Part, frozen=True):
    """What is refused; None: no limit."""

    max_image_side: int | None = 4096
    max_image_pixels: int | None = 16_777_216
    max_images_per_request: int | None = 16
    max_input_tokens: int | None = 16_384
    max_new_tokens: int | None = 4096
    max_body_bytes: int | None = 64 << 20
    queue_max: int | None = 1024  # requests waiting for a place in the batch
    queue_wait_ms: float | None = None


class EngineConfig(_Part, frozen=True):
    """A whole engine."""

    model: str = "sim-vlm"  # the only model served
    preprocess: Preprocess = Preprocess()
    batch: Batch = Batch()
    prefill: Prefill = Prefill()
    decode: Decode = Decode()
    kv: Kv = Kv()
    caches: Caches = Caches()
    gpu: Gpu = Gpu()
    limits: Limits = Limits()
    on_exceed: dict[str, OnExceed] = {}  # per limit; the default is to reject
    patch_px: int = 28  # one visual token covers a square of this side
    default_max_tokens: int = 128  # of a request that names none
    answer_tokens: int | None = None  # natural length of an answer; None: always up to max_tokens
    cold_ms: float = 0.0  # added once, to the very first step: kernels are compiled, memory is taken
    noise: float = 0.01  # relative standard deviation of a step's duration
    seed: int = 1

    def limit(self, name: str) -> float | None:
        """Return a limit's value; None where there is none, or where this engine ignores it."""
        value: float | None = getattr(self.limits, name)
        return None if self.on_exceed.get(name) == "ignore" else value


LIMIT_NAMES: tuple[str, ...] = Limits.__struct_fields__
_ONLY_FOR: dict[OnExceed, tuple[str, ...]] = {
    "truncate": ("max_input_tokens", "max_images_per_request", "max_new_tokens"),
    "downscale": ("max_image_side", "max_image_pixels"),
}


def load_config(path: str | Path) -> EngineConfig:
    """Read a config from a YAML file. Raises UserError naming file, line and key."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot be read: {error}", file=file, remedy="give a YAML file or a preset's name"
        ) from None
    return parse_config(text, file=file)


def parse_config(text: str, *, file: Path) -> EngineConfig:
    """Validate a config's YAML text; an empty text is the default engine."""
    config, fail = parse_struct(text if text.strip() else "{}", EngineConfig, file=file)
    for path, least in _LEAST.items():
        value = getattr(getattr(config, path[0]), path[1])
        if value < least:
            raise fail(path, f"must be at least {least}")
    for name, behaviour in config.on_exceed.items():
        if name not in LIMIT_NAMES:
            raise fail(("on_exceed", name), "no such limit", "one of " + ", ".join(LIMIT_NAMES))
        if name not in _ONLY_FOR.get(behaviour, LIMIT_NAMES):
            raise fail(("on_exceed", name), f"`{behaviour}` has no meaning for this limit")
    return config


_LEAST: dict[tuple[str, str], float] = {
    ("preprocess", "workers"): 1,
    ("batch", "max_num_seqs"): 1,
    ("prefill", "slice_ms"): 0,
    ("prefill", "large_factor"): 1,
    ("decode", "step_ms"): 0.01,  # a step of no time would never end
    ("kv", "tokens"): 16,
    ("kv", "block_tokens"): 1,
}
