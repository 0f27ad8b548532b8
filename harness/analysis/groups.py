"""Which requests count to which phase: the definitions behind every figure of a report.

A window is [t0, t1) by the master's wall clock; each worker's stamps are moved onto it first. Latency comes
from good requests *started* in the window, throughput from good requests *ended* in it. Counting by start
does not bias the tail; leaving out the requests that cross the edge would, by a sixth of p95 at six rounds a
user. In an open loop a request counts from when it was due, so that sending late cannot hide a queue.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import pandas as pd

from harness.analysis.clock import requests_on_our_clock
from harness.analysis.stats import Floats, Ints, Mask
from harness.records import STAGES, PhaseTimes
from harness.results import Load
from harness.rundir import RunData

LATENCY, TTFT = "latency_ms", "ttft_ms"
FIGURES = (
    "in_tokens",
    "out_tokens",
    "chunks",
    "last_token_ms",
    "itl_p50_ms",
    "itl_p95_ms",
    "itl_max_ms",
    "client_lag_ms",
    "connect_ms",
    "backoff_ms",
    "in_img",
)


@dataclass(frozen=True)
class Rows:
    """Requests as arrays of one length, ordered by start; a figure that is not known is NaN.

    `start_ns` and `end_ns` are wall clock of the master; `due_ns` equals `start_ns` in a closed loop.
    `latency_ms` and `ttft_ms` count from due. `kind` and `outcome` index `kinds` and `outcomes`.
    """

    start_ns: Ints
    end_ns: Ints
    due_ns: Ints
    phase: Ints
    total_ms: Floats
    latency_ms: Floats
    ttft_ms: Floats
    figures: dict[str, Floats]
    stages: dict[str, Floats]
    ok: Mask
    cancelled: Mask
    kind: Ints
    outcome: Ints
    first: Mask
    kinds: tuple[str, ...]
    outcomes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, chosen: Mask | Ints | slice) -> Rows:
        """Return the rows of a mask, of indices, or of a slice (which copies nothing)."""
        parts: dict[str, object] = {}
        for part in fields(self):
            value = getattr(self, part.name)
            if isinstance(value, np.ndarray):
                value = value[chosen]
            elif isinstance(value, dict):
                value = {name: values[chosen] for name, values in value.items()}
            parts[part.name] = value
        return Rows(**parts)  # type: ignore[arg-type]

    def good(self) -> Rows:
        """Return the ok rows."""
        return self if self.ok.all() else self.take(self.ok)

    def of_kind(self, kind: str) -> Rows:
        """Return the rows of one payload kind."""
        if kind not in self.kinds:
            return self.take(np.zeros(len(self), dtype=bool))
        return self.take(self.kind == self.kinds.index(kind))

    def count_outcomes(self) -> dict[str, int]:
        """Return how many rows ended in each outcome that occurs."""
        counts = np.bincount(self.outcome, minlength=len(self.outcomes))
        return {name: int(n) for name, n in zip(self.outcomes, counts, strict=True) if n}


@dataclass(frozen=True)
class Window:
    """One phase with its requests; `complete` is False where the run was cut off inside it."""

    phase: PhaseTimes
    seconds: float
    started: Rows  # in the order in which they started
    ended: Rows  # in the order in which they ended
    due: int  # open loop: requests due in the window
    complete: bool

    @cached_property
    def good(self) -> Rows:
        """Ok requests started in the window: latency, TTFT, ITL and stages come from these."""
        return self.started.good()

    @cached_property
    def served(self) -> Rows:
        """Ok requests ended in the window: throughput comes from these."""
        return self.ended.good()

    @property
    def load(self) -> Load | None:
        """Users, or offered requests/s."""
        return self.phase.load

    @property
    def failures(self) -> int:
        """Others started in the window, except those that our own stop cancelled."""
        return int(np.count_nonzero(~self.started.ok & ~self.started.cancelled))


def rows_of(run: RunData) -> Rows:
    """Return all requests of a run on the master's clock, ordered by start."""
    table = run.requests
    start = requests_on_our_clock(table, run.info.workers)
    order = np.argsort(start, kind="stable")

    def number(name: str) -> Floats:
        return table[name].to_numpy(dtype=np.float64, na_value=np.nan)[order]

    total, queued, start = number("total_ms"), np.nan_to_num(number("queued_ms")), start[order]
    kind, kinds = _codes(table["kind"], order)
    outcome, outcomes = _codes(table["outcome"], order)
    names = np.array([*outcomes, ""])
    return Rows(
        start_ns=start,
        end_ns=start + np.round(total * 1e6).astype(np.int64),
        due_ns=start - np.round(queued * 1e6).astype(np.int64),
        phase=number("phase").astype(np.int64),
        total_ms=total,
        latency_ms=total + queued,
        ttft_ms=number("ttft_ms") + queued,
        figures={name: number(name) for name in FIGURES},
        stages={stage: number(f"{stage}_ms") for stage in STAGES},
        ok=names[outcome] == "ok",
        cancelled=names[outcome] == "cancelled",
        kind=kind,
        outcome=outcome,
        first=table["first"].to_numpy(dtype=bool, na_value=False)[order],
        kinds=kinds,
        outcomes=outcomes,
    )


def steps_of(run: RunData, rows: Rows | None = None) -> list[Window]:
    """Return each phase whose window began, with its requests; one cut off ends at the last request."""
    rows = rows if rows is not None else rows_of(run)
    by_end = rows.take(np.argsort(rows.end_ns, kind="stable"))
    last = int(by_end.end_ns[-1]) if len(rows) else 0
    windows = []
    for phase in run.info.phases:
        if phase.t0_ns is None:
            continue
        t0, t1 = phase.t0_ns, phase.t1_ns if phase.t1_ns is not None else max(last, phase.t0_ns)
        low, high = np.searchsorted(rows.start_ns, (t0, t1))
        first, end = np.searchsorted(by_end.end_ns, (t0, t1))
        windows.append(
            Window(
                phase=phase,
                seconds=(t1 - t0) / 1e9,
                started=rows.take(slice(low, high)),
                ended=by_end.take(slice(first, end)),
                due=int(np.count_nonzero((rows.due_ns >= t0) & (rows.due_ns < t1))),
                complete=phase.t1_ns is not None,
            )
        )
    return windows


def _codes(column: pd.Series[str], order: Ints) -> tuple[Ints, tuple[str, ...]]:
    codes, names = pd.factorize(column, sort=True)
    return codes[order].astype(np.int64), tuple(str(name) for name in names)
