"""What two runs conclude, side by side: verdict, cap, limits; and whether the cap moved.

The ladders of two runs may have other steps. So a cap fell only where the lowest load that is beyond all that
the second run's cap could be was still within all that the first run's could be: a ladder that merely ends
lower, or leaves a step out, moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from harness.results import Load, Report

Move = Literal["fell", "rose", "same", "unclear"]
VERDICT = (
    "status",
    "cap",
    "most_likely",
    "steady",
    "knee_step",
    "range",
    "confidence",
    "safe_cap",
    "slo_cap",
)


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A conclusion of both runs: a field of the `knee` object, or a number of limits.yaml."""

    key: str  # cap, knee_step, ...; limits.timeouts.ttft_ms, ...
    before: Any
    after: Any


def conclusions(a: Report, b: Report) -> list[Pair]:
    """Return the verdicts and limits that at least one of the runs gives."""
    pairs = [Pair(key=key, before=before, after=after) for key, before, after in _pairs(a, b)]
    return [pair for pair in pairs if not pair.before is pair.after is None]


def _pairs(a: Report, b: Report) -> Iterator[tuple[str, Any, Any]]:
    for name in VERDICT:
        yield name, getattr(a.knee, name, None), getattr(b.knee, name, None)
    limits = [
        {f"limits.{limit.section}.{limit.key}": limit.value for limit in report.limits} for report in (a, b)
    ]
    for key in dict.fromkeys([*limits[0], *limits[1]]):
        if key not in ("limits.concurrency.cap", "limits.concurrency.steady"):  # they stand above
            yield key, limits[0].get(key), limits[1].get(key)


def cap_move(a: Report, b: Report) -> Move | None:
    """Return how the cap moved beyond doubt; None where neither run has one, or users stand beside rates."""
    if a.knee is None or b.knee is None or _is_open(a) != _is_open(b):
        return None
    if a.knee.cap is None and b.knee.cap is None:
        return None
    if _lies_below(b, a):
        return "fell"
    if _lies_below(a, b):
        return "rose"
    same = a.knee.cap is not None and a.knee.cap == b.knee.cap and a.knee.status == b.knee.status
    return "same" if same else "unclear"


def _is_open(report: Report) -> bool:
    return any(step.users is None for step in report.steps)


def _lies_below(low: Report, high: Report) -> bool:
    """Return whether a load that is too much for `low` is within whatever the cap of `high` can be."""
    overrun = _overrun(low)
    if overrun is None or high.knee is None or high.knee.cap is None or high.knee.range is None:
        return False
    return overrun <= high.knee.range[0]


def _overrun(report: Report) -> Load | None:
    """Return the lowest load measured beyond all that the cap can be; None where none surely is.

    A closed-loop ladder that starts above one user may carry its first step even where it is saturated at
    its second (`below_first`).
    """
    knee = report.knee
    loads = sorted({step.load for step in report.steps if step.used and step.load is not None})
    if knee is None or not loads:
        return None
    if knee.status == "below_first":
        beyond = loads if _is_open(report) or loads[0] <= 1 else loads[1:]
    elif knee.status == "knee" and knee.range is not None:
        top = knee.range[1]
        beyond = [load for load in loads if load > top]
    else:
        beyond = []
    return min(beyond, default=None)
