"""A ladder measured over and over: what its steps might as well have read.

Row 0 is the ladder as measured; each further row is one replicate. A replicate draws blocks of requests,
and moves each measure by the noise between two measures of the same step (`STEP_NOISE`), which no
resampling inside a step can see: another tenant, a clock that throttles. In a closed loop throughput is
users over mean latency (Little), so both move together; in an open loop throughput is the share of the
arrivals that was served, and only the requests that cross the window's edges blur it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.samples import Group, StepSample
from harness.analysis.stats import (
    Floats,
    block_indices,
    block_length,
    harrell_davis,
    scale_deviation,
    warm_up,
)

REPLICATES = 400
STEP_NOISE = 0.015
LEAST_FOR_TAIL = 5  # good requests below which a step has no p95


@dataclass(frozen=True, slots=True)
class Measured:
    """Natural logarithms of throughput, mean and p95 latency, each of shape (1 + replicates, steps)."""

    loads: Floats
    log_x: Floats
    log_mean: Floats
    log_p95: Floats
    open_loop: bool
    warm_up: tuple[int, ...]  # requests cut at the start of each step

    def columns(self, chosen: Sequence[int]) -> Measured:
        """Return the ladder of some of its steps."""
        keep = list(chosen)
        return Measured(
            self.loads[keep],
            self.log_x[:, keep],
            self.log_mean[:, keep],
            self.log_p95[:, keep],
            self.open_loop,
            tuple(self.warm_up[i] for i in keep),
        )


def measure(groups: Sequence[Group], rng: np.random.Generator, *, replicates: int = REPLICATES) -> Measured:
    """Return the ladder as measured and its replicates; of a step measured several times, the medians."""
    steps = [[_rows(sample, rng, replicates) for sample in group] for group in groups]
    log_x, log_mean, log_p95 = (
        np.stack([np.median([rows[i] for rows, _ in step], axis=0) for step in steps], axis=1)
        for i in range(3)
    )
    return Measured(
        np.array([group[0].load for group in groups]),
        log_x,
        log_mean,
        log_p95,
        groups[0][0].open_loop,
        tuple(sum(cut for _, cut in step) for step in steps),
    )


def _rows(
    sample: StepSample, rng: np.random.Generator, replicates: int
) -> tuple[tuple[Floats, Floats, Floats], int]:
    shift = np.concatenate(([0.0], rng.normal(0, STEP_NOISE, replicates)))
    log_x = math.log(sample.throughput) - shift
    if sample.good < LEAST_FOR_TAIL:
        missing = np.full(replicates + 1, np.nan)
        return (log_x, missing, missing), 0
    users = 1.0 if sample.open_loop else sample.load
    cut = warm_up(sample.latency_ms)
    latency, work = sample.latency_ms[cut:], sample.work[cut:]
    drawn = block_indices(len(latency), block_length(len(latency), users), replicates, rng)
    drawn_latency = latency[drawn]
    log_mean = _with_point(np.log(latency.mean()), np.log(drawn_latency.mean(axis=1)), len(latency))
    log_p95 = _with_point(
        np.log(harrell_davis(latency, 0.95)), np.log(harrell_davis(drawn_latency, 0.95)), len(latency)
    )
    if sample.open_loop:
        in_flight = sample.load * float(latency.mean()) / 1e3
        blur = math.sqrt(2 * min(in_flight, sample.asked)) / max(sample.asked, 1)
        log_x = log_x + np.concatenate(([0.0], rng.normal(0, blur, replicates)))
        log_x = np.minimum(log_x, math.log(sample.load))
    else:
        log_x = log_x - (log_mean - math.log(sample.latency_ms.mean()))
        if np.ptp(sample.work) > 0:
            log_work = _with_point(np.log(work.mean()), np.log(work[drawn].mean(axis=1)), len(work))
            log_x = log_x + (log_work - math.log(sample.work.mean()))
    return (log_x, log_mean + shift, log_p95 + shift), cut


def _with_point(point: Floats, replicates: Floats, n: int) -> Floats:
    return np.concatenate(([float(point)], scale_deviation(replicates, n)))
