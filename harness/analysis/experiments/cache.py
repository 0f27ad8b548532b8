"""What the service's caches save: unique pictures against a repeated one, unique prompts against a repeated
one.

The share saved is of the prefill (preprocessing included, which a repeated picture spares too), or of the
time to first token where the service reports no stages. A cache works where the repeated requests are
faster by a tenth at least and chance gives that in less than 5 % of runs. The engine's hit counters must
tell the same story.
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
from harness.analysis.stats import Floats
from harness.analysis.tagging import engine_by_step
from harness.results import EngineStats, Experiment
from harness.rundir import RunData

SAVED_LEAST = 0.1
HITS_LEAST = 0.01
LEAST = 5
PAIRS = {"image": ("image_unique", "image_repeated"), "prefix": ("prefix_unique", "prefix_repeated")}
COLUMNS = ["kind", "n", "in_tokens", "prefill_p50_ms", "ttft_p50_ms", "total_p50_ms", "saved_share", "p"]


def assess_cache(run: RunData, rows: Rows, windows: Sequence[Window], seed: int) -> Experiment:
    """Return what repeated pictures and prompts save, and whether the engine's counters agree."""
    mine = rows_of_experiment(run, rows, "cache")
    series = {kind: series_of(mine, kind) for pair in PAIRS.values() for kind in pair}
    saved: dict[str, float] = {}
    table: list[list[object]] = []
    p_values = {}
    for name, (unique, repeated) in PAIRS.items():
        before, after = (_work(series[kind].rest) for kind in (unique, repeated))
        share = 1 - (median(after) or 0.0) / (median(before) or 1.0) if len(before) and len(after) else 0.0
        saved[name], p_values[name] = share, p_exceeds(after, before, 1 / (1 - SAVED_LEAST))
        table += [_row(series[unique], None, None), _row(series[repeated], share, p_values[name])]
    problems = failures_of(list(series.values()))
    if min(len(s.rest) for s in series.values()) < LEAST:
        return too_little(f"fewer than {LEAST} good requests of a kind", COLUMNS, table, problems)
    works = [name for name in PAIRS if p_values[name] < ALPHA]
    engine = _engine(run)
    problems += _against_counters(works, engine)
    figures: dict[str, object] = {f"{name}_saved": share for name, share in saved.items()}
    if engine is not None:
        figures |= {"image_hits": engine.mm_hit_ratio, "prefix_hits": engine.prefix_hit_ratio}
    verdict = "_and_".join(works) + "_cache" if works else "no_cache"
    return Experiment(
        verdict=verdict,
        text=_text(works, saved, median(series["prefix_repeated"].rest.figures["in_tokens"])),
        columns=COLUMNS,
        rows=table,
        figures=figures,
        problems=problems,
    )


def _work(rows: Rows) -> Floats:
    """Return the time that a cache can spare: preprocessing and prefill, or else all to the first token."""
    prefill = rows.stages["prefill"]
    if median(prefill) is not None:
        return prefill + np.nan_to_num(rows.stages["pre"])
    return rows.ttft_ms if median(rows.ttft_ms) is not None else rows.latency_ms


def _engine(run: RunData) -> EngineStats | None:
    index = next((p.index for p in run.info.phases if p.experiment == "cache"), None)
    return engine_by_step(run).get(index) if index is not None else None


def _against_counters(works: list[str], engine: EngineStats | None) -> list[str]:
    """Return where the engine's hit counters contradict the times, or show hits that should not be."""
    if engine is None:
        return ["the engine's hit counters are not known: the times stand alone"]
    found = []
    for name, hits in (("image", engine.mm_hit_ratio), ("prefix", engine.prefix_hit_ratio)):
        if hits is None:
            found.append(f"the engine does not count hits of its {name} cache")
        elif name in works and hits < HITS_LEAST:
            found.append(
                f"repeated requests are faster, yet the engine counts {100 * hits:.1f} % {name} hits"
            )
        elif name not in works and hits >= SAVED_LEAST:
            found.append(
                f"the engine counts {100 * hits:.0f} % {name} hits, yet repeated requests are no faster"
            )
        if hits is not None and hits > 0.6:
            found.append(
                f"{100 * hits:.0f} % {name} hits where half of the requests repeat: traffic meant to be "
                "unique hits too"
            )
    return found


def _text(works: list[str], saved: dict[str, float], prompt_tokens: float | None) -> str:
    if not works:
        return "No cache at work: repeated pictures and prompts take as long as unique ones."
    of_tokens = f" of {prompt_tokens:.0f} tokens" if prompt_tokens else ""
    words = {"image": "a repeated picture", "prefix": f"a repeated prompt{of_tokens}"}
    parts = [f"{words[name]} saves {100 * saved[name]:.0f} % of its prefill" for name in works]
    idle = [words[name] for name in saved if name not in works]
    rest = f"; {idle[0]} saves nothing" if idle else ""
    return f"Caches are at work: {' and '.join(parts)}{rest}."


def _row(series: Series, share: float | None, p: float | None) -> list[object]:
    rest = series.rest
    return [
        series.kind,
        len(rest),
        median(rest.figures["in_tokens"]),
        median(rest.stages["prefill"]),
        median(rest.ttft_ms),
        median(rest.latency_ms),
        share,
        p,
    ]
