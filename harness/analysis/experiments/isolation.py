"""What long requests cost the short ones beside them, at the same number of users.

The factor is the short kind's mean time to first token beside long requests over that alone, and p95
likewise (some wait behind a long one, others do not: a median would show either). Separate queues are worth
it where even the lower end of one of the two 95 % intervals is above 1.2, and where the wait added can be
more than a tenth of a short request's whole time, or than the 50 ms that nobody notices: half as much again
of a few milliseconds is no reason to part a service.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis.experiments.series import (
    UNDECIDED,
    failures_of,
    median,
    percentile,
    series_of,
    too_little,
)
from harness.analysis.groups import Rows, Window
from harness.analysis.stats import Floats, Ratio, ratio_interval
from harness.results import Experiment
from harness.rundir import RunData

ALONE, BESIDE = "short alone", "short beside long"
WORTH = 1.2
NOTICED_MS, NOTICED_SHARE = 50.0, 0.1
LEAST = 10
COLUMNS = ["phase", "n", "failures", "ttft_p50_ms", "ttft_p95_ms", "total_p50_ms", "total_p95_ms"]


def assess_isolation(run: RunData, rows: Rows, windows: Sequence[Window], seed: int) -> Experiment:
    """Return short requests alone and beside long ones, the factor, and whether to part the queues."""
    phases = {w.phase.label: w for w in windows if w.phase.experiment == "isolation"}
    kinds = [spec.kind for spec in run.profile.traffic.mix]
    short = run.profile.experiments.isolation.short or (kinds[0] if kinds else "")
    series = {label: series_of(phases[label].started, short) for label in (ALONE, BESIDE) if label in phases}
    table = [_row(label, phases[label].started.of_kind(short)) for label in series]
    problems = failures_of(list(series.values()))
    good = {label: _times(phases[label].good.of_kind(short)) for label in series}
    if len(good) < 2 or min(len(times) for times in good.values()) < LEAST:
        return too_little(f"fewer than {LEAST} good short requests in a phase", COLUMNS, table, problems)
    users = run.profile.experiments.isolation.users
    factors = {
        name: ratio_interval(good[ALONE], good[BESIDE], name, users=users, seed=seed)
        for name in ("mean", "p95")
    }
    mean, p95 = factors["mean"], factors["p95"]
    waits = f"{_factor(mean)} as long for their first token (p95 {_factor(p95)})"
    added_ms = _added(good[ALONE], mean, p95)
    noticed_ms = min(NOTICED_MS, NOTICED_SHARE * float(phases[ALONE].good.of_kind(short).total_ms.mean()))
    said = f"Beside long requests, short ones wait {waits}"
    if added_ms < noticed_ms and max(mean.high, p95.high) >= WORTH:
        verdict = "shared_queue"
        text = f"{said}, at most {added_ms:.0f} ms more: one queue for both is good enough."
    elif max(mean.low, p95.low) > WORTH:
        verdict, text = "separate_queues", f"{said}: separate queues are worth it."
    elif max(mean.high, p95.high) < WORTH:
        verdict, text = "shared_queue", f"{said}: one queue for both is good enough."
    else:
        verdict, text = UNDECIDED, f"{said}: too few requests to say whether separate queues are worth it."
    figures: dict[str, object] = {"factor": mean.ratio, "factor_interval": [mean.low, mean.high]}
    figures |= {"p95_factor": p95.ratio, "p95_factor_interval": [p95.low, p95.high]}
    figures["added_most_ms"] = added_ms
    return Experiment(
        verdict=verdict, text=text, columns=COLUMNS, rows=table, figures=figures, problems=problems
    )


def _times(rows: Rows) -> Floats:
    """Return the times to first token; without streaming, the totals."""
    return rows.ttft_ms if median(rows.ttft_ms) is not None else rows.latency_ms


def _added(alone: Floats, mean: Ratio, p95: Ratio) -> float:
    """Return the most that the wait can have grown by, in milliseconds: the upper ends of both intervals."""
    known = alone[~np.isnan(alone)]
    return max((mean.high - 1) * float(known.mean()), (p95.high - 1) * float(np.percentile(known, 95)), 0.0)


def _factor(ratio: Ratio) -> str:
    return f"{ratio.ratio:.2f} times ({ratio.low:.2f}-{ratio.high:.2f})"


def _row(label: str, rows: Rows) -> list[object]:
    good = rows.take(rows.ok)
    return [
        label,
        len(good),
        int((~rows.ok & ~rows.cancelled).sum()),
        median(good.ttft_ms),
        percentile(good.ttft_ms, 95),
        median(good.latency_ms),
        percentile(good.latency_ms, 95),
    ]
