"""The outcome of a comparison in a few sentences: slower or not, where most, by how much, how sure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.analysis.capacity_change import Move
from harness.analysis.changes import ALL_KINDS, ALL_STEPS, Change
from harness.results import Load, Status

FIGURE_NAMES = {
    "ttft_mean_ms": "TTFT mean",
    "ttft_p95_ms": "TTFT p95",
    "total_mean_ms": "total mean",
    "total_p95_ms": "total p95",
    "failures": "failed",
}


def outcome(
    changes: Sequence[Change],
    *,
    threshold: float,
    cap_move: Move | None,
    caps: Sequence[str],
    comparable: bool,
    not_valid: Sequence[str] = (),
) -> str:
    """Return the result in words.

    `caps` are those of both runs in words; `comparable` is False where the runs' traffic differs;
    `not_valid` names the runs that are not.
    """
    judged = [change for change in changes if change.word != "beyond_cap"]
    worse = [change for change in judged if change.word == "regression"]
    better = [change for change in judged if change.word == "improvement"]
    capped = f"the cap {cap_move} from {' to '.join(caps)}"
    if worse or cap_move == "fell":
        parts = [capped] if cap_move == "fell" else []
        if worse:
            many = f"{len(worse)} of {len(judged)} figures {'are' if len(worse) > 1 else 'is'}"
            parts.append(f"{many} worse by more than {100 * threshold:g} %, most {_most(worse)}")
            parts += _overall(worse)
        said = f"Regression: {'; '.join(parts)}."
    elif not changes:
        said = "Nothing to compare: the runs share no step with enough good requests."
    elif not judged:
        said = "Nothing to judge: all steps that the runs share lie above the cap of A."
    else:
        said = _no_regression(judged, better, threshold)
    if cap_move == "rose":
        said += f" T{capped[1:]}."
    if not_valid:
        said += f" Not valid: run {' and run '.join(not_valid)}."
    return said if comparable else f"{said} The traffic differs: figures are not comparable."


def _no_regression(judged: Sequence[Change], better: Sequence[Change], threshold: float) -> str:
    hidden = sum(change.word == "unclear" for change in judged)
    beyond = f"a slowdown of more than {100 * threshold:g} %"
    if better:
        said = f"No regression: {len(better)} of {len(judged)} figures are better, most {_most(better)}"
        said = "; ".join([said, *_overall(better)]) + "."
        return f"{said} {hidden} could hide {beyond}." if hidden else said
    said = f"No figure differs beyond its noise: {len(judged)} compared"
    said += f", {hidden} of which could hide {beyond}." if hidden else "."
    overall = [c.seen_from for c in judged if c.step == ALL_STEPS and c.seen_from is not None]
    single = [c.seen_from for c in judged if c.step != ALL_STEPS and c.seen_from is not None]
    seen = [f"{100 * min(overall):.0f} % over all steps"] if overall else []
    seen += [f"{100 * float(np.median(single)):.0f} % in a single figure (the median)"] if single else []
    return f"{said} A slowdown would have shown from about {', '.join(seen)}." if seen else said


def _most(changes: Sequence[Change]) -> str:
    """Return the figure that changed most, with by how much."""
    most = max(changes, key=lambda c: abs(math.log(c.ratio)) if c.ratio else math.inf)
    kind = "" if most.kind == ALL_KINDS else f" of {most.kind}"
    where = "over" if most.step == ALL_STEPS else "at" if most.step[0].isdigit() else "in"
    by = f"{signed(most.ratio)} %" if most.ratio else f"{100 * most.after:.1f} % failed"
    name = FIGURE_NAMES[most.figure] if most.ratio else "requests"
    return f"{name}{kind} {where} {most.step} ({by})"


def _overall(changes: Sequence[Change]) -> list[str]:
    """Return the total time over all steps with its interval, where that is among the changes."""
    return [
        f"total mean over {ALL_STEPS} {signed(c.ratio)} % (95 %: {signed(c.low)} to {signed(c.high)} %)"
        for c in changes
        if c.step == ALL_STEPS and c.figure == "total_mean_ms"
    ]


def signed(ratio: float | None) -> str:
    """Return a ratio as a change in per cent: 1.12 gives "+12", 0.995 gives "-0.5"."""
    percent = round(100 * ((ratio or 0.0) - 1), 1) + 0.0  # no "-0.0"
    return f"{percent:+.0f}" if abs(percent) >= 10 else f"{percent:+.1f}"


def cap_words(status: Status | None, cap: Load | None) -> str:
    """Return a cap as its verdict means it: "6", "at least 6", "below the first step", "none"."""
    if cap is None:
        return "below the first step" if status == "below_first" else "none"
    return f"at least {cap:g}" if status == "none_in_range" else f"{cap:g}"
