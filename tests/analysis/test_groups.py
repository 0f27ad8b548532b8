import numpy as np
import pytest

from harness.analysis.groups import rows_of, steps_of
from harness.records import ClockExchange, WorkerInfo

from . import runs
from .runs import MS, SECOND, WALL_NS, phase, request


def window_of(requests, **more):
    return steps_of(runs.run([phase(0, 1, 0)], requests, **more))[0]


@pytest.mark.parametrize(
    ("start_s", "total_ms", "good", "served", "why"),
    [
        (0.99, 5, 0, 0, "starts and ends before"),
        (0.99, 20, 0, 1, "starts before, ends inside: throughput only"),
        (1.0, 20, 1, 1, "t0 belongs to the window"),
        (10.99, 20, 1, 0, "starts inside, ends after: latency only"),
        (11.0, 20, 0, 0, "t1 does not belong to it"),
    ],
)
def test_latency_counts_by_start_and_throughput_by_end(start_s, total_ms, good, served, why) -> None:
    window = window_of([request(0, start_s, total_ms)])
    assert (len(window.good), len(window.served)) == (good, served), why


def test_only_ok_counts_and_a_request_that_our_stop_cancelled_is_no_failure() -> None:
    outcomes = ["ok", "rejected", "reset", "cancelled", "truncated", "ok"]
    window = window_of([request(n, 2 + n, 50, outcome=outcome) for n, outcome in enumerate(outcomes)])
    assert len(window.good) == 2
    assert window.failures == 3
    assert window.started.count_outcomes() == {
        "ok": 2,
        "rejected": 1,
        "reset": 1,
        "cancelled": 1,
        "truncated": 1,
    }


def test_a_worker_s_clock_is_moved_onto_the_master_s() -> None:
    ahead = 3 * SECOND
    exchange = ClockExchange(t0_ns=WALL_NS, t1_ns=WALL_NS + ahead, t2_ns=WALL_NS + ahead, t3_ns=WALL_NS)
    late = request(0, 12.5, 40)  # its own clock says 12.5 s, the master's 9.5 s: inside
    window = window_of([late], info={"workers": [WorkerInfo(id="w", host="h", clock=[exchange])]})
    assert list(window.good.start_ns) == [WALL_NS + round(9.5 * SECOND)]


def test_in_an_open_loop_a_request_counts_from_when_it_was_due() -> None:
    rows = rows_of(runs.run([], [request(0, 5, 100, ttft_ms=30, queued_ms=400, due_ns=1)]))
    assert rows.latency_ms[0] == 500
    assert rows.ttft_ms[0] == 430
    assert rows.total_ms[0] == 100
    assert rows.due_ns[0] == rows.start_ns[0] - 400 * MS


def test_requests_due_in_the_window_are_counted_whenever_they_were_sent() -> None:
    sent = [request(n, 2 + n, 10, queued_ms=0.0) for n in range(3)]
    late = [request(3, 11.5, 10, queued_ms=1500.0)]
    window = steps_of(runs.run([phase(0, None, 0, rate=1.0)], sent + late))[0]
    assert (window.due, len(window.started)) == (4, 3)


def test_a_phase_that_was_cut_off_ends_with_the_last_request_and_is_not_complete() -> None:
    cut = phase(0, 1, 0, t1_ns=None, end_ns=None)
    never = phase(1, 2, 20, ready_ns=None, t0_ns=None, t1_ns=None, end_ns=None)
    windows = steps_of(runs.run([cut, never], [request(0, 2, 1000), request(1, 3, 1500)]))
    assert [(w.seconds, w.complete, len(w.good)) for w in windows] == [(3.5, False, 2)]


def test_rows_are_ordered_by_start_and_the_ended_ones_by_end() -> None:
    window = window_of([request(0, 4, 3000), request(1, 3, 100), request(2, 2, 2500)])
    assert list(window.started.total_ms) == [2500, 100, 3000]
    assert list(window.ended.total_ms) == [100, 2500, 3000]


def test_kinds_are_told_apart() -> None:
    window = window_of([request(n, 2 + n / 10, 10 + n, kind="ab"[n % 2]) for n in range(6)])
    assert list(window.good.of_kind("b").total_ms) == [11, 13, 15]
    assert len(window.good.of_kind("c")) == 0


def test_a_run_without_requests_has_empty_windows() -> None:
    window = window_of([])
    assert (len(window.good), len(window.served), window.failures) == (0, 0, 0)
    assert np.isnan(window.good.ttft_ms).sum() == 0
