"""The charts of a ladder: knee, time to first token, stages.

Words inside charts stay English. Only units are converted here; every figure comes from the report.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.report.draw import ACCENT, INK, SOFT, Spec
from harness.report.layers import (
    WIDTH,
    axis_title,
    ideal,
    intervals,
    load_axis,
    panel,
    percentiles,
    safe_range,
    slo,
    throughput,
    verdict_marks,
)
from harness.report.numbers import known, percent, time_unit
from harness.results import Knee, Step

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


def knee_chart(steps: Sequence[Step], knee: Knee | None, total_slo_ms: float | None) -> Spec | None:
    """Return throughput over latency against load, with cap, knee step and range; None without points."""
    points = [s for s in steps if s.load is not None and known(s.rps) and s.n]
    if not points:
        return None
    unit = time_unit(max((s.latency.p95_ms or 0 for s in points), default=None))
    top = [ideal(points), *throughput(points)]
    bottom = [
        intervals(points, unit),
        *percentiles(points, lambda s: s.latency, ("p50", "p95"), unit, f"Latency ({unit.name})"),
        *slo(total_slo_ms, [s.latency.p95_ms for s in points], unit),
    ]
    safe = safe_range(knee)
    named, plain = verdict_marks(knee), verdict_marks(knee, named=False)
    upper = panel([*safe, *named, *top], load_axis(points, title=None))
    lower = panel([*safe, *plain, *bottom], load_axis(points, title=axis_title(points)))
    return {"vconcat": [upper, lower], "spacing": 14}


def ttft_chart(steps: Sequence[Step], knee: Knee | None, slo_ms: float | None) -> Spec | None:
    """Return time to first token against load (p50, p95, p99); None without points."""
    points = [s for s in steps if s.load is not None and known(s.ttft.p50_ms)]
    if not points:
        return None
    unit = time_unit(max((s.ttft.p99_ms or 0 for s in points), default=None))
    layers = [
        *verdict_marks(knee),
        *percentiles(
            points, lambda s: s.ttft, ("p50", "p95", "p99"), unit, f"Time to first token ({unit.name})"
        ),
        *slo(slo_ms, [s.ttft.p99_ms for s in points], unit),
    ]
    return panel(layers, load_axis(points, title=axis_title(points)))


def stage_chart(steps: Sequence[Step]) -> Spec | None:
    """Return the stages' shares of the mean latency, stacked per step; None where no stage is known."""
    rows = [row for step in steps for row in _stage_rows(step)]
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


def _stage_rows(step: Step) -> list[Spec]:
    """Return a step's stages that are wide enough to be seen, and what is left of its latency."""
    shares = {name: stage.share for name, stage in step.stages.items() if stage.share is not None}
    if not shares:
        return []
    shares["rest"] = max(0.0, 1.0 - sum(shares.values()))
    return [
        {
            "load": step.label,
            "stage": stage,
            "share": shares[name],
            "order": order,
            "tip": f"{step.label}: {stage} {percent(shares[name])} of the mean latency",
        }
        for order, (name, stage) in enumerate(STAGE_NAMES.items())
        if shares.get(name, 0.0) > 0.0005
    ]
