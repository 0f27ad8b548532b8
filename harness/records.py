"""Every row that is written to disk or wire while a run goes on, its codec and its format version.

Units are in the names: `_ms` milliseconds, `_ns` nanoseconds, `_bytes` bytes, ratios 0-1. `wall_ns` is the
wall clock of the host, `mono_ns` and `start_ns` its monotonic clock. None means "not known", never 0.

Format history
- 1: first version of requests.jsonl, client.jsonl, gpu.jsonl, engine.jsonl and run.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar

import msgspec

FORMAT_VERSION = 1
BEFORE_LOAD = -1  # the phase of the request that is sent before the load begins

Outcome = Literal[
    "ok",
    "http_error",
    "rejected",
    "connect_error",
    "reset",
    "truncated",
    "in_band_error",
    "malformed",
    "timeout_connect",
    "timeout_ttft",
    "timeout_idle",
    "timeout_total",
    "empty",
    "cancelled",
]

TokenSource = Literal["usage", "server", "chunks"]
StageSource = Literal["timings", "server_timing", "stage_log"]
STAGES: tuple[str, ...] = ("pre", "queue", "prefill", "decode")

ProblemCode = Literal[
    "workers_lost",
    "records_lost",
    "hold_too_short",
    "load_not_applied",
    "client_limited",
    "client_lag_unknown",
    "mix_changed",
    "cache_hits",
    "not_stationary",
    "failures",
    "gpu_missing",
    "gpu_gap",
    "engine_missing",
    "engine_stale",
    "clock_jump",
    "clock_bound",
    "identity_unknown",
    "stopped_early",
    "tokens_estimated",
    "preallocated_memory",
]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that weakens or voids a figure, in words a reviewer can act on."""

    code: ProblemCode
    text: str
    step: str | None = None  # a phase's label; None: the whole run


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request, one line of requests.jsonl."""

    v: int = FORMAT_VERSION
    run: str
    worker: str  # Locust's client id
    user: int  # 0.. per worker, a new number after a respawn
    seq: int  # 0.. per worker without gaps, failures included; (run, worker, seq) is the key
    phase: int  # index of the phase at start; BEFORE_LOAD: of none, so no step counts it
    label: str
    users: int | None = None  # users running as reported at start
    rate: float | None = None  # offered requests/s of the phase; None in a closed loop
    kind: str
    payload: str
    in_img: int = 0
    img_wh: list[tuple[int, int]] = []
    img_bytes: int = 0
    body_bytes: int
    in_tokens: int | None = None
    out_tokens: int | None = None
    token_source: TokenSource | None = None
    chunks: int = 0  # deltas that carry text
    wall_ns: int  # at start
    due_ns: int | None = None  # worker's monotonic clock; None in a closed loop
    start_ns: int  # worker's monotonic clock, just before the first byte is sent
    connect_ms: float | None = None  # handshakes of a new connection, before start; None on a kept one
    sent_ms: float | None = None  # since start, as all below
    headers_ms: float | None = None
    ttft_ms: float | None = None
    last_token_ms: float | None = None
    total_ms: float
    queued_ms: float | None = None  # start - due
    itl_p50_ms: float | None = None
    itl_p95_ms: float | None = None
    itl_max_ms: float | None = None
    client_lag_ms: float | None = None  # wait of arrived bytes here, at first text or end; None: unknown
    pre_ms: float | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    stage_source: StageSource | None = None
    status: int | None = None
    outcome: Outcome
    error: str | None = None
    finish_reason: str | None = None
    reused: bool | None = None  # sent on a kept connection
    first: bool = False  # first request of its user in the run
    retry_after_s: float | None = None
    backoff_ms: float = 0.0  # wait of the user after this failure
    req_id: str  # sent as x-request-id


class ClientSample(msgspec.Struct, frozen=True, kw_only=True):
    """One second of one load-generating process, one line of client.jsonl."""

    v: int = FORMAT_VERSION
    worker: str
    wall_ns: int
    mono_ns: int
    phase: int
    users: int
    in_flight: int
    lag_p50_ms: float | None = None  # event-loop lag within this second
    lag_p99_ms: float | None = None
    lag_max_ms: float | None = None
    cpu: float | None = None  # 0-1 of one core
    runqueue_ms: float | None = None  # wait for a core within this second
    throttled_ms: float | None = None  # cgroup quota
    steal: float | None = None  # 0-1 of the host's time
    rss_bytes: int | None = None


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU at one moment, one line of gpu.jsonl."""

    v: int = FORMAT_VERSION
    seq: int  # of the sidecar, without gaps
    host: str
    gpu: str | None  # UUID; None where identity is unknown
    index: int | None = None
    name: str | None = None
    mono_ns: int  # before the calls
    mono_end_ns: int  # after them
    wall_ns: int
    util: float | None = None  # 0-1
    mem_used_bytes: int | None = None
    mem_reserved_bytes: int | None = None
    mem_total_bytes: int | None = None
    mem_api: str | None = None  # v1 | v2 | dcgm | nvidia-smi | sim
    power_w: float | None = None
    energy_j: float | None = None
    sm_mhz: float | None = None
    temp_c: float | None = None
    throttle: list[str] | None = None
    source: str
    missing: dict[str, str] = {}  # field -> reason


class EngineSample(msgspec.Struct, frozen=True, kw_only=True):
    """One scrape of the engine's metrics, one line of engine.jsonl; counters are as scraped."""

    v: int = FORMAT_VERSION
    wall_ns: int
    mono_ns: int
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # 0-1
    preemptions_total: float | None = None
    prefix_hit_tokens_total: float | None = None
    prefix_query_tokens_total: float | None = None
    queue_s_sum: float | None = None
    queue_count: float | None = None
    prefill_s_sum: float | None = None
    decode_s_sum: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    mm_hits_total: float | None = None
    mm_queries_total: float | None = None
    source: str | None = None  # vllm | sglang | tgi | trtllm | triton | lmdeploy | llamacpp | sim
    error: str | None = None


class ClockExchange(msgspec.Struct, frozen=True, kw_only=True):
    """Four wall-clock stamps of a question and its answer; offset = ((t1-t0) + (t2-t3)) / 2 (NTP).

    `t0_ns` question leaves us, `t1_ns` reaches the peer, `t2_ns` answer leaves it, `t3_ns` reaches us.
    The offset is peer minus us; its error is at most half the round trip.
    """

    t0_ns: int
    t1_ns: int
    t2_ns: int
    t3_ns: int


class ClockRow(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange with a sidecar on another host, one line of clock.jsonl; stamps as in ClockExchange.

    The monotonic clocks of both sides at their first stamp tell a clock that was set from one that drifts.
    """

    v: int = FORMAT_VERSION
    peer: str  # the sidecar's host name, as in gpu.jsonl
    burst: int  # exchanges of one burst share a number
    t0_ns: int
    t1_ns: int
    t2_ns: int
    t3_ns: int
    mono_ns: int  # ours at t0
    peer_mono_ns: int  # the peer's at t1


class PhaseFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a phase showed while the run was on; a report's figures come from the records instead."""

    n: int  # good requests started in its window
    failures: int
    rps: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    ttft_p95_ms: float | None = None

    def __str__(self) -> str:
        figures = (("{:.3g} requests/s", self.rps), ("p95 {:.0f} ms", self.p95_ms))
        known = [text.format(figure) for text, figure in figures if figure is not None]
        return ", ".join([f"{self.n} good requests", f"{self.failures} failed", *known])


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """When a phase happened, by the master's wall clock; None: the run ended before it."""

    index: int
    label: str
    users: int | None = None
    rate: float | None = None
    experiment: str = "steps"
    ready_ns: int | None = None
    t0_ns: int | None = None
    t1_ns: int | None = None
    end_ns: int | None = None
    figures: PhaseFigures | None = None  # once it has ended

    @property
    def load(self) -> float | None:
        """Users, or offered requests/s."""
        return float(self.users) if self.users is not None else self.rate


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One load-generating process: what it sent, what arrived, its clock."""

    id: str
    host: str
    pid: int | None = None
    records_made: int | None = None  # as the worker reported at the drain
    records_received: int = 0
    gaps: list[tuple[int, int]] = []  # half-open ranges of seq that never arrived
    file: str | None = None  # the worker's own file, where the master's copy has gaps
    lost: bool = False
    clock: list[ClockExchange] = []


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """run.json: what a run was and when; rewritten atomically at each change of phase."""

    v: int = FORMAT_VERSION
    run: str
    profile: str  # its name
    experiment: str
    command: list[str] = []
    started_ns: int
    ended_ns: int | None = None  # None: cut off
    host: str = ""
    versions: dict[str, str] = {}
    phases: list[PhaseTimes] = []
    workers: list[WorkerInfo] = []
    sampler_clock: list[ClockExchange] = []  # to the GPU sidecar; empty: same host
    stopped_early: str | None = None  # the reason, in words
    problems: list[Problem] = []  # seen while it ran


Row = TypeVar("Row", bound=msgspec.Struct)
_encoder = msgspec.json.Encoder()


def encode_line(row: msgspec.Struct) -> bytes:
    """Return the row as one JSON line, newline included."""
    return _encoder.encode(row) + b"\n"


def decode_lines(lines: Iterable[bytes], row_type: type[Row]) -> Iterator[Row | None]:
    """Yield one row per non-blank line, or None for a line that is cut, broken or of a newer format."""
    decoder = msgspec.json.Decoder(row_type)
    for line in lines:
        if not line.strip():
            continue
        try:
            row: Any = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            yield None
            continue
        yield row if row.v <= FORMAT_VERSION else None
