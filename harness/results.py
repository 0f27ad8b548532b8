"""The types of report.json: what the analysis concludes, and all that a report may print.

The report prints these and computes nothing. A missing figure is None, never 0.

Format history
- 1: first version.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from harness.records import Problem

REPORT_VERSION = 1

Status = Literal[
    "knee",
    "none_in_range",
    "below_first",
    "inconclusive",
    "insufficient",
    "client_limited",
    "load_not_applied",
]
Load = float  # users (closed loop, whole numbers) or requests/s (open loop)


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Exact percentiles of a sample in milliseconds (linear interpolation)."""

    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    mean_ms: float | None = None
    max_ms: float | None = None


class StageShare(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of the service in a step; share is of the mean total latency (0-1)."""

    p50_ms: float | None = None
    p95_ms: float | None = None
    share: float | None = None


class KindStats(msgspec.Struct, frozen=True, kw_only=True):
    """One payload kind in a step."""

    n: int
    latency: Quantiles = Quantiles()
    ttft: Quantiles = Quantiles()


class GpuStats(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU in a step; None below 5 samples or under 80 % coverage."""

    name: str | None = None
    simulated: bool = False
    util_mean: float | None = None
    util_p95: float | None = None
    mem_used_peak_bytes: int | None = None
    mem_total_bytes: int | None = None
    mem_used_ratio_p95: float | None = None
    power_mean_w: float | None = None
    n: int = 0
    coverage: float = 0.0
    largest_gap_s: float | None = None
    missing: dict[str, str] = {}


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's own figures in a step."""

    n: int = 0
    running_mean: float | None = None
    waiting_mean: float | None = None
    waiting_max: float | None = None
    kv_p95: float | None = None
    preemptions: float | None = None
    queue_mean_ms: float | None = None  # from histograms, by difference
    prefill_mean_ms: float | None = None
    decode_mean_ms: float | None = None
    prefix_hit_ratio: float | None = None
    mm_hit_ratio: float | None = None


class ClientStats(msgspec.Struct, frozen=True, kw_only=True):
    """The load generator itself in a step."""

    lag_p99_ms: float | None = None
    cpu: float | None = None  # of one core, the busiest process
    limited: bool = False
    processes_needed: int | None = None  # that would have carried the step


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of the load, as measured in its window."""

    label: str
    phase: int
    users: int | None = None
    offered_rps: float | None = None
    seconds: float | None = None
    n: int = 0  # ok requests started in the window
    failures: int = 0
    outcomes: dict[str, int] = {}
    rps: float | None = None
    out_tok_s: float | None = None
    in_tok_s: float | None = None
    rpm: float | None = None
    tpm: float | None = None
    latency: Quantiles = Quantiles()
    ttft: Quantiles = Quantiles()
    itl: Quantiles = Quantiles()
    p95_ci_ms: tuple[float, float] | None = None
    stages: dict[str, StageShare] = {}
    by_kind: dict[str, KindStats] = {}
    gpu: dict[str, GpuStats] = {}
    engine: EngineStats | None = None
    client: ClientStats = ClientStats()
    little: float | None = None
    sent_due: float | None = None  # open loop: sent / due
    goodput: float | None = None
    meets_slo: bool | None = None
    used: bool = True  # taken into the verdict
    why_not: str | None = None

    @property
    def load(self) -> Load | None:
        """Users, or offered requests/s."""
        return float(self.users) if self.users is not None else self.offered_rps


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """The three votes at one step against the step before; None where there was no data."""

    users: Load
    A: bool | None = None
    B: bool | None = None
    C: bool | None = None
    p_a: float | None = None  # share of replicates in which the vote is true
    p_c: float | None = None
    e_x: float | None = None
    e_p95: float | None = None
    why: str = ""


class CrossCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Another knee finder beside ours; never the verdict."""

    cap: Load | None = None
    detail: str = ""
    agrees: bool | None = None


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a ladder."""

    status: Status
    knee_step: Load | None = None
    cap: Load | None = None
    steady: Load | None = None
    safe_cap: Load | None = None
    slo_cap: Load | None = None
    most_likely: Load | None = None  # the most likely cap
    confidence: float | None = None  # 0-1
    range: tuple[Load, Load] | None = None  # 5-95 % of the cap
    votes: list[Vote] = []
    cross_checks: dict[str, CrossCheck] = {}  # usl, kneedle, power
    notes: list[str] = []
    undecided: tuple[Load, Load] | None = None  # the steps between which the data cannot decide
    more_requests: int | None = None  # that would decide it


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """Which stage and which resource limit, with the evidence in plain words."""

    stage: str  # client | network | preprocess | queue | prefill | decode | unknown
    resource: str  # kv_memory | gpu_busy | gpu_starved | cpu_preprocessing | long_requests | slots | unknown
    evidence: list[str] = []


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One of the other measurements: its table and its verdict."""

    verdict: str  # a code, stable for machines
    text: str  # the same in one sentence
    columns: list[str] = []
    rows: list[list[Any]] = []
    figures: dict[str, Any] = {}
    problems: list[str] = []


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One number of limits.yaml with its derivation; value None: not supported by the run."""

    section: str
    key: str
    value: int | float | str | None
    why: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """report.json."""

    v: int = REPORT_VERSION
    run: str
    profile: str
    experiment: str
    valid: bool
    problems: list[Problem] = []
    steps: list[Step] = []
    knee: Knee | None = None
    bottleneck: Bottleneck | None = None
    experiments: dict[str, Experiment] = {}
    limits: list[Limit] = []
    versions: dict[str, str] = {}
    target: dict[str, Any] = {}  # base_url, model, endpoint, stream
    started_ns: int | None = None
    seconds: float | None = None
    simulated: bool = False  # GPU or engine figures come from the simulated engine
    clock_bound_ms: float | None = None
