"""The verdict on a bare table of load, throughput and latency, as any tool prints it.

A table holds no requests, so nothing can be resampled: the noise is assumed, and the verdict says so. The
assumed figures are those of a careful measurement of some hundred requests a step; the confidence is worth
no more than they.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis.knee import LEAST_STEPS, Ladder, decide
from harness.analysis.replicates import REPLICATES, Measured
from harness.analysis.samples import thinned
from harness.analysis.stats import Floats
from harness.analysis.votes import Memory
from harness.results import Knee

THROUGHPUT_NOISE, LATENCY_NOISE = 0.03, 0.06
ASSUMED = (
    f"The table holds no requests: noise of {100 * THROUGHPUT_NOISE:.0f} % in throughput "
    f"and {100 * LATENCY_NOISE:.0f} % in latency is assumed, and the confidence rests on it."
)


def find_in_table(
    loads: Sequence[float] | Floats,
    throughput: Sequence[float] | Floats,
    latency: Sequence[float] | Floats,
    open_loop: bool = False,
    *,
    seed: int = 0,
) -> Knee:
    """Return the verdict on rows in any order, all positive; of rows with equal load, the medians.

    `loads` are users, or offered rates in an open loop, whose best step is taken to have kept up. `latency`
    may be a mean or a percentile; units do not matter.
    """
    x, y, r = (np.asarray(values, dtype=np.float64) for values in (loads, throughput, latency))
    distinct = np.unique(x)
    compared = thinned([float(load) for load in distinct])
    if len(compared) < LEAST_STEPS:
        likely = float(distinct[-1]) if len(distinct) else None
        return Knee(status="insufficient", most_likely=likely, notes=[ASSUMED])
    log_x, log_r = (np.array([np.median(np.log(v[x == load])) for load in distinct]) for v in (y, r))
    rng = np.random.default_rng(seed)
    latencies = _replicated(log_r, LATENCY_NOISE, rng)
    served = _replicated(log_x, THROUGHPUT_NOISE, rng)
    if open_loop:
        log_load = np.log(distinct)
        served = np.minimum(served - max(0.0, float(np.max(log_x - log_load))), log_load)
    measured = Measured(distinct, served, latencies, latencies, open_loop, (0,) * len(distinct))
    ladder = Ladder(
        measured=measured,
        memory=(Memory(None, "no memory figures"),) * len(distinct),
        over=(False,) * len(distinct),
        latency="latency",
    )
    knee = decide(ladder, compared)
    return msgspec.structs.replace(knee, notes=[ASSUMED, *knee.notes])


def _replicated(point: Floats, noise: float, rng: np.random.Generator) -> Floats:
    return np.vstack((point, point + rng.normal(0, noise, (REPLICATES, len(point)))))
