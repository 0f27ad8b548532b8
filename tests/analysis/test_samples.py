from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.samples import CLOSEST, StepSample, grouped, plain, thinned

from .ladders import arrivals, closed, failing

GOOD = closed(8, 6, n=100)


@pytest.mark.parametrize(
    ("sample", "fault"),
    [
        (GOOD, None),
        (replace(GOOD, client_limited=True), "client_limited"),
        (replace(GOOD, little=0.89), "load_not_applied"),
        (replace(GOOD, little=1.11), "load_not_applied"),
        (replace(GOOD, little=None), None),
        (closed(8, 6, n=31), "too_few"),  # under 4 rounds of 8 users
        (closed(8, 6, n=32), None),
        (closed(1, 1, n=19), "too_few"),
        (closed(1, 1, n=20), None),
        (failing(closed(8, 6, n=40), 0.6), None),  # over the limit: it stays
        (replace(arrivals(2, 2, 1), sent_due=0.94), "load_not_applied"),
        (arrivals(2, 1, 1), None),  # behind the arrivals: saturation, not a fault of the test
    ],
)
def test_what_cannot_stand_in_the_verdict(sample: StepSample, fault: str | None) -> None:
    assert sample.fault == fault


def test_throughput_counts_work_served() -> None:
    assert GOOD.throughput == pytest.approx(6)
    tokens = replace(GOOD, work=GOOD.work * 50, done_work=100 * 50.0)
    assert tokens.throughput == pytest.approx(300)
    assert replace(GOOD, done=0, done_work=0.0).throughput == pytest.approx(0.5 / GOOD.seconds)


def test_throughput_of_an_open_loop_is_the_share_served() -> None:
    assert arrivals(4, 3, 1).throughput == pytest.approx(3)
    assert (
        replace(arrivals(4, 4, 1), done=410).throughput == 4
    )  # more ended than began: the edge, not capacity


def test_groups_are_ordered_by_load_and_keep_repeats() -> None:
    groups = grouped([closed(4, 4), closed(1, 1), closed(4, 3.9)])
    assert [(g[0].load, len(g)) for g in groups] == [(1, 1), (4, 2)]


@pytest.mark.parametrize(
    ("loads", "kept"),
    [
        ([1, 2, 4, 6, 8, 12], [1, 2, 4, 6, 8, 12]),
        ([8, 10, 12], [8, 12]),  # 12 is the top, and 10 too close to it
        ([6, 5, 4], [4, 6]),
        ([10, 11, 12], [10]),
        ([4, 5], [4, 5]),
        ([], []),
    ],
)
def test_steps_that_are_too_close_are_thinned(loads: list[float], kept: list[float]) -> None:
    assert thinned(loads) == kept


@given(st.sets(st.integers(1, 200), min_size=1))
def test_thinned_steps_are_apart(loads: set[int]) -> None:
    kept = thinned(loads)
    assert kept
    assert set(kept) <= loads
    assert all(b / a >= CLOSEST - 1e-9 for a, b in pairwise(kept))


def test_loads_in_words() -> None:
    assert [plain(x) for x in ([], [1.0], [1.0, 2.0], [0.5, 1, 2])] == ["", "1", "1 and 2", "0.5, 1 and 2"]
