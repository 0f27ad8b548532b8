"""Is the number of images what makes requests slow, or the text and its decoding?

Three kinds with the same text and the same output length, one after the other, without load. Only requests
whose answers are equally long (within 5 % of the median) are compared: a longer answer is no cost of an
image.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis.experiments.series import (
    ALPHA,
    Series,
    failures_of,
    median,
    p_exceeds,
    rows_of_experiment,
    series_of,
    too_little,
)
from harness.analysis.groups import Rows, Window
from harness.results import Experiment
from harness.rundir import RunData

KINDS = ("text_only", "one_image", "multi_image")
SAME_LENGTH = 0.05
MATERIAL = 1.2  # several images make a request at least this much slower than text alone
COLUMNS = [
    "kind", "n", "compared", "in_tokens", "out_tokens", "ttft_p50_ms", "total_p50_ms", "first_ttft_ms",
    "first_total_ms",
]  # fmt: skip


def assess_modality(run: RunData, rows: Rows, windows: Sequence[Window], seed: int) -> Experiment:
    """Return medians per kind and whether images or text and decoding are the main variable."""
    mine = rows_of_experiment(run, rows, "modality")
    series = {kind: series_of(mine, kind) for kind in KINDS}
    length = median(np.concatenate([s.rest.figures["out_tokens"] for s in series.values()]))
    compared = {kind: _same_length(s.rest, length) for kind, s in series.items()}
    table: list[list[object]] = [_row(series[kind], compared[kind]) for kind in KINDS]
    problems = failures_of(list(series.values()))
    for kind in KINDS:
        left = len(series[kind].rest) - len(compared[kind])
        if left:
            problems.append(
                f"{left} requests of {kind} are not compared: their answers differ from {length:g} tokens "
                "by more "
                f"than {100 * SAME_LENGTH:.0f} %"
            )
    text, several = compared["text_only"], compared["multi_image"]
    if min(len(text), len(several)) < 3:
        return too_little("fewer than 3 comparable requests of a kind", COLUMNS, table, problems)
    ratio = (median(several.latency_ms) or 0.0) / (median(text.latency_ms) or 1.0)
    first = (median(several.ttft_ms), median(text.ttft_ms))
    p = p_exceeds(text.latency_ms, several.latency_ms, MATERIAL)
    figures = {"total_ratio": ratio, "p": p}
    said = ""
    if first[0] and first[1]:
        figures["ttft_ratio"] = first[0] / first[1]
        said = f" and to the first token {first[0] / first[1]:.1f} times"
    slower = f"several images take {ratio:.2f} times as long as text alone{said}"
    if p < ALPHA:
        verdict, sentence = "image_count", f"The number of images is the main variable: {slower}."
    elif ratio < MATERIAL:
        verdict = "text_or_decoding"
        sentence = f"Text length and decoding are the main variable, not the images: {slower}."
    else:
        verdict, sentence = (
            "undecided",
            f"Not decided: {slower}, but the rounds differ too much; measure more.",
        )
    return Experiment(
        verdict=verdict, text=sentence, columns=COLUMNS, rows=table, figures=figures, problems=problems
    )


def _same_length(rows: Rows, length: float | None) -> Rows:
    if length is None:
        return rows
    tokens = rows.figures["out_tokens"]
    return rows.take(np.abs(tokens - length) <= SAME_LENGTH * length)


def _row(series: Series, compared: Rows) -> list[object]:
    return [
        series.kind,
        len(series.rest),
        len(compared),
        median(compared.figures["in_tokens"]),
        median(compared.figures["out_tokens"]),
        median(compared.ttft_ms),
        median(compared.latency_ms),
        median(series.first.ttft_ms),
        median(series.first.latency_ms),
    ]
