"""The charts of a ladder: knee, time to first token, stages; and one chart for each experiment's table.

Words inside charts stay English. Only units are converted here; every figure comes from the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.report.draw import ACCENT, INK, MUTED, SOFT, WARN, Spec
from harness.report.numbers import TimeUnit, known, load, percent, plain, time_unit
from harness.results import Knee, Quantiles, Step

WIDTH = 640
Quantile = Callable[[Step], Quantiles]
STAGE_COLOURS = {
    "pre": "#c3cad4",
    "queue": "#d98c3f",
    "prefill": ACCENT,
    "decode": SOFT,
    "rest": "#eceff3",
}
STAGE_NAMES = {
    "pre": "preprocess",
    "queue": "queue",
    "prefill": "prefill",
    "decode": "decode",
    "rest": "network, client, unknown",
}


_LIGHT_LINE: Spec = {
    "type": "line",
    "color": "#aab4c0",
    "strokeWidth": 1.2,
    "strokeDash": [2, 3],
    "clip": True,
    "aria": False,
}


def step_load(step: Step) -> float | None:
    """Return a step's place on the load axis: users, or the offered rate of an open loop."""
    return step.users if step.users is not None else step.offered_rps


def axis_title(steps: Sequence[Step]) -> str:
    """Return what the load axis counts."""
    closed = any(step.users is not None for step in steps)
    return "concurrent users" if closed else "offered load (requests/s)"


def knee_chart(steps: Sequence[Step], knee: Knee | None, total_slo_ms: float | None) -> Spec | None:
    """Return throughput over latency against load, with cap, knee step and range; None without points."""
    points = [s for s in steps if step_load(s) is not None and known(s.rps) and s.n]
    if not points:
        return None
    unit = time_unit(max((s.latency.p95_ms or 0 for s in points), default=None))
    top = [_ideal(points), *_measured(points, "rps", ACCENT, "Throughput (requests/s)")]
    bottom = [
        _intervals(points, unit),
        *_lines(points, lambda s: s.latency, ("p50", "p95"), unit, f"Latency ({unit.name})"),
        *_slo_line(total_slo_ms, [s.latency.p95_ms for s in points], unit),
    ]
    marks = _marks(knee)
    axis = _x(points, title=axis_title(points))
    hidden = _x(points, title=None)
    return {
        "vconcat": [
            _panel([*_safe(points, knee), *marks, *top], hidden, 190),
            _panel([*_safe(points, knee), *_marks(knee, named=False), *bottom], axis, 190),
        ],
        "spacing": 14,
    }


def ttft_chart(steps: Sequence[Step], knee: Knee | None, slo_ms: float | None) -> Spec | None:
    """Return time to first token against load (p50, p95, p99); None without points."""
    points = [s for s in steps if step_load(s) is not None and known(s.ttft.p50_ms)]
    if not points:
        return None
    unit = time_unit(max((s.ttft.p99_ms or 0 for s in points), default=None))
    layers = [
        *_marks(knee),
        *_lines(points, lambda s: s.ttft, ("p50", "p95", "p99"), unit, f"Time to first token ({unit.name})"),
        *_slo_line(slo_ms, [s.ttft.p99_ms for s in points], unit),
    ]
    return _panel(layers, _x(points, title=axis_title(points)), 220)


def stage_chart(steps: Sequence[Step]) -> Spec | None:
    """Return the stages' shares of the mean latency, stacked per step; None where no stage is known."""
    rows = []
    for step in steps:
        shares = {name: stage.share for name, stage in step.stages.items() if stage.share is not None}
        if not shares:
            continue
        left = 1.0 - sum(shares.values())
        for order, name in enumerate(STAGE_NAMES):
            share = max(0.0, left) if name == "rest" else shares.get(name)
            if share is not None and share > 0.0005:
                stage = STAGE_NAMES[name]
                rows.append(
                    {
                        "load": step.label,
                        "stage": stage,
                        "share": share,
                        "order": order,
                        "tip": f"{step.label}: {stage} {percent(share)} of the mean latency",
                    }
                )
    if not rows:
        return None
    return {
        "width": WIDTH,
        "height": {"step": 26},
        "data": {"values": rows},
        "mark": {"type": "bar", "height": 18},
        "encoding": {
            "y": {
                "field": "load",
                "type": "ordinal",
                "sort": None,
                "axis": {
                    "title": None,
                    "ticks": False,
                    "domain": False,
                    "labelPadding": 8,
                    "labelColor": INK,
                },
            },
            "x": {
                "field": "share",
                "type": "quantitative",
                "scale": {"domain": [0, 1], "clamp": True},
                "axis": {"format": "%", "title": "share of mean latency", "tickCount": 5},
            },
            "color": {
                "field": "stage",
                "type": "nominal",
                "scale": {"domain": list(STAGE_NAMES.values()), "range": list(STAGE_COLOURS.values())},
                "legend": {"orient": "top", "title": None},
            },
            "order": {"field": "order", "type": "quantitative"},
            "description": {"field": "tip"},
        },
    }


def _panel(layers: list[Spec], x: Spec, height: int) -> Spec:
    return {"width": WIDTH, "height": height, "encoding": {"x": x}, "layer": layers}


def _x(points: Sequence[Step], *, title: str | None) -> Spec:
    loads = sorted({step_load(s) or 0.0 for s in points})
    axis: Spec = {"values": loads, "grid": False, "title": title, "format": "~g"}
    if title is None:
        axis |= {"labels": False, "ticks": False}
    return {
        "field": "load",
        "type": "quantitative",
        "scale": {"domain": [0, loads[-1] * 1.08], "nice": False},
        "axis": axis,
    }


def _y(title: str, top: float | None = None) -> Spec:
    scale: Spec = {"zero": True} if top is None else {"domain": [0, top], "nice": False}
    axis = {"title": title, "tickCount": 5, "domain": False, "ticks": False, "titleAnchor": "middle"}
    return {"field": "value", "type": "quantitative", "scale": scale, "axis": axis}


def _measured(points: Sequence[Step], name: str, colour: str, title: str) -> list[Spec]:
    rows = [
        {
            "load": step_load(s),
            "value": s.rps,
            "tip": f"{s.label}: {plain(s.rps)} requests/s, {s.n} good requests"
            + (f", {s.failures} failed" if s.failures else ""),
            "used": s.used,
        }
        for s in points
    ]
    top = 1.12 * max(s.rps or 0.0 for s in points) or 1.0
    return [
        _line(rows, colour, _y(title, top)),
        _dots(rows, colour, _y(title, top)),
    ]


def _text(colour: str, **style: object) -> Spec:
    return {"type": "text", "align": "left", "fontSize": 11, "color": colour, "aria": False, **style}


def _line(rows: list[Spec], colour: str, y: Spec) -> Spec:
    """Return a line through the points; steps measured again meet at their median."""
    mark: Spec = {"type": "line", "color": colour, "strokeWidth": 2, "clip": True, "aria": False}
    return {
        "data": {"values": [r for r in rows if r["used"]]},
        "mark": mark,
        "encoding": {"y": y | {"aggregate": "median"}},
    }


def _dots(rows: list[Spec], colour: str, y: Spec) -> Spec:
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


def _ideal(points: Sequence[Step]) -> Spec:
    """Return the light line of throughput in step with load, from the lightest step on."""
    first = min(points, key=lambda s: step_load(s) or 0.0)
    last = max(step_load(s) or 0.0 for s in points)
    slope = (first.rps or 0.0) / (step_load(first) or 1.0)
    top = 1.12 * max(s.rps or 0.0 for s in points) or 1.0
    end = min(last * 1.08, top / slope) if slope else last
    return {
        "layer": [
            {
                "data": {"values": [{"load": 0, "value": 0}, {"load": end, "value": slope * end}]},
                "mark": _LIGHT_LINE,
                "encoding": {"y": _y("", top)},
            },
            {
                "data": {"values": [{"load": end * 0.7, "value": slope * end * 0.7}]},
                "mark": _text(MUTED, align="right", dx=-8, dy=-4),
                "encoding": {"y": _y("", top), "text": {"value": "in step with load"}},
            },
        ],
    }


def _lines(
    points: Sequence[Step],
    quantiles: Quantile,
    names: tuple[str, ...],
    unit: TimeUnit,
    title: str,
) -> list[Spec]:
    """Return one line a percentile, named at its end."""
    colours = {"p50": SOFT, "p95": ACCENT, "p99": "#12365f"}
    layers = []
    for name in names:
        rows = []
        for step in points:
            ms = getattr(quantiles(step), f"{name}_ms")
            if known(ms):
                rows.append(
                    {
                        "load": step_load(step),
                        "value": ms * unit.per_ms,
                        "tip": f"{step.label}: {name} {unit.text(ms)} {unit.name} ({step.n} requests)",
                        "used": step.used,
                        "name": name,
                    }
                )
        if rows:
            end = max(rows, key=lambda row: row["load"])
            label = {
                "data": {"values": [end]},
                "mark": _text(colours[name], dx=8),
                "encoding": {"y": _y(title), "text": {"field": "name"}},
            }
            layers += [_line(rows, colours[name], _y(title)), _dots(rows, colours[name], _y(title)), label]
    return layers


def _intervals(points: Sequence[Step], unit: TimeUnit) -> Spec:
    """Return the 95 % intervals of p95 as thin bars."""
    rows = [
        {
            "load": step_load(s),
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
        "encoding": {"y": _y(""), "y2": {"field": "high"}, "description": {"field": "tip"}},
    }


def _slo_line(slo_ms: float | None, highest: list[float | None], unit: TimeUnit) -> list[Spec]:
    """Return the SLO as a line, where it lies near enough to be drawn without flattening the chart."""
    if slo_ms is None or slo_ms > 1.5 * max((h for h in highest if h is not None), default=0.0):
        return []
    row = {"value": slo_ms * unit.per_ms, "tip": f"SLO {unit.text(slo_ms)} {unit.name}"}
    return [
        {
            "data": {"values": [row]},
            "mark": {"type": "rule", "color": MUTED, "strokeDash": [6, 4], "strokeWidth": 1},
            "encoding": {"x": None, "y": _y(""), "description": {"field": "tip"}},
        },
        {
            "data": {"values": [row]},
            "mark": _text(MUTED, dx=4, dy=-6),
            "encoding": {"x": {"value": 0}, "y": _y(""), "text": {"field": "tip"}},
        },
    ]


def _safe(points: Sequence[Step], knee: Knee | None) -> list[Spec]:
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


def _marks(knee: Knee | None, *, named: bool = True) -> list[Spec]:
    """Return the lines at cap and knee step, named above the chart, and the 5-95 % range of the cap."""
    if knee is None:
        return []
    layers: list[Spec] = []
    at_least = "at least " if knee.status == "none_in_range" else "cap "
    for value, word, colour, dash in (
        (knee.cap, at_least, ACCENT, None),
        (knee.knee_step, "knee ", WARN, [5, 4]),
    ):
        if value is None:
            continue
        row = {"load": value, "tip": f"{word}{load(value)}"}
        rule: Spec = {"type": "rule", "color": colour, "strokeWidth": 1.4}
        if dash:
            rule["strokeDash"] = dash
        layers.append(
            {"data": {"values": [row]}, "mark": rule, "encoding": {"description": {"field": "tip"}}}
        )
        if named:
            side = {"align": "right", "dx": 5} if value == knee.cap else {"align": "left", "dx": -5}
            layers.append(
                {
                    "data": {"values": [row]},
                    "mark": _text(colour, baseline="bottom", dy=-5, fontSize=12, fontWeight="bold", **side),
                    "encoding": {"y": {"value": 0}, "text": {"field": "tip"}},
                }
            )
    if named and knee.range is not None and knee.range[0] < knee.range[1]:
        low, high = knee.range
        row = {"load": low, "end": high, "tip": f"5-95 % range of the cap: {load(low)} to {load(high)}"}
        layers.append(
            {
                "data": {"values": [row]},
                "mark": {"type": "rule", "color": ACCENT, "strokeWidth": 5, "opacity": 0.35},
                "encoding": {
                    "x2": {"field": "end"},
                    "y": {"value": 0},
                    "description": {"field": "tip"},
                },
            }
        )
    return layers
