"""The climb from phase to phase, as a state machine that is told the time and knows nothing of Locust.

A phase goes through five stages:

    gather  until the users reported by the workers are the ones wanted, and every worker is in the phase
    settle  `settle_s`, and two finished requests of each user
    window  until `seconds` have passed and enough good requests that *started* in it have ended
    drain   the load goes on until each request that started in the window has ended
    done

Why the load goes on while draining: a request that crosses the end of the window must meet the same load as
the others, and leaving such requests out would bias the tail by a sixth.

A phase that ends by its count, and an open loop, begin with a closed gate: no request is sent until all those
of the phase before have ended. Any change of users or workers inside a measurement voids it, and the phase is
measured afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.load.step import Finished, Step
from harness.plan import Phase, Plan, refined_phase
from harness.profile import MIN_GOOD, Profile
from harness.records import PhaseTimes, Problem, ProblemCode

GATHER_WITHIN_S = 30.0  # beyond the time that a running request may take
MAX_RESTARTS = 3
CHECK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Judges:
    """What the ladder asks of the analysis; None: it does not ask."""

    decided: Callable[[Sequence[Step]], bool] | None = None  # are the votes of the last step decided?
    refinements: Callable[[Sequence[Step]], Sequence[int]] | None = None  # users to measure as well


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a worker last said of itself, on the master's clock."""

    at_ns: int
    phase: int
    users: int
    in_flight: int
    oldest_ns: int | None = None  # when the oldest request in flight began


class Ladder:
    """Walks through a plan. `advance` moves it; `phase`, `gate`, `users` say what the load should be."""

    def __init__(
        self,
        profile: Profile,
        plan: Plan,
        workers: Iterable[str],
        judges: Judges = Judges(),
        *,
        now_s: float,
    ) -> None:
        self.profile = profile
        self.plan = plan
        self.steps = [Step(plan.phases[0], now_s)]
        self.problems: list[Problem] = []
        self.stopped_early: str | None = None
        self.over = False
        self._coming = list(plan.phases[1:])
        self._statuses: dict[str, WorkerStatus | None] = dict.fromkeys(workers)
        self._judges = judges
        self._began_s = now_s
        self._checked_s = now_s
        self._memory: float | None = None

    # What the load should be

    @property
    def step(self) -> Step:
        """The current step, or the last one."""
        return self.steps[-1]

    @property
    def phase(self) -> Phase:
        """The current phase, or the last one."""
        return self.step.phase

    @property
    def users(self) -> int:
        """Locust users wanted: in an open loop one per worker, which sends all its requests."""
        if self.over:
            return 0
        return self.phase.users if self.phase.users is not None else len(self._statuses)

    @property
    def gate(self) -> bool:
        """Whether requests may be sent."""
        return not self.over and (self.step.stage != "gather" or not _gated(self.phase))

    @property
    def coming(self) -> int:
        """Phases that are still to come."""
        return len(self._coming)

    def times(self) -> list[PhaseTimes]:
        """Return the timeline so far, then the phases that have not begun."""
        return [s.times() for s in self.steps] + [Step(phase, 0.0).times() for phase in self._coming]

    # What happened

    def reported(self, worker: str, status: WorkerStatus) -> None:
        """Take a worker's report; one of a worker that is not (or no longer) in the run is left out."""
        if worker in self._statuses:
            self._statuses[worker] = status

    def finished(self, rows: Iterable[Finished]) -> None:
        """Take requests that have ended."""
        for row in rows:
            self.step.add(row)

    def memory(self, share: float | None) -> None:
        """Take the fullest memory seen, GPU or KV cache (0-1)."""
        self._memory = share

    def joined(self, worker: str, now_s: float) -> None:
        """Take in a worker that came while the run was on; the phase is measured afresh."""
        self._statuses.setdefault(worker, None)
        self._disturbed(f"the worker {worker} joined", now_s)

    def lost(self, worker: str) -> None:
        """End the climb: what the worker measured in this phase is gone, and so is its load."""
        if self.over or worker not in self._statuses:
            return
        del self._statuses[worker]
        text = f"the worker {worker} was lost during `{self.phase.label}`"
        self.problems.append(Problem(code="workers_lost", text=text))
        self.step.t1_ns = None
        self.stop(text)

    def stop(self, reason: str) -> None:
        """End the climb at once."""
        if not self.over:
            self.stopped_early = self.stopped_early or reason
            self.over = True

    # The machine

    def advance(self, wall_ns: int, now_s: float) -> None:
        """Move on as far as what is known allows."""
        if self.over:
            return
        if now_s - self._began_s > self.profile.safety.max_seconds:
            self._ended(wall_ns)
            self.stop(f"the run reached safety.max_seconds ({self.profile.safety.max_seconds:g} s)")
            return
        match self.step.stage:
            case "gather":
                self._gather(wall_ns, now_s)
            case "settle":
                self._settle(wall_ns, now_s)
            case "window":
                self._window(wall_ns, now_s)
            case "drain":
                self._drain(wall_ns, now_s)

    def _gather(self, wall_ns: int, now_s: float) -> None:
        step, total_s = self.step, self.profile.target.timeouts.total_s
        if self._gathered():
            step.ready_ns = wall_ns
            step.enter("settle", now_s)
            if self.phase.requests is not None:  # its first request counts
                step.t0_ns = wall_ns
                step.enter("window", now_s)
        elif now_s - step.stage_s > total_s + GATHER_WITHIN_S:
            running = sum(s.users for s in self._statuses.values() if s is not None)
            text = f"{running} of {self.users} users were running"
            self._problem("load_not_applied", text)
            self.stop(f"`{self.phase.label}` did not begin: {text}")

    def _gathered(self) -> bool:
        known = [s for s in self._statuses.values() if s is not None and s.phase == self.phase.index]
        return (
            len(known) == len(self._statuses) > 0
            and sum(s.users for s in known) == self.users
            and (not _gated(self.phase) or not any(s.in_flight for s in known))
        )

    def _settle(self, wall_ns: int, now_s: float) -> None:
        step, hold, users = self.step, self.phase.hold, self.phase.users or 0
        if self._load_changed(now_s):
            return
        waited = now_s - step.stage_s
        warm = sum(count >= 2 for count in step.rounds.values()) >= users
        if waited >= hold.settle_s and (warm or waited >= hold.settle_s + hold.max_seconds):
            step.t0_ns = wall_ns
            step.enter("window", now_s)

    def _window(self, wall_ns: int, now_s: float) -> None:
        step, hold = self.step, self.phase.hold
        if self._load_changed(now_s):
            return
        held = now_s - step.stage_s
        full = held >= hold.max_seconds or self._enough(held)
        if not full and now_s - self._checked_s < CHECK_EVERY_S:
            return
        self._checked_s = now_s
        broken = self._broken_limit()
        if broken is not None:
            self.stopped_early = broken
        elif not full:
            return
        elif step.missing > 0:
            self._problem("hold_too_short", f"{step.missing} requests are missing after {held:.0f} s")
        step.t1_ns = wall_ns
        step.enter("drain", now_s)

    def _enough(self, held_s: float) -> bool:
        step, hold = self.step, self.phase.hold
        if step.missing > 0 or (self.phase.requests is None and held_s < hold.seconds):
            return False
        good = step.good
        if not hold.adaptive or self._judges.decided is None or self.phase.experiment != "steps":
            return True
        if good < 2 * step.looked_at:
            return False
        step.looked_at = good
        return self._judges.decided(self._ladder_steps())

    def _broken_limit(self) -> str | None:
        """Return which stop rule of the profile is broken, in words."""
        step, stop = self.step, self.profile.stop
        good, bad = step.good, step.failures
        enough = max(MIN_GOOD, 2 * (self.phase.users or 0))
        telling = good + bad >= enough or (good == 0 and bad >= 5)
        if stop.error_rate is not None and telling and bad > stop.error_rate * (good + bad):
            return f"{bad} of {good + bad} requests failed at {self.phase.label} (stop.error_rate)"
        p95_ms = step.p95_ms() if stop.total_p95_ms is not None else None
        if p95_ms is not None and stop.total_p95_ms is not None and p95_ms > stop.total_p95_ms:
            return f"p95 was {p95_ms:.0f} ms at {self.phase.label} (stop.total_p95_ms)"
        if stop.memory is not None and self._memory is not None and self._memory >= stop.memory:
            return f"memory was {self._memory:.0%} full at {self.phase.label} (stop.memory)"
        return None

    def _drain(self, wall_ns: int, now_s: float) -> None:
        step = self.step
        t1_ns = step.t1_ns or 0
        ended = all(
            s is not None and s.at_ns >= t1_ns and (s.oldest_ns is None or s.oldest_ns >= t1_ns)
            for s in self._statuses.values()
        )
        if not ended and now_s - step.stage_s < self.profile.target.timeouts.total_s + CHECK_EVERY_S:
            return
        self._ended(wall_ns)
        if self.stopped_early is not None:
            self.over = True
            return
        self._refine()
        if not self._coming:
            self.over = True
            return
        self.steps.append(Step(self._coming.pop(0), now_s))

    def _refine(self) -> None:
        """After the ladder's last step, put in the steps that would sharpen its knee."""
        more = any(phase.experiment == "steps" for phase in self._coming)
        if self._judges.refinements is None or more or self.phase.experiment != "steps":
            return
        have = {s.phase.users for s in self.steps if s.phase.experiment == "steps"}
        index = len(self.steps) + len(self._coming)
        wanted = [users for users in self._judges.refinements(self._ladder_steps()) if users not in have]
        self._coming[:0] = [refined_phase(self.plan, users, index + n) for n, users in enumerate(wanted)]

    def _ladder_steps(self) -> list[Step]:
        return [s for s in self.steps if s.phase.experiment == "steps"]

    def _load_changed(self, now_s: float) -> bool:
        """Measure afresh where the users running are no longer those wanted."""
        running = sum(s.users for s in self._statuses.values() if s is not None)
        if running == self.users:
            return False
        self._disturbed(f"{running} of {self.users} users were running", now_s)
        return True

    def _disturbed(self, what: str, now_s: float) -> None:
        if self.over or self.step.stage in ("gather", "done"):
            return
        if self.step.restarts >= MAX_RESTARTS:
            self._problem("load_not_applied", what)
            self.stop(f"`{self.phase.label}` was disturbed {MAX_RESTARTS + 1} times: {what}")
        else:
            self.step.restart(now_s)

    def _ended(self, wall_ns: int) -> None:
        self.step.end_ns = wall_ns
        self.step.stage = "done"

    def _problem(self, code: ProblemCode, text: str) -> None:
        self.problems.append(Problem(code=code, text=text, step=self.phase.label))


def _gated(phase: Phase) -> bool:
    """Whether the requests of the phase before must have ended before this phase's first."""
    return phase.requests is not None or phase.rate is not None
