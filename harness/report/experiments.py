"""The sections of the other measurements: a sentence, a chart where one helps, the table."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

from harness.report.document import Block, Bullets, Column, Figure, Para, Table, tabulate
from harness.report.draw import ACCENT, INK, SOFT, Spec
from harness.report.layers import WIDTH
from harness.report.messages import Say, has
from harness.report.messages.phrases import translate
from harness.report.numbers import Missing, Value, count, percent, plain, time_unit
from harness.results import Experiment

MAX_ROWS = 60
CHARTED = ("first_ms", "median_ms", "prefill_p50_ms", "ttft_p50_ms", "total_p50_ms")


def experiment_blocks(
    name: str, experiment: Experiment, say: Say, lang: str, *, charted: bool, lead: bool = True
) -> list[Block]:
    """Return what one measurement found: its sentence, chart, table, problems, and how it was judged.

    Without `lead` the sentence is left out: it is the report's headline.
    """
    blocks: list[Block] = [Para(translate(experiment.text, lang), "lead")] if lead else []
    if charted:
        blocks.append(Figure(chart_name(name), say("experiment.figure")))
    if experiment.rows:
        blocks.append(_table(experiment, say, lang))
    if experiment.problems:
        blocks.append(Bullets(tuple(translate(text, lang) for text in experiment.problems)))
    if has(lang, f"how.{name}"):
        blocks.append(Para(say(f"how.{name}"), "note"))
    return blocks


def chart_name(name: str) -> str:
    """Return the name of an experiment's chart."""
    return "experiment-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def experiment_chart(experiment: Experiment) -> Spec | None:
    """Return the median times of each row: a line where the first column is a number, else bars."""
    times = [c for c in experiment.columns if c in CHARTED]
    rows = [row for row in experiment.rows[:MAX_ROWS] if len(row) == len(experiment.columns)]
    if not times or len(rows) < 2:
        return None
    numeric = all(_number(row[0]) for row in rows)
    unit = time_unit(
        max((row[experiment.columns.index(c)] or 0 for c in times for row in rows), default=None)
    )
    values = []
    for column in times[:3]:
        at = experiment.columns.index(column)
        name = heading(column, "")
        for row in rows:
            if _number(row[at]):
                place = row[0] if numeric else str(row[0])
                hover = f"{experiment.columns[0]} {place}: {name} {unit.text(row[at])} {unit.name}"
                values.append({"place": place, "value": row[at] * unit.per_ms, "name": name, "tip": hover})
    if not values:
        return None
    names = list(dict.fromkeys(str(v["name"]) for v in values))
    colour: Spec = {
        "field": "name",
        "type": "nominal",
        "scale": {"domain": names, "range": [ACCENT, SOFT, "#c3cad4"][: len(names)]},
        "legend": {"orient": "top", "title": None},
    }
    time = {"field": "value", "type": "quantitative", "axis": {"title": unit.name, "tickCount": 5}}
    tip: Spec = {"description": {"field": "tip"}}
    if numeric:
        x = {
            "field": "place",
            "type": "quantitative",
            "scale": {"zero": False, "nice": False, "padding": 16},
            "axis": {
                "title": heading(experiment.columns[0], ""),
                "values": [r[0] for r in rows],
                "grid": False,
            },
        }
        line = {"mark": {"type": "line", "strokeWidth": 2, "aria": False}}
        dots = {"mark": {"type": "point", "filled": True, "size": 46, "opacity": 1}, "encoding": tip}
        return {
            "width": WIDTH,
            "height": 180,
            "data": {"values": values},
            "encoding": {"x": x, "y": time, "color": colour},
            "layer": [line, dots],
        }
    place = {"field": "place", "type": "nominal", "sort": None, "axis": {"title": None, "labelColor": INK}}
    offset = {"field": "name", "type": "nominal", "sort": None}
    encoding: Spec = {"y": place, "yOffset": offset, "x": time, "color": colour, **tip}
    return {
        "width": WIDTH,
        "height": {"step": 14},
        "data": {"values": values},
        "mark": "bar",
        "encoding": encoding,
    }


def heading(column: str, unit: str) -> str:
    """Return a column's title: "ttft_p50_ms" gives "TTFT p50 (ms)"."""
    words = column.removesuffix("_ms").removesuffix("_bytes").replace("_", " ").strip()
    for short in ("ttft", "itl", "slo", "gpu", "kv", "ci"):
        words = " ".join(short.upper() if word == short else word for word in words.split(" "))
    words = words[:1].upper() + words[1:] if not words[:1].isupper() else words
    return f"{words} ({unit})" if unit and column.endswith("_ms") else words


def _table(experiment: Experiment, say: Say, lang: str) -> Table:
    width = len(experiment.columns)
    rows = [[*row, *[None] * (width - len(row))][:width] for row in experiment.rows]
    times = [row[i] for row in rows for i, c in enumerate(experiment.columns) if c.endswith("_ms")]
    unit = time_unit(max((t for t in times if _number(t)), default=None))

    def read(at: int, name: str, row: list[Any]) -> Value:
        x = row[at]
        if x is None or (isinstance(x, float) and not math.isfinite(x)):
            return Missing(say("experiment.empty"))
        if isinstance(x, bool):
            return say("yes" if x else "no")
        if isinstance(x, list | tuple):
            return "–".join(_text(name, part, unit.per_ms) for part in x)
        return _text(name, x, unit.per_ms) if _number(x) else translate(str(x), lang)

    columns = [
        Column(
            _title(name, unit.name, say, lang),
            partial(read, i, name),
            numeric=any(_number(row[i]) for row in rows),
        )
        for i, name in enumerate(experiment.columns)
    ]
    return tabulate(
        rows[:MAX_ROWS], columns, absent=lambda names, why: say("missing.absent", names=names, reason=why)
    )


def _title(column: str, unit: str, say: Say, lang: str) -> str:
    """Return a column's title in the reader's language where there is one."""
    key = f"column.{column}"
    if not has(lang, key):
        return heading(column, unit)
    return f"{say(key)} ({unit})" if column.endswith("_ms") else say(key)


def _text(name: str, x: float, per_ms: float) -> str:
    if name.endswith("_ms"):
        return plain(x * per_ms)
    if name == "p":
        return "< 0.001" if x < 0.001 else f"{x:.3f}"
    if name.endswith(("ratio", "share", "rate")):
        return percent(x)
    return (
        count(x)
        if isinstance(x, int) and abs(x) >= 1000 and name not in ("side", "user")
        else plain_or_whole(x)
    )


def plain_or_whole(x: float) -> str:
    """Return whole numbers as they are, others with three significant digits."""
    return f"{x:g}" if float(x).is_integer() and abs(x) < 1e6 else plain(x)


def _number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)
