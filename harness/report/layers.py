"""The layers that the charts of a ladder are put together from: axes, lines, dots, marks of the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.report.draw import ACCENT, MUTED, SOFT, WARN, Spec
from harness.report.numbers import TimeUnit, known, load, plain
from harness.results import Knee, Quantiles, Step

WIDTH, PANEL_HEIGHT = 640, 190
NAME_HEIGHT = 12  # pixels of a line of text
COLOURS = {"p50": SOFT, "p95": ACCENT, "p99": "#12365f"}
Quantile = Callable[[Step], Quantiles]

LIGHT_LINE: Spec = {
    "type": "line",
    "color": "#aab4c0",
    "strokeWidth": 1.2,
    "strokeDash": [2, 3],
    "clip": True,
    "aria": False,
}


def axis_title(steps: Sequence[Step]) -> str:
    """Return what the load axis counts."""
    closed = any(step.users is not None for step in steps)
    return "concurrent users" if closed else "offered load (requests/s)"


def panel(layers: list[Spec], x: Spec) -> Spec:
    """Return layers over one load axis."""
    return {"width": WIDTH, "height": PANEL_HEIGHT, "encoding": {"x": x}, "layer": layers}


def load_axis(points: Sequence[Step], *, title: str | None) -> Spec:
    """Return the load axis with a tick a step; without a title it is drawn bare."""
    loads = sorted({s.load or 0.0 for s in points})
    axis: Spec = {"values": loads, "grid": False, "title": title, "format": "~g"}
    if title is None:
        axis |= {"labels": False, "ticks": False}
    return {
        "field": "load",
        "type": "quantitative",
        "scale": {"domain": [0, loads[-1] * 1.08], "nice": False},
        "axis": axis,
    }


def value_axis(title: str, top: float | None = None) -> Spec:
    """Return a vertical axis from zero, up to `top` where given."""
    scale: Spec = {"zero": True} if top is None else {"domain": [0, top], "nice": False}
    axis = {"title": title, "tickCount": 5, "domain": False, "ticks": False, "titleAnchor": "middle"}
    return {"field": "value", "type": "quantitative", "scale": scale, "axis": axis}


def throughput(points: Sequence[Step]) -> list[Spec]:
    """Return requests per second as a line with a dot a step."""
    rows = [
        {
            "load": s.load,
            "value": s.rps,
            "tip": f"{s.label}: {plain(s.rps)} requests/s, {s.n} good requests"
            + (f", {s.failures} failed" if s.failures else ""),
            "used": s.used,
        }
        for s in points
    ]
    top = 1.12 * max(s.rps or 0.0 for s in points) or 1.0
    y = value_axis("Throughput (requests/s)", top)
    return [line(rows, ACCENT, y), dots(rows, ACCENT, y)]


def text(colour: str, **style: object) -> Spec:
    """Return a text mark that screen readers pass over."""
    return {"type": "text", "align": "left", "fontSize": 11, "color": colour, "aria": False, **style}


def line(rows: list[Spec], colour: str, y: Spec) -> Spec:
    """Return a line through the points; steps measured again meet at their median."""
    mark: Spec = {"type": "line", "color": colour, "strokeWidth": 2, "clip": True, "aria": False}
    return {
        "data": {"values": [r for r in rows if r["used"]]},
        "mark": mark,
        "encoding": {"y": y | {"aggregate": "median"}},
    }


def dots(rows: list[Spec], colour: str, y: Spec) -> Spec:
    """Return one dot a step, hollow where the step is not used for the verdict."""
    return {
        "data": {"values": rows},
        "mark": {
            "type": "point",
            "filled": True,
            "size": 46,
            "opacity": 1,
            "color": colour,
            "stroke": colour,
        },
        "encoding": {
            "y": y,
            "fill": {"condition": {"test": "datum.used", "value": colour}, "value": "white"},
            "description": {"field": "tip"},
        },
    }


def ideal(points: Sequence[Step]) -> Spec:
    """Return the light line of throughput in step with load, from the lightest step on."""
    first = min(points, key=lambda s: s.load or 0.0)
    last = max(s.load or 0.0 for s in points)
    slope = (first.rps or 0.0) / (first.load or 1.0)
    top = 1.12 * max(s.rps or 0.0 for s in points) or 1.0
    end = min(last * 1.08, top / slope) if slope else last
    return {
        "layer": [
            {
                "data": {"values": [{"load": 0, "value": 0}, {"load": end, "value": slope * end}]},
                "mark": LIGHT_LINE,
                "encoding": {"y": value_axis("", top)},
            },
            {
                "data": {"values": [{"load": end * 0.7, "value": slope * end * 0.7}]},
                "mark": text(MUTED, align="right", dx=-8, dy=-4),
                "encoding": {"y": value_axis("", top), "text": {"value": "in step with load"}},
            },
        ],
    }


def percentiles(
    points: Sequence[Step],
    quantiles: Quantile,
    names: tuple[str, ...],
    unit: TimeUnit,
    title: str,
) -> list[Spec]:
    """Return one line a percentile, named at its end."""
    y = value_axis(title)
    drawn = {name: _percentile_rows(points, quantiles, name, unit) for name in names}
    drawn = {name: rows for name, rows in drawn.items() if rows}
    layers = [
        layer
        for name, rows in drawn.items()
        for layer in (line(rows, COLOURS[name], y), dots(rows, COLOURS[name], y))
    ]
    ends = {name: max(rows, key=lambda row: float(row["load"])) for name, rows in drawn.items()}
    top = max((float(row["value"]) for rows in drawn.values() for row in rows), default=0.0)
    for name, shift in _apart({name: float(end["value"]) for name, end in ends.items()}, top).items():
        place = {"y": y, "text": {"field": "name"}}
        mark = text(COLOURS[name], dx=8, dy=shift)
        layers.append({"data": {"values": [ends[name]]}, "mark": mark, "encoding": place})
    return layers


def _percentile_rows(points: Sequence[Step], quantiles: Quantile, name: str, unit: TimeUnit) -> list[Spec]:
    rows = []
    for step in points:
        ms = getattr(quantiles(step), f"{name}_ms")
        if known(ms):
            tip = f"{step.label}: {name} {unit.text(ms)} {unit.name} ({step.n} requests)"
            row = {"load": step.load, "value": ms * unit.per_ms, "used": step.used}
            rows.append(row | {"name": name, "tip": tip})
    return rows


def _apart(values: dict[str, float], top: float) -> dict[str, float]:
    """Return by how many pixels each name moves (up: negative), so that near ones do not overlap."""
    shifts: dict[str, float] = {}
    below = -float(NAME_HEIGHT)
    for name, value in sorted(values.items(), key=lambda item: item[1]):
        height = PANEL_HEIGHT * value / top if top > 0 else 0.0
        place = max(height, below + NAME_HEIGHT)
        shifts[name], below = height - place, place
    return shifts


def intervals(points: Sequence[Step], unit: TimeUnit) -> Spec:
    """Return the 95 % intervals of p95 as thin bars."""
    rows = [
        {
            "load": s.load,
            "value": s.p95_ci_ms[0] * unit.per_ms,
            "high": s.p95_ci_ms[1] * unit.per_ms,
            "tip": f"{s.label}: p95 between {unit.text(s.p95_ci_ms[0])} and {unit.text(s.p95_ci_ms[1])} "
            f"{unit.name} (95 % interval)",
        }
        for s in points
        if s.p95_ci_ms is not None
    ]
    return {
        "data": {"values": rows},
        "mark": {"type": "rule", "color": ACCENT, "strokeWidth": 5, "opacity": 0.28},
        "encoding": {"y": value_axis(""), "y2": {"field": "high"}, "description": {"field": "tip"}},
    }


def slo(slo_ms: float | None, highest: list[float | None], unit: TimeUnit) -> list[Spec]:
    """Return the SLO as a line, where it lies near enough to be drawn without flattening the chart."""
    if slo_ms is None or slo_ms > 1.5 * max((h for h in highest if h is not None), default=0.0):
        return []
    row = {"value": slo_ms * unit.per_ms, "tip": f"SLO {unit.text(slo_ms)} {unit.name}"}
    return [
        {
            "data": {"values": [row]},
            "mark": {"type": "rule", "color": MUTED, "strokeDash": [6, 4], "strokeWidth": 1},
            "encoding": {"x": None, "y": value_axis(""), "description": {"field": "tip"}},
        },
        {
            "data": {"values": [row]},
            "mark": text(MUTED, dx=4, dy=-6),
            "encoding": {"x": {"value": 0}, "y": value_axis(""), "text": {"field": "tip"}},
        },
    ]


def safe_range(knee: Knee | None) -> list[Spec]:
    """Return the shade from the lightest step to the highest load that is safe."""
    safe = (knee.safe_cap if knee.safe_cap is not None else knee.cap) if knee else None
    if safe is None:
        return []
    row = {"load": 0, "end": safe, "tip": f"safe up to {load(safe)}"}
    return [
        {
            "data": {"values": [row]},
            "mark": {"type": "rect", "color": ACCENT, "opacity": 0.06},
            "encoding": {"x2": {"field": "end"}, "description": {"field": "tip"}},
        }
    ]


def verdict_marks(knee: Knee | None, *, named: bool = True) -> list[Spec]:
    """Return the lines at cap and knee step, named above the chart, and the 5-95 % range of the cap."""
    if knee is None:
        return []
    word = "at least" if knee.status == "none_in_range" else "cap"
    layers = [*_mark(knee.cap, word, ACCENT, named=named), *_mark(knee.knee_step, "knee", WARN, named=named)]
    if named and knee.range is not None and knee.range[0] < knee.range[1]:
        low, high = knee.range
        row = {"load": low, "end": high, "tip": f"5-95 % range of the cap: {load(low)} to {load(high)}"}
        bar = {"type": "rule", "color": ACCENT, "strokeWidth": 5, "opacity": 0.35}
        place = {"x2": {"field": "end"}, "y": {"value": 0}, "description": {"field": "tip"}}
        layers.append({"data": {"values": [row]}, "mark": bar, "encoding": place})
    return layers


def _mark(value: float | None, word: str, colour: str, *, named: bool) -> list[Spec]:
    """Return a line at a load; the knee is dashed, and its name stands away from the cap's."""
    if value is None:
        return []
    row = {"load": value, "tip": f"{word} {load(value)}"}
    dash = [5, 4] if word == "knee" else []
    rule = {"type": "rule", "color": colour, "strokeWidth": 1.4, "strokeDash": dash}
    layers = [{"data": {"values": [row]}, "mark": rule, "encoding": {"description": {"field": "tip"}}}]
    if named:
        side = {"align": "left", "dx": -5} if word == "knee" else {"align": "right", "dx": 5}
        name = text(colour, baseline="bottom", dy=-5, fontSize=12, fontWeight="bold", **side)
        place = {"y": {"value": 0}, "text": {"field": "tip"}}
        layers.append({"data": {"values": [row]}, "mark": name, "encoding": place})
    return layers
