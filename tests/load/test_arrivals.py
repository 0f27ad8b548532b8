"""Due times of an open loop: no drift, evenly shared out, repeatable."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load.arrivals import arrivals


def first(
    count: int, rate: float, kind: str, share: int = 0, shares: int = 1, seed: str = "s"
) -> list[float]:
    return list(itertools.islice(arrivals(rate, kind, share=share, shares=shares, seed=seed), count))  # type: ignore[arg-type]


@given(st.floats(0.01, 10_000), st.integers(1, 9))
def test_constant_arrivals_of_all_workers_are_one_even_stream(rate: float, shares: int) -> None:
    dues = sorted(due for share in range(shares) for due in first(50, rate, "constant", share, shares))
    assert all(math.isclose(due, number / rate) for number, due in enumerate(dues))


def test_constant_arrivals_do_not_drift() -> None:
    assert first(1_000_001, 3.0, "constant")[-1] == pytest.approx(1_000_000 / 3.0, rel=1e-15)


@pytest.mark.parametrize("shares", [1, 4])
def test_poisson_arrivals_of_all_workers_have_the_rate_and_the_spread_of_one_stream(shares: int) -> None:
    rate, seconds = 50.0, 400.0
    dues: list[float] = []
    for share in range(shares):
        stream = arrivals(rate, "poisson", share=share, shares=shares, seed=f"1/0/{share}")
        dues += itertools.takewhile(lambda due: due < seconds, stream)
    expected = rate * seconds
    assert abs(len(dues) - expected) < 4 * math.sqrt(expected)
    gaps = [b - a for a, b in itertools.pairwise(sorted(dues))]
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert 0.95 < spread / mean < 1.05  # exponential: both are equal


def test_the_seed_decides() -> None:
    assert first(20, 5.0, "poisson", seed="a") == first(20, 5.0, "poisson", seed="a")
    assert first(20, 5.0, "poisson", seed="a") != first(20, 5.0, "poisson", seed="b")
