"""Steps that were held but cannot be used: whether the cap may lie at one of them.

The rule compares the usable steps a and b on either side of a gap with each other, and sees only the growth
across it. The same growth may hold a knee inside the gap, where it came early, or none, where it was even.
What is possible follows from one property of services that saturate: relative growth of throughput never
rises with the load, and is at most 1. On the log scale the curve only bends down, so inside the gap it lies

- above the straight line from a to b, and
- below the line from a in proportion to the load, and below the line from the step after b back through b.
  Where b is the last step, or most of its requests failed, nothing leads back: that may be a break.

By the highest such curve a hidden step h may be the cap though the rule names

- a, with the knee at b: where throughput can have grown enough up to h for h to be no knee;
- b: where so much of the growth can lie below h that it is flat from h to b.

A cap further away leaves no doubt: growth in the gap is at least that at the cap, or at most that at the
knee. Above the last usable step and below the first there is one neighbour only: each hidden step may be the
cap where the rule finds no knee up to there, or finds the first step saturated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.replicates import Measured
from harness.analysis.samples import CLOSEST, Fault, StepSample
from harness.analysis.stats import Floats, Ints, Mask
from harness.analysis.votes import BEHIND, FLAT, UNDONE, Memory
from harness.results import Load


@dataclass(frozen=True, slots=True)
class Reach:
    """Where the cap may lie, for each row: the ladder as measured, then its replicates."""

    lowest: Floats  # loads
    highest: Floats
    doubtful: Mask  # whether it may lie at a hidden step


def hidden_steps(
    steps: Sequence[StepSample], compared: Sequence[Load], profile_loads: Sequence[Load] | None
) -> dict[Load, Fault]:
    """Return the steps without a usable measure that would have been compared, each with its fault."""
    used = {step.load for step in steps if step.fault is None}
    faults = {s.load: s.fault for s in steps if s.fault is not None and s.load not in used}
    return {
        load: fault
        for load, fault in sorted(faults.items())
        if load in (profile_loads or faults)
        and all(max(load, other) >= CLOSEST * min(load, other) * (1 - 1e-9) for other in compared)
    }


def reach(
    caps: Ints, hidden: Sequence[Load], measured: Measured, memory: Sequence[Memory], over: Sequence[bool]
) -> Reach:
    """Return where the cap may lie; `caps` are the indices that the rule names, -1 below the first step."""
    named = measured.loads[np.maximum(caps, 0)]
    doubtful = np.zeros(len(caps), dtype=bool)
    lowest, highest = named.copy(), named.copy()
    for load in hidden:
        above = int(np.searchsorted(measured.loads, load))
        if above == 0:
            here = caps < 0
        elif above == len(measured.loads):
            here = caps == above - 1
        else:
            here = _within(load, above, measured, memory, over, caps)
        doubtful |= here
        lowest[here] = np.minimum(lowest[here], load)
        highest[here] = np.maximum(highest[here], load)
    return Reach(lowest, highest, doubtful)


def _within(
    load: Load, b: int, measured: Measured, memory: Sequence[Memory], over: Sequence[bool], caps: Ints
) -> Mask:
    """Return whether a step between those of index b - 1 and b may be the cap."""
    a, log_x, loads = b - 1, measured.log_x, measured.loads
    up_to, from_here = math.log(load / loads[a]), math.log(loads[b] / load)
    growth = np.diff(log_x, axis=1) / np.diff(np.log(loads))
    top = log_x[:, a] + up_to
    if b < growth.shape[1] and not over[b]:
        top = np.minimum(top, log_x[:, b] - growth[:, b] * from_here)
    top = np.maximum(top, log_x[:, a] + growth[:, a] * up_to)
    no_knee = top - log_x[:, a] >= FLAT * up_to
    if measured.open_loop:
        no_knee &= top >= math.log(BEHIND * load)
    enough = UNDONE if memory[b].vote else FLAT  # beside B the vote A is enough: growth below a half
    flat = log_x[:, b] - top < enough * from_here
    knee_at_b = (np.maximum(caps, 0) == a) & (not over[a])  # saturated at the first step: at the second too
    return np.where(knee_at_b, no_knee, (caps == b) & flat)
