"""The three votes at each step against the step before, on the ladder as measured and on each replicate.

Growth is relative to the growth of the load, on the log scale, since steps are unequal (1, 2, 4, 6, 8, 12):
e = ln(value_k / value_k-1) / ln(load_k / load_k-1). In a closed loop N = X R (Little), so throughput and
mean latency share the growth of the load out among them: e_x + e_mean = 1.

A  p95 grows faster than the requests served: e_p95 > e_x. Where the error of that difference is above
   `TAIL_ERROR`, the mean stands in for p95; in a closed loop that follows from C.
B  memory or refusals: KV cache (else GPU memory) full and risen, preemptions, or failures beyond chance.
C  throughput no longer follows: e_x < `FLAT`; in an open loop also where the service
   falls behind the arrivals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.replicates import Measured
from harness.analysis.samples import Group
from harness.analysis.stats import Floats, Ints, Mask, wilson
from harness.results import Vote

FLAT = 0.35
UNDONE = 0.5  # growth from the step before a knee to a later step that takes the knee back
TAIL_ERROR = 0.20
BEHIND = 0.95  # open loop: share of the arrivals served
KV_FULL, NVML_FULL, RISEN = 0.90, 0.95, 0.05
FLAT_MEMORY = 0.01
PREEMPTIONS, PREEMPTED_SHARE, FAILED_SHARE = 3, 0.01, 0.01


@dataclass(frozen=True, slots=True)
class Memory:
    """Vote B of one step: given, not given, or None where nothing is known; and why."""

    vote: bool | None
    why: str


@dataclass(frozen=True, slots=True)
class Ballots:
    """Votes and growth of each pair of neighbouring steps; arrays are (1 + replicates, pairs)."""

    loads: Floats  # one more than pairs
    e_x: Floats
    e_mean: Floats
    e_p95: Floats
    a: Mask
    c: Mask
    memory: tuple[Memory, ...]
    by_mean: Mask  # pairs in which the mean stands in for p95
    knee: Ints  # per row: the first pair with two lasting votes, else the number of pairs


def memory_votes(groups: Sequence[Group]) -> list[Memory]:
    """Return vote B of each step; a rise counts from the first step."""
    return [_memory_vote(group, groups[0]) for group in groups]


def _memory_vote(group: Group, first: Group) -> Memory:
    asked, failed = sum(s.asked for s in group), sum(s.failed for s in group)
    found = []
    if wilson(failed, asked)[0] > FAILED_SHARE and failed:
        refused = sum(s.refused for s in group)
        kind = "refused" if 2 * refused > failed else "failed"
        found.append(f"{failed} of {asked} requests {kind}")
    counts = [s.preemptions for s in group if s.preemptions is not None]
    if counts and sum(counts) >= max(PREEMPTIONS * len(counts), PREEMPTED_SHARE * asked):
        found.append(f"{sum(counts):.0f} preemptions")
    kv, kv_first = (_median([s.kv_p95 for s in g]) for g in (group, first))
    gpu, gpu_first = (_median([s.nvml_p95 for s in g]) for g in (group, first))
    known = kv is not None or bool(counts)
    if kv is not None:
        if kv >= KV_FULL and kv_first is not None and kv - kv_first >= RISEN:
            found.append(f"KV cache {100 * kv:.0f} % full, {100 * kv_first:.0f} % at the first step")
    elif gpu is not None and gpu_first is not None:
        preallocated = gpu >= NVML_FULL - RISEN and abs(gpu - gpu_first) < FLAT_MEMORY
        known = known or not preallocated
        if gpu >= NVML_FULL and gpu - gpu_first >= RISEN:
            found.append(f"GPU memory {100 * gpu:.0f} % full, {100 * gpu_first:.0f} % at the first step")
    if found:
        return Memory(True, ", ".join(found))
    return Memory(False, "") if known else Memory(None, "no memory figures")


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.median(known)) if known else None


def cast(measured: Measured, memory: Sequence[Memory], over: Sequence[bool]) -> Ballots:
    """Return the votes.

    `over` marks steps of which most requests failed: knees, whatever else they show.
    """
    log_load = np.log(measured.loads)
    span = np.diff(log_load)
    e_x, e_mean, e_p95 = (
        np.diff(values, axis=1) / span for values in (measured.log_x, measured.log_mean, measured.log_p95)
    )
    outrun = e_p95 - e_x
    by_mean = np.zeros(len(span), dtype=bool)
    if len(outrun) > 1:
        by_mean = np.isnan(outrun[0]) | (np.std(outrun[1:], axis=0) > TAIL_ERROR)
    a = np.where(by_mean, e_mean - e_x, outrun) > 0
    served = measured.log_x - log_load
    behind = served < math.log(BEHIND) if measured.open_loop else np.zeros(served.shape, dtype=bool)
    broken = np.array(over, dtype=bool)
    c = (e_x < FLAT) | behind[:, 1:] | broken[1:]
    b = np.array([m.vote is True for m in memory[1:]], dtype=bool) | broken[1:]
    two = a.astype(int) + b.astype(int) + c.astype(int) >= 2
    knee = _first_lasting(two, measured.log_x, log_load, behind | broken)
    return Ballots(measured.loads, e_x, e_mean, e_p95, a, c, tuple(memory[1:]), by_mean, knee)


def _first_lasting(two: Mask, log_x: Floats, log_load: Floats, behind: Mask) -> Ints:
    rows, pairs = two.shape
    knee = np.full(rows, pairs)
    for k in reversed(range(pairs)):
        lasting = two[:, k].copy()
        for later in range(k + 2, pairs + 1):
            growth = (log_x[:, later] - log_x[:, k]) / (log_load[later] - log_load[k])
            lasting &= (growth < UNDONE) | behind[:, later]
        knee[lasting] = k
    return knee


def as_votes(ballots: Ballots, unit: str, latency: str | None = None) -> list[Vote]:
    """Return the votes of the ladder as measured, each with its share of the replicates and its reason.

    `unit` is what throughput counts; `latency` names a latency that is neither mean nor p95.
    """
    return [_vote(ballots, pair, unit, latency) for pair in range(len(ballots.memory))]


def _vote(ballots: Ballots, pair: int, unit: str, latency: str | None) -> Vote:
    e_x, e_p95, e_mean = (float(e[0, pair]) for e in (ballots.e_x, ballots.e_p95, ballots.e_mean))
    has_tail = not math.isnan(e_p95)
    sampled = len(ballots.a) > 1
    memory = ballots.memory[pair]
    return Vote(
        users=float(ballots.loads[pair + 1]),
        A=bool(ballots.a[0, pair]) if has_tail else None,
        B=memory.vote,
        C=bool(ballots.c[0, pair]),
        p_a=float(ballots.a[1:, pair].mean()) if has_tail and sampled else None,
        p_c=float(ballots.c[1:, pair].mean()) if sampled else None,
        e_x=e_x,
        e_p95=e_p95 if has_tail else None,
        why=_reason(ballots, pair, unit, latency, e_x, e_mean if ballots.by_mean[pair] else e_p95),
    )


def _reason(ballots: Ballots, pair: int, unit: str, latency: str | None, e_x: float, e_latency: float) -> str:
    span = math.log(ballots.loads[pair + 1] / ballots.loads[pair])
    by_mean = bool(ballots.by_mean[pair]) and latency is None
    served = f"{unit} served {_change(e_x * span)}"
    if math.isnan(e_latency):
        parts = [served]
    else:
        what = latency or ("mean latency" if by_mean else "p95")
        parts = [f"{what} {_change(e_latency * span)} while {served}"]
        if by_mean:
            parts.append("p95 is too uncertain for a vote of its own")
    if ballots.memory[pair].vote:
        parts.append(ballots.memory[pair].why)
    return "; ".join(parts)


def _change(log_ratio: float) -> str:
    percent = 100 * math.expm1(log_ratio)
    if abs(percent) < 0.5:
        return "stayed level"
    return f"{'rose' if percent > 0 else 'fell'} {abs(percent):.0f} %"
