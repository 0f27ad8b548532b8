"""The ladder's questions to the analysis, from finished requests of known truth."""

from __future__ import annotations

import random

import msgspec
import pytest

from harness.load.judge import decided, judges_of, refinements, sample_of
from harness.load.step import Finished, Step
from harness.plan import Entry, Phase
from harness.profile import Hold, Profile

CARRIES = 6  # requests at once


def step_of(users: int, requests: int, service_ms: float = 100.0) -> Step:
    """A closed loop on a service that carries six: throughput grows to six users and is flat from there."""
    phase = Phase(
        index=users,
        label="",
        experiment="steps",
        users=users,
        rate=None,
        schedule=(Entry(0, True, True),),
        hold=Hold(),
    )
    chance = random.Random(users)
    step = Step(phase, 0.0)
    step.t0_ns = 0
    total_ms = service_ms * max(1.0, users / CARRIES)
    rate_ms = total_ms / users
    for number in range(requests):
        spread = total_ms * chance.gauss(1.0, 0.05)
        at_ns = round((number * rate_ms) * 1e6)
        step.add(
            Finished(
                worker="w",
                user=0,
                phase=users,
                wall_ns=at_ns,
                total_ms=spread,
                outcome="ok",
                out_tokens=10,
                kind="a",
            )
        )
    step.t1_ns = round(requests * rate_ms * 1e6)
    return step


def test_a_clear_step_is_decided_and_one_of_few_requests_is_not() -> None:
    assert decided([step_of(1, 60), step_of(2, 200)])
    assert decided([step_of(6, 400), step_of(12, 400)])
    # throughput that grows by a tenth lies on the edge of vote C (e_X = 0.35)
    assert not decided([step_of(6, 60), step_of(8, 60, service_ms=90.4)])


def test_the_first_step_of_a_ladder_has_nothing_to_decide() -> None:
    assert decided([step_of(1, 20)])


def test_a_step_is_compared_with_the_one_below_it_whatever_the_order() -> None:
    assert decided([step_of(12, 400), step_of(1, 60), step_of(2, 200)])


def test_steps_between_cap_and_knee_are_worth_measuring() -> None:
    ladder = [step_of(users, 60 * users) for users in (1, 2, 4, 6, 8, 12)]
    assert refinements(ladder) == [7]
    assert refinements(ladder[:2]) == []
    assert refinements(ladder[:4]) == []


def test_work_is_counted_in_tokens_where_kinds_differ() -> None:
    step = step_of(2, 40)
    sample = sample_of(step, in_tokens=True)
    assert sample.done_work == 10 * sample.done
    assert sample.good == sample.asked == 40
    assert sample.seconds == pytest.approx(2.0)
    assert sample_of(step, in_tokens=False).done_work == sample.done


def test_only_what_the_profile_asks_for_is_judged() -> None:
    raw = {"name": "t", "target": {"base_url": "http://h/v1"}, "traffic": {"mix": [{"kind": "a"}]}}
    plain = judges_of(msgspec.convert(raw, Profile))
    assert (plain.decided, plain.refinements) == (None, None)
    load = {"refine": True, "hold": {"adaptive": True}}
    eager = judges_of(msgspec.convert(raw | {"load": load}, Profile))
    assert (eager.decided, eager.refinements) == (decided, refinements)
    rates = judges_of(msgspec.convert(raw | {"load": load | {"rates": [1.0]}}, Profile))
    assert rates.refinements is None
