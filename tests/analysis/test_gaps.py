"""Ladders with steps that cannot be used: the cap is named only where it cannot lie at one of them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.gaps import hidden_steps, reach
from harness.analysis.knee import find_knee
from harness.analysis.replicates import Measured
from harness.analysis.samples import StepSample
from harness.analysis.stats import Floats
from harness.analysis.votes import Memory, cast
from harness.results import Knee

from .ladders import USERS, arrivals, closed, failing, saturating

Span = tuple[float, float]


def hiding(steps: Sequence[StepSample], *loads: float, **parts: object) -> list[StepSample]:
    """Return the steps, those of `loads` unusable: by the load generator's fault if not otherwise said."""
    parts = parts or {"client_limited": True}
    return [replace(s, **parts) if s.load in loads else s for s in steps]  # type: ignore[arg-type]


def ladder(*served: float) -> list[StepSample]:
    return [closed(u, x, 800) for u, x in zip(USERS, served, strict=True)]


def caps(knee: Knee) -> tuple[object, ...]:
    return knee.status, knee.cap, knee.knee_step, knee.steady


def across(at_8: float, at_12: float | None = None) -> Knee:
    """Return the verdict where 4 and 6 are hidden, 2 users are served in proportion, and 8 as given."""
    return find_knee(hiding(ladder(1, 2, 3, 3, at_8, at_12 or at_8), 4, 6))


@pytest.mark.parametrize("at_8", [2.0, 2.2])  # in proportion 4 users would have been served 2.5 and more
def test_growth_too_small_for_the_first_hidden_step_leaves_the_cap_below_the_gap(at_8: float) -> None:
    knee = across(at_8)
    assert caps(knee) == ("knee", 2, 8, 1)
    assert (knee.safe_cap, knee.range) == (2, (2, 2))
    assert "Throughput at 8 rules out a cap at 4 and 6, which cannot be used." in knee.notes


def test_what_the_range_still_holds_is_not_said_to_be_ruled_out() -> None:
    knee = across(2.4)
    assert (knee.status, knee.cap, knee.range) == ("knee", 2, (2, 4))
    assert "Throughput at 8 rules out a cap at 6, which cannot be used." in knee.notes


@pytest.mark.parametrize("at_8", [7.2, 7.8])  # 6 users are served 6 at most, so that growth goes on to 8
def test_growth_too_large_for_a_knee_inside_leaves_the_cap_above_the_gap(at_8: float) -> None:
    knee = across(at_8)
    assert caps(knee) == ("knee", 8, 12, 2)  # the steady level is measured: neither 6 nor 4
    assert (knee.safe_cap, knee.range) == (8, (8, 8))


@pytest.mark.parametrize(
    ("at_8", "likely", "undecided"),
    [(3.0, 2, (2, 6)), (4.0, 8, (4, 8)), (5.0, 8, (4, 8)), (6.3, 8, (6, 8))],
)
def test_growth_between_may_hide_a_knee_and_names_where(
    at_8: float, likely: float, undecided: tuple[float, float]
) -> None:
    knee = across(at_8)
    assert caps(knee) == ("client_limited", None, None, None)
    assert (knee.most_likely, knee.undecided, knee.range, knee.safe_cap) == (likely, undecided, undecided, 2)
    assert knee.confidence is not None
    assert knee.confidence < 0.8
    assert any("which cannot be used: measure there again" in note for note in knee.notes)


def test_growth_after_the_gap_tells_that_there_was_growth_inside() -> None:
    assert caps(across(4.0, 5.8)) == ("none_in_range", 12, None, 8)


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ({"client_limited": True}, "client_limited"),
        ({"little": 0.7}, "load_not_applied"),
        ({"latency_ms": np.full(5, 200.0), "work": np.ones(5)}, "inconclusive"),  # too few requests
    ],
)
def test_a_withheld_verdict_is_that_of_the_fault(parts: dict[str, object], status: str) -> None:
    knee = find_knee(hiding(ladder(1, 2, 3, 3, 3, 3), 4, 6, **parts))
    assert caps(knee) == (status, None, None, None)
    assert (knee.undecided, knee.more_requests) == ((2, 6), None)
    assert "The cap may be at 4 and 6, which cannot be used: measure there again." in knee.notes


@pytest.mark.parametrize(("cap", "hidden"), [(4, (8,)), (4, (12,)), (4, (8, 12)), (6, (1, 2)), (8, (2, 4))])
def test_steps_away_from_cap_and_knee_leave_no_doubt(cap: float, hidden: tuple[float, ...]) -> None:
    knee = find_knee(hiding(saturating(cap, n=800), *hidden))
    assert (knee.status, knee.cap, knee.range, knee.confidence) == ("knee", cap, (cap, cap), 1.0)
    assert knee.steady not in hidden


@pytest.mark.parametrize("cap", [1, 2])
def test_without_the_first_step_nobody_knows_whether_the_second_is_saturated(cap: float) -> None:
    knee = find_knee(hiding(saturating(cap, n=800), 1))
    assert caps(knee) == ("client_limited", None, None, None)
    assert (knee.undecided, knee.safe_cap) == ((1, 2), None)


@pytest.mark.parametrize(("hidden", "carried"), [((12,), 8), ((8, 12), 6), ((6, 8, 12), 4)])
def test_a_ladder_cut_off_by_the_load_generator_says_what_was_carried(
    hidden: tuple[float, ...], carried: float
) -> None:
    knee = find_knee(hiding(saturating(50, n=800), *hidden))
    assert caps(knee) == ("client_limited", None, None, None)
    assert (knee.safe_cap, knee.most_likely, knee.undecided) == (carried, carried, (carried, 12))


def test_nothing_leads_back_from_the_last_step() -> None:
    assert find_knee(hiding(saturating(6, n=800), 8)).status == "client_limited"


def test_nothing_leads_back_from_a_step_that_mostly_fails() -> None:
    steps = [failing(s, 0.7) if s.load >= 6 else s for s in saturating(50, n=800)]
    knee = find_knee(hiding(steps, 4))
    assert (knee.status, knee.undecided, knee.safe_cap) == ("client_limited", (2, 4), 2)


def test_an_open_loop_that_kept_up_after_the_gap_kept_up_inside() -> None:
    rates = ((1, 1, 1), (2, 2, 1), (4, 4, 1.2), (6, 6, 1.3), (8, 6.1, 30))
    knee = find_knee(hiding([arrivals(*rate) for rate in rates], 4))
    assert caps(knee) == ("knee", 6, 8, 2)


@pytest.mark.parametrize(("capacity", "status"), [(3.0, "knee"), (5.0, "client_limited")])
def test_an_open_loop_behind_after_the_gap_was_behind_inside_if_it_could_not_serve_it(
    capacity: float, status: str
) -> None:
    rates = ((1, 1, 1), (2, 2, 1), (4, min(4, capacity), 5), (6, capacity, 15), (8, capacity, 30))
    knee = find_knee(hiding([arrivals(*rate) for rate in rates], 4))
    assert (knee.status, knee.most_likely) == (status, 2)


def test_above_a_first_step_that_mostly_fails_nothing_can_be_the_cap() -> None:
    steps = [failing(s, 0.7) if s.load == 1 else s for s in saturating(50, n=800)]
    assert find_knee(hiding(steps, 2)).status == "below_first"


def test_a_step_too_close_to_be_compared_hides_nothing() -> None:
    steps = ladder(1, 2, 4, 6, 6.45, 6.45)
    assert caps(find_knee([*steps, *hiding([closed(7, 6.4)], 7)])) == ("knee", 6, 8, 4)


def test_a_refined_step_hides_nothing() -> None:
    profile = (1, 2, 4, 8, 16)
    steps = [closed(u, x, 800) for u, x in zip(profile, (1, 2, 4, 4.7, 4.7), strict=True)]
    steps += hiding([closed(6, 4.7)], 6)
    assert caps(find_knee(steps, profile_loads=profile)) == ("knee", 4, 8, 2)
    assert find_knee(steps).undecided == (4, 6)


def test_a_step_with_one_usable_measure_hides_nothing() -> None:
    steps = [*saturating(6, n=800), *hiding(saturating(6, n=800, seed=1), 6, 8)]
    assert hidden_steps(steps, USERS, USERS) == {}
    assert find_knee(steps).cap == 6


def within_reach(log_x: Floats, users: Sequence[float], hidden: Sequence[float], full_from: float) -> Span:
    """Return how far down and up the cap may lie by noise-free figures; memory is full from a load on."""
    loads = np.array(users, dtype=np.float64)
    latency = np.log(loads) - log_x
    measured = Measured(loads, log_x[None, :], latency[None, :], latency[None, :], False, (0,) * len(loads))
    memory, over = [Memory(bool(load >= full_from), "") for load in loads], [False] * len(loads)
    caps = cast(measured, memory, over).knee
    caps = np.where((caps == 0) & (loads[0] > 1), -1, caps)
    found = reach(caps, hidden, measured, memory, over)
    return float(found.lowest[0]), float(found.highest[0])


def grown(users: Sequence[float], *growth: float) -> Floats:
    """Return log throughput that grows by so much from step to step, on the log scale."""
    return np.concatenate(([0.0], np.cumsum(np.array(growth) * np.diff(np.log(users)))))


def test_beside_memory_growth_below_a_half_makes_a_knee_inside() -> None:
    x = grown(USERS, 1, 0.7, 0.42, 0.42, 0.42)
    assert within_reach(x, USERS, [], 6) == (4, 4)
    assert within_reach(np.delete(x, 2), (1, 2, 6, 8, 12), [4], 6) == (4, 6)
    assert within_reach(np.delete(x, 2), (1, 2, 6, 8, 12), [4], 8) == (6, 6)


def test_growth_that_rises_again_after_the_gap_takes_nothing_from_inside() -> None:
    users = (1, 2, 8, 12)
    assert within_reach(grown(users, 1, 0.45, 0.6), users, [4], 8) == (2, 4)


growths = st.lists(st.floats(0, 1), min_size=5, max_size=5).map(lambda e: np.array(sorted(e, reverse=True)))


@settings(max_examples=500)
@given(growths, st.sets(st.sampled_from(USERS), min_size=1, max_size=3), st.sampled_from([*USERS, np.inf]))
def test_the_cap_of_the_whole_ladder_is_within_reach(
    growth: Floats, hidden: set[float], full_from: float
) -> None:
    log_x = grown(USERS, *growth)
    cap, _ = within_reach(log_x, USERS, [], full_from)
    kept = [i for i, load in enumerate(USERS) if load not in hidden]
    low, high = within_reach(log_x[kept], [USERS[i] for i in kept], sorted(hidden), full_from)
    assert low <= cap <= high
