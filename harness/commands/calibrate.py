"""`knee calibrate`: how many chunks and requests a second this machine's load generator carries."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from harness.commands.ranges import FiniteRange
from harness.commands.tables import console, plain_table
from harness.errors import InvalidRunError

if TYPE_CHECKING:
    from harness.load.ceiling import Ceiling

LIMITED_BY = {
    "client_lag": "beyond it, bytes wait more than 10 ms to be read",
    "client_cpu": "beyond it, the load process's core is full",
    "machine": "at least: the null server, which shares the machine, gave out first",
}


@click.command()
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    metavar="N",
    help="Measure one load process, and N at once.",
)
@click.option(
    "--seconds",
    type=FiniteRange(0.5, 600),
    default=6.0,
    show_default=True,
    metavar="S",
    help="To measure for, in all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def calibrate(processes: int, seconds: float, as_json: bool) -> None:
    """Measure what this machine's load generator carries, against a server that costs next to nothing.

    \b
    knee calibrate                       one process, and two
    knee calibrate --processes 4 --json

    A service that streams more chunks a second than one process carries needs `knee run --processes N`.
    """
    from harness.load.ceiling import ceiling, generators

    counts = sorted({1, processes})
    waiting = Console(stderr=True)
    with generators(processes) as crew, waiting.status("measuring") as status:
        found = []
        for count in counts:
            status.update(f"measuring {_processes(count)}")
            found.append(ceiling(crew, count, seconds / len(counts)))
    failures = sum(one.failures for one in found)
    if failures:
        raise InvalidRunError(f"{failures} requests to the null server failed: nothing was measured")
    machine = _machine()
    if as_json:
        click.echo(json.dumps({"machine": machine, "ceilings": [asdict(one) for one in found]}))
    else:
        out = console()
        out.print(_table(found))
        for one in found:
            out.print(f"{_processes(one.processes)}: {LIMITED_BY[one.limited_by]}")
        out.print(f"{machine['cores']} cores, Python {machine['python']}, gevent {machine['gevent']}")


def _machine() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "gevent": version("gevent"),
        "locust_knee": version("locust-knee"),
    }


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _table(found: list[Ceiling]) -> Table:
    columns = ("chunks/s", "µs each", "streams", "lag p99", "requests/s", "µs each")
    table = plain_table("", *columns, numbers=columns)
    for one in found:
        lag = f"{one.lag_p99_ms:.1f} ms" if one.lag_p99_ms is not None else "–"
        table.add_row(
            _processes(one.processes),
            f"{one.chunks_per_s:,.0f}",
            f"{one.cpu_us_per_chunk:.1f}",
            f"{one.streams}",
            lag,
            f"{one.requests_per_s:,.0f}",
            f"{one.cpu_us_per_request:.0f}",
        )
    return table
