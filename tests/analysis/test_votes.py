from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from harness.analysis.replicates import Measured, measure
from harness.analysis.samples import StepSample, grouped
from harness.analysis.votes import Ballots, Memory, as_votes, cast, memory_votes

from .ladders import USERS, arrivals, closed, failing, saturating

UNKNOWN = Memory(None, "")


def ballots(steps: Sequence[StepSample]) -> Ballots:
    groups = grouped(steps)
    return cast(measure(groups, np.random.default_rng(0)), memory_votes(groups), [False] * len(groups))


def curve(users: Sequence[float], throughput: Sequence[float]) -> Ballots:
    """Votes on bare figures, latency by Little's law."""
    x, load = np.log(np.array([throughput])), np.log(np.array(users, dtype=float))
    latency = load - x
    measured = Measured(np.array(users, dtype=float), x, latency, latency, False, (0,) * len(users))
    return cast(measured, [UNKNOWN] * len(users), [False] * len(users))


def test_growth_is_relative_to_the_load_and_adds_up_to_one() -> None:
    found = curve([1, 2, 8], [10, 20, 40])
    assert found.e_x[0] == pytest.approx([1.0, 0.5])
    assert found.e_mean[0] == pytest.approx([0.0, 0.5])


@pytest.mark.parametrize(
    ("throughput", "knee"),
    [
        ([1, 2, 4, 6, 6, 6], 3),  # 6 to 8 users bring nothing
        ([1, 2, 4, 6, 8, 12], 5),  # never
        ([1, 1, 1, 1, 1, 1], 0),  # from the first
        ([1, 2, 4, 4, 4, 4], 2),
        ([1, 2, 2.2, 6, 6, 6], 3),  # the dip at 4 is undone by the steps after it
        ([1, 2, 4, 6, 5, 4], 3),  # falling
        ([1, 2, 4, 4.2, 4.6, 7.5], 5),  # a late recovery undoes the knee at 6
    ],
)
def test_the_knee_is_the_first_step_that_no_later_one_undoes(throughput: list[float], knee: int) -> None:
    assert curve(USERS, throughput).knee[0] == knee


def test_votes_of_a_sharp_ladder_in_words() -> None:
    votes = as_votes(ballots(saturating(6, n=1200)), "requests")
    assert [(v.users, v.A, v.C) for v in votes] == [
        (2, False, False),
        (4, False, False),
        (6, False, False),
        (8, True, True),
        (12, True, True),
    ]
    assert votes[3].e_x == pytest.approx(0, abs=0.01)
    assert votes[3].p_c is not None
    assert votes[3].p_c > 0.99
    assert votes[3].why.startswith("p95 rose 3")
    assert "requests served stayed level" in votes[3].why


def test_the_mean_stands_in_where_p95_is_uncertain() -> None:
    found = ballots(saturating(6, n=60))
    votes = as_votes(found, "requests")
    assert found.by_mean[3]
    assert votes[3].A is True
    assert "p95 is too uncertain" in votes[3].why


def test_an_open_loop_votes_when_the_service_falls_behind() -> None:
    steps = [
        arrivals(1, 1, 1),
        arrivals(2, 2, 1),
        arrivals(4, 4, 1.3),
        arrivals(6, 5.4, 9),
        arrivals(8, 5.4, 20),
    ]
    found = ballots(steps)
    assert found.e_x[0, 2] > 0.35  # throughput still grows
    assert list(found.c[0]) == [False, False, True, True]
    assert found.knee[0] == 2


@pytest.mark.parametrize(
    ("change", "vote", "word"),
    [
        ({"kv_p95": 0.95}, True, "KV cache 95 % full"),
        ({"kv_p95": 0.85}, False, ""),
        ({"nvml_p95": 0.97}, True, "GPU memory 97 % full"),
        ({"nvml_p95": 0.90}, False, ""),
        ({"preemptions": 4.0}, True, "4 preemptions"),
        ({"preemptions": 2.0}, False, ""),
        ({}, None, "no memory figures"),
    ],
)
def test_memory_votes(change: dict[str, float], vote: bool | None, word: str) -> None:
    first = {name: 0.4 if name != "preemptions" else 0.0 for name in change}
    groups = grouped([replace(closed(1, 1), **first), replace(closed(2, 2), **change)])
    found = memory_votes(groups)[1]
    assert found.vote is vote
    assert word in found.why


def test_memory_that_an_engine_holds_from_the_start_says_nothing() -> None:
    held = [replace(closed(u, u), nvml_p95=0.97) for u in (1, 2)]
    assert [m.vote for m in memory_votes(grouped(held))] == [None, None]
    with_kv = [replace(s, kv_p95=0.2) for s in held]
    assert [m.vote for m in memory_votes(grouped(with_kv))] == [False, False]


def test_a_kv_cache_full_from_the_start_gives_no_vote() -> None:
    full = [replace(closed(u, u), kv_p95=0.93) for u in (1, 2)]
    assert memory_votes(grouped(full))[1].vote is False


def test_preemptions_count_against_the_requests() -> None:
    many = [replace(closed(u, u, n=1000), preemptions=p) for u, p in ((1, 0.0), (2, 9.0), (4, 10.0))]
    assert [m.vote for m in memory_votes(grouped(many))] == [False, False, True]


@pytest.mark.parametrize(("share", "vote"), [(0.0, None), (0.02, None), (0.05, True)])
def test_failures_vote_beyond_chance(share: float, vote: bool | None) -> None:
    groups = grouped([closed(1, 1), failing(closed(2, 2, n=200), share, refused=1.0)])
    found = memory_votes(groups)[1]
    assert found.vote is vote
    assert vote is None or found.why == "10 of 200 requests refused"


def test_replicates_of_tokens_follow_the_work() -> None:
    rng = np.random.default_rng(0)
    long = rng.random(400) < 0.3
    sample = closed(1, 1, n=400)
    latency, work = np.where(long, 4000.0, 500.0), np.where(long, 400.0, 50.0)
    tokens = replace(sample, latency_ms=latency, work=work, seconds=latency.sum() / 1e3, done_work=work.sum())
    in_tokens = measure([(tokens,)], rng).log_x[1:, 0].std()
    requests = replace(tokens, work=np.ones(400), done_work=400.0)
    in_requests = measure([(requests,)], rng).log_x[1:, 0].std()
    assert in_tokens < 0.5 * in_requests  # the share of long requests is no noise of token throughput
