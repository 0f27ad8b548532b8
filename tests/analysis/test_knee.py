"""Each verdict from a ladder that calls for it, and what stands beside it."""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from harness.analysis.knee import find_knee
from harness.analysis.samples import StepSample
from harness.results import Knee

from .ladders import USERS, arrivals, closed, failing, saturating


@pytest.mark.parametrize("cap", [1, 2, 4, 6, 8])
def test_a_sharp_knee_is_found_and_confirmed(cap: int) -> None:
    knee = find_knee(saturating(cap, n=800))
    place = USERS.index(cap)
    assert (knee.status, knee.cap, knee.knee_step) == ("knee", cap, USERS[place + 1])
    assert knee.steady == (USERS[place - 1] if place else None)
    assert knee.most_likely == knee.safe_cap == cap
    assert knee.confidence is not None
    assert knee.confidence >= 0.95
    assert knee.range == (cap, cap)
    assert [v.users for v in knee.votes] == [2, 4, 6, 8, 12]


def test_no_knee_in_range_reads_at_least() -> None:
    knee = find_knee(saturating(50))
    assert (knee.status, knee.cap, knee.knee_step, knee.steady) == ("none_in_range", 12, None, 8)


def test_a_knee_at_the_last_step_is_named_as_such() -> None:
    assert any("last step, 12" in note for note in find_knee(saturating(8, n=800)).notes)


def test_a_lowest_step_that_may_be_saturated_calls_for_lower_ones() -> None:
    knee = find_knee(saturating(3, users=[4, 8, 16, 32], n=400))
    assert (knee.status, knee.cap, knee.steady, knee.most_likely) == ("below_first", None, None, 4)


def test_an_open_loop_behind_from_the_start_is_below_first() -> None:
    steps = [arrivals(rate, 1.5, 20, seed=1) for rate in (2, 4, 8)]
    assert find_knee(steps).status == "below_first"


def test_an_open_loop_shows_whether_its_first_step_kept_up() -> None:
    knee = find_knee([arrivals(2, 2, 1), arrivals(4, 2.2, 20), arrivals(8, 2.2, 40)])
    assert (knee.status, knee.cap, knee.knee_step) == ("knee", 2, 4)


def test_falling_behind_in_an_open_loop_is_a_knee_though_throughput_grew() -> None:
    steps = [
        arrivals(1, 1, 1),
        arrivals(2, 2, 1),
        arrivals(4, 4, 1.2),
        arrivals(6, 5.2, 15),
        arrivals(8, 5.2, 30),
    ]
    knee = find_knee(steps)
    assert (knee.status, knee.cap, knee.knee_step) == ("knee", 4, 6)


def test_too_few_requests_cannot_decide_and_say_how_many_would() -> None:
    knee = find_knee([closed(u, min(u, 4.6), 150, seed=4, cv=0.5) for u in USERS])
    assert knee.status == "inconclusive"
    assert (knee.cap, knee.steady, knee.knee_step) == (None, None, None)
    assert knee.undecided == (4, 6)
    assert knee.most_likely in (4, 6)
    assert knee.safe_cap == 4
    assert knee.range is not None
    assert knee.range[0] <= 4
    assert knee.range[1] >= 6


def test_more_requests_are_asked_for_where_they_would_help() -> None:
    asked = [find_knee([closed(u, min(u, 6), 40, seed=s, cv=1.0) for u in USERS]) for s in range(12)]
    wanted = [k.more_requests for k in asked if k.status == "inconclusive" and k.more_requests]
    assert wanted
    assert all(10 <= n <= 20_000 for n in wanted)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_fewer_than_three_steps_are_insufficient(n: int) -> None:
    knee = find_knee(saturating(6)[:n])
    assert (knee.status, knee.cap, knee.votes) == ("insufficient", None, [])
    assert knee.most_likely == (USERS[n - 1] if n else None)


def changed(steps: Sequence[StepSample], loads: set[float], **parts: object) -> list[StepSample]:
    return [replace(s, **parts) if s.load in loads else s for s in steps]


def test_steps_of_a_limited_client_leave_the_verdict() -> None:
    knee = find_knee(changed(saturating(4, n=800), {12.0}, client_limited=True))
    assert (knee.status, knee.cap) == ("knee", 4)
    assert any(note.startswith("Step 12: left out: the load generator") for note in knee.notes)


@pytest.mark.parametrize(
    ("parts", "status"),
    [({"client_limited": True}, "client_limited"), ({"little": 0.7}, "load_not_applied")],
)
def test_a_fault_is_the_verdict_where_the_rest_cannot_decide(parts: dict[str, object], status: str) -> None:
    assert find_knee(changed(saturating(4), {4.0, 6.0, 8.0, 12.0}, **parts)).status == status


def test_a_step_that_mostly_fails_is_over_the_limit() -> None:
    steps = [failing(s, 0.7) if s.load >= 6 else s for s in saturating(50, n=400)]
    knee = find_knee(steps)
    assert (knee.status, knee.cap, knee.knee_step) == ("knee", 4, 6)
    assert any("more than half of the requests failed" in note for note in knee.notes)


def test_a_step_without_a_single_answer_is_over_the_limit() -> None:
    steps = [failing(s, 1.0) if s.load >= 8 else s for s in saturating(50, n=400)]
    knee = find_knee(steps)
    assert (knee.status, knee.cap, knee.knee_step) == ("knee", 6, 8)
    assert knee.votes[-1].A is None
    assert knee.votes[-1].e_p95 is None


def test_a_first_step_that_mostly_fails_is_below_first() -> None:
    steps = [failing(s, 0.7) if s.load == 1 else s for s in saturating(50, n=400)]
    assert find_knee(steps).status == "below_first"


def test_nothing_but_failures_is_insufficient() -> None:
    knee = find_knee([failing(s, 1.0) for s in saturating(6)])
    assert (knee.status, knee.most_likely) == ("insufficient", None)


def test_fast_refusals_are_no_throughput() -> None:
    steps = [failing(closed(u, min(u, 4), 400), 0.0 if u <= 4 else 0.4, refused=1.0) for u in USERS]
    knee = find_knee(steps)
    assert (knee.status, knee.cap) == ("knee", 4)
    assert knee.votes[2].B is True


def test_three_repeats_outvote_one_slowed_step() -> None:
    calm, slow = saturating(8, n=600), closed(6, 3.6, 600)
    once = [slow if s.load == 6 else s for s in calm]
    assert find_knee(once).cap != 8 or find_knee(once).confidence is not None
    knee = find_knee(once + saturating(8, n=600, seed=1) + saturating(8, n=600, seed=2))
    assert (knee.status, knee.cap) == ("knee", 8)


def test_refined_steps_move_cap_and_knee_but_not_the_steady_level() -> None:
    profile = (1, 2, 4, 8, 16)
    steps = saturating(9.6, users=[*profile, 9, 12], n=3000)
    knee = find_knee(steps, profile_loads=profile)
    assert (knee.cap, knee.knee_step, knee.steady) == (9, 12, 8)
    assert [v.users for v in knee.votes] == [2, 4, 8, 9, 12, 16]
    knee = find_knee([*saturating(6, n=3000), closed(7, 6, 3000)], profile_loads=USERS)
    assert (knee.cap, knee.knee_step, knee.steady) == (6, 7, 4)


def test_refined_steps_that_decide_nothing_are_named() -> None:
    steps = [*saturating(6, n=300), closed(7, 6.4, 60, cv=0.9)]
    knee = find_knee(steps, profile_loads=USERS)
    assert (knee.cap, knee.knee_step) == (6, 8)
    assert any("between cap and knee (7)" in note for note in knee.notes)


def test_the_slo_cap_is_the_highest_step_that_meets_it() -> None:
    met = {1.0: True, 2.0: True, 4.0: True, 6.0: False}
    assert find_knee(saturating(6), slo_ok=met).slo_cap == 4
    assert find_knee(saturating(6), slo_ok={1.0: False}).slo_cap is None


def test_a_verdict_repeats_and_does_not_hang_on_the_order() -> None:
    steps = saturating(4.55, n=100)
    assert find_knee(steps, seed=3) == find_knee(steps[::-1], seed=3)


def test_throughput_that_falls_is_noted() -> None:
    steps = [closed(u, x, 500) for u, x in zip(USERS, (1, 2, 4, 6, 5, 4), strict=True)]
    assert any("Throughput falls beyond 6: 33 % less at 12" in note for note in find_knee(steps).notes)


def test_two_peaks_of_latency_are_noted() -> None:
    rng = np.random.default_rng(0)
    steps = []
    for step in saturating(6, n=400):
        latency = np.where(rng.random(400) < 0.5, 300.0, 3000.0) * rng.lognormal(0, 0.1, 400)
        steps.append(replace(step, latency_ms=latency * step.latency_ms.mean() / latency.mean()))
    assert any("two peaks" in note for note in find_knee(steps).notes)
    assert not any("two peaks" in note for note in find_knee(saturating(6)).notes)


def test_cross_checks_stand_beside_the_verdict() -> None:
    checks = find_knee(saturating(6, n=800)).cross_checks
    assert set(checks) == {"usl", "kneedle", "power"}
    assert checks["power"].cap == 6
    assert checks["power"].agrees is True


def test_a_million_requests_are_judged_in_seconds() -> None:
    steps = [closed(u, min(u, 6), 170_000) for u in USERS]
    began = time.process_time()
    knee = find_knee(steps)
    assert time.process_time() - began < 5
    assert (knee.status, knee.cap) == ("knee", 6)
    assert any("Resampled 2,000" in note for note in knee.notes)


def test_noise_alone_gives_no_confirmed_knee() -> None:
    rng = np.random.default_rng(5)
    verdicts: list[Knee] = []
    for seed in range(40):
        factors = np.exp(rng.normal(0, 0.025, len(USERS)))
        steps = [closed(u, u * f, 80, seed=seed) for u, f in zip(USERS, factors, strict=True)]
        verdicts.append(find_knee(steps))
    assert all(k.status in ("none_in_range", "inconclusive") for k in verdicts)
    assert sum(k.status == "none_in_range" for k in verdicts) >= 36
