"""At which side of a picture does the time to the first token jump?

A cost per pixel makes it grow at most as fast as the picture's area, and that is no jump. A jump is a rise
by a quarter at least that outruns the area by 15 %, and that chance gives in less than 5 % of sweeps (rank
tests between neighbouring sides, together by Holm's rule). Of several, the one that outruns the area most
is the jump. A service that does not stream is judged by its total.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.experiments.series import (
    ALPHA,
    Series,
    failures_of,
    median,
    p_exceeds,
    percentile,
    rows_of_experiment,
    series_of,
    too_little,
)
from harness.analysis.groups import Rows, Window
from harness.analysis.stats import Floats, holm
from harness.profile import Slo
from harness.results import Experiment
from harness.rundir import RunData

RISE, OUTRUNS = 1.25, 1.15
COLUMNS = ["side", "n", "in_tokens", "ttft_p50_ms", "ttft_p95_ms", "total_p50_ms", "rise_ratio", "p"]


@dataclass(frozen=True, slots=True)
class _Side:
    side: int
    series: Series

    @property
    def times(self) -> Floats:
        ttft = self.series.rest.ttft_ms
        return ttft if median(ttft) is not None else self.series.rest.latency_ms


def assess_image_sweep(run: RunData, rows: Rows, windows: Sequence[Window], seed: int) -> Experiment:
    """Return times per side, whether they jump, and the largest side that should be accepted."""
    mine = rows_of_experiment(run, rows, "image_sweep")
    sides = sorted(int(kind.removeprefix("side_")) for kind in mine.kinds if kind.startswith("side_"))
    swept = [_Side(side, series_of(mine, f"side_{side}")) for side in sides]
    swept = [s for s in swept if len(s.series.rest)]
    pairs = list(itertools.pairwise(swept))
    areas = [(b.side / a.side) ** 2 for a, b in pairs]
    p_values = holm(
        [
            p_exceeds(a.times, b.times, max(RISE, OUTRUNS * area))
            for (a, b), area in zip(pairs, areas, strict=True)
        ]
    )
    rises = [(median(b.times) or 0.0) / (median(a.times) or 1.0) for a, b in pairs]
    table = [_row(s, rise, p) for s, rise, p in zip(swept, [None, *rises], [None, *p_values], strict=False)]
    problems = failures_of([s.series for s in swept])
    images = next((spec.images for spec in run.profile.traffic.mix if spec.images), None)
    if images is not None and images.fit == "crop":
        problems.append("pictures were cropped, not scaled: larger sides show more of them")
    if len(swept) < 2 or min(len(s.series.rest) for s in swept) < 3:
        return too_little("fewer than 2 sides with 3 good requests each", COLUMNS, table, problems)
    verdict, text, side, bounded = _judge(swept, rises, p_values, run.profile.slo)
    figures: dict[str, object] = {"max_image_side": side, "bounded": bounded}
    if verdict == "jump":
        figures["jump_at"] = next(s.side for s in swept if side is not None and s.side > side)
    figures["max_image_pixels"] = _pixels(run, side)
    return Experiment(
        verdict=verdict, text=text, columns=COLUMNS, rows=table, figures=figures, problems=problems
    )


def _judge(
    swept: list[_Side], rises: list[float], p_values: list[float], slo: Slo
) -> tuple[str, str, int | None, bool]:
    """Return verdict, sentence, the side to accept, and whether a larger one was found to be too large."""
    jumps = [i for i, p in enumerate(p_values) if p < ALPHA]
    if jumps:
        at = max(jumps, key=lambda i: rises[i] / swept[i + 1].side ** 2 * swept[i].side ** 2)
        low, high = swept[at], swept[at + 1]
        text = (
            f"The time to the first token jumps between {low.side} and {high.side} px, by "
            f"{100 * (rises[at] - 1):.0f} % ({median(low.times):.0f} to {median(high.times):.0f} ms) for "
            "a picture "
            f"{(high.side / low.side) ** 2:.1f} times as large: accept sides up to {low.side}."
        )
        return "jump", text, low.side, True
    low, high = swept[0], swept[-1]
    times = median(low.times) or 0.0, median(high.times) or 0.0
    grew = f"{times[0]:.0f} ms at {low.side} px, {times[1]:.0f} ms at {high.side} px"
    if p_exceeds(low.times, high.times, RISE) < ALPHA:
        per_mpixel = (times[1] - times[0]) / (high.side**2 - low.side**2) * 1e6
        fits = [
            s.side for s in swept if slo.ttft_p95_ms and (percentile(s.times, 95) or 0) <= slo.ttft_p95_ms
        ]
        text = (
            "No jump: the time to the first token grows steadily with the picture, by about "
            f"{per_mpixel:.0f} ms per "
            f"million pixels ({grew})."
        )
        return "grows", text, max(fits, default=None), bool(fits) and max(fits) < high.side
    return (
        "flat",
        f"No jump, and hardly any growth ({grew}): encoding is not the cost here.",
        high.side,
        False,
    )


def _row(side: _Side, rise: float | None, p: float | None) -> list[object]:
    rest = side.series.rest
    return [
        side.side,
        len(rest),
        median(rest.figures["in_tokens"]),
        median(rest.ttft_ms),
        percentile(rest.ttft_ms, 95),
        median(rest.latency_ms),
        rise,
        p,
    ]


def _pixels(run: RunData, side: int | None) -> int | None:
    """Return width x height of the largest picture sent with that side."""
    if side is None:
        return None
    requests = run.requests
    sizes = requests.loc[requests["kind"] == f"side_{side}", "img_wh"].head(100)
    return max((int(w) * int(h) for images in sizes for w, h in images), default=None)
