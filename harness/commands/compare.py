"""`knee compare`: is the second run slower than the first?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import msgspec


def _share(context: click.Context, param: click.Parameter, value: str) -> float:
    """Return a share given as "5%" or "0.05"."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", value)
    share = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= share <= 10:
        raise click.BadParameter(f"{value!r} is no share: give it as in 5% or 0.05")
    return share


@click.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option(
    "--max-regression", callback=_share, default="5%", show_default=True, help="Slower by more is a fault."
)
@click.option("--markdown", type=click.Path(path_type=Path), help="Write the comparison as Markdown.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write a JUnit file for a pipeline.")
@click.option("--all", "everything", is_flag=True, help="Show figures that stayed the same, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def compare(
    run_a: Path,
    run_b: Path,
    max_regression: float,
    markdown: Path | None,
    junit: Path | None,
    everything: bool,
    as_json: bool,
) -> None:
    """Compare RUN_B with RUN_A, the baseline; exit 1 where it is slower beyond doubt.

    \b
    knee compare runs/monday runs/tuesday --max-regression 5% --junit compare.xml
    """
    from harness import rundir
    from harness.analysis.compare import compare as compare_runs
    from harness.report.comparison import comparison_markdown
    from harness.report.junit import comparison_junit

    result = compare_runs(rundir.read_run(run_a), rundir.read_run(run_b), max_regression=max_regression)
    if markdown is not None:
        rundir.write_atomically(markdown, comparison_markdown(result, everything=everything).encode())
    if junit is not None:
        rundir.write_atomically(junit, comparison_junit(result))
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
    else:
        _print(result, everything=everything)
    click.get_current_context().exit(1 if result.regressed else 0 if result.changes else 3)


def _print(result: Any, *, everything: bool) -> None:
    from rich.console import Console

    from harness.commands.tables import plain_table
    from harness.report.comparison import SHOWN, WORDS, change_cells, notes

    console = Console(highlight=False)
    shown = [change for change in result.changes if everything or change.word in SHOWN]
    if shown:
        columns = ("step", "kind", "figure", "A", "B", "B/A", "95 %", "")
        table = plain_table(*columns, numbers=("A", "B", "B/A"))
        styles = {WORDS["regression"]: "red", WORDS["improvement"]: "green"}
        for change in shown:
            cells = change_cells(change)
            table.add_row(*cells, style=styles.get(cells[-1]))
        console.print(table)
    console.print(result.text, style="bold", markup=False)
    for line in notes(result):
        console.print(f"  {line}", markup=False)
    for stage in result.stages:
        console.print(
            f"  {stage.stage}: {stage.before_ms:.1f} ms in A, {stage.after_ms:.1f} ms in B", markup=False
        )
