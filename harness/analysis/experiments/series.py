"""What the experiments share: the rows of a phase by kind, the first of each apart, and their medians."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.analysis.groups import Rows
from harness.analysis.stats import Floats
from harness.records import BEFORE_LOAD
from harness.results import Experiment
from harness.rundir import RunData

UNDECIDED = "undecided"
ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Series:
    """The good requests of one kind in order; `first` is the first of them, `rest` the others."""

    kind: str
    first: Rows
    rest: Rows
    failed: int


def rows_of_experiment(run: RunData, rows: Rows, experiment: str) -> Rows:
    """Return all requests of an experiment's phases that ran.

    Where it came first in the run, the request sent before the load is the first of them: it alone met the
    service cold.
    """
    ran = [phase for phase in run.info.phases if phase.ready_ns is not None]
    indices = [phase.index for phase in ran if phase.experiment == experiment]
    if indices and indices[0] == ran[0].index:
        indices.append(BEFORE_LOAD)
    return rows.take(np.isin(rows.phase, indices))


def series_of(rows: Rows, kind: str) -> Series:
    """Return one kind's requests; where its very first request failed, no first is set apart."""
    mine = rows.of_kind(kind)
    good = mine.take(mine.ok)
    warm = 1 if len(mine) and mine.ok[0] else 0
    index = np.arange(len(good))
    return Series(
        kind=kind,
        first=good.take(index < warm),
        rest=good.take(index >= warm),
        failed=int(np.count_nonzero(~mine.ok & ~mine.cancelled)),
    )


def median(values: Floats) -> float | None:
    """Return the median of the known values, None without any."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


def percentile(values: Floats, q: float) -> float | None:
    """Return a percentile (0-100) of the known values by linear interpolation, None without any."""
    known = values[~np.isnan(values)]
    return float(np.percentile(known, q)) if len(known) else None


def p_exceeds(before: Floats, after: Floats, factor: float = 1.0) -> float:
    """Return how likely chance alone makes `after` exceed `before` by `factor` as clearly as it does.

    One-sided Mann-Whitney test, exact for small samples; 1 where a sample is empty.
    """
    from scipy.stats import mannwhitneyu  # slow to import, and needed only where an experiment was run

    before, after = before[~np.isnan(before)], after[~np.isnan(after)]
    if not len(before) or not len(after):
        return 1.0
    return float(mannwhitneyu(after, before * factor, alternative="greater").pvalue)


def failures_of(series: list[Series]) -> list[str]:
    """Return a line for each kind that had failures."""
    return [f"{s.failed} requests of {s.kind} failed and are left out" for s in series if s.failed]


def too_little(what: str, columns: list[str], rows: list[list[object]], problems: list[str]) -> Experiment:
    """Return the result of an experiment that has too few good requests for a verdict."""
    return Experiment(
        verdict=UNDECIDED,
        text=f"Too little was measured: {what}.",
        columns=columns,
        rows=rows,
        problems=problems,
    )
