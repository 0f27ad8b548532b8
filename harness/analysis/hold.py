"""How long to hold a step, and where to measure again, so that the verdict is decided.

Used while the load runs, so each call costs milliseconds: fewer replicates than the verdict, of at most
`LOOKED_AT` requests. More requests shrink the error of a step; the noise between steps stays, and only
repeats of the ladder shrink that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from harness.analysis.replicates import STEP_NOISE, Measured, measure
from harness.analysis.samples import Group, StepSample
from harness.analysis.votes import FLAT, Ballots, Memory, as_votes, cast, memory_votes
from harness.results import Knee, Vote

UNDECIDED = (0.1, 0.9)
REPLICATES = 120
LOOKED_AT = 1500
Z90 = 1.2816  # a vote decided with probability 0.9
MOST_FACTOR = 50
FINEST = 1.15  # ratio between two refined steps


def vote_probabilities(prev: StepSample, cur: StepSample, *, seed: int = 0) -> tuple[float, float]:
    """Return the probabilities of the votes A and C at `cur` against `prev`, the step below it."""
    ballots = _ballots((prev, cur), [Memory(None, "")] * 2, seed)
    return float(ballots.a[1:, 0].mean()), float(ballots.c[1:, 0].mean())


def is_decided(prev: StepSample, cur: StepSample, *, seed: int = 0) -> bool:
    """Return whether each vote at `cur` has a probability below 0.1 or above 0.9."""
    low, high = UNDECIDED
    return all(not low <= p <= high for p in vote_probabilities(prev, cur, seed=seed))


def vote_between(prev: StepSample, cur: StepSample, *, seed: int = 0) -> Vote:
    """Return the votes at `cur` against `prev` as they stand; of memory only what the requests tell."""
    ballots = _ballots((prev, cur), memory_votes([(prev,), (cur,)]), seed)
    (vote,) = as_votes(ballots, "tokens" if np.ptp([*prev.work, *cur.work]) > 0 else "requests")
    return vote


def _ballots(pair: tuple[StepSample, StepSample], memory: Sequence[Memory], seed: int) -> Ballots:
    looked_at = [(_recent(sample),) for sample in pair]
    measured = measure(looked_at, np.random.default_rng(seed), replicates=REPLICATES)
    return cast(measured, memory, [sample.over_the_limit for sample in pair])


def more_requests(measured: Measured, groups: Sequence[Group], pair: int) -> int | None:
    """Return how many more good requests at a pair of steps would decide vote C, 0 where it is decided.

    `groups` are the steps of `measured`. None: the noise between steps alone leaves it undecided, and only
    repeats of the ladder help.
    """
    growth = measured.log_x[:, pair + 1] - measured.log_x[:, pair]
    span = math.log(measured.loads[pair + 1] / measured.loads[pair])
    margin = abs(float(growth[0]) - FLAT * span)
    both = (*groups[pair], *groups[pair + 1])
    fixed: float = STEP_NOISE**2 * sum(1 / len(g) for g in (groups[pair], groups[pair + 1]))
    sampled = max(float(growth[1:].var(ddof=1)) - fixed, 0.0)
    allowed = (margin / Z90) ** 2 - fixed
    if sampled <= allowed:
        return 0
    if allowed <= 0 or sampled / allowed > MOST_FACTOR:
        return None
    return math.ceil(sum(s.good for s in both) * (sampled / allowed - 1))


def refinements(loads: Sequence[float], knee: Knee) -> list[float]:
    """Return the loads between cap and knee that are worth measuring: 7 between 6 and 8.

    They are whole numbers where all loads are.
    """
    if knee.cap is None or knee.knee_step is None or knee.cap <= 0:
        return []
    ratio = knee.knee_step / knee.cap
    parts = math.floor(math.log(ratio) / math.log(FINEST) + 1e-9)
    whole = all(float(load).is_integer() for load in loads)
    inner = [knee.cap * ratio ** (i / parts) for i in range(1, parts)]
    rounded = {float(round(x)) if whole else float(f"{x:.3g}") for x in inner}
    return sorted(x for x in rounded if knee.cap < x < knee.knee_step and x not in loads)


def _recent(sample: StepSample) -> StepSample:
    """Return the sample with its latest requests only: throughput stays that of the whole."""
    if sample.good <= LOOKED_AT:
        return sample
    return dataclasses.replace(
        sample, latency_ms=sample.latency_ms[-LOOKED_AT:], work=sample.work[-LOOKED_AT:]
    )
