import numpy as np
import pytest

from harness.analysis.table import find_in_table

USERS = [1, 2, 4, 6, 8, 12]


def test_a_table_is_judged_and_says_what_it_assumes() -> None:
    knee = find_in_table(USERS, [10, 19.9, 39, 58, 60, 60], [100, 101, 103, 104, 133, 200])
    assert (knee.status, knee.cap, knee.knee_step, knee.steady) == ("knee", 6, 8, 4)
    assert "noise of 3 % in throughput and 6 % in latency is assumed" in knee.notes[0]
    assert knee.votes[3].why == "latency rose 28 % while requests served rose 3 %"
    assert all(v.B is None for v in knee.votes)


@pytest.mark.parametrize(
    ("throughput", "status", "cap"),
    [
        ([1, 2, 4, 6, 8, 12], "none_in_range", 12),
        ([1, 1, 1, 1, 1, 1], "knee", 1),
        ([1, 2, 4, 4 * 1.5**0.35, 4.7, 4.7], "inconclusive", None),
    ],
)
def test_verdicts_on_a_table(throughput: list[float], status: str, cap: float | None) -> None:
    latency = [u / x for u, x in zip(USERS, throughput, strict=True)]
    knee = find_in_table(USERS, throughput, latency)
    assert (knee.status, knee.cap) == (status, cap)


def test_order_and_units_do_not_matter_and_equal_loads_are_repeats() -> None:
    loads = np.array([*USERS, *USERS, *USERS], dtype=float)
    throughput = np.minimum(loads, 6) * np.repeat([1.0, 0.6, 1.02], 6)
    straight = find_in_table(loads, throughput, loads / throughput)
    assert straight.cap == 6
    turned = find_in_table(loads[::-1], 70 * throughput[::-1], 1e3 * (loads / throughput)[::-1])
    assert (turned.cap, turned.range, turned.confidence) == (6, straight.range, straight.confidence)
    assert [v.why for v in turned.votes] == [v.why for v in straight.votes]


def test_an_open_loop_in_tokens() -> None:
    rates, served = [1, 2, 4, 8, 16], np.array([1, 2, 4, 4.6, 4.6])
    knee = find_in_table(rates, 300 * served, [1, 1, 1.3, 20, 60], open_loop=True)
    assert (knee.status, knee.cap, knee.knee_step) == ("knee", 4, 8)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_fewer_than_three_rows_are_insufficient(n: int) -> None:
    knee = find_in_table(USERS[:n], USERS[:n], [1.0] * n)
    assert (knee.status, knee.most_likely) == ("insufficient", USERS[n - 1] if n else None)
