"""A comparison of two runs in words: as rows of tables for a terminal, as Markdown for pull requests.

The outcome and what both runs conclude come first, then what sets the runs apart, then the figures that
changed. Figures that did not change are counted; `everything` shows them too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis.changes import Change, Word, telling
from harness.analysis.compare import Comparison
from harness.analysis.compare_wording import FIGURE_NAMES, cap_words, signed
from harness.analysis.differences import Grade
from harness.report.messages import messages
from harness.report.numbers import NONE, percent, plain
from harness.report.text import escape
from harness.results import Status

WORDS: dict[Word, str] = {
    "regression": "slower",
    "improvement": "faster",
    "unclear": "cannot tell",
    "same": "same",
    "beyond_cap": "above the cap",
}
HEADS: dict[Word, str] = {
    "regression": "Worse in B",
    "improvement": "Better in B",
    "unclear": "Cannot be told: more than {threshold:g} % may hide in the noise",
    "same": "Not slower by more than {threshold:g} %",
    "beyond_cap": "Above the cap of A: not judged",
}
COUNTED: dict[Word, str] = {
    "unclear": "cannot be told",
    "same": "not slower by more than {threshold:g} %",
    "beyond_cap": "above the cap of A",
}
GRADES: dict[Grade, str] = {
    "traffic": "Traffic differs: figures are not comparable.",
    "measurement": "Measured otherwise: compare with care.",
    "service": "The service differs: this is what is compared.",
}
CONCLUSIONS = {
    "cap": "cap",
    "most_likely": "most likely cap",
    "steady": "steady",
    "knee_step": "knee",
    "range": "range of the cap",
    "confidence": "confidence",
    "safe_cap": "safe cap",
    "slo_cap": "SLO cap",
}
ALWAYS = ("cap", "steady", "knee_step", "confidence")
COLUMNS = ("step", "kind", "figure", "A", "B", "change", "95 %")
LONGEST, LEAD = 36, 12  # characters of a value that is shown, and before the place where two long ones part


@dataclass(frozen=True, slots=True)
class Group:
    """Changes that came to the same, under their heading."""

    word: Word
    head: str
    changes: list[Change]


def groups(comparison: Comparison, *, everything: bool) -> list[Group]:
    """Return the changes to show: what became worse, what became better, and with `everything` the rest."""
    chosen = comparison.changes if everything else telling(comparison.changes)
    found = []
    for word, head in HEADS.items():
        if changes := [change for change in chosen if change.word == word]:
            found.append(Group(word, head.format(threshold=100 * comparison.max_regression), changes))
    return found


def folded(comparison: Comparison) -> str | None:
    """Return how many figures are not shown without `everything`, and why; None where all are."""
    counts = Counter(change.word for change in comparison.changes)
    kinds = counts["regression"] + counts["improvement"] - len(telling(comparison.changes))
    parts = [f"{kinds} of single kinds that say the same as their step"] if kinds else []
    threshold = 100 * comparison.max_regression
    parts += [
        f"{counts[word]} {words.format(threshold=threshold)}"
        for word, words in COUNTED.items()
        if counts[word]
    ]
    return f"Not shown: {', '.join(parts)} (--all shows them)." if parts else None


def change_cells(change: Change) -> list[str]:
    """Return a change as the cells of `COLUMNS`."""
    by = NONE if change.ratio is None else f"{signed(change.ratio)} %"
    sure = NONE if change.low is None else f"{signed(change.low)} to {signed(change.high)} %"
    return [change.step, change.kind, FIGURE_NAMES[change.figure], *values(change), by, sure]


def values(change: Change) -> tuple[str, str]:
    """Return a figure in both runs as text: milliseconds, or the share that failed."""
    if change.figure == "failures":
        return percent(change.before), percent(change.after)
    return plain(change.before), plain(change.after)


def conclusion_rows(comparison: Comparison) -> list[list[str]]:
    """Return name, A and B of each conclusion; limits and finer points only where they differ."""
    pairs = {pair.key: (pair.before, pair.after) for pair in comparison.conclusions}
    statuses, caps = pairs.get("status", (None, None)), pairs.get("cap", (None, None))
    rows = []
    if statuses[0] != statuses[1]:
        rows.append(["verdict", *(NONE if s is None else s.replace("_", " ") for s in statuses)])
    for key, name in CONCLUSIONS.items():
        found = pairs.get(key, (None, None))
        implied = found == caps if key == "safe_cap" else key == "most_likely" and None not in caps
        if found == (None, None) or implied or (found[0] == found[1] and key not in ALWAYS):
            continue
        rows.append([name, *map(_conclusion, (key, key), found, statuses)])
    places = [comparison.bottleneck_a, comparison.bottleneck_b]
    if any(places):
        rows.append(["bottleneck", *(NONE if p is None else p.replace("_", " ") for p in places)])
    alike = not any(difference.grade == "traffic" for difference in comparison.differs)
    for key, found in pairs.items():
        section, _, name = key.removeprefix("limits.").partition(".")
        # input limits say how large requests were: a conclusion only where the same ones were sent
        if name and found[0] != found[1] and (alike or section != "input_limits"):
            rows.append([f"timeout {name}" if section == "timeouts" else name, *map(shown, found)])
    stages = [[f"{s.stage} median ms", plain(s.before_ms), plain(s.after_ms)] for s in comparison.stages]
    return rows + stages


def _conclusion(key: str, value: Any, status: Status | None) -> str:
    if key == "cap":
        return cap_words(status, value)
    if value is None:
        return NONE
    if key == "confidence":
        return percent(value)
    return f"{value[0]:g} to {value[1]:g}" if key == "range" else f"{value:g}"


def difference_rows(comparison: Comparison, *only: Grade) -> list[tuple[Grade, str, list[tuple[str, str]]]]:
    """Return each grade that occurs (of `only`): its heading, and its keys with "old -> new"."""
    found = []
    for grade in only or GRADES:
        mine = [difference for difference in comparison.differs if difference.grade == grade]
        if mine:
            rows = [(d.key, " -> ".join(shorten(d.before, d.after))) for d in mine]
            found.append((grade, GRADES[grade], rows))
    return found


def shorten(before: Any, after: Any) -> tuple[str, str]:
    """Return two different values as text; of long ones the part in which they differ."""
    texts = [shown(before), shown(after)]
    start = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    cut = start - LEAD if max(map(len, texts)) > LONGEST and start > LEAD else 0
    first, second = (_cut(text, cut) for text in texts)
    return first, second


def _cut(text: str, start: int) -> str:
    text = f"…{text[start:]}" if start else text
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def shown(value: Any) -> str:
    """Return a value as one would write it in a profile; "none" where there is none."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case dict():
            parts = [f"{key}: {shown(inner)}" for key, inner in value.items() if inner is not None]
            return "{" + ", ".join(parts) + "}"
        case list() | tuple():
            return ", ".join(map(shown, value)) or "none"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def notes(comparison: Comparison) -> list[str]:
    """Return what to know beside the figures: an unclear cap, weak runs, steps without a partner."""
    say = messages("en")
    lines = []
    if comparison.same_run:
        lines.append("A and B are the same run.")
    if comparison.cap_move == "unclear":
        lines.append("Whether the cap moved cannot be told from these two ladders.")
    for caution in comparison.cautions:
        words = caution.text or f"{say(f'problem.{caution.code}')} at {', '.join(caution.steps)}."
        lines.append(f"{caution.run}: {words}")
    for name, steps in (("A", comparison.only_a), ("B", comparison.only_b)):
        if steps:
            lines.append(f"Only in {name}: {', '.join(steps)}.")
    return lines


def comparison_markdown(comparison: Comparison, *, everything: bool = False) -> str:
    """Return the comparison as Markdown; figures that did not change only with `everything`."""
    parts = [f"# {escape(comparison.text)}"]
    parts.append(f"A, the baseline: {escape(comparison.run_a)}\\\nB: {escape(comparison.run_b)}")
    if rows := conclusion_rows(comparison):
        parts.append(_table(("", "A", "B"), "lll", rows))
    for _, head, keys in difference_rows(comparison):
        parts += [f"**{head}**", _table(("key", "A -> B"), "ll", keys)]
    if lines := notes(comparison):
        parts.append("\n".join(f"- {escape(line)}" for line in lines))
    for group in groups(comparison, everything=everything):
        cells = [change_cells(change) for change in group.changes]
        parts += [f"**{group.head}** (times in ms)", _table(COLUMNS, "lllrrrl", cells)]
    if not everything and (line := folded(comparison)):
        parts.append(escape(line))
    return "\n\n".join(parts) + "\n"


def _table(heads: Sequence[str], sides: str, rows: Sequence[Sequence[str]]) -> str:
    line = ["---:" if side == "r" else "---" for side in sides]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, line, *(map(escape, r) for r in rows)])
