"""`knee find`: a table of any tool in, the verdict out."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.table import Table

from harness.commands.table_file import read_table
from harness.commands.tables import console, plain_table
from harness.results import Knee

INVALID = 3
LEGEND = (
    "A: latency outruns throughput. B: memory (not in a table). C: throughput no longer follows.\n"
    "e_x, e_lat: growth of throughput and latency as a share of the load's, on a log scale; 1 is in step."
)


@click.command()
@click.argument("table", type=click.Path(path_type=Path), metavar="TABLE.csv")
@click.option("--load", metavar="COL", help="Users, or offered rate: a column's name or number [first].")
@click.option("--throughput", metavar="COL", help="Requests or tokens served per second [second].")
@click.option("--latency", metavar="COL", help="Mean or p95 latency, in any unit [third].")
@click.option("--open-loop", is_flag=True, help="The load is an arrival rate, not a number of users.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def find(
    table: Path, load: str | None, throughput: str | None, latency: str | None, open_loop: bool, as_json: bool
) -> None:
    """Find the knee in TABLE.csv, one load step a line; repeated loads count as repeats.

    \b
    knee find ladder.csv
    knee find ladder.csv --load concurrency --throughput rps --latency p95_ms --json
    """
    rows = read_table(table, (load, throughput, latency))
    from harness.analysis.table import find_in_table

    knee = find_in_table(rows.load, rows.throughput, rows.latency, open_loop)
    if as_json:
        click.echo(msgspec.json.encode(knee).decode())
    else:
        _print(knee, "req/s" if open_loop else "users")
    click.get_current_context().exit(INVALID if knee.status == "insufficient" else 0)


def _print(knee: Knee, unit: str) -> None:
    from harness.analysis.wording import verdict_sentence

    out = console()
    out.print(f"[bold]{verdict_sentence(knee, unit)}[/bold]")
    figures = {
        "cap": knee.cap,
        "steady": knee.steady,
        "safe cap": knee.safe_cap,
        "most likely": knee.most_likely,
    }
    words = [f"{name} {value:g}" for name, value in figures.items() if value is not None]
    if knee.confidence is not None:
        words.append(f"confidence {100 * knee.confidence:.0f} %")
    out.print(", ".join(words))
    if knee.votes:
        out.print(_votes(knee))
        click.echo(LEGEND)
        out.print(_checks(knee))
    for note in knee.notes:
        out.print(f"- {note}", markup=False)


def _votes(knee: Knee) -> Table:
    columns = ("step", "A", "B", "C", "e_x", "e_lat", "why")
    table = plain_table(*columns, numbers=("step", "e_x", "e_lat"))
    for v in knee.votes:
        growth = ("–" if e is None else f"{e:.2f}" for e in (v.e_x, v.e_p95))
        table.add_row(f"{v.users:g}", *(_word(vote) for vote in (v.A, v.B, v.C)), *growth, v.why)
    return table


def _checks(knee: Knee) -> Table:
    table = plain_table("cross-check", "cap", "agrees", "", numbers=("cap",))
    for name, check in knee.cross_checks.items():
        table.add_row(name, "–" if check.cap is None else f"{check.cap:g}", _word(check.agrees), check.detail)
    return table


def _word(value: bool | None) -> str:
    return "–" if value is None else "yes" if value else "no"
