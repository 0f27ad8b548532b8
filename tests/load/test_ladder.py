"""The ladder against a fake clock: what ends a stage, what voids a measurement, what ends the climb."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from harness.load.ladder import MAX_RESTARTS, Judges, Ladder, WorkerStatus
from harness.load.step import Finished, Step
from harness.plan import Plan, make_plan
from harness.profile import Profile
from harness.records import Outcome

NS = 1_000_000_000
TURN_S = 0.1


def profile_of(**load: Any) -> Profile:
    hold = {"seconds": 5, "min_requests": 20, "max_seconds": 20, "settle_s": 1} | load.pop("hold", {})
    stop = load.pop("stop", {})
    safety = load.pop("safety", {})
    return msgspec.convert(
        {
            "name": "t",
            "target": {"base_url": "http://127.0.0.1:1/v1", "timeouts": {"total_s": 10}},
            "traffic": {"mix": [{"kind": "text"}]},
            "load": {"users": [1, 2], "drift_check": False, "hold": hold} | load,
            "stop": stop,
            "safety": safety,
        },
        Profile,
    )


@dataclass
class World:
    """A ladder, a clock, and users that answer each request after `service_s`."""

    ladder: Ladder
    service_s: float = 0.2
    outcome: Outcome = "ok"
    users: int | None = None  # None: as many as wanted
    now_s: float = 0.0
    in_flight: dict[int, float] = field(default_factory=dict)
    phase: int = 0
    silent: set[str] = field(default_factory=set)

    def turn(self) -> None:
        self.now_s = round(self.now_s + TURN_S, 6)
        ladder = self.ladder
        self.phase = ladder.phase.index
        users = ladder.users if self.users is None else self.users
        rows = []
        for user in range(users):
            began = self.in_flight.get(user)
            if began is not None and self.now_s - began >= self.service_s - 1e-9:
                rows.append(
                    Finished(
                        worker="w",
                        user=user,
                        phase=self.phase,
                        wall_ns=round(began * NS),
                        total_ms=self.service_s * 1000,
                        outcome=self.outcome,
                    )
                )
                began = None
            if began is None:
                self.in_flight.pop(user, None)
                if ladder.gate:
                    self.in_flight[user] = self.now_s
        for user in [u for u in self.in_flight if u >= users]:
            del self.in_flight[user]
        ladder.finished(rows)
        if "w" not in self.silent:
            oldest = min(self.in_flight.values(), default=None)
            ladder.reported(
                "w",
                WorkerStatus(
                    at_ns=self.wall_ns,
                    phase=self.phase,
                    users=users,
                    in_flight=len(self.in_flight),
                    oldest_ns=None if oldest is None else round(oldest * NS),
                ),
            )
        ladder.advance(self.wall_ns, self.now_s)

    @property
    def wall_ns(self) -> int:
        return round(self.now_s * NS)

    def until(self, stage: str, within_s: float = 100) -> None:
        deadline = self.now_s + within_s
        while self.ladder.step.stage != stage and not self.ladder.over:
            assert self.now_s < deadline, f"no {stage} within {within_s} s: {self.ladder.step}"
            self.turn()

    def until_over(self, within_s: float = 300) -> None:
        deadline = self.now_s + within_s
        while not self.ladder.over:
            assert self.now_s < deadline, "the climb does not end"
            self.turn()


def world(profile: Profile, plan: Plan | None = None, **kwargs: Any) -> World:
    plan = plan or make_plan(profile)
    judges = Judges(**{k: kwargs.pop(k) for k in ("decided", "refinements") if k in kwargs})
    return World(Ladder(profile, plan, ["w"], judges, now_s=0.0), **kwargs)


def test_a_step_settles_holds_and_drains_in_order() -> None:
    w = world(profile_of())
    w.until_over()
    first, second = w.ladder.steps
    for step in (first, second):
        times = step.times()
        assert times.ready_ns is not None
        assert times.t0_ns is not None
        assert times.t1_ns is not None
        assert times.end_ns is not None
        assert times.t0_ns - times.ready_ns >= NS  # settle_s
        assert times.t1_ns - times.t0_ns >= 5 * NS
        assert times.end_ns >= times.t1_ns
    assert second.times().ready_ns >= first.times().end_ns  # type: ignore[operator]
    assert w.ladder.stopped_early is None
    assert w.ladder.problems == []
    assert w.ladder.users == 0


def test_the_window_waits_for_enough_good_requests_that_started_in_it() -> None:
    w = world(profile_of(hold={"min_requests": 40}), service_s=0.3)
    w.until("drain")
    step = w.ladder.step
    assert step.t0_ns is not None
    started = [row for row in step.window if row.wall_ns >= step.t0_ns and row.ok]
    assert len(started) == len(step.window) >= 40
    assert 40 * 0.3 - 1 <= (step.t1_ns - step.t0_ns) / NS <= 40 * 0.3 + 1  # type: ignore[operator]


def test_a_window_needs_four_rounds_of_each_user() -> None:
    w = world(profile_of(users=[12], hold={"seconds": 0.5, "min_requests": 1, "settle_s": 0}), service_s=1.0)
    w.until("drain")
    assert w.ladder.step.good >= 48


def test_a_window_without_enough_requests_ends_at_its_longest_and_says_so() -> None:
    w = world(profile_of(users=[1]), service_s=2.0)
    w.until("drain")
    (problem,) = w.ladder.problems
    assert (problem.code, problem.step) == ("hold_too_short", "1 user")
    assert w.now_s == pytest.approx(1 + 2 * 2.0 + 20, abs=3)


def test_settling_waits_for_two_requests_of_each_user() -> None:
    w = world(profile_of(users=[3], hold={"settle_s": 0}), service_s=4.0)
    w.until("window")
    assert w.now_s == pytest.approx(8, abs=0.5)


def test_the_load_goes_on_until_the_requests_of_the_window_have_ended() -> None:
    w = world(profile_of(users=[2]), service_s=3.0)
    w.until("drain")
    step = w.ladder.step
    before = len(step.window)
    while w.ladder.step is step and not w.ladder.over:
        assert w.ladder.gate
        assert w.ladder.users == 2
        w.turn()
    assert len(step.window) > before  # they were waited for, and count
    assert step.t1_ns is not None
    assert all(row.wall_ns < step.t1_ns for row in step.window)


def test_a_drain_lasts_at_most_the_total_timeout() -> None:
    w = world(profile_of(users=[1], hold={"max_seconds": 6}), service_s=2.5)
    w.until("drain")
    began = w.now_s
    w.silent.add("w")
    w.until_over()
    assert 10 <= w.now_s - began <= 12


def test_a_step_begins_only_when_all_users_run() -> None:
    w = world(profile_of(users=[4]), users=3)
    for _ in range(50):
        w.turn()
    assert w.ladder.step.stage == "gather"
    w.users = None
    w.until("settle", within_s=1)


def test_users_that_never_come_end_the_climb() -> None:
    w = world(profile_of(users=[4]), users=3)
    w.until_over()
    assert w.ladder.stopped_early == "`4 users` did not begin: 3 of 4 users were running"
    assert [p.code for p in w.ladder.problems] == ["load_not_applied"]


def test_a_user_that_is_missing_for_a_moment_voids_the_measurement() -> None:
    w = world(profile_of(users=[2]))
    w.until("window")
    for _ in range(20):
        w.turn()
    t0 = w.ladder.step.t0_ns
    w.users = 1
    w.turn()
    assert w.ladder.step.stage == "gather"
    assert w.ladder.step.window == []
    w.users = None
    w.until_over()
    assert w.ladder.step.t0_ns > t0  # type: ignore[operator]
    assert w.ladder.problems == []  # the step that counts was not disturbed


def test_users_that_come_and_go_end_the_climb() -> None:
    w = world(profile_of(users=[2]))
    for _ in range(MAX_RESTARTS + 1):
        w.users = None
        w.until("window")
        w.users = 1
        w.turn()
    assert w.ladder.over
    assert [p.code for p in w.ladder.problems] == ["load_not_applied"]


def test_a_lost_worker_ends_the_climb_and_voids_its_step() -> None:
    w = world(profile_of())
    w.until("drain")
    w.ladder.lost("w")
    assert w.ladder.over
    assert w.ladder.step.times().t1_ns is None
    assert [(p.code, p.step) for p in w.ladder.problems] == [("workers_lost", None)]


def test_a_worker_that_joins_voids_the_measurement() -> None:
    w = world(profile_of())
    w.until("window")
    w.ladder.joined("late", w.now_s)
    assert w.ladder.step.stage == "gather"
    w.turn()
    assert w.ladder.step.stage == "gather"  # nothing was heard of it yet


@pytest.mark.parametrize(
    ("outcome", "stop", "reason"),
    [
        ("http_error", {"error_rate": 0.5}, "requests failed at 1 user (stop.error_rate)"),
        ("ok", {"total_p95_ms": 100}, "p95 was 200 ms at 1 user (stop.total_p95_ms)"),
        ("ok", {"memory": 0.9}, "memory was 95% full at 1 user (stop.memory)"),
    ],
)
def test_a_stop_rule_ends_the_climb_with_the_step_measured(
    outcome: Outcome, stop: dict[str, float], reason: str
) -> None:
    w = world(profile_of(stop=stop), outcome=outcome)
    w.ladder.memory(0.95)
    w.until_over()
    assert w.ladder.stopped_early is not None
    assert w.ladder.stopped_early.endswith(reason)
    (step,) = w.ladder.steps
    assert step.times().t1_ns is not None
    assert w.ladder.problems == []  # the reason says it
    assert len(w.ladder.times()) == 2  # the step that was not reached is listed, without times


def test_few_failures_do_not_stop() -> None:
    w = world(profile_of(users=[1]))
    w.until("window")
    w.outcome = "reset"
    for _ in range(6):
        w.turn()
    w.outcome = "ok"
    w.until_over()
    assert w.ladder.stopped_early is None
    assert w.ladder.step.failures == 3


def test_the_longest_run_is_bounded() -> None:
    w = world(profile_of(safety={"max_seconds": 3}))
    w.until_over()
    assert w.now_s == pytest.approx(3, abs=0.3)
    assert w.ladder.stopped_early == "the run reached safety.max_seconds (3 s)"


def counted_plan(profile: Profile) -> Plan:
    return make_plan(profile, "repeat")


def test_a_counted_phase_begins_behind_a_closed_gate_and_ends_by_its_count() -> None:
    profile = profile_of()
    w = world(profile, counted_plan(profile))
    assert not w.ladder.gate
    w.turn()
    assert w.ladder.step.stage == "window"  # nobody to settle: its first request counts
    assert w.ladder.gate
    w.until_over()
    (step,) = w.ladder.steps
    assert step.in_phase >= 20
    assert len(step.window) == step.in_phase


def test_a_counted_phase_waits_for_the_requests_before_it() -> None:
    profile = profile_of()
    w = world(profile, counted_plan(profile))
    w.in_flight[0] = 0.0
    w.service_s = 1.0
    w.turn()
    assert w.ladder.step.stage == "gather"
    w.until("window", within_s=2)
    assert w.now_s == pytest.approx(1.0, abs=0.15)


def test_an_open_loop_asks_for_one_user_per_worker() -> None:
    profile = profile_of(users=None, rates=[2.0])
    ladder = Ladder(profile, make_plan(profile), ["a", "b", "c"], now_s=0.0)
    assert (ladder.users, ladder.gate) == (3, False)


def test_an_undecided_step_is_held_until_the_sample_has_doubled() -> None:
    looked: list[int] = []

    def decided(steps: Sequence[Step]) -> bool:
        looked.append(steps[-1].good)
        return len(looked) == 3

    w = world(
        profile_of(users=[1], hold={"adaptive": True, "seconds": 1, "max_seconds": 100}), decided=decided
    )
    w.until("drain")
    assert looked[0] >= 20
    assert all(after >= 2 * before for before, after in itertools.pairwise(looked))
    assert len(looked) == 3


def test_an_undecided_step_is_held_no_longer_than_max_seconds() -> None:
    w = world(profile_of(users=[1], hold={"adaptive": True}), decided=lambda steps: False)
    w.until("drain")
    step = w.ladder.step
    assert (step.t1_ns - step.t0_ns) / NS == pytest.approx(20, abs=0.3)  # type: ignore[operator]
    assert w.ladder.problems == []


def test_refinements_are_measured_after_the_ladder_and_before_the_rest() -> None:
    profile = profile_of(users=[1, 2, 4], drift_check=True)

    def refinements(steps: Sequence[Step]) -> list[int]:
        return [3, 2]

    w = world(profile, refinements=refinements)
    w.until_over()
    phases = [s.phase for s in w.ladder.steps]
    assert [p.users for p in phases] == [1, 2, 4, 3, 1]
    assert [p.index for p in phases] == [0, 1, 2, 4, 3]
    assert phases[3].label == "3 users (refined)"
    assert phases[4].experiment == "drift"
