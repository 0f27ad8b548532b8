"""What the client knows of one request once it has ended, under the names of `records.Request`."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.load.sse import Reader
from harness.records import Outcome, StageSource, TokenSource

REJECTED_CODES = (413, 429, 503)
MAX_ERROR_CHARS = 300


@dataclass(slots=True)
class Answer:
    """One request as the client saw it; None where a thing is not known or did not happen.

    `killed` is what was raised into the waiting greenlet (outcome `cancelled`): record the answer, then
    raise it again.
    """

    wall_ns: int
    start_ns: int
    total_ms: float
    outcome: Outcome
    connect_ms: float | None = None
    sent_ms: float | None = None
    headers_ms: float | None = None
    ttft_ms: float | None = None
    last_token_ms: float | None = None
    itl_p50_ms: float | None = None
    itl_p95_ms: float | None = None
    itl_max_ms: float | None = None
    client_lag_ms: float | None = None
    pre_ms: float | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    stage_source: StageSource | None = None
    status: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    reused: bool | None = None
    retry_after_s: float | None = None
    chunks: int = 0
    in_tokens: int | None = None
    out_tokens: int | None = None
    token_source: TokenSource | None = None
    killed: BaseException | None = None


def add_reading(answer: Answer, reader: Reader, *, streamed: bool, server_timing: str | None) -> None:
    """Fill in what the body told: times of text, tokens, stages, finish reason.

    An answer that is not streamed has its text when it has ended: `ttft_ms` is then its whole time, decoding
    included, and there is no ITL and no count of its own.
    """
    stamps = reader.stamps
    answer.finish_reason = reader.finish_reason
    if stamps:
        answer.ttft_ms = (stamps[0] - answer.start_ns) / 1e6
        answer.last_token_ms = (stamps[-1] - answer.start_ns) / 1e6
    if streamed:
        answer.chunks = len(stamps)
        gaps = sorted(after - before for before, after in itertools.pairwise(stamps))
        if gaps:
            answer.itl_p50_ms = quantile(gaps, 0.5) / 1e6
            answer.itl_p95_ms = quantile(gaps, 0.95) / 1e6
            answer.itl_max_ms = gaps[-1] / 1e6
    _add_tokens(answer, reader)
    _add_stages(answer, reader.timings, server_timing)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values by linear interpolation (numpy's default, without numpy's 40 us)."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _add_tokens(answer: Answer, reader: Reader) -> None:
    """Usage first, then llama.cpp's own count, then the events that carried text."""
    usage, timings = reader.usage or {}, reader.timings or {}
    answer.in_tokens = _count(usage.get("prompt_tokens"))
    for source, value in (("usage", usage.get("completion_tokens")), ("server", timings.get("predicted_n"))):
        if (count := _count(value)) is not None:
            answer.out_tokens, answer.token_source = count, source  # type: ignore[assignment]
            return
    if answer.chunks:
        answer.out_tokens, answer.token_source = answer.chunks, "chunks"


# Our own engine's names, then llama.cpp's (prompt processing is prefill, prediction is decoding).
_TIMINGS = {
    "pre_ms": ("pre_ms",),
    "queue_ms": ("queue_ms",),
    "prefill_ms": ("prefill_ms", "prompt_ms"),
    "decode_ms": ("decode_ms", "predicted_ms"),
}
_SERVER_TIMING = re.compile(
    r'(?<![\w-])(pre|queue|prefill|decode)(?:_ms)?\s*;(?:(?:[^,"]|"[^"]*")*;)?\s*dur="?(\d+(?:\.\d+)?)', re.I
)


def _add_stages(answer: Answer, timings: dict[str, Any] | None, server_timing: str | None) -> None:
    found: dict[str, float] = {}
    source: StageSource = "timings"
    for field, keys in _TIMINGS.items():
        for key in keys:
            value = (timings or {}).get(key)
            if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
                found[field] = float(value)
                break
    if not found and server_timing:
        source = "server_timing"
        found = {f"{name.lower()}_ms": float(ms) for name, ms in _SERVER_TIMING.findall(server_timing)}
    for field, ms in found.items():
        setattr(answer, field, ms)
    if found:
        answer.stage_source = source


def error_text(value: Any) -> str:
    """Return one short line that says what an error object, a body or an exception means.

    It ends up on terminals: characters that steer one are replaced.
    """
    while isinstance(value, dict):
        value = next(
            (value[key] for key in ("error", "message", "detail", "type") if value.get(key)), str(value)
        )
    text = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(str(value).split()))
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 1] + "…"


def is_rejection(error: Any) -> bool:
    """Return whether an error event carries one of the codes by which a service turns work away."""
    code = error.get("code") if isinstance(error, dict) else None
    return str(code) in {str(known) for known in REJECTED_CODES}
