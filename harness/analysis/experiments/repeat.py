"""One fixed input again and again: is the first slow (a one-time cost), are all alike, or do they swing?

The first is a one-time cost where its time before the first token, or in all, lies above all the others' and
at least a quarter above their median, by a twentieth of the whole time at least. Both are taken from the
service's stages where they are known: a client's first request is slower too. The others swing where their
middle nine tenths spread over more than a quarter of their median; the stage whose own spread is largest is
named.

The first is the request sent before the load where there is one, since it brought the same input. After
other measurements it is not of this input, and says only that the service was cold: a line of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis.experiments.series import (
    failures_of,
    median,
    percentile,
    rows_of_experiment,
    series_of,
    too_little,
)
from harness.analysis.groups import Rows, Window
from harness.analysis.stats import Floats
from harness.records import BEFORE_LOAD, STAGES
from harness.results import Experiment
from harness.rundir import RunData

ONE_TIME, ONE_TIME_SHARE = 1.25, 0.05
SWING = 0.25
LEAST = 5
COLUMNS = ["stage", "n", "first_ms", "min_ms", "median_ms", "max_ms", "spread_ratio"]
UNTIL = {"ttft": "to the first token", "total": "in all"}
WORDS = {"pre": "preprocessing", "queue": "the queue", "prefill": "prefill", "decode": "decoding"}


def assess_repeat(run: RunData, rows: Rows, windows: Sequence[Window], seed: int) -> Experiment:
    """Return first against rest, in total and per stage, and which of the three it is."""
    mine = rows_of_experiment(run, rows, "repeat")
    series = [series_of(mine, kind) for kind in mine.kinds if kind.startswith("repeat_")]
    series = [s for s in series if len(s.rest)]
    problems = failures_of(series)
    if not series or len(series[0].rest) < LEAST:
        return too_little(f"fewer than {LEAST} good requests after the first", COLUMNS, [], problems)
    first, rest = series[0].first, series[0].rest
    times = {"total": (first.latency_ms, rest.latency_ms), "ttft": (first.ttft_ms, rest.ttft_ms)}
    times |= {stage: (first.stages[stage], rest.stages[stage]) for stage in STAGES}
    table = [_row(name, *pair) for name, pair in times.items() if median(pair[1]) is not None]
    spread = _spread(rest.latency_ms)
    ratios = _first_over_rest(first, rest)
    before_load = bool(len(first) and first.phase[0] == BEFORE_LOAD)
    problems += [] if before_load else _cold_start(rows)
    figures: dict[str, object] = {"spread": spread, "kind": series[0].kind.removeprefix("repeat_")}
    figures["first_before_load"] = before_load
    figures |= {f"{name}_first_over_rest": ratio for name, (ratio, _) in ratios.items()}
    stage = _widest({name: rest.stages[name] for name in STAGES})
    if spread > SWING:
        where = f", most in {WORDS[stage]}" if stage else ""
        verdict = "swinging"
        text = (
            f"The same input still swings by {100 * spread:.0f} % of its median{where}: it is not the input."
        )
        figures["stage"] = stage
    elif any(clear for _, clear in ratios.values()):
        stage = _costliest(first, rest)
        where = f", most of it in {WORDS[stage]}" if stage else ""
        verdict = "one_time_cost"
        taken = " and ".join(f"{r:.1f} times as long {UNTIL[name]}" for name, (r, _) in ratios.items())
        which = "the first, sent before the load," if before_load else "the first"
        text = f"A one-time cost: {which} took {taken}{where}; after it all are alike."
        figures["stage"] = stage
    else:
        verdict = "steady"
        alike = ", and the first is like them" if ratios else ""
        text = (
            f"Steady: nine tenths of {len(rest)} requests lie within a span of {100 * spread:.0f} % of their "
            f"median{alike}."
        )
    return Experiment(
        verdict=verdict, text=text, columns=COLUMNS, rows=table, figures=figures, problems=problems
    )


def _first_over_rest(first: Rows, rest: Rows) -> dict[str, tuple[float, bool]]:
    """Return the first over the others' median, before the first token and in all, and if it is clear."""
    if not len(first):
        return {}
    found, least_ms = {}, ONE_TIME_SHARE * (median(_in_all(rest)) or 0.0)
    for name, times in (("ttft", _before_decode), ("total", _in_all)):
        one, others = times(first), times(rest)
        middle = median(others)
        if middle and not np.isnan(one[0]):
            more_ms = float(one[0]) - middle
            clear = more_ms > max((ONE_TIME - 1) * middle, least_ms) and one[0] > np.nanmax(others)
            found[name] = float(one[0]) / middle, bool(clear)
    return found


def _cold_start(rows: Rows) -> list[str]:
    """Return a line where the run's very first request was slower than all of its kind in the first phase."""
    good = rows.good()
    first = good.take(good.phase == BEFORE_LOAD).take(slice(0, 1))
    if not len(first):
        return []
    others = good.take((good.phase == BEFORE_LOAD + 1) & (good.kind == first.kind[0]))
    ratio, clear = _first_over_rest(first, others).get("ttft", (1.0, False))
    if not clear:
        return []
    return [
        f"the run's very first request took {float(_before_decode(first)[0]):.0f} ms to its first token, "
        f"{ratio:.1f} times as long as others of its kind: the service was cold"
    ]


def _before_decode(rows: Rows) -> Floats:
    staged = rows.stages["queue"] + rows.stages["prefill"] + np.nan_to_num(rows.stages["pre"])
    return staged if median(staged) is not None else rows.ttft_ms


def _in_all(rows: Rows) -> Floats:
    staged = _before_decode(rows) + rows.stages["decode"]
    return staged if median(staged) is not None else rows.latency_ms


def _row(name: str, first: Floats, rest: Floats) -> list[object]:
    known = rest[~np.isnan(rest)]
    spread = _spread(rest) if (median(rest) or 0.0) > 0 else None
    return [name, len(known), median(first), float(known.min()), median(rest), float(known.max()), spread]


def _spread(times: Floats) -> float:
    """Return the width of the middle nine tenths over the median."""
    low, high = percentile(times, 5), percentile(times, 95)
    return ((high or 0.0) - (low or 0.0)) / (median(times) or 1.0)


def _widest(stages: dict[str, Floats]) -> str | None:
    """Return the stage that spreads over most milliseconds."""
    widths = {
        name: (percentile(times, 95) or 0.0) - (percentile(times, 5) or 0.0)
        for name, times in stages.items()
        if median(times) is not None
    }
    return max(widths, key=lambda name: widths[name], default=None)


def _costliest(first: Rows, rest: Rows) -> str | None:
    """Return the stage in which the first took most milliseconds more."""
    extra = {
        name: float(first.stages[name][0]) - (median(rest.stages[name]) or 0.0)
        for name in STAGES
        if not np.isnan(first.stages[name][0])
    }
    return max(extra, key=lambda name: extra[name], default=None)
