"""The report as a document: sections of blocks that hold nothing but printable text.

HTML and Markdown are two renderings of one document, so they cannot say different things.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from harness.report.numbers import NONE, Missing, Value

Tone = Literal["good", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Para:
    """A paragraph."""

    text: str
    tone: Literal["body", "note", "lead"] = "body"


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of short lines."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure that stands out: its name, the figure, what it means."""

    label: str
    value: str
    note: str = ""
    main: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """A row of figures that stand out."""

    items: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell; ref points to the note that says why a figure is missing."""

    text: str
    ref: int | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """A column's title; numbers are aligned to the right."""

    text: str
    numeric: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `marks` names the rows that stand out, `notes` are numbered from 1."""

    heads: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marks: dict[int, str]  # row -> cap | knee | unused
    notes: tuple[str, ...] = ()
    caption: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart by its name in Rendered.charts."""

    name: str
    alt: str
    caption: str = ""


Block = Para | Bullets | Facts | Table | Figure


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it."""

    id: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report."""

    lang: str
    title: str
    eyebrow: str
    verdict: str
    tone: Tone
    details: tuple[str, ...]  # under the verdict: date, target, duration
    labels: tuple[str, ...]  # "simulated", "not valid"
    facts: Facts
    alerts: tuple[str, ...]  # what weakens the verdict, to be read before the figures
    sections: tuple[Section, ...]


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `tabulate`: its title and how a row's value is read."""

    title: str
    value: Callable[..., Value]
    numeric: bool = True
    always: bool = False  # stays where all values are missing


def tabulate(
    rows: Sequence[Row],
    columns: Sequence[Column],
    *,
    absent: Callable[[str, str], str],
    marks: dict[int, str] | None = None,
    caption: str = "",
    title: str = "",
) -> Table:
    """Return a table in which each missing figure is a dash that points to its reason.

    A column without any figure is left out; `absent(title, reason)` words the note that says so.
    """
    notes: list[str] = []

    def note(text: str) -> int:
        if text not in notes:
            notes.append(text)
        return notes.index(text) + 1

    kept: list[tuple[Column, list[Value]]] = []
    left_out: dict[str, list[str]] = {}
    for column in columns:
        values = [column.value(row) for row in rows]
        gone = [v for v in values if isinstance(v, Missing)]
        if values and len(gone) == len(values) and not column.always:
            left_out.setdefault(gone[0].reason, []).append(column.title)
        else:
            kept.append((column, values))
    cells = tuple(
        tuple(
            Cell(NONE, note(v.reason) if v.reason else None) if isinstance(v, Missing) else Cell(v)
            for v in (values[i] for _, values in kept)
        )
        for i in range(len(rows))
    )
    unnumbered = [absent(", ".join(titles), reason) for reason, titles in left_out.items()]
    return Table(
        heads=tuple(Head(column.title, column.numeric) for column, _ in kept),
        rows=cells,
        marks=marks or {},
        notes=tuple(notes),
        caption=" ".join(part for part in (caption, *unnumbered) if part),
        title=title,
    )
