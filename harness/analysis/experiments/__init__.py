"""The measurements beside the ladder, each a table and a verdict from the requests of its phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.analysis.experiments.cache import assess_cache
from harness.analysis.experiments.image_sweep import assess_image_sweep
from harness.analysis.experiments.isolation import assess_isolation
from harness.analysis.experiments.modality import assess_modality
from harness.analysis.experiments.repeat import assess_repeat
from harness.analysis.groups import Rows, Window
from harness.results import Experiment
from harness.rundir import RunData

_ASSESS: dict[str, Callable[[RunData, Rows, Sequence[Window], int], Experiment]] = {
    "modality": assess_modality,
    "image_sweep": assess_image_sweep,
    "repeat": assess_repeat,
    "isolation": assess_isolation,
    "cache": assess_cache,
}


def assess_experiments(
    run: RunData, rows: Rows, windows: Sequence[Window], *, seed: int
) -> dict[str, Experiment]:
    """Return the result of every experiment that the run has a phase of, in the order of the plan."""
    names = dict.fromkeys(phase.experiment for phase in run.info.phases if phase.ready_ns is not None)
    return {name: _ASSESS[name](run, rows, windows, seed) for name in names if name in _ASSESS}
