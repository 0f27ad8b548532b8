"""What the ladder knows of one phase while it runs: its stage, its times, its finished requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from harness.load.answer import quantile
from harness.plan import Phase
from harness.profile import MIN_GOOD
from harness.records import Outcome, PhaseFigures, PhaseTimes

Stage = Literal["gather", "settle", "window", "drain", "done"]


class Finished(msgspec.Struct):
    """The part of a request's record that steers the ladder; `wall_ns` is put on the master's clock."""

    worker: str
    user: int
    phase: int
    wall_ns: int
    total_ms: float
    outcome: Outcome
    kind: str = ""
    queued_ms: float | None = None  # open loop
    ttft_ms: float | None = None
    in_tokens: int | None = None
    out_tokens: int | None = None

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.wall_ns + round(self.total_ms * 1e6)

    @property
    def latency_ms(self) -> float:
        """How long it took, in an open loop since it was due."""
        return self.total_ms + (self.queued_ms or 0.0)

    @property
    def ok(self) -> bool:
        """Whether it counts as throughput."""
        return self.outcome == "ok"


@dataclass(slots=True)
class Step:
    """One phase of the ladder.

    `window` holds the finished requests that started in [t0, t1), `served` the good ones that ended in it.
    `good` and `failures` count the window's; a request that our own stop cancelled is neither. They are
    counted as they come, since the ladder asks ten times a second.
    """

    phase: Phase
    stage_s: float  # when the stage began, monotonic
    stage: Stage = "gather"
    ready_ns: int | None = None
    t0_ns: int | None = None
    t1_ns: int | None = None
    end_ns: int | None = None
    restarts: int = 0
    in_phase: int = 0  # finished requests that carry the phase
    rounds: Counter[tuple[str, int]] = field(default_factory=Counter)
    window: list[Finished] = field(default_factory=list)
    served: list[Finished] = field(default_factory=list)
    good: int = 0
    failures: int = 0
    looked_at: int = 0  # good requests when the votes were last looked at
    _final: PhaseFigures | None = None

    def enter(self, stage: Stage, now_s: float) -> None:
        """Begin a stage."""
        self.stage, self.stage_s = stage, now_s

    def restart(self, now_s: float) -> None:
        """Wait for the load again and measure afresh."""
        self.ready_ns = self.t0_ns = self.t1_ns = None
        self.rounds.clear()
        self.window.clear()
        self.served.clear()
        self.looked_at = self.good = self.failures = 0
        self.restarts += 1
        self.enter("gather", now_s)

    def add(self, row: Finished) -> None:
        """Count a finished request."""
        if row.phase == self.phase.index:
            self.in_phase += 1
            if self.ready_ns is not None and row.wall_ns >= self.ready_ns:
                self.rounds[row.worker, row.user] += 1
        if self._holds(row.wall_ns):
            self.window.append(row)
            self.good += row.ok
            self.failures += not row.ok and row.outcome != "cancelled"
        if row.ok and self._holds(row.end_ns):
            self.served.append(row)

    def _holds(self, at_ns: int) -> bool:
        return self.t0_ns is not None and at_ns >= self.t0_ns and (self.t1_ns is None or at_ns < self.t1_ns)

    @property
    def missing(self) -> int:
        """Requests that a full window still lacks: of a phase that ends by its count any, else good ones."""
        if self.phase.requests is not None:
            return self.phase.requests - self.in_phase
        return self.phase.hold.wanted(self.phase.users) - self.good

    @property
    def seconds(self) -> float | None:
        """Length of the window, up to the last request that ended where it is still open."""
        if self.t0_ns is None:
            return None
        end_ns = self.t1_ns or max((row.end_ns for row in self.served), default=self.t0_ns)
        return (end_ns - self.t0_ns) / 1e9

    def p95_ms(self) -> float | None:
        """Latency of the good requests; None below 20."""
        latencies = sorted(row.latency_ms for row in self.window if row.ok)
        return quantile(latencies, 0.95) if len(latencies) >= MIN_GOOD else None

    def figures(self) -> PhaseFigures:
        """Return what the step has shown so far; once it is done they are counted no more."""
        if self._final is not None:
            return self._final
        good = [row for row in self.window if row.ok]
        latencies = sorted(row.latency_ms for row in good)
        ttfts = sorted(row.ttft_ms + (row.queued_ms or 0.0) for row in good if row.ttft_ms is not None)
        found = PhaseFigures(
            n=len(good),
            failures=self.failures,
            rps=len(self.served) / self.seconds if self.seconds else None,
            p50_ms=quantile(latencies, 0.50) if latencies else None,
            p95_ms=quantile(latencies, 0.95) if latencies else None,
            ttft_p95_ms=quantile(ttfts, 0.95) if ttfts else None,
        )
        if self.stage == "done":
            self._final = found
        return found

    def times(self) -> PhaseTimes:
        """Return the phase's line of run.json."""
        phase = self.phase
        return PhaseTimes(
            index=phase.index,
            label=phase.label,
            users=phase.users,
            rate=phase.rate,
            experiment=phase.experiment,
            ready_ns=self.ready_ns,
            t0_ns=self.t0_ns,
            t1_ns=self.t1_ns,
            end_ns=self.end_ns,
            figures=self.figures() if self.stage == "done" and self.t1_ns is not None else None,
        )
