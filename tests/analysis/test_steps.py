import numpy as np
import pytest

from harness.analysis.groups import steps_of
from harness.analysis.steps import meets_slo, more_than_one_in_hundred, occupancy, step_of
from harness.profile import Slo
from harness.records import ClientSample
from harness.results import EngineStats, Quantiles, Step

from . import runs
from .runs import SECOND, WALL_NS, phase, request


def step(requests, *, users=1, slo=None, engine=None, client=()):
    window = steps_of(runs.run([phase(0, users, 0)], requests))[0]
    return step_of(window, slo=slo or Slo(), client=runs.table(ClientSample, client), engine=engine)


def evenly(n, total_ms=100.0, **more):
    return [request(k, 1 + 9.9 * k / n, total_ms, **more) for k in range(n)]


def second(worker, at_s, lag_ms, cpu):
    return ClientSample(
        worker=worker, wall_ns=WALL_NS + at_s * SECOND, mono_ns=0, phase=0, users=1, in_flight=1,
        lag_p99_ms=lag_ms, cpu=cpu,
    )  # fmt: skip


def test_an_unknown_figure_is_none_and_never_0() -> None:
    bare = step(evenly(30))
    assert bare.rps == pytest.approx(3.0)
    assert bare.latency.p50_ms == 100
    assert (bare.ttft, bare.itl) == (Quantiles(), Quantiles())
    assert (bare.out_tok_s, bare.in_tok_s, bare.tpm) == (None, None, None)
    assert bare.stages == {}
    assert (bare.client.lag_p99_ms, bare.client.limited) == (None, False)
    assert (bare.p95_ci_ms, bare.sent_due) == (None, None)


def test_a_step_without_requests_serves_nothing_and_has_no_latency() -> None:
    empty = step([])
    assert (empty.n, empty.failures, empty.rps) == (0, 0, 0.0)
    assert empty.latency == Quantiles()
    assert (empty.meets_slo, empty.little) == (None, None)


def test_failures_are_no_throughput_and_their_times_no_latency() -> None:
    mixed = step(evenly(20) + [request(100 + k, 2 + k / 10, 9000, outcome="timeout_total") for k in range(5)])
    assert (mixed.n, mixed.failures) == (20, 5)
    assert mixed.latency.max_ms == 100
    assert mixed.rps == pytest.approx(2.0)


def test_little_s_law_gives_1_where_every_user_is_always_busy() -> None:
    one_after_the_other = [request(k, 0.5 + k * 0.25, 250) for k in range(44)]
    assert step(one_after_the_other).little == pytest.approx(1.0)
    assert step(one_after_the_other, users=2).little == pytest.approx(0.5)


def test_waits_after_failures_and_handshakes_are_a_user_s_time_too() -> None:
    refused = [
        request(k, 1 + k, 50, outcome="rejected", backoff_ms=900.0, connect_ms=50.0) for k in range(10)
    ]
    window = steps_of(runs.run([phase(0, 1, 0)], refused))[0]
    assert occupancy(window) == pytest.approx(0.05)
    assert occupancy(window, with_waits=True) == pytest.approx(1.0)


def test_client_lag_above_the_limit_in_most_requests_voids_the_step() -> None:
    lagging = step(evenly(40, ttft_ms=50.0, client_lag_ms=14.0), client=[second("w1", 3, 1, 0.9)])
    assert lagging.client.limited
    assert lagging.client.lag_p99_ms == 14
    assert lagging.client.processes_needed == 2


def test_one_stall_does_not_void_an_honest_step() -> None:
    rows = evenly(60, ttft_ms=50.0, client_lag_ms=0.4)
    stalled = step([*rows[:-1], request(99, 5, 100, ttft_ms=50.0, client_lag_ms=80.0)])
    assert stalled.client.lag_p99_ms > 10
    assert not stalled.client.limited


def test_the_limit_grows_with_the_time_to_first_token() -> None:
    assert not step(evenly(40, ttft_ms=1000.0, client_lag_ms=40.0)).client.limited  # 5 % of 1000 ms
    assert step(evenly(40, ttft_ms=1000.0, client_lag_ms=60.0)).client.limited


def test_without_kernel_stamps_the_loop_s_lag_stands_in() -> None:
    seconds = [second(w, k, 35.0, cpu) for k in range(1, 10) for w, cpu in (("w1", 0.95), ("w2", 0.85))]
    looped = step(evenly(40, ttft_ms=50.0), client=seconds)
    assert looped.client.lag_p99_ms == 35
    assert looped.client.limited
    assert looped.client.cpu == pytest.approx(0.95)
    assert looped.client.processes_needed == 3


@pytest.mark.parametrize(("over", "n", "more"), [(0, 60, False), (1, 60, False), (3, 60, True), (2, 20, True),
    (1, 20, False), (100, 10_000, False), (150, 10_000, True)])  # fmt: skip
def test_more_than_one_in_hundred_needs_evidence(over, n, more) -> None:
    assert more_than_one_in_hundred(over, n) is more


def test_stages_are_shares_of_the_mean_latency() -> None:
    staged = step(evenly(30, total_ms=200.0, pre_ms=10.0, queue_ms=40.0, prefill_ms=50.0, decode_ms=100.0))
    assert {name: stage.share for name, stage in staged.stages.items()} == pytest.approx(
        {"pre": 0.05, "queue": 0.2, "prefill": 0.25, "decode": 0.5}
    )


def test_without_stages_in_the_records_the_engine_s_histograms_give_means() -> None:
    engine = EngineStats(n=10, queue_mean_ms=30.0, prefill_mean_ms=20.0, decode_mean_ms=50.0)
    shares = step(evenly(30), engine=engine).stages
    assert {name: stage.share for name, stage in shares.items()} == pytest.approx(
        {"queue": 0.3, "prefill": 0.2, "decode": 0.5}
    )
    assert all(stage.p95_ms is None for stage in shares.values())


def test_goodput_counts_requests_that_keep_to_the_slo() -> None:
    fast, slow = evenly(30, ttft_ms=20.0), [request(100 + k, 2, 400, ttft_ms=20.0) for k in range(10)]
    assert step(fast + slow, slo=Slo(total_p95_ms=200)).goodput == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("figures", "slo", "met"),
    [
        ({"n": 100}, Slo(total_p95_ms=500), True),
        ({"n": 100}, Slo(total_p95_ms=499), False),
        ({"n": 100}, Slo(ttft_p95_ms=100), True),
        ({"n": 100, "failures": 1}, Slo(error_rate=0.01), True),
        ({"n": 99, "failures": 2}, Slo(error_rate=0.01), False),
        ({"n": 0, "failures": 30}, Slo(error_rate=0.01), False),
        ({"n": 0}, Slo(), None),
    ],
)
def test_the_slo_is_met_where_every_bound_is(figures, slo, met) -> None:
    measured = Step(label="x", phase=0, latency=Quantiles(p95_ms=500), **figures)
    assert meets_slo(measured, slo) is met


def test_itl_is_pooled_over_the_gaps_of_all_requests() -> None:
    long = request(
        0, 2, 1000, ttft_ms=100.0, last_token_ms=1000.0, chunks=91, itl_p50_ms=9.0, itl_max_ms=30.0
    )
    short = request(
        1, 3, 200, ttft_ms=100.0, last_token_ms=200.0, chunks=2, itl_p50_ms=100.0, itl_max_ms=100.0
    )
    lone = request(2, 4, 100, ttft_ms=100.0, last_token_ms=100.0, chunks=1)
    itl = step([long, short, lone]).itl
    assert itl.mean_ms == pytest.approx(1000 / 91)
    assert itl.max_ms == 100
    assert itl.p50_ms == pytest.approx(np.median([9, 100]))
