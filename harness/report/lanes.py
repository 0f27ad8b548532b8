"""Each request's prefill as a bar on its user's lane, with the GPU samples that it covers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.records import BEFORE_LOAD
from harness.report.draw import ACCENT, MUTED, Spec
from harness.report.layers import WIDTH
from harness.report.numbers import percent, plain
from harness.rundir import RunData

MAX_REQUESTS = 1200  # that are drawn, evenly chosen
Floats = npt.NDArray[np.float64]


def panel_title(text: str) -> Spec:
    """Return a panel's title, small and over its left edge."""
    return {
        "text": text,
        "fontSize": 11,
        "fontWeight": "normal",
        "color": MUTED,
        "offset": 5,
        "frame": "group",
    }


def prefill_lanes(run: RunData, origin: int) -> Spec | None:
    """Return each drawn request's prefill as a bar on its user's lane; hover names request and GPU."""
    table = _drawn(run.requests)
    if not len(table):
        return None
    lanes = table.groupby(["worker", "user"], sort=True, observed=True).ngroup().to_numpy() + 1
    end = (table.wall_ns.to_numpy(np.int64) - origin) / 1e9 + table.ttft_ms.to_numpy(float) / 1e3
    prefill = pd.to_numeric(table.prefill_ms, errors="coerce").to_numpy(float)
    staged = np.isfinite(prefill)
    start = end - np.where(staged, prefill, table.ttft_ms.to_numpy(float)) / 1e3
    pixel = float(end.max()) / WIDTH  # a shorter bar would not be seen
    cover = _busy(run.gpu, origin, start, end)
    what = np.where(staged, "prefill", "to first token")
    rows: list[Spec] = [
        {
            "t": round(float(a), 3),
            "t2": round(float(max(b, a + pixel)), 3),
            "lane": int(lane),
            "tip": f"{kind} of {label}: {name} {plain((b - a) * 1000)} ms{busy}",
        }
        for a, b, lane, kind, label, name, busy in zip(
            start, end, lanes, table.kind, table.label, what, cover, strict=True
        )
    ]
    what_is_drawn = "Prefill of each request" if staged.any() else "Time to first token"
    return _panel(rows, int(lanes.max()), f"{what_is_drawn}, one lane a user")


def _drawn(requests: pd.DataFrame) -> pd.DataFrame:
    """Return the good requests of the load that got a token, evenly thinned where there are many."""
    if not len(requests):
        return requests
    good = (requests.outcome == "ok") & requests.ttft_ms.notna() & (requests.phase != BEFORE_LOAD)
    table = requests[good]
    if len(table) <= MAX_REQUESTS:
        return table
    return table.iloc[np.linspace(0, len(table) - 1, MAX_REQUESTS).astype(int)]


def _panel(rows: list[Spec], lanes: int, title: str) -> Spec:
    scale = {"domain": [0.4, lanes + 0.6], "nice": False, "reverse": True, "zero": False}
    bars = {
        "data": {"values": rows},
        "mark": {"type": "rule", "color": ACCENT, "strokeWidth": max(1, min(6, 80 // lanes))},
        "encoding": {
            "x2": {"field": "t2"},
            "y": {"field": "lane", "type": "quantitative", "scale": scale, "axis": None},
            "description": {"field": "tip"},
        },
    }
    return {"height": max(24, min(120, 9 * lanes)), "title": panel_title(title), "layer": [bars]}


def _busy(gpu: pd.DataFrame, origin: int, start: Floats, end: Floats) -> list[str]:
    """Return for each interval the GPU samples it covers, in words."""
    known = gpu[gpu.util.notna()] if len(gpu) else gpu
    if not len(known):
        return [""] * len(start)
    known = known.sort_values("wall_ns")
    t = (known.wall_ns.to_numpy(np.int64) - origin) / 1e9
    util = known.util.to_numpy(float)
    texts = []
    for low, high in zip(np.searchsorted(t, start), np.searchsorted(t, end), strict=True):
        part = util[low:high]
        if len(part):
            samples = "1 sample" if len(part) == 1 else f"{len(part)} samples"
            texts.append(f"; GPU busy {percent(part.min())} to {percent(part.max())} in {samples}")
        else:
            texts.append("; shorter than the time between GPU samples")
    return texts
