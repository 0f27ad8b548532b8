"""Two runs of the same plan: did the service become slower, did its cap fall, did its bottleneck move?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis.assess import assess
from harness.analysis.changes import Change, changes_between, windows_by_step
from harness.analysis.groups import Rows, rows_of
from harness.records import STAGES
from harness.results import Bottleneck, Knee, Load
from harness.rundir import RunData


class StageChange(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of one stage in two runs of one fixed input."""

    stage: str
    before_ms: float
    after_ms: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What `knee compare` prints."""

    v: int = 1
    run_a: str
    run_b: str
    max_regression: float  # a share: 0.05 is 5 %
    regressed: bool
    text: str
    changes: list[Change] = []
    only_a: list[str] = []  # steps without a partner
    only_b: list[str] = []
    cap_a: Load | None = None
    cap_b: Load | None = None
    cap_fell: bool = False
    bottleneck_a: str | None = None
    bottleneck_b: str | None = None
    bottleneck_moved: bool | None = None
    stages: list[StageChange] = []


def compare(a: RunData, b: RunData, *, max_regression: float = 0.05, seed: int = 0) -> Comparison:
    """Compare run b with run a, the baseline."""
    before, after = windows_by_step(a), windows_by_step(b)
    report_a, report_b = assess(a, seed=seed), assess(b, seed=seed)
    cap = report_a.knee.cap if report_a.knee else None
    changes = changes_between(before, after, threshold=max_regression, cap=cap, seed=seed)
    cap_fell = _cap_fell(report_a.knee, report_b.knee)
    stages = _stages(a, b)
    places = _places(report_a.bottleneck, report_b.bottleneck, stages)
    worse = [change for change in changes if change.word == "regression"]
    return Comparison(
        run_a=a.info.run,
        run_b=b.info.run,
        max_regression=max_regression,
        regressed=bool(worse) or cap_fell,
        text=_sentence(changes, worse, cap_fell, report_a.knee, report_b.knee, max_regression),
        changes=changes,
        only_a=[step for step in before if step not in after],
        only_b=[step for step in after if step not in before],
        cap_a=cap,
        cap_b=report_b.knee.cap if report_b.knee else None,
        cap_fell=cap_fell,
        bottleneck_a=places[0],
        bottleneck_b=places[1],
        bottleneck_moved=places[0] != places[1] if None not in places else None,
        stages=stages,
    )


def _cap_fell(a: Knee | None, b: Knee | None) -> bool:
    """Return whether b's confirmed cap lies below all that a's could be."""
    if a is None or b is None or a.cap is None or a.range is None:
        return False
    if b.status == "below_first":
        return b.most_likely is not None and b.most_likely <= a.range[0]
    return b.cap is not None and b.range is not None and b.range[1] < a.range[0]


def _stages(a: RunData, b: RunData) -> list[StageChange]:
    """Return the medians of each stage in two runs of one fixed input; empty where one has none."""
    repeated = [_repeated(run) for run in (a, b)]
    if min(map(len, repeated)) == 0:
        return []
    found = []
    for stage in STAGES:
        times = [rows.stages[stage][~np.isnan(rows.stages[stage])] for rows in repeated]
        if min(map(len, times)):
            medians = [float(np.median(t)) for t in times]
            found.append(StageChange(stage=stage, before_ms=medians[0], after_ms=medians[1]))
    return found


def _repeated(run: RunData) -> Rows:
    """Return the good requests of the repeat phases, without the first."""
    rows = rows_of(run)
    phases = [p.index for p in run.info.phases if p.experiment == "repeat"]
    mine = rows.take(np.isin(rows.phase, phases) & rows.ok)
    return mine.take(slice(1, None))


def _places(
    a: Bottleneck | None, b: Bottleneck | None, stages: Sequence[StageChange]
) -> tuple[str | None, str | None]:
    """Return where each run spends most: its ladder's bottleneck, or the largest stage of a fixed input."""
    if a is not None and b is not None:
        return f"{a.stage}, {a.resource}", f"{b.stage}, {b.resource}"
    if not stages:
        return None, None
    return max(stages, key=lambda s: s.before_ms).stage, max(stages, key=lambda s: s.after_ms).stage


def _sentence(
    changes: Sequence[Change],
    worse: Sequence[Change],
    cap_fell: bool,
    a: Knee | None,
    b: Knee | None,
    threshold: float,
) -> str:
    if not changes:
        return "Nothing to compare: the runs share no step with enough good requests."
    parts = []
    if worse:
        most = max(worse, key=lambda change: change.ratio or math.inf)
        by = (
            f"{100 * (most.ratio - 1):+.0f} %"
            if most.ratio is not None
            else f"{100 * most.after:.1f} % failed"
        )
        parts.append(
            f"{len(worse)} figure{'s are' if len(worse) > 1 else ' is'} worse by more than "
            f"{100 * threshold:g} %; most {most.figure} of {most.kind} at {most.step} ({by})"
        )
    if cap_fell and a is not None and a.cap is not None:
        now = f"{b.cap:g}" if b is not None and b.cap is not None else "below the first step"
        parts.append(f"the cap fell from {a.cap:g} to {now}")
    if parts:
        return "Regression: " + "; ".join(parts) + "."
    judged = [change for change in changes if change.word != "beyond_cap"]
    unclear = sum(change.word == "unclear" for change in changes)
    better = sum(change.word == "improvement" for change in changes)
    said = f"No regression beyond {100 * threshold:g} % in {len(judged)} figures"
    said += f"; {better} improved" if better else ""
    return said + (f"; {unclear} cannot be told." if unclear else ".")
