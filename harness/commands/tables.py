"""How commands print: tables without lines, and in a log each sentence and each row on one line."""

from __future__ import annotations

from collections.abc import Collection

from rich.console import Console
from rich.table import Table

LOG_WIDTH = 10_000  # no line of ours is as long


def console() -> Console:
    """Return a console on stdout that breaks lines only where a terminal shows them."""
    made = Console(highlight=False)
    if not made.is_terminal:
        made.width = LOG_WIDTH
    return made


def plain_table(*columns: str, numbers: Collection[str] = ()) -> Table:
    """Return an empty table with these columns, those of `numbers` aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return table
