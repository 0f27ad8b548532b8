"""Shows how far a run is, from run.json alone: a bar on a terminal, else a line per step that has ended."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from harness.plan import Plan
from harness.records import PhaseTimes, RunInfo
from harness.rundir import RunDir

POLL_S = 0.25


def watch(process: subprocess.Popen[bytes], run_dir: RunDir, plan: Plan, *, quiet: bool) -> None:
    """Return when the process has ended; meanwhile show how far it is, on stderr."""
    if quiet:
        process.wait()
    elif sys.stderr.isatty():
        _bar(process, run_dir, plan)
    else:
        for phase in _each(process, run_dir, lambda phase: phase.figures is not None):
            click.echo(f"{phase.label}: {phase.figures}", err=True)


def _bar(process: subprocess.Popen[bytes], run_dir: RunDir, plan: Plan) -> None:
    columns = (TextColumn("{task.description:24}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=len(plan.phases))
        for done, phase in enumerate(_each(process, run_dir, lambda phase: phase.ready_ns is not None)):
            progress.update(
                task, description=phase.label, completed=done, total=max(len(plan.phases), done + 1)
            )


def _each(
    process: subprocess.Popen[bytes], run_dir: RunDir, is_so: Callable[[PhaseTimes], bool]
) -> Iterator[PhaseTimes]:
    """Yield each phase once, as soon as it is so; ends with the process."""
    seen, alive = 0, True
    while alive:
        alive = process.poll() is None
        phases = [phase for phase in _phases(run_dir) if is_so(phase)]
        yield from phases[seen:]
        seen = max(seen, len(phases))
        time.sleep(POLL_S if alive else 0)


def _phases(run_dir: RunDir) -> list[PhaseTimes]:
    try:
        return msgspec.json.decode(run_dir.info.read_bytes(), type=RunInfo).phases
    except (OSError, msgspec.DecodeError):
        return []
