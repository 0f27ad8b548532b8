"""The analysis as the ladder asks it while it climbs: are the votes decided, and where to measure as well.

The libraries behind it are imported only where the profile asks for an adaptive hold or for refinement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.load.ladder import Judges
from harness.load.step import Step
from harness.profile import Profile

if TYPE_CHECKING:
    from harness.analysis.samples import StepSample

MIN_STEPS = 3


def judges_of(profile: Profile) -> Judges:
    """Return the judges that a profile's load asks for."""
    load = profile.load
    return Judges(
        decided=decided if load.hold.adaptive else None,
        refinements=refinements if load.refine and load.rates is None else None,
    )


def decided(steps: Sequence[Step]) -> bool:
    """Return whether the votes of the last step against the one below it are decided."""
    from harness.analysis.hold import is_decided

    pair = last_pair(steps)
    return pair is None or is_decided(*pair)


def last_pair(steps: Sequence[Step]) -> tuple[StepSample, StepSample] | None:
    """Return the step below the last one, and the last one; None where there is none below it."""
    last = steps[-1]
    below = [step for step in steps[:-1] if step.phase.load < last.phase.load and step.t1_ns is not None]
    if not below:
        return None
    previous = max(reversed(below), key=lambda step: step.phase.load)
    in_tokens = _counts_tokens([previous, last])
    return sample_of(previous, in_tokens=in_tokens), sample_of(last, in_tokens=in_tokens)


def refinements(steps: Sequence[Step]) -> list[int]:
    """Return the numbers of users between cap and knee that are worth measuring."""
    from harness.analysis.hold import refinements as between
    from harness.analysis.knee import find_knee

    measured = [step for step in steps if step.t1_ns is not None]
    if len(measured) < MIN_STEPS:
        return []
    in_tokens = _counts_tokens(measured)
    knee = find_knee([sample_of(step, in_tokens=in_tokens) for step in measured])
    return [round(users) for users in between([step.phase.load for step in measured], knee)]


def sample_of(step: Step, *, in_tokens: bool) -> StepSample:
    """Return a step as the knee rule takes it; its window may still be open."""
    import numpy as np

    from harness.analysis.samples import StepSample

    good = sorted((row for row in step.window if row.ok), key=lambda row: row.end_ns)
    work = [float(row.out_tokens or 0) if in_tokens else 1.0 for row in good]
    return StepSample(
        load=step.phase.load,
        seconds=step.seconds or 1.0,
        latency_ms=np.array([row.latency_ms for row in good]),
        work=np.array(work),
        done=len(step.served),
        done_work=sum(float(row.out_tokens or 0) if in_tokens else 1.0 for row in step.served),
        asked=step.good + step.failures,
        failed=step.failures,
        refused=sum(row.outcome == "rejected" for row in step.window),
        open_loop=step.phase.users is None,
        label=step.phase.label,
    )


def _counts_tokens(steps: Sequence[Step]) -> bool:
    """Throughput counts output tokens where payload kinds differ and all are known."""
    rows = [row for step in steps for row in step.served]
    return len({row.kind for row in rows}) > 1 and all(row.out_tokens for row in rows)
