import time

import numpy as np
import pytest

from harness.analysis.hold import is_decided, more_requests, refinements, vote_probabilities
from harness.analysis.replicates import measure
from harness.analysis.samples import StepSample
from harness.results import Knee

from .ladders import arrivals, closed


def more_needed(prev: StepSample, cur: StepSample) -> int | None:
    groups = [(prev,), (cur,)]
    return more_requests(measure(groups, np.random.default_rng(0), replicates=120), groups, 0)


def test_votes_are_sure_where_the_step_is_clear() -> None:
    assert vote_probabilities(closed(4, 4, 400), closed(6, 6, 400)) == (0, 0)
    p_a, p_c = vote_probabilities(closed(4, 4, 400), closed(6, 4, 400))
    assert p_a > 0.98
    assert p_c > 0.98


def test_a_vote_at_its_threshold_is_open_and_more_requests_would_not_decide_it() -> None:
    prev, cur = closed(6, 6, 300), closed(8, 6 * (8 / 6) ** 0.36, 300)
    assert 0.2 < vote_probabilities(prev, cur)[1] < 0.8
    assert not is_decided(prev, cur)
    assert more_needed(prev, cur) is None


def test_a_few_requests_are_held_on_and_many_are_enough() -> None:
    few, many = ((closed(6, 6, n, cv=0.8), closed(8, 6, n, cv=0.8)) for n in (40, 4000))
    assert not is_decided(*few)
    needed = more_needed(*few)
    assert needed is not None
    assert 50 <= needed <= 4000
    assert is_decided(*many)
    assert more_needed(*many) == 0


def test_the_answer_hardly_hangs_on_the_seed() -> None:
    prev, cur = closed(4, 4, 200), closed(6, 4.3, 200)
    found = [vote_probabilities(prev, cur, seed=seed)[1] for seed in range(10)]
    assert max(found) - min(found) < 0.2


def test_an_open_loop_is_decided_too() -> None:
    assert is_decided(arrivals(2, 2, 1), arrivals(4, 2.4, 30))
    assert is_decided(arrivals(2, 2, 1), arrivals(4, 4, 1))


def test_a_look_costs_milliseconds_however_many_requests() -> None:
    prev, cur = closed(6, 6, 100_000), closed(8, 6, 100_000)
    vote_probabilities(prev, cur)
    began = time.process_time()
    for _ in range(10):
        vote_probabilities(prev, cur)
    assert (time.process_time() - began) / 10 < 0.1


@pytest.mark.parametrize(
    ("cap", "knee_step", "loads", "between"),
    [
        (6, 8, [1, 2, 4, 6, 8, 12], [7]),
        (8, 12, [1, 2, 4, 6, 8, 12], [10]),
        (1, 2, [1, 2, 4], []),
        (2, 4, [1, 2, 4], [3]),
        (12, 24, [6, 12, 24], [14, 17, 20]),
        (6, 8, [1, 2, 6, 7, 8], []),
        (0.5, 1, [0.5, 1, 2.5], [0.595, 0.707, 0.841]),
    ],
)
def test_steps_between_cap_and_knee(
    cap: float, knee_step: float, loads: list[float], between: list[float]
) -> None:
    assert refinements(loads, Knee(status="knee", cap=cap, knee_step=knee_step)) == between


def test_nothing_to_refine_without_a_knee() -> None:
    assert refinements([1, 2, 4], Knee(status="none_in_range", cap=4)) == []
    assert refinements([1, 2, 4], Knee(status="inconclusive")) == []
