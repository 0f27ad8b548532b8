"""How many tokens of context the GPU's KV cache holds, against what the traffic keeps in flight.

Each token keeps a key and a value per layer and per KV head: 2 x layers x KV heads x head size x bytes
(grouped-query attention shares a KV head among several query heads). Latent attention (DeepSeek's MLA) keeps
one compressed vector and one rotary key per layer instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.analysis.groups import Rows, steps_of
from harness.errors import UserError
from harness.results import Report
from harness.rundir import RunData

PRECISION_BYTES: dict[str, float] = {
    "float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "fp16": 2, "bf16": 2, "float8": 1, "fp8": 1,
    "fp8_e4m3": 1, "fp8_e5m2": 1, "float8_e4m3fn": 1, "int8": 1, "int4": 0.5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token keeps in the KV cache."""

    layers: int
    heads: int  # KV heads; 1 with latent attention
    head_size: int
    precision: str
    per_head: int = 2  # a key and a value; 1 with latent attention

    @property
    def bytes_per_token(self) -> float:
        """Bytes of KV cache per token, over all layers and GPUs."""
        return self.per_head * self.layers * self.heads * self.head_size * PRECISION_BYTES[self.precision]


@dataclass(frozen=True, slots=True)
class KvPlan:
    """The peak of tokens in flight against the cache."""

    shape: KvShape
    peak_tokens: int
    peak_bytes: float
    cache_bytes: float | None
    cache_tokens: int | None
    requests: int | None  # of the mean length that fit at once


def shape_from_config(config: Mapping[str, Any], *, precision: str | None = None) -> KvShape:
    """Return the shape of a model's config.json; `precision` is the cache's own where it differs.

    Raises UserError naming the key that is missing.
    """
    text = next((config[k] for k in ("text_config", "llm_config", "language_config") if k in config), config)

    def number(*names: str) -> int:
        value = next((text[name] for name in names if isinstance(text.get(name), int)), 0)
        if value < 1:
            raise UserError(
                "not in the model's configuration", key=names[0], remedy="give a model's config.json"
            )
        return int(value)

    stored = (
        precision or text.get("torch_dtype") or text.get("dtype") or config.get("torch_dtype") or "bfloat16"
    )
    stored = str(stored).removeprefix("torch.")
    if stored not in PRECISION_BYTES:
        raise UserError(f"unknown precision `{stored}`", remedy="one of " + ", ".join(PRECISION_BYTES))
    layers = number("num_hidden_layers", "n_layer")
    kinds = text.get("layer_types")
    if isinstance(kinds, list) and kinds:
        layers = sum(kind != "linear_attention" for kind in kinds)
    if isinstance(text.get("kv_lora_rank"), int):
        size = number("kv_lora_rank") + number("qk_rope_head_dim")
        return KvShape(layers=layers, heads=1, head_size=size, precision=stored, per_head=1)
    queries = number("num_attention_heads", "n_head")
    heads = number("num_key_value_heads") if text.get("num_key_value_heads") else queries
    size = number("head_dim") if text.get("head_dim") else number("hidden_size", "n_embd") // queries
    return KvShape(layers=layers, heads=heads, head_size=size, precision=stored)


def peak_tokens(rows: Rows) -> int | None:
    """Return the most tokens in flight at once, each request holding its prompt and whole answer while it
    lasts.

    None where the service does not report tokens.
    """
    tokens = rows.figures["in_tokens"] + rows.figures["out_tokens"]
    known = ~np.isnan(tokens) & rows.ok
    if not known.any():
        return None
    times = np.concatenate([rows.start_ns[known], rows.end_ns[known]])
    change = np.concatenate([tokens[known], -tokens[known]])
    order = np.lexsort((change, times))  # at one moment, those that end go first
    return int(np.cumsum(change[order]).max())


def plan_kv(shape: KvShape, rows: Rows, *, cache_bytes: float | None = None) -> KvPlan | None:
    """Return the plan for a step's requests; None where tokens are not known."""
    peak = peak_tokens(rows)
    if peak is None:
        return None
    tokens = rows.figures["in_tokens"] + rows.figures["out_tokens"]
    fits = int(cache_bytes // shape.bytes_per_token) if cache_bytes is not None else None
    return KvPlan(
        shape=shape,
        peak_tokens=peak,
        peak_bytes=peak * shape.bytes_per_token,
        cache_bytes=cache_bytes,
        cache_tokens=fits,
        requests=int(fits // float(np.nanmean(tokens[rows.ok]))) if fits is not None else None,
    )


def kv_notes(
    run: RunData,
    report: Report,
    config: Mapping[str, Any],
    *,
    precision: str | None = None,
    cache_bytes: float | None = None,
) -> list[str]:
    """Return the KV-cache plan in words: bytes per token, peak of tokens at the cap, what the cache holds."""
    shape = shape_from_config(config, precision=precision)
    halves = "a key and a value" if shape.per_head == 2 else "one latent vector"
    lines = [
        f"KV cache: {shape.bytes_per_token:,.0f} bytes per token ({shape.layers} layers x {shape.heads} KV "
        f"heads x {shape.head_size} x {halves} in {shape.precision})."
    ]
    cap = report.knee.cap if report.knee else None
    windows = [w for w in steps_of(run) if w.phase.experiment == "steps"]
    windows = [w for w in windows if w.load == cap] or windows
    plan = plan_kv(shape, windows[-1].started, cache_bytes=cache_bytes) if windows else None
    if plan is None:
        return [*lines, "Peak of tokens in flight: not known, the run has no step with token counts."]
    lines.append(
        f"Peak at {windows[-1].phase.label}: {plan.peak_tokens:,} tokens in flight, "
        f"{plan.peak_bytes / 2**30:.2f} GiB."
    )
    if plan.cache_tokens is not None and plan.cache_bytes is not None:
        share = plan.peak_tokens / plan.cache_tokens if plan.cache_tokens else math.inf
        lines.append(
            f"The cache of {plan.cache_bytes / 2**30:.1f} GiB holds {plan.cache_tokens:,} tokens, "
            f"{plan.requests:,} requests of this traffic: the peak takes {100 * share:.0f} %."
        )
    return lines
