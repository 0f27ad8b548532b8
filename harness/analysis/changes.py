"""How the times of two runs changed: a ratio, its interval and its p-value for each figure of each step.

Steps are matched by their load, and within them payload kinds by name. Compared are means and p95: beside a
queue the median of a bimodal time jumps from one mode to the other. Each ratio (B over A) has a 95 %
block-bootstrap interval, 1.5 % of noise between two measures of the same thing added; over all steps
together it is their geometric mean, which shows a slowdown that is too small to see in any single one. Steps
above the baseline's cap are shown and not judged: who waits how long there is the queue's affair.

A regression is a ratio beyond the threshold, at a rate of false discoveries of 5 % over all figures
(Benjamini & Hochberg 1995): where nothing changed, one comparison in twenty shows any, not one figure in
twenty; and a change that touches every figure a little is seen, which Holm's rule loses among eighty of
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from scipy import special

from harness.analysis.groups import Rows, Window, steps_of
from harness.analysis.replicates import STEP_NOISE
from harness.analysis.stats import Z95, Floats, ratio_interval, wilson
from harness.plan import step_label
from harness.results import Load
from harness.rundir import RunData

ALPHA = 0.05
LEAST, LEAST_TAIL = 8, 40  # good requests for a mean, for a p95
FAILURES_MORE = 0.01  # of all requests
ALL_KINDS, ALL_STEPS = "all", "all steps"
FIGURES = (("ttft", "mean"), ("ttft", "p95"), ("total", "mean"), ("total", "p95"))
POWER = 0.8  # how often a slowdown of `seen_from` would have shown

Steps = dict[str, list[Window]]
Word = Literal["regression", "improvement", "same", "unclear", "beyond_cap"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one kind in one step, in both runs (milliseconds; shares for `failures`)."""

    step: str
    kind: str
    figure: str  # ttft_mean_ms | ttft_p95_ms | total_mean_ms | total_p95_ms | failures
    before: float
    after: float
    ratio: float | None = None
    low: float | None = None  # 95 % interval of the ratio
    high: float | None = None
    p: float | None = None  # of "not beyond the threshold", adjusted for the number of figures
    seen_from: float | None = None  # share by which it had to rise alone to be a regression, 4 times in 5
    word: Word


@dataclass(frozen=True, slots=True)
class _Draft:
    """A change before its p-value is adjusted."""

    change: Change
    p_worse: float
    p_better: float
    error: float = 0.0  # standard error of the log of the ratio


def changes_between(
    before: Steps, after: Steps, *, threshold: float, cap: Load | None, seed: int
) -> list[Change]:
    """Return the changes of all steps that both runs have.

    `threshold` is the share that counts as a regression; steps above `cap` are not judged.
    """
    judged: list[_Draft] = []
    beyond: list[_Draft] = []
    for step in before:
        if step in after:
            over = cap is not None and (before[step][0].load or 0.0) > cap
            (beyond if over else judged).extend(_of_step(step, before[step], after[step], threshold, seed))
    shown = [msgspec.structs.replace(draft.change, word="beyond_cap") for draft in beyond]
    return _judged(_of_all_steps(judged, threshold) + judged, threshold) + shown


def windows_by_step(run: RunData) -> Steps:
    """Return the complete windows of a run by step; a load measured several times stands together."""
    steps: Steps = {}
    for window in steps_of(run):
        phase = window.phase
        if not window.complete or phase.experiment == "drift":
            continue
        name = phase.label
        if phase.experiment == "steps":
            name = step_label(phase.users, phase.rate)
        steps.setdefault(name, []).append(window)
    return steps


def _of_step(
    step: str, before: Sequence[Window], after: Sequence[Window], threshold: float, seed: int
) -> list[_Draft]:
    """Return the changes of all figures of a step, over all kinds and for each."""
    users = before[0].phase.users or 1
    counts = [(sum(w.failures for w in part), sum(len(w.good) for w in part)) for part in (before, after)]
    drafts = [_failures(step, *counts)] if all(map(any, counts)) else []
    kinds = [kind for kind in _kinds(before) if kind in _kinds(after)]
    counted = before[0].phase.experiment not in ("steps", "isolation")
    for kind in [*([ALL_KINDS] if not counted else []), *(kinds if len(kinds) > 1 or counted else [])]:
        rows = [_rows(windows, kind, skip_first=counted) for windows in (before, after)]
        for figure, statistic in FIGURES:
            times = [_times(part, figure) for part in rows]
            least = LEAST if statistic == "mean" else LEAST_TAIL
            if min(map(len, times)) < least or min(t.min() for t in times) <= 0:
                continue
            name = f"{figure}_{statistic}_ms"
            drafts.append(_ratio(step, kind, name, times, statistic, users, threshold, seed))
    return drafts


def _kinds(windows: Sequence[Window]) -> list[str]:
    return sorted({w.started.kinds[k] for w in windows for k in np.unique(w.good.kind)})


def _rows(windows: Sequence[Window], kind: str, *, skip_first: bool) -> list[Rows]:
    parts = []
    for window in windows:
        rows = window.good if kind == ALL_KINDS else window.good.of_kind(kind)
        rows = rows.take(slice(1, None)) if skip_first else rows
        parts.append(rows.take(np.argsort(rows.end_ns, kind="stable")))
    return parts


def _times(parts: Sequence[Rows], figure: str) -> Floats:
    times = np.concatenate([part.ttft_ms if figure == "ttft" else part.latency_ms for part in parts])
    known: Floats = times[~np.isnan(times)]
    return known


def _ratio(
    step: str,
    kind: str,
    figure: str,
    times: Sequence[Floats],
    statistic: str,
    users: int,
    threshold: float,
    seed: int,
) -> _Draft:
    ratio = ratio_interval(times[0], times[1], statistic, users=users, noise=STEP_NOISE, seed=seed)
    values = [float(t.mean() if statistic == "mean" else np.percentile(t, 95)) for t in times]
    error = (math.log(ratio.high) - math.log(ratio.low)) / (2 * Z95)
    return _draft(step, kind, figure, values, math.log(ratio.ratio), error, threshold)


def _draft(
    step: str,
    kind: str,
    figure: str,
    values: Sequence[float],
    log_ratio: float,
    error: float,
    threshold: float,
) -> _Draft:
    change = Change(
        step=step,
        kind=kind,
        figure=figure,
        before=values[0],
        after=values[1],
        ratio=math.exp(log_ratio),
        low=math.exp(log_ratio - Z95 * error),
        high=math.exp(log_ratio + Z95 * error),
        word="unclear",
    )
    return _Draft(
        change=change,
        p_worse=float(special.ndtr((math.log1p(threshold) - log_ratio) / error)),
        p_better=float(special.ndtr(log_ratio / error)),
        error=error,
    )


def _of_all_steps(drafts: Sequence[_Draft], threshold: float) -> list[_Draft]:
    """Return the geometric mean of the steps' ratios of each mean, over all kinds."""
    found = []
    for figure in ("ttft_mean_ms", "total_mean_ms"):
        parts = [d for d in drafts if d.change.kind == ALL_KINDS and d.change.figure == figure]
        if len(parts) < 2:
            continue
        log_ratio = float(np.mean([math.log(d.change.ratio or 1.0) for d in parts]))
        error = math.sqrt(sum(d.error**2 for d in parts)) / len(parts)
        before, after = ([getattr(d.change, name) for d in parts] for name in ("before", "after"))
        values = [float(np.exp(np.mean(np.log(means)))) for means in (before, after)]
        found.append(_draft(ALL_STEPS, ALL_KINDS, figure, values, log_ratio, error, threshold))
    return found


def _failures(step: str, before: tuple[int, int], after: tuple[int, int]) -> _Draft:
    """Return the change of the failed share, of (failed, good): worse if its low bound is a point above."""
    shares = [failed / (failed + good) for failed, good in (before, after)]
    low, high = wilson(after[0], sum(after))
    worse, better = low > shares[0] + FAILURES_MORE, high < shares[0] - FAILURES_MORE
    change = Change(
        step=step, kind=ALL_KINDS, figure="failures", before=shares[0], after=shares[1], word="same"
    )
    return _Draft(change=change, p_worse=0.0 if worse else 1.0, p_better=0.0 if better else 1.0)


def _judged(drafts: Sequence[_Draft], threshold: float) -> list[Change]:
    """Return the changes with their p-values adjusted for all of them, and what each comes to.

    A figure that rises alone is found where its own p-value is below ALPHA over the number of figures.
    """
    reach = special.ndtri(1 - ALPHA / max(len(drafts), 1)) + special.ndtri(POWER)
    worse, better = discoveries([d.p_worse for d in drafts]), discoveries([d.p_better for d in drafts])
    changes = []
    for draft, p_worse, p_better in zip(drafts, worse, better, strict=True):
        change = draft.change
        word: Word = "unclear"
        if p_worse < ALPHA:
            word = "regression"
        elif p_better < ALPHA:
            word = "improvement"
        elif change.high is None or change.high <= 1 + threshold:
            word = "same"
        seen_from = (1 + threshold) * math.exp(reach * draft.error) - 1 if draft.error else None
        changes.append(msgspec.structs.replace(change, p=p_worse, word=word, seen_from=seen_from))
    return changes


def telling(changes: Sequence[Change]) -> list[Change]:
    """Return what became worse, then what became better, each in the order of the steps.

    A single kind is left out where it says what its step says of all kinds: the same word, and no other ratio
    as far as can be told.
    """
    whole = {(c.step, c.figure): c for c in changes if c.kind == ALL_KINDS}

    def says_more(change: Change) -> bool:
        of_all = whole.get((change.step, change.figure), change)
        if of_all is change or of_all.word != change.word or of_all.ratio is None:
            return True
        return not (change.low or 0.0) <= of_all.ratio <= (change.high or math.inf)

    return [c for word in ("regression", "improvement") for c in changes if c.word == word and says_more(c)]


def discoveries(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted to the rate of false discoveries, in the order given."""
    adjusted, least = [1.0] * len(p_values), 1.0
    order = sorted(range(len(p_values)), key=lambda i: p_values[i], reverse=True)
    for rank, i in zip(range(len(order), 0, -1), order, strict=True):
        least = min(least, p_values[i] * len(order) / rank)
        adjusted[i] = least
    return adjusted
