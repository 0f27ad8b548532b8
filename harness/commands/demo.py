"""`knee demo`: the simulated engine on a free port, and a run against it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from harness import bundled
from harness.commands.processes import harness_command, running
from harness.commands.run import Options, run_profile


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@click.option("--processes", type=click.IntRange(1, 64), help="Locust worker processes.")
@click.option("--json", "as_json", is_flag=True, help="Print run directory and verdict as JSON.")
def demo(out: Path, processes: int | None, as_json: bool) -> None:
    """Run the step ladder against the simulated engine, which carries 6 requests at once.

    \b
    knee demo
    knee demo --out /tmp/runs --json
    """
    with tempfile.TemporaryDirectory(prefix="knee-demo-") as scratch:
        command = harness_command("engine", "--port", "0")
        with running(command, Path(scratch) / "engine.log") as ready:
            options = Options(
                profile=bundled.profile("demo"),
                host=ready.removeprefix("ready ").strip(),
                out=out,
                processes=processes,
                as_json=as_json,
            )
            code = run_profile(options)
    click.get_current_context().exit(code)
