"""Which finished requests belong to a window, and to what."""

from __future__ import annotations

from typing import Any

import pytest

from harness.load.step import Finished, Step
from harness.plan import Entry, Phase
from harness.profile import Hold

MS = 1_000_000


def step_of(**more: Any) -> Step:
    phase = Phase(
        index=1,
        label="4 users",
        experiment="steps",
        users=4,
        rate=None,
        schedule=(Entry(0, True, True),),
        hold=Hold(min_requests=30),
        **more,
    )
    return Step(phase, 0.0)


def row(
    start_ms: float, total_ms: float = 100, outcome: Any = "ok", phase: int = 1, user: int = 0, **more: Any
) -> Finished:
    return Finished(
        worker="w",
        user=user,
        phase=phase,
        wall_ns=round(start_ms * MS),
        total_ms=total_ms,
        outcome=outcome,
        **more,
    )


def test_latency_counts_by_start_and_throughput_by_end() -> None:
    step = step_of()
    step.ready_ns, step.t0_ns, step.t1_ns = 500 * MS, 1000 * MS, 2000 * MS
    rows = {
        "ended before": row(850),
        "crosses the start": row(950),
        "starts at t0": row(1000),
        "crosses the end": row(1950),
        "starts at t1": row(2000),
        "ends at t1": row(1900),
    }
    for each in rows.values():
        step.add(each)
    assert step.window == [rows["starts at t0"], rows["crosses the end"], rows["ends at t1"]]
    assert step.served == [rows["crosses the start"], rows["starts at t0"]]
    assert step.seconds == 1.0


def test_failures_are_neither_good_nor_served_and_our_own_cancels_are_neither() -> None:
    step = step_of()
    step.t0_ns = 0
    for outcome in ("ok", "reset", "rejected", "cancelled", "empty"):
        step.add(row(10, outcome=outcome))
    assert (step.good, step.failures, len(step.served)) == (1, 3, 1)


def test_only_requests_of_the_phase_that_began_when_it_was_ready_are_rounds() -> None:
    step = step_of()
    step.add(row(10))
    step.ready_ns = 100 * MS
    step.add(row(50))
    step.add(row(150, phase=0))
    step.add(row(150, user=1))
    step.add(row(250, user=1, outcome="reset"))
    assert dict(step.rounds) == {("w", 1): 2}
    assert step.in_phase == 4


def test_what_is_missing() -> None:
    step = step_of()
    step.t0_ns = 0
    for number in range(25):
        step.add(row(number, outcome="ok" if number % 5 else "reset"))
    assert step.missing == 30 - 20
    counted = step_of(requests=7)
    counted.add(row(1, outcome="reset"))
    assert counted.missing == 6


def test_p95_needs_twenty_and_counts_from_due() -> None:
    step = step_of()
    step.t0_ns = 0
    for number in range(19):
        step.add(row(number, total_ms=float(number), queued_ms=100.0))
    assert step.p95_ms() is None
    step.add(row(19, total_ms=19.0, queued_ms=100.0))
    assert step.p95_ms() == pytest.approx(100 + 0.95 * 19)


def test_a_restart_forgets_the_measurement_but_not_the_count() -> None:
    step = step_of()
    step.ready_ns = step.t0_ns = 0
    step.add(row(10))
    step.restart(5.0)
    assert (step.stage, step.stage_s, step.ready_ns, step.t0_ns) == ("gather", 5.0, None, None)
    assert (step.window, step.served, step.rounds.total(), step.restarts) == ([], [], 0, 1)


def test_figures_of_a_step_are_final_once_it_is_done() -> None:
    step = step_of()
    step.t0_ns = 0
    for number in range(21):
        step.add(row(95 * number, total_ms=100.0 + number, ttft_ms=30.0, queued_ms=5.0))
    step.add(row(5, outcome="reset"))
    assert step.times().figures is None
    step.t1_ns, step.stage = 2000 * MS, "done"
    shown = step.times().figures
    assert shown is not None
    assert (shown.n, shown.failures, shown.p50_ms, shown.p95_ms, shown.ttft_p95_ms) == (21, 1, 115, 124, 35)
    assert shown.rps == 10.5
    assert str(shown) == "21 good requests, 1 failed, 10.5 requests/s, p95 124 ms"
    step.add(row(1990))
    assert step.figures() == shown


def test_a_step_of_which_nothing_was_good_has_only_counts() -> None:
    step = step_of()
    assert str(step.figures()) == "0 good requests, 0 failed"
