import numpy as np
import pytest

from harness.analysis.crosschecks import cross_checks
from harness.analysis.stats import Floats

USERS = np.array([1.0, 2, 4, 6, 8, 12])


def usl(contention: float, coherency: float) -> Floats:
    n = USERS
    return 10 * n / (1 + contention * (n - 1) + coherency * n * (n - 1))


def test_the_usl_fit_finds_its_own_parameters_and_peak() -> None:
    y = usl(0.05, 0.01)
    check = cross_checks(USERS, y, USERS / y, 6, open_loop=False)["usl"]
    assert "contention 0.050, coherency 0.0100, peak at 9.7" in check.detail
    assert check.cap == 4.0  # growth is halved at 5


def test_a_service_without_a_knee_gives_the_last_step() -> None:
    checks = cross_checks(USERS, 10 * USERS, np.full(6, 0.1), 12, open_loop=False)
    assert checks["kneedle"].cap is None
    assert checks["kneedle"].agrees is True
    assert (checks["usl"].cap, checks["power"].cap) == (12, 12)
    assert "never halved" in checks["usl"].detail


@pytest.mark.parametrize(("cap", "agrees"), [(4.0, True), (6.0, False), (None, None)])
def test_agreement_is_with_the_cap(cap: float | None, agrees: bool | None) -> None:
    y = np.minimum(USERS, 4)
    assert cross_checks(USERS, y, USERS / y, cap, open_loop=False)["power"].agrees is agrees


def test_an_open_loop_has_no_usl_and_takes_its_measured_latency() -> None:
    rates, served = np.array([1.0, 2, 4, 8]), np.array([1.0, 2, 3, 3])
    checks = cross_checks(rates, served, np.array([1.0, 1.1, 9, 30]), 2, open_loop=True)
    assert (checks["usl"].cap, checks["usl"].agrees) == (None, None)
    assert (checks["power"].cap, checks["power"].agrees) == (2, True)


def test_steps_without_figures_are_left_out() -> None:
    y = np.array([1.0, 2, np.nan, 4, 0.0, 4])
    assert cross_checks(USERS, y, np.ones(6), 6, open_loop=False)["power"].cap == 6
    assert cross_checks(USERS[:2], y[:2], y[:2], 2, open_loop=False) == {}
