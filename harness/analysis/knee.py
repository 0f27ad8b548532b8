"""The verdict on a ladder: the first step with two of three votes that no later step undoes.

The rule (`votes`) runs on the ladder as measured and on every replicate (`replicates`). The verdict is what
most replicates say, its confidence their share; below `CONFIRMED` nothing is confirmed, and the verdict
names the steps between which the data cannot decide. A replicate counts for its cap only where no step that
had to be left out may be the cap as well (`gaps`). The cap is the step before the knee; the steady level is
the profile's next usable step below the cap, the rest being kept for bursts. Steps closer to each other than
a quarter, and those measured to refine, are left to a second look between cap and knee, where they may move
either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import msgspec
import numpy as np

from harness.analysis import votes as rule
from harness.analysis.crosschecks import cross_checks
from harness.analysis.gaps import Reach, hidden_steps, reach
from harness.analysis.hold import more_requests
from harness.analysis.ladder_notes import measured_notes, sample_notes
from harness.analysis.replicates import Measured, measure
from harness.analysis.samples import Fault, Group, StepSample, grouped, plain, thinned
from harness.analysis.stats import Floats, Ints
from harness.results import Knee, Load, Status, Vote

CONFIRMED = 0.80
RULED_OUT = 0.10  # an earlier knee with less than this is ruled out
LEAST_STEPS = 3
BELOW_FIRST = -1  # as the index of the cap

VERDICTS_OF_FAULTS: tuple[Literal["client_limited", "load_not_applied"], ...] = (
    "client_limited",
    "load_not_applied",
)


@dataclass(frozen=True, slots=True)
class Ladder:
    """The steps that the rule takes, lowest first; `over` marks those of which most requests failed."""

    measured: Measured
    memory: tuple[rule.Memory, ...]
    over: tuple[bool, ...]
    groups: tuple[Group, ...] = ()  # empty where there are no requests, only a table
    unit: str = "requests"
    latency: str | None = None  # what a table's latency is called

    def only(self, chosen: Sequence[int]) -> Ladder:
        """Return the ladder of some of its steps."""
        return replace(
            self,
            measured=self.measured.columns(chosen),
            memory=tuple(self.memory[i] for i in chosen),
            over=tuple(self.over[i] for i in chosen),
            groups=tuple(self.groups[i] for i in chosen) if self.groups else (),
        )

    def cast(self) -> rule.Ballots:
        """Return the votes at each step."""
        return rule.cast(self.measured, self.memory, self.over)


def find_knee(
    steps: Sequence[StepSample],
    *,
    seed: int = 0,
    slo_ok: Mapping[Load, bool] | None = None,
    profile_loads: Sequence[Load] | None = None,
) -> Knee:
    """Return the verdict on the measures of a ladder, in any order.

    Of a load measured several times the medians count. `slo_ok` says of each load whether it met the SLO.
    `profile_loads` are the steps of the profile: others were measured to refine. The seed makes the verdict
    repeatable.
    """
    usable = [step for step in steps if step.fault is None]
    groups = grouped(usable)
    notes = sample_notes(steps)
    slo_cap = max((load for load, met in (slo_ok or {}).items() if met), default=None)
    compared = _compared([float(g[0].load) for g in groups], profile_loads)
    answered = [g for g in groups if not _over(g)]
    if len(compared) < LEAST_STEPS or not answered:
        likely = _likely_of_few(groups)
        status = _status_of_few(steps)
        return Knee(status=status, most_likely=likely, slo_cap=slo_cap, notes=notes)
    ladder = Ladder(
        measured=measure(groups, np.random.default_rng(seed)),
        memory=tuple(rule.memory_votes(groups)),
        over=tuple(_over(g) for g in groups),
        groups=tuple(groups),
        unit="tokens" if any(np.ptp(s.work) > 0 for s in usable if s.good) else "requests",
    )
    hidden = hidden_steps(steps, compared, profile_loads)
    knee = decide(ladder, compared, profile_loads=profile_loads, hidden=hidden)
    return msgspec.structs.replace(knee, slo_cap=slo_cap, notes=notes + knee.notes)


def decide(
    ladder: Ladder,
    compared: Sequence[Load],
    *,
    profile_loads: Sequence[Load] | None = None,
    hidden: Mapping[Load, Fault] = MappingProxyType({}),
) -> Knee:
    """Return the verdict on a ladder of which the `compared` loads are far enough apart.

    `hidden` are the steps that were held but cannot be used, each with its fault.
    """
    loads = [float(load) for load in ladder.measured.loads]
    main = ladder.only([loads.index(load) for load in compared])
    ballots = main.cast()
    caps = _caps(main, ballots)
    within = reach(caps, list(hidden), main.measured, main.memory, main.over)
    outcomes, counts = np.unique(caps[1:], return_counts=True)
    ranked = outcomes[np.argsort(-counts, kind="stable")]
    best = int(ranked[0])
    share = float(((caps == best) & ~within.doubtful)[1:].mean())
    knee = Knee(
        status=_status(best, len(compared), share),
        most_likely=compared[max(best, 0)],
        confidence=share,
        range=(_at(within.lowest, 0.05), _at(within.highest, 0.95)),
        safe_cap=_safe_cap(caps, within, main.measured.loads),
        votes=rule.as_votes(ballots, main.unit, main.latency),
    )
    if (~within.doubtful[1:]).mean() < CONFIRMED:
        knee = _withheld(knee, hidden)
    elif knee.status == "inconclusive":
        knee = _undecided(knee, main, *sorted(int(i) for i in ranked[:2]))
    elif knee.status in ("knee", "none_in_range"):
        knee = _with_ruled_out(_with_cap(knee, ladder, main, best, profile_loads), hidden)
    measured = main.measured
    checks = cross_checks(
        measured.loads,
        np.exp(measured.log_x[0]),
        np.exp(measured.log_mean[0]),
        compared[max(best, 0)],
        open_loop=measured.open_loop,
    )
    notes = measured_notes(ladder.measured, ballots, knee, compared, ladder.groups)
    return msgspec.structs.replace(knee, cross_checks=checks, notes=knee.notes + notes)


def _caps(ladder: Ladder, ballots: rule.Ballots) -> Ints:
    """Return per row the index of the cap: the last step without a knee, BELOW_FIRST where no step carries.

    A knee at the second step leaves open whether the first is saturated too. One user is the least there
    is, and an open loop shows whether it kept up; above one user in a closed loop nothing shows it.
    """
    caps = ballots.knee.copy()
    measured = ladder.measured
    if measured.open_loop:
        behind = measured.log_x[:, 0] - np.log(measured.loads[0]) < np.log(rule.BEHIND)
        caps[behind] = BELOW_FIRST
    elif measured.loads[0] > 1:
        caps[caps == 0] = BELOW_FIRST
    if ladder.over[0]:
        caps[:] = BELOW_FIRST
    return caps


def _status(best: int, steps: int, share: float) -> Status:
    if share < CONFIRMED:
        return "inconclusive"
    if best == BELOW_FIRST:
        return "below_first"
    return "none_in_range" if best == steps - 1 else "knee"


def _undecided(knee: Knee, ladder: Ladder, low: int, high: int) -> Knee:
    """Return the verdict where replicates differ: the caps in question, and how many requests would tell."""
    loads = [float(load) for load in ladder.measured.loads]
    pair = min(max(low, 0), len(loads) - 2)
    more = more_requests(ladder.measured, ladder.groups, pair) if ladder.groups else None
    undecided = (loads[max(low, 0)], loads[high])
    return msgspec.structs.replace(knee, undecided=undecided, more_requests=more or None)


def _withheld(knee: Knee, hidden: Mapping[Load, Fault]) -> Knee:
    """Return the verdict where the cap may lie at steps that cannot be used: their fault's, if it has one."""
    low, high = knee.range or (0.0, math.inf)
    open_steps = [load for load in hidden if low <= load <= high]
    faults = {hidden[load] for load in open_steps}
    return msgspec.structs.replace(
        knee,
        status=next((fault for fault in VERDICTS_OF_FAULTS if fault in faults), "inconclusive"),
        undecided=knee.range,
        notes=[f"The cap may be at {plain(open_steps)}, which cannot be used: measure there again."],
    )


def _with_ruled_out(knee: Knee, hidden: Iterable[Load]) -> Knee:
    """Return the verdict with why steps between cap and knee that cannot be used do not matter."""
    if knee.cap is None or knee.knee_step is None or knee.range is None:
        return knee
    highest = max(knee.cap, knee.range[1])
    ruled_out = [load for load in hidden if highest < load < knee.knee_step]
    if not ruled_out:
        return knee
    note = f"Throughput at {knee.knee_step:g} rules out a cap at {plain(ruled_out)}, which cannot be used."
    return msgspec.structs.replace(knee, notes=[*knee.notes, note])


def _with_cap(
    knee: Knee, ladder: Ladder, main: Ladder, best: int, profile_loads: Sequence[Load] | None
) -> Knee:
    compared = [float(load) for load in main.measured.loads]
    cap, step = compared[best], compared[best + 1] if knee.status == "knee" else None
    votes, notes = list(knee.votes), list(knee.notes)
    if step is not None:
        cap, step, between, note = _second_look(ladder, cap, step)
        votes = sorted(votes + between, key=lambda vote: vote.users)
        notes += note
    usable = ladder.measured.loads
    lower = [load for load in profile_loads or compared if load < cap and load in usable]
    return msgspec.structs.replace(
        knee,
        cap=cap,
        knee_step=step,
        most_likely=cap,
        steady=max(lower, default=None),
        votes=votes,
        notes=notes,
        safe_cap=None if knee.safe_cap is None else min(knee.safe_cap, cap),
        range=None if knee.range is None else (min(knee.range[0], cap), max(knee.range[1], cap)),
    )


def _second_look(ladder: Ladder, cap: Load, knee_step: Load) -> tuple[Load, Load, list[Vote], list[str]]:
    """Return cap and knee after the steps measured between them, their votes, and what they leave open."""
    loads = [float(load) for load in ladder.measured.loads]
    inside = [i for i, load in enumerate(loads) if cap <= load <= knee_step]
    if len(inside) <= 2:
        return cap, knee_step, [], []
    between = ladder.only(inside)
    ballots = between.cast()
    pairs = len(inside) - 1
    counts = np.bincount(np.minimum(ballots.knee[1:], pairs - 1), minlength=pairs)
    best = int(counts.argmax())
    votes = rule.as_votes(ballots, ladder.unit, ladder.latency)[:-1]
    names = plain(loads[i] for i in inside[1:-1])
    if counts[best] < CONFIRMED * counts.sum():
        return cap, knee_step, votes, [f"The steps between cap and knee ({names}) do not decide among them."]
    return loads[inside[best]], loads[inside[best + 1]], votes, []


def _at(values: Floats, share: float) -> Load:
    """Return the quantile of the replicates, row 0 being none."""
    ordered = np.sort(values[1:])
    return float(ordered[min(int(share * len(ordered)), len(ordered) - 1)])


def _safe_cap(caps: Ints, within: Reach, loads: Floats) -> Load | None:
    """Return the usable step up to which the earliest knee that is not ruled out leaves room."""
    named = loads[np.maximum(caps, 0)]
    safe = np.maximum(caps - (within.lowest < named), BELOW_FIRST)
    index = int(_at(safe, RULED_OUT))
    return None if index == BELOW_FIRST else float(loads[index])


def _compared(loads: Sequence[Load], profile_loads: Sequence[Load] | None) -> list[Load]:
    """Return the profile's steps; all that were measured where too few of the profile's were."""
    planned = thinned(load for load in loads if load in (profile_loads or loads))
    return planned if len(planned) >= LEAST_STEPS else thinned(loads)


def _over(group: Group) -> bool:
    return 2 * sum(s.over_the_limit for s in group) > len(group)


def _likely_of_few(groups: Sequence[Group]) -> Load | None:
    """Return the highest step that answered, the least that fewer than three steps can show."""
    return max((g[0].load for g in groups if not _over(g)), default=None)


def _status_of_few(steps: Sequence[StepSample]) -> Status:
    """Return why there are too few steps: the fault without which there would be enough."""
    for fault in VERDICTS_OF_FAULTS:
        enough = len({s.load for s in steps if s.fault in (None, fault)}) >= LEAST_STEPS
        if enough and any(s.fault == fault for s in steps):
            return fault
    return "insufficient"
