"""What a reader of the verdict should know beside it, each in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.analysis.replicates import Measured
from harness.analysis.samples import Fault, Group, StepSample, plain
from harness.analysis.stats import RESAMPLED, Floats
from harness.analysis.votes import Ballots
from harness.results import Knee, Load

FAULTS: dict[Fault, str] = {
    "client_limited": "left out: the load generator was the limit there",
    "load_not_applied": "left out: the load asked for was not applied there",
    "too_few": "left out: fewer than 20 good requests, or fewer than 4 rounds per user",
}
RETROGRADE = 0.97  # of the highest throughput
BIMODAL = 0.62  # Sarle's coefficient; a uniform distribution has 0.56
LEAST_FOR_SHAPE = 50


def sample_notes(steps: Sequence[StepSample]) -> list[str]:
    """Return which measures the verdict does without, and which failed by half."""
    notes = []
    for fault, words in FAULTS.items():
        loads = sorted({s.load for s in steps if s.fault == fault})
        if loads:
            notes.append(f"{_steps(loads)} {words}.")
    over = sorted({s.load for s in steps if s.fault is None and s.over_the_limit})
    if over:
        notes.append(f"{_steps(over)} over the limit: more than half of the requests failed.")
    return notes


def measured_notes(
    measured: Measured, ballots: Ballots, knee: Knee, compared: Sequence[Load], groups: Sequence[Group]
) -> list[str]:
    """Return what marks the ladder's shape and the reach of the verdict."""
    notes = []
    last = compared[-1]
    if knee.status == "knee" and knee.knee_step == last:
        notes.append(f"The knee is at the last step, {last:g}: nothing beyond can contradict it.")
    more = [float(load) for load in measured.loads if load not in compared]
    if more:
        notes.append(f"{_steps(more)} compared only where they lie between cap and knee.")
    by_mean = [float(load) for load, yes in zip(ballots.loads[1:], ballots.by_mean, strict=True) if yes]
    if by_mean and groups:
        notes.append(f"At {plain(by_mean)} p95 is too uncertain for a vote; the mean stands in.")
    peak = int(np.argmax(measured.log_x[0]))
    fallen = measured.log_x[1:, -1] - measured.log_x[1:, peak] < math.log(RETROGRADE)
    if len(fallen) and fallen.mean() > 0.9:
        loss = -math.expm1(measured.log_x[0, -1] - measured.log_x[0, peak])
        notes.append(
            f"Throughput falls beyond {measured.loads[peak]:g}: "
            f"{100 * loss:.0f} % less at {measured.loads[-1]:g}."
        )
    cut = [float(load) for load, n in zip(measured.loads, measured.warm_up, strict=True) if n]
    if cut:
        notes.append(
            f"Warm-up cut at {plain(cut)}: {sum(measured.warm_up)} requests do not count for the votes."
        )
    two = [g[0].load for g in groups if any(_bimodal(s.latency_ms) for s in g)]
    if two:
        notes.append(f"Latency has two peaks at {plain(two)}: read its percentiles by payload kind.")
    if any(s.good > RESAMPLED for g in groups for s in g):
        notes.append(f"Resampled {RESAMPLED:,} requests per step, their spread scaled to all.")
    return notes


def _steps(loads: Sequence[Load]) -> str:
    return f"Step{'s' if len(loads) > 1 else ''} {plain(loads)}:"


def _bimodal(latency_ms: Floats) -> bool:
    """Sarle's coefficient (skewness^2 + 1) / kurtosis of the log latency."""
    if len(latency_ms) < LEAST_FOR_SHAPE:
        return False
    z = np.log(np.maximum(latency_ms, 1e-6))
    z = z - z.mean()
    variance = float((z**2).mean())
    if variance <= 1e-12:
        return False
    skewness, kurtosis = float((z**3).mean()) / variance**1.5, float((z**4).mean()) / variance**2
    return bool((skewness**2 + 1) / kurtosis > BIMODAL)
