"""`knee compare`: is the second run slower than the first?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.cells import cell_len
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from harness.commands.tables import console, plain_table

if TYPE_CHECKING:  # the analysis libraries are loaded by a comparison, not by --help
    from rich.console import Console

    from harness.analysis.compare import Comparison
    from harness.report.comparison import Group

GRADE_STYLES = {"traffic": "bold red", "measurement": "yellow", "service": "none"}
WORD_STYLES = {"regression": "red", "improvement": "green"}
GAP = 2  # columns of a table stand so far apart


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
@click.option("--all", "everything", is_flag=True, help="Show figures that did not change, too.")
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

    Says first what sets the runs apart: figures of different traffic are not comparable.

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
    judged = any(change.word != "beyond_cap" for change in result.changes)
    click.get_current_context().exit(1 if result.regressed else 0 if judged else 3)


def _print(result: Comparison, *, everything: bool) -> None:
    """Print the outcome, both verdicts, what sets the runs apart, and the figures that changed."""
    from harness.report import comparison as words

    out = console()
    out.print(f"{result.text}\n", style="bold", markup=False)
    out.print(f"A, the baseline: {result.run_a}\nB: {result.run_b}", markup=False)
    if rows := words.conclusion_rows(result):
        out.print(_filled(plain_table("", "A", "B"), rows))
    for grade, head, keys in words.difference_rows(result):
        out.print(f"\n{head}", style=GRADE_STYLES[grade])
        out.print(_indented(_filled(plain_table("key", "A -> B"), keys)))
    if lines := words.notes(result):
        out.print("\nBesides:", style="yellow")
        out.print(_indented("\n".join(map(escape, lines))))
    _print_figures(out, words.groups(result, everything=everything))
    if not everything and (line := words.folded(result)):
        out.print(f"\n{line}", markup=False)


def _print_figures(out: Console, groups: Sequence[Group]) -> None:
    """Print a table for each group, their columns in line where they fit; nothing is cut, long names wrap."""
    from harness.report.comparison import COLUMNS, change_cells

    rows = [[change_cells(change) for change in group.changes] for group in groups]
    cells = zip(COLUMNS, *(row for part in rows for row in part), strict=True)
    widths = [max(map(cell_len, column)) for column in cells]
    fits = sum(widths) + GAP * (len(widths) - 1) <= out.width
    for group, part in zip(groups, rows, strict=True):
        table = plain_table(*COLUMNS, numbers=COLUMNS[3:])
        for column, width in zip(table.columns, widths, strict=True):
            column.min_width = width if fits else None
        out.print(f"\n{group.head} (times in ms)", style="bold")
        out.print(_filled(table, part), style=WORD_STYLES.get(group.word))


def _filled(table: Table, rows: Sequence[Sequence[str]]) -> Table:
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _indented(inner: Table | str) -> Padding:
    return Padding(inner, (0, 0, 0, 2), expand=False)
