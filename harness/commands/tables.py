"""Tables on a terminal: no lines but the columns themselves."""

from __future__ import annotations

from collections.abc import Collection

from rich.table import Table


def plain_table(*columns: str, numbers: Collection[str] = ()) -> Table:
    """Return an empty table with these columns, those of `numbers` aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return table
