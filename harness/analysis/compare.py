"""Two runs of the same plan: did the service become slower, did its cap fall, did its bottleneck move?"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from harness.analysis.assess import assess
from harness.analysis.capacity_change import Move, Pair, cap_move, conclusions
from harness.analysis.changes import Change, changes_between, windows_by_step
from harness.analysis.compare_wording import cap_words, outcome
from harness.analysis.differences import Caution, Difference, cautions, differences
from harness.analysis.groups import Rows, rows_of
from harness.records import STAGES
from harness.results import Bottleneck, Load
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
    same_run: bool = False  # a run was compared with itself
    max_regression: float  # a share: 0.05 is 5 %
    regressed: bool
    text: str
    differs: list[Difference] = []  # in how the runs were made
    cautions: list[Caution] = []
    conclusions: list[Pair] = []  # verdict and limits of both
    changes: list[Change] = []
    only_a: list[str] = []  # steps without a partner
    only_b: list[str] = []
    cap_a: Load | None = None
    cap_b: Load | None = None
    cap_fell: bool = False
    cap_move: Move | None = None
    bottleneck_a: str | None = None
    bottleneck_b: str | None = None
    bottleneck_moved: bool | None = None
    stages: list[StageChange] = []


def compare(a: RunData, b: RunData, *, max_regression: float = 0.05, seed: int = 0) -> Comparison:
    """Compare run b with run a, the baseline."""
    before, after = windows_by_step(a), windows_by_step(b)
    report_a, report_b = assess(a, seed=seed), assess(b, seed=seed)
    knees = [report_a.knee, report_b.knee]
    caps = [knee.cap if knee else None for knee in knees]
    changes = changes_between(before, after, threshold=max_regression, cap=caps[0], seed=seed)
    differs = differences(a, b)
    move = cap_move(report_a, report_b)
    stages = _stages(a, b)
    places = _places(report_a.bottleneck, report_b.bottleneck, stages)
    return Comparison(
        run_a=a.info.run,
        run_b=b.info.run,
        same_run=a.info == b.info,
        max_regression=max_regression,
        regressed=move == "fell" or any(change.word == "regression" for change in changes),
        text=outcome(
            changes,
            threshold=max_regression,
            cap_move=move,
            caps=[cap_words(knee.status, knee.cap) if knee else "none" for knee in knees],
            comparable=not any(difference.grade == "traffic" for difference in differs),
            not_valid=[name for name, report in (("A", report_a), ("B", report_b)) if not report.valid],
        ),
        differs=differs,
        cautions=cautions(report_a, report_b),
        conclusions=conclusions(report_a, report_b),
        changes=changes,
        only_a=[step for step in before if step not in after],
        only_b=[step for step in after if step not in before],
        cap_a=caps[0],
        cap_b=caps[1],
        cap_fell=move == "fell",
        cap_move=move,
        bottleneck_a=places[0],
        bottleneck_b=places[1],
        bottleneck_moved=places[0] != places[1] if None not in places else None,
        stages=stages,
    )


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
