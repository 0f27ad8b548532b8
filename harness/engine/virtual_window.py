"""When a step of a virtual run begins, counts and ends: the rules of a real run."""

from __future__ import annotations

from dataclasses import dataclass

from harness.engine.virtual_rows import ns
from harness.plan import Phase
from harness.records import PhaseTimes

_SAME_S = 1e-9  # timers that meet their own time


@dataclass(slots=True)
class Window:
    """The phase under way. Times are virtual seconds."""

    phase: Phase
    ready: float
    t0: float | None = None
    t1: float | None = None
    sent: int = 0
    finished: int = 0
    good: int = 0  # started in the window and ended well
    open: int = 0  # started in the window and not ended

    @property
    def takes_more(self) -> bool:
        """Whether the phase still sends requests."""
        return self.phase.requests is None or self.sent < self.phase.requests

    def count_sent(self) -> bool:
        """Count a request that starts now; returns whether the window counts it."""
        counted = self.phase.requests is not None or (self.t0 is not None and self.t1 is None)
        self.sent += 1
        self.open += counted
        return counted

    def count_ended(self, in_window: bool, *, ok: bool) -> None:
        """Count a request of this phase that ended."""
        self.finished += 1
        self.open -= in_window
        self.good += in_window and ok

    def ended(self, now: float) -> bool:
        """Move on: settled, held for long enough, every request of the window ended."""
        if self.t0 is None and self._settled(now):
            self.t0 = self.ready if self.phase.requests is not None else now
        if self.t0 is not None and self.t1 is None and self._held(now - self.t0):
            self.t1 = now
        return self.t1 is not None and self.open == 0

    def times(self, now: float) -> PhaseTimes:
        """Return the phase as run.json has it."""
        phase = self.phase
        return PhaseTimes(
            index=phase.index,
            label=phase.label,
            users=phase.users,
            rate=phase.rate,
            experiment=phase.experiment,
            ready_ns=ns(self.ready),
            t0_ns=None if self.t0 is None else ns(self.t0),
            t1_ns=None if self.t1 is None else ns(self.t1),
            end_ns=ns(now),
        )

    def _settled(self, now: float) -> bool:
        if self.phase.requests is not None:
            return True
        settle_s, users = self.phase.hold.settle_s, self.phase.users or 0
        return now >= self.ready + settle_s - _SAME_S and self.finished >= 2 * users

    def _held(self, seconds: float) -> bool:
        hold, wanted = self.phase.hold, self.phase.requests
        if seconds >= hold.max_seconds - _SAME_S:
            return True
        if wanted is not None:
            return self.finished >= wanted
        enough = self.good >= hold.wanted(self.phase.users)
        return enough and seconds >= hold.seconds - _SAME_S
