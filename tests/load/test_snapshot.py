"""What a running step waits for and what its votes are, in words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from harness.load.ladder import Ladder
from harness.load.snapshot import Live, share_of, state_of, waits_for
from harness.load.step import Finished, Step
from harness.plan import make_plan
from harness.profile import Profile

MS = 1_000_000


def ladder_of(**load: Any) -> Ladder:
    raw = {
        "name": "small",
        "target": {"base_url": "http://127.0.0.1:1/v1"},
        "traffic": {"mix": [{"kind": "a"}]},
        "load": {"users": [2, 4, 8], "hold": {"seconds": 10, "min_requests": 40, "settle_s": 5}} | load,
    }
    profile = msgspec.convert(raw, Profile)
    return Ladder(profile, make_plan(profile), ["w"], now_s=0.0)


def good(number: int, user: int = 0, total_ms: float = 100.0) -> Finished:
    return Finished(
        worker="w", user=user, phase=0, wall_ns=number * 100 * MS, total_ms=total_ms, outcome="ok"
    )


def in_stage(ladder: Ladder, stage: Any, requests: int = 0) -> Ladder:
    step = ladder.step
    step.stage, step.ready_ns = stage, 0
    step.t0_ns = 0 if stage in ("window", "drain") else None
    for number in range(requests):
        step.add(good(number))
    return ladder


@pytest.mark.parametrize(
    ("stage", "requests", "users", "now_s", "said"),
    [
        ("gather", 0, 1, 0.0, "1 of 2 users are running"),
        ("gather", 0, 2, 0.0, "workers enter the step"),
        ("settle", 0, 2, 2.0, "settling, 3 s to go"),
        ("settle", 3, 2, 6.0, "settling, 1 of 2 users have finished two requests"),
        ("window", 7, 2, 4.0, "measuring, 4 of 10 s, 7 of 40 good requests"),
        ("window", 30, 2, 12.0, "measuring, 30 of 40 good requests, 12 of at most 300 s"),
        ("window", 40, 2, 12.0, "measuring, until its votes are decided, 12 of at most 300 s"),
        ("drain", 40, 2, 0.0, "the last requests of the step are ending, 2 in flight"),
    ],
)
def test_what_a_step_waits_for(stage: str, requests: int, users: int, now_s: float, said: str) -> None:
    assert waits_for(in_stage(ladder_of(), stage, requests), users, 2, now_s) == said


def test_an_open_loop_waits_for_the_requests_of_the_step_before() -> None:
    ladder = ladder_of(users=None, rates=[1, 2, 4])
    assert waits_for(ladder, 1, 3, 0.0) == "3 requests of the step before are ending"


def test_a_step_that_was_disturbed_says_so() -> None:
    ladder = ladder_of()
    ladder.step.restart(0.0)
    said = "1 of 2 users are running (begun anew, 1 so far: users or workers changed)"
    assert waits_for(ladder, 1, 0, 0.0) == said


@pytest.mark.parametrize(
    ("stage", "requests", "now_s", "share"),
    [("settle", 0, 9, 0), ("window", 10, 9, 0.25), ("window", 40, 5, 0.5), ("drain", 40, 0, 1)],
)
def test_the_share_of_a_step_is_that_of_time_or_of_requests(
    stage: str, requests: int, now_s: float, share: float
) -> None:
    assert share_of(in_stage(ladder_of(), stage, requests).step, now_s) == share


def test_votes_are_those_against_the_step_below_and_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ladder = ladder_of()
    ladder.steps = [Step(phase, 0.0) for phase in ladder.plan.phases[:3]]
    for step, each_ms in zip(ladder.steps, (100, 100, 200), strict=True):  # 4 users are carried, 8 are not
        step.ready_ns = step.t0_ns = 0
        step.t1_ns, step.stage = 10_000 * MS, "done"
        users = step.phase.users or 1
        for number in range(users * 10_000 // each_ms):
            at_ms = number * each_ms // users
            step.add(
                Finished(
                    worker="w",
                    user=0,
                    phase=0,
                    wall_ns=at_ms * MS,
                    total_ms=each_ms + number % 7,
                    outcome="ok",
                )
            )
    run = SimpleNamespace(ladder=ladder, report=None)
    live = Live(SimpleNamespace())  # type: ignore[arg-type]
    votes = [(live._step(run, index) or {})["votes"] for index in range(3)]  # type: ignore[arg-type]
    assert votes == [None, [], ["latency", "throughput"]]
    monkeypatch.setattr("harness.load.snapshot.vote_between", None)
    shown = live._step(run, 2)  # type: ignore[arg-type]
    assert shown is not None
    assert shown["why"].startswith("p95 rose 9")


def test_a_run_that_is_stopped_is_ending_then_analysed() -> None:
    ladder = ladder_of()
    session: Any = SimpleNamespace(
        preparing=False, run=SimpleNamespace(ladder=ladder, analysing=False), error=None, last=None
    )
    assert state_of(session) == "running"
    ladder.stop("enough")
    assert state_of(session) == "ending"
    session.run.analysing = True
    assert state_of(session) == "analysing"
