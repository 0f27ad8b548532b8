"""The run over time: GPU, engine and each request's prefill on one clock, the steps shaded.

Long runs are thinned for drawing only: a bin of samples becomes its mean (utilization, power) or its highest
value (memory, KV cache, requests).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from harness.analysis.clock import requests_on_our_clock
from harness.analysis.tagging import gpu_on_our_clock
from harness.records import PhaseTimes
from harness.report.draw import ACCENT, INK, MUTED, SOFT, WARN, Spec
from harness.report.lanes import panel_title, prefill_lanes
from harness.report.layers import WIDTH
from harness.report.numbers import GIB
from harness.rundir import RunData

LETTER = 7  # pixels of a letter, at most
MAX_POINTS = 600  # a series: about one a pixel


@dataclass(frozen=True, slots=True)
class _Series:
    """One line of a panel."""

    name: str
    table: str  # gpu | engine
    column: str
    colour: str
    highest: bool = False  # how samples of a bin are put together
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    series: tuple[_Series, ...]
    ratio: bool = False
    limit: str | None = None  # column of the GPU table that is the top of the axis


_PANELS = (
    _Panel("GPU busy", (_Series("GPU busy", "gpu", "util", ACCENT),), ratio=True),
    _Panel(
        "GPU memory (GiB), up to its total",
        (_Series("GPU memory", "gpu", "mem_used_bytes", ACCENT, True, 1 / GIB),),
        limit="mem_total_bytes",
    ),
    _Panel("GPU power (W)", (_Series("GPU power", "gpu", "power_w", ACCENT),)),
    _Panel("KV cache", (_Series("KV cache", "engine", "kv_usage", ACCENT, True),), ratio=True),
    _Panel(
        "Requests",
        (
            _Series("running", "engine", "running", SOFT, True),
            _Series("waiting", "engine", "waiting", WARN, True),
        ),
    ),
)


def timeline_chart(run: RunData) -> Spec | None:
    """Return all panels that have data, over seconds since the start; None where there is nothing to draw."""
    run = on_our_clock(run)
    phases = [p for p in run.info.phases if p.ready_ns is not None]
    origin = run.info.started_ns
    panels = [_panel(panel, run, origin) for panel in _PANELS]
    panels = [*panels, prefill_lanes(run, origin)]
    drawn = [panel for panel in panels if panel is not None]
    if not drawn:
        return None
    end = max(_end(run, origin), 1.0)
    shades = _shades(phases, origin, end)
    for i, panel in enumerate(drawn):
        last = i == len(drawn) - 1
        axis: Spec = {"title": "seconds since the start" if last else None, "grid": False, "tickCount": 8}
        if not last:
            axis |= {"labels": False, "ticks": False}
        panel["encoding"] = {
            "x": {
                "field": "t",
                "type": "quantitative",
                "scale": {"domain": [0, end], "nice": False},
                "axis": axis,
            }
        }
        panel["layer"] = [shades[0], *(shades[1:] if i == 0 else []), *panel["layer"]]
        panel["width"] = WIDTH
    return {"vconcat": drawn, "spacing": 12, "resolve": {"legend": {"color": "independent"}}}


def on_our_clock(run: RunData) -> RunData:
    """Return the run with the stamps of workers and GPU hosts moved onto the master's clock."""
    started = requests_on_our_clock(run.requests, run.info.workers)
    return replace(run, requests=run.requests.assign(wall_ns=started), gpu=gpu_on_our_clock(run))


def _end(run: RunData, origin: int) -> float:
    stamps = [p.end_ns or p.t1_ns or p.ready_ns for p in run.info.phases]
    walls = [t.wall_ns.max() for t in (run.gpu, run.engine, run.requests) if len(t)]
    return max(((float(s) - origin) / 1e9 for s in (*stamps, *walls, run.info.ended_ns) if s), default=0.0)


def _shades(phases: Sequence[PhaseTimes], origin: int, end: float) -> list[Spec]:
    """Return the measured windows as shades, and their labels above the first panel."""
    rows: list[Spec] = []
    for phase in phases:
        start = phase.t0_ns or phase.ready_ns or origin
        stop = phase.t1_ns or phase.end_ns
        t, t2 = (start - origin) / 1e9, (stop - origin) / 1e9 if stop else end
        name = phase.label.removesuffix(" users").removesuffix(" user").removesuffix(" req/s")
        rows.append({"t": t, "t2": t2, "mid": (t + t2) / 2, "name": name, "tip": f"measured: {phase.label}"})
    wide = [row for row in rows if (row["t2"] - row["t"]) / end * WIDTH > LETTER * len(row["name"])]
    return [
        {
            "data": {"values": rows},
            "mark": {"type": "rect", "color": INK, "opacity": 0.055},
            "encoding": {"x2": {"field": "t2"}, "description": {"field": "tip"}},
        },
        {
            "data": {"values": wide},
            "mark": {
                "type": "text",
                "baseline": "bottom",
                "dy": -4,
                "fontSize": 11,
                "color": MUTED,
                "aria": False,
            },
            "encoding": {
                "x": {"field": "mid", "type": "quantitative"},
                "y": {"value": 0},
                "text": {"field": "name"},
            },
        },
    ]


def _panel(panel: _Panel, run: RunData, origin: int) -> Spec | None:
    rows: list[Spec] = []
    for series in panel.series:
        table: pd.DataFrame = getattr(run, series.table)
        groups = table.groupby("gpu", dropna=False, observed=True) if series.table == "gpu" else [("", table)]
        for number, (_, part) in enumerate(groups):
            name = series.name if series.table != "gpu" or number == 0 else f"{series.name} {number}"
            rows += _points(part, series, name, f"{series.name} {number}", panel.ratio, origin)
    if not rows:
        return None
    named = len(panel.series) > 1
    colour: Spec = {"value": ACCENT}
    if named:
        colour = {
            "field": "name",
            "type": "nominal",
            "scale": {"domain": [s.name for s in panel.series], "range": [s.colour for s in panel.series]},
            "legend": {"orient": "right", "title": None, "offset": 4},
        }
    scale: Spec = {"domain": [0, 1]} if panel.ratio else {"zero": True}
    if panel.limit and run.gpu[panel.limit].notna().any():
        scale = {"domain": [0, float(run.gpu[panel.limit].max()) * panel.series[0].scale]}
    axis: Spec = {"title": None, "tickCount": 3, "domain": False, "ticks": False}
    if panel.ratio:
        axis["format"] = "%"
    y = {"field": "value", "type": "quantitative", "scale": scale, "axis": axis}
    common = {"color": colour, "detail": {"field": "line"}}
    return {
        "height": 64,
        "title": panel_title(panel.title),
        "layer": [
            {
                "data": {"values": rows},
                "mark": {"type": "line", "strokeWidth": 1.4, "interpolate": "step-after", "aria": False},
                "encoding": {"y": y, **common},
            },
        ],
    }


def _points(
    table: pd.DataFrame, series: _Series, name: str, line: str, ratio: bool, origin: int
) -> list[Spec]:
    """Return one series as points; a gap of five samples breaks the line."""
    if not len(table) or series.column not in table:
        return []
    values = pd.to_numeric(table[series.column], errors="coerce").to_numpy(float) * series.scale
    t = (table.wall_ns.to_numpy(np.int64) - origin) / 1e9
    known = np.isfinite(values)
    order = np.argsort(t[known], kind="stable")
    t, values = t[known][order], values[known][order]
    if not len(t):
        return []
    if len(t) > MAX_POINTS:
        bins = np.linspace(0, len(t), MAX_POINTS + 1).astype(int)[:-1]
        if series.highest:
            values = np.maximum.reduceat(values, bins)
        else:
            values = np.add.reduceat(values, bins) / np.diff(np.append(bins, len(t)))
        t = t[bins]
    gaps = np.diff(t, prepend=t[0])
    piece = np.cumsum(gaps > max(5 * float(np.median(gaps)), 3.0))
    return [
        {"t": round(float(a), 2), "value": round(float(v), 4), "name": name, "line": f"{line}.{p}"}
        for a, v, p in zip(t, values, piece, strict=True)
    ]
