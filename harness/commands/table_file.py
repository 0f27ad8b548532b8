"""Reads the table of a ladder: CSV with comma, semicolon or tab, with or without a header line.

Blank lines and lines that begin with `#` are left out. Everything else must be a number above zero in the
three columns that are asked for; what is not is the user's mistake, named with its line and column.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UserError

MOST = 1e15
ROLES = ("load", "throughput", "latency")


@dataclass(frozen=True, slots=True)
class LadderTable:
    """The rows of a table in its order, and what its columns are called."""

    names: tuple[str, str, str]
    load: list[float]
    throughput: list[float]
    latency: list[float]


def read_table(path: Path, wanted: Sequence[str | None] = (None, None, None)) -> LadderTable:
    """Return the table of a file; raises UserError."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path) from None
    except UnicodeDecodeError:
        raise UserError("is not UTF-8 text", file=path, remedy="save the table as UTF-8 CSV") from None
    return parse_table(text, wanted, path)


def parse_table(
    text: str, wanted: Sequence[str | None] = (None, None, None), file: Path | None = None
) -> LadderTable:
    """Return the table of a text; raises UserError.

    `wanted` names or numbers the three columns (load, throughput, latency); without it, the first three.
    """
    lines = _lines(text, file)
    if not lines:
        raise UserError(
            "the table is empty", file=file, remedy="give load, throughput and latency, one step a line"
        )
    first, cells = lines[0]
    headless = all(_number(cell) is not None for cell in cells)
    names = [str(i + 1) for i in range(len(cells))] if headless else [cell.strip() for cell in cells]
    columns = [_column(names, name, i, file, first) for i, name in enumerate(wanted)]
    rows = lines if headless else lines[1:]
    if not rows:
        raise UserError("the table has a header and no rows", file=file)
    values = [[_value(cells, c, names[c], line, file) for c in columns] for line, cells in rows]
    load, throughput, latency = ([row[i] for row in values] for i in range(3))
    a, b, c = (names[column] for column in columns)
    return LadderTable((a, b, c), load, throughput, latency)


def _lines(text: str, file: Path | None) -> list[tuple[int, list[str]]]:
    head = next(
        (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), ""
    )
    delimiter = max(",;\t", key=head.count)
    reader = csv.reader(text.splitlines(keepends=True), delimiter=delimiter, skipinitialspace=True)
    found = []
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) and not cells[0].lstrip().startswith("#"):
                found.append((reader.line_num, cells))
    except csv.Error as error:
        raise UserError(f"is not CSV: {error}", file=file, line=reader.line_num) from None
    return found


def _column(names: Sequence[str], name: str | None, position: int, file: Path | None, line: int) -> int:
    if name is None:
        if position < len(names):
            return position
        what = f"the table has {len(names)} columns and needs three: load, throughput, latency"
        raise UserError(what, file=file, line=line)
    if name in names:
        return names.index(name)
    if name.isascii() and name.isdigit() and 1 <= int(name) <= len(names):
        return int(name) - 1
    known = ", ".join(names)
    raise UserError(
        f"there is no column {name!r}",
        file=file,
        line=line,
        key=f"--{ROLES[position]}",
        remedy=f"it has {known}",
    )


def _value(cells: Sequence[str], column: int, name: str, line: int, file: Path | None) -> float:
    if column >= len(cells) or not cells[column].strip():
        raise UserError(
            "is empty", file=file, line=line, key=f"column {name}", remedy="leave the whole row out"
        )
    number = _number(cells[column])
    if number is None:
        cell = cells[column].strip()
        remedy = "write a decimal point" if "," in cell else None
        raise UserError(
            f"{cell!r} is not a number", file=file, line=line, key=f"column {name}", remedy=remedy
        )
    if not 0 < number <= MOST:
        raise UserError(
            f"{number:g} must lie above 0 and at most {MOST:g}", file=file, line=line, key=f"column {name}"
        )
    return number


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
