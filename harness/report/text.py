"""The document as Markdown, for pull requests and terminals."""

from __future__ import annotations

import re

from harness.report.document import Block, Bullets, Cell, Document, Facts, Figure, Para, Table

SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
MARKS = {"cap": "**", "knee": "**", "unused": "~~"}


def markdown(document: Document) -> str:
    """Return the whole document as Markdown (GitHub flavour), charts by relative path."""
    parts = [f"# {escape(document.verdict)}"]
    parts.append(" · ".join(escape(x) for x in (document.eyebrow, *document.details)))
    parts += [f"> **{escape(label)}**" for label in document.labels]
    parts += [f"> {escape(alert)}" for alert in document.alerts]
    if document.facts.items:
        parts.append(_block(document.facts))
    for section in document.sections:
        parts.append(f"## {escape(section.title)}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """Return text that Markdown and the HTML inside it leave alone, on one line."""
    text = re.sub(r"\s*[\r\n]+\s*", " ", text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"[\\*\[\]|~`]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)


def _block(block: Block) -> str:
    match block:
        case Para(text, tone):
            return f"**{escape(text)}**" if tone == "lead" else escape(text)
        case Bullets(items):
            return "\n".join(f"- {escape(item)}" for item in items)
        case Facts(items):
            rows = [f"| {escape(f.label)} | **{escape(f.value)}** | {escape(f.note)} |" for f in items]
            return "\n".join(["| | | |", "|---|---:|---|", *rows])
        case Figure(name, alt, caption):
            image = f"![{escape(alt)}](charts/{name}.svg)"
            return f"{image}\n\n{escape(caption)}" if caption else image
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    title = [f"**{escape(table.title)}**", ""] if table.title else []
    head = "| " + " | ".join(escape(h.text) for h in table.heads) + " |"
    rule = "|" + "|".join("---:" if h.numeric else "---" for h in table.heads) + "|"
    rows = []
    for number, cells in enumerate(table.rows):
        mark = MARKS.get(table.marks.get(number, ""), "")
        first, *rest = cells
        texts = [f"{mark}{_cell(first)}{mark}", *(_cell(c) for c in rest)]
        rows.append("| " + " | ".join(texts) + " |")
    notes = [f"{str(i).translate(SUPERSCRIPT)} {escape(note)}" for i, note in enumerate(table.notes, 1)]
    below = [escape(table.caption)] if table.caption else []
    return "\n".join([*title, head, rule, *rows]) + "".join(f"\n\n{line}" for line in [*notes, *below])


def _cell(cell: Cell) -> str:
    return escape(cell.text) + (str(cell.ref).translate(SUPERSCRIPT) if cell.ref else "")
