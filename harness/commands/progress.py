"""Shows how far a run is, from run.json alone: a bar on a terminal, a line per step elsewhere."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from harness.plan import Plan
from harness.records import PhaseTimes, RunInfo
from harness.rundir import RunDir

POLL_S = 0.25


def watch(process: subprocess.Popen[bytes], run_dir: RunDir, plan: Plan, *, quiet: bool) -> None:
    """Return when the process has ended; meanwhile show each phase as it begins, on stderr."""
    if quiet:
        process.wait()
    elif sys.stderr.isatty():
        _bar(process, run_dir, plan)
    else:
        for phase in _begun(process, run_dir):
            click.echo(f"{phase.label}", err=True)


def _bar(process: subprocess.Popen[bytes], run_dir: RunDir, plan: Plan) -> None:
    columns = (TextColumn("{task.description:24}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=len(plan.phases))
        for done, phase in enumerate(_begun(process, run_dir)):
            progress.update(
                task, description=phase.label, completed=done, total=max(len(plan.phases), done + 1)
            )


def _begun(process: subprocess.Popen[bytes], run_dir: RunDir) -> Iterator[PhaseTimes]:
    """Yield each phase once, when its load is on."""
    seen = 0
    while process.poll() is None:
        phases = [phase for phase in _phases(run_dir) if phase.ready_ns is not None]
        yield from phases[seen:]
        seen = max(seen, len(phases))
        time.sleep(POLL_S)


def _phases(run_dir: RunDir) -> list[PhaseTimes]:
    try:
        return msgspec.json.decode(run_dir.info.read_bytes(), type=RunInfo).phases
    except (OSError, msgspec.DecodeError):
        return []
