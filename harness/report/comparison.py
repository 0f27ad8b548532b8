"""A comparison of two runs in words: as Markdown for pull requests, as cells of a table."""

from __future__ import annotations

from harness.analysis.changes import Change
from harness.analysis.compare import Comparison
from harness.report.numbers import NONE, percent, plain
from harness.report.text import escape

SHOWN = ("regression", "improvement", "unclear")
WORDS = {
    "regression": "slower",
    "improvement": "faster",
    "same": "same",
    "unclear": "cannot tell",
    "beyond_cap": "above the cap",
}


def comparison_markdown(comparison: Comparison, *, everything: bool = False) -> str:
    """Return the comparison as Markdown; figures that stayed the same only with `everything`."""
    changes = [change for change in comparison.changes if everything or change.word in SHOWN]
    parts = [
        f"# {escape(comparison.text)}",
        f"B {escape(comparison.run_b)} against A {escape(comparison.run_a)}",
    ]
    if changes:
        rows = ["| " + " | ".join(map(escape, change_cells(change))) + " |" for change in changes]
        parts.append("\n".join([_HEAD, *rows]))
    if not everything and len(changes) < len(comparison.changes):
        parts.append(
            f"{len(comparison.changes) - len(changes)} more figures stayed the same or lie above the cap."
        )
    parts += [f"- {escape(line)}" for line in notes(comparison)]
    if comparison.stages:
        rows = [f"| {s.stage} | {plain(s.before_ms)} | {plain(s.after_ms)} |" for s in comparison.stages]
        parts.append("\n".join(["| stage | A ms | B ms |\n| --- | ---: | ---: |", *rows]))
    return "\n\n".join(parts) + "\n"


_HEAD = (
    "| step | kind | figure | A | B | B/A | 95 % | |\n| --- | --- | --- | ---: | ---: | ---: | --- | --- |"
)


def change_cells(change: Change) -> list[str]:
    """Return a change as the cells of a row: step, kind, figure, A, B, ratio, interval, word."""
    before, after = values(change)
    ratio = plain(change.ratio) if change.ratio is not None else NONE
    interval = f"{plain(change.low)}–{plain(change.high)}" if change.low is not None else NONE
    return [change.step, change.kind, change.figure, before, after, ratio, interval, WORDS[change.word]]


def values(change: Change) -> tuple[str, str]:
    """Return a figure in both runs as text."""
    if change.figure == "failures":
        return percent(change.before), percent(change.after)
    return plain(change.before), plain(change.after)


def notes(comparison: Comparison) -> list[str]:
    """Return what a reader should know beside the figures: caps, bottlenecks, steps without a partner."""
    lines = []
    if comparison.cap_a is not None or comparison.cap_b is not None:
        caps = [f"{cap:g}" if cap is not None else "none" for cap in (comparison.cap_a, comparison.cap_b)]
        lines.append(f"Cap: {caps[0]} in A, {caps[1]} in B.")
    if comparison.bottleneck_a is not None and comparison.bottleneck_b is not None:
        a, b = (name.replace("_", " ") for name in (comparison.bottleneck_a, comparison.bottleneck_b))
        moved = f"moved from {a} to {b}" if comparison.bottleneck_moved else f"is the same in both: {a}"
        lines.append(f"The bottleneck {moved}.")
    for name, steps in (("A", comparison.only_a), ("B", comparison.only_b)):
        if steps:
            lines.append(f"Only in {name}: {', '.join(steps)}.")
    return lines
