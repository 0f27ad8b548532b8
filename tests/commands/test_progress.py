"""What a log shows of a run that is on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.commands.progress import watch
from harness.plan import Plan
from harness.records import PhaseFigures, PhaseTimes, RunInfo
from harness.rundir import RunDir, write_info

DONE = PhaseFigures(n=50, failures=2, rps=12.345, p95_ms=310.4)
PLAN = Plan(experiment="steps", payloads=(), phases=())


class Playing:
    """Stands for the process: at each look the run is one step further."""

    def __init__(self, run: RunDir, steps: list[list[PhaseTimes]]) -> None:
        self._run, self._steps = run, steps

    def poll(self) -> int | None:
        info = RunInfo(run="r", profile="p", experiment="steps", started_ns=0, phases=self._steps.pop(0))
        write_info(self._run, info)
        return None if self._steps else 0


def phase(index: int, figures: PhaseFigures | None = None) -> PhaseTimes:
    return PhaseTimes(index=index, label=f"{index} users", users=index, ready_ns=1, figures=figures)


@pytest.mark.parametrize("quiet", [False, True])
def test_each_step_is_one_line_when_it_has_ended_the_last_one_too(
    quiet: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.commands.progress.POLL_S", 0)
    ends = [[phase(1)], [phase(1, DONE), phase(2)], [phase(1, DONE), phase(2, DONE)]]
    playing: Any = Playing(RunDir(tmp_path), ends)
    if quiet:
        playing.wait = lambda: None
    watch(playing, RunDir(tmp_path), PLAN, quiet=quiet)
    line = "50 good requests, 2 failed, 12.3 requests/s, p95 310 ms"
    said = capfd.readouterr()
    assert said.err.splitlines() == ([] if quiet else [f"1 users: {line}", f"2 users: {line}"])
    assert said.out == ""


def test_a_run_json_of_before_figures_were_kept_is_read() -> None:
    old = b'{"index": 0, "label": "1 user", "ready_ns": 1}'
    assert msgspec.json.decode(old, type=PhaseTimes).figures is None
