from dataclasses import replace

import msgspec
import numpy as np
import pytest

from harness.analysis.assess import assess
from harness.analysis.load_problems import latency_rise, log_change
from harness.profile import Hold, Load, Observe, PayloadSpec, Traffic
from harness.records import ClientSample, ClockExchange, EngineSample, GpuSample, Problem, WorkerInfo

from . import runs
from .runs import MS, SECOND, WALL_NS, phase, request

structs = msgspec.structs
QUIET = Observe(gpu="none", engine="none")


def busy(users, first=0, *, start_s=0.0, seconds=12, total_ms=200.0, **more):
    """Requests of users who are always busy."""
    rounds = int(seconds / total_ms * 1e3)
    fields = {"client_lag_ms": 0.1, "in_tokens": 10, "out_tokens": 5, "users": users} | more
    return [
        request(first + u * rounds + k, start_s + 0.01 * u + k * total_ms / 1e3, total_ms, **fields)
        for u in range(users)
        for k in range(rounds)
    ]


def problems(requests, *, phases=None, settings=None, **more):
    settings = settings or runs.profile((1,), observe=QUIET)
    data = runs.run(phases or [phase(0, 1, 0)], requests, settings=settings, **more)
    return [(p.code, p.step, p.text) for p in assess(data).problems]


def codes(*args, **more):
    return [(code, step) for code, step, _ in problems(*args, **more)]


def test_an_honest_step_has_no_problem() -> None:
    assert codes(busy(1)) == []


def test_what_the_run_saw_itself_is_kept_and_not_said_twice() -> None:
    seen = Problem(code="hold_too_short", step="1 user", text="seen at the time")
    found = problems(busy(1, seconds=3), info={"problems": [seen]})
    assert [text for code, _, text in found if code == "hold_too_short"] == ["seen at the time"]


def test_records_that_did_not_arrive_are_counted_with_the_file_that_has_them() -> None:
    workers = [WorkerInfo(id="w", host="gpu-box", records_made=70, file="workers/w.jsonl")]
    ((code, _, text),) = problems(busy(1), info={"workers": workers})
    assert code == "records_lost"
    assert text == (
        "10 records did not arrive: copy workers/w.jsonl into the run's workers folder and report again."
    )


def test_a_gap_in_the_numbers_of_a_worker_that_died_is_a_loss() -> None:
    rows = [r for r in busy(1) if r.seq != 7]
    found = dict(codes(rows, info={"workers": [WorkerInfo(id="w", host="h", lost=True)]}))
    assert set(found) == {"workers_lost", "records_lost"}


def test_broken_lines_are_named_by_file() -> None:
    data = replace(
        runs.run([phase(0, 1, 0)], busy(1), settings=runs.profile((1,), observe=QUIET)),
        broken_lines={"requests.jsonl": 2},
    )
    (problem,) = assess(data).problems
    assert (problem.code, problem.text) == (
        "records_lost",
        "Unreadable lines were dropped: 2 of requests.jsonl.",
    )


@pytest.mark.parametrize(
    ("stopped", "ended", "text"),
    [
        ("p95 too high", 1, "The climb ended early: p95 too high. Not measured: 4 users."),
        (None, None, "The run was cut off; not measured: 4 users."),
    ],
)  # fmt: skip
def test_a_run_that_did_not_get_to_its_end_says_why_and_what_is_missing(stopped, ended, text) -> None:
    never = phase(1, 4, 20, ready_ns=None, t0_ns=None, t1_ns=None, end_ns=None)
    found = problems(
        busy(1), phases=[phase(0, 1, 0), never], info={"stopped_early": stopped, "ended_ns": ended}
    )
    assert ("stopped_early", None, text) in found


def test_too_few_good_requests_name_how_many_are_missing() -> None:
    ((code, step, text),) = [p for p in problems(busy(1, total_ms=900.0)) if p[0] == "hold_too_short"]
    assert (code, step) == ("hold_too_short", "1 user")
    assert text.startswith("11 good requests, 20 asked for")


def test_users_that_idle_did_not_apply_the_load() -> None:
    found = codes(busy(1), phases=[phase(0, 2, 0)], settings=runs.profile((2,), observe=QUIET))
    assert ("load_not_applied", "2 users") in found


def test_waiting_after_a_refusal_is_no_idling() -> None:
    refused = busy(1, total_ms=50.0, outcome="rejected", status=429, backoff_ms=0.0)
    spaced = [
        structs.replace(r, wall_ns=WALL_NS + k * 1050 * MS, backoff_ms=1000.0)
        for k, r in enumerate(refused[:12])
    ]
    assert "load_not_applied" not in dict(codes(spaced))


def test_an_open_loop_that_sends_late_is_named() -> None:
    rates = Load(rates=(4.0,), hold=Hold(seconds=10, min_requests=20), drift_check=False)
    sent = [request(k, 1 + k / 4, 50, queued_ms=0.0, client_lag_ms=0.1, in_tokens=1) for k in range(36)]
    late = [request(40 + k, 12, 50, queued_ms=2000.0, client_lag_ms=0.1, in_tokens=1) for k in range(4)]
    found = codes(
        sent + late,
        phases=[phase(0, None, 0, rate=4.0)],
        settings=runs.profile(None, load=rates, observe=QUIET),
    )
    assert ("load_not_applied", "4 req/s") in found


def test_a_queue_that_still_grows_is_not_stationary() -> None:
    growing = [request(k, 0.05 + k * 0.2, 100.0 + 4 * k, client_lag_ms=0.1, in_tokens=1) for k in range(55)]
    assert ("not_stationary", "1 user") in codes(growing)


def test_noise_is_not_taken_for_a_trend() -> None:
    draws = np.random.default_rng(7)
    assert latency_rise(np.linspace(100, 300, 60) + draws.normal(0, 20, 60)) > 1.5
    rises = [latency_rise(draws.gamma(4, 50, 70)) for _ in range(500)]
    assert sum(rise is not None and rise > 1.25 for rise in rises) <= 3


@pytest.mark.parametrize(("again_ms", "codes_"), [(205.0, []), (260.0, [("not_stationary", "1 user")])])
def test_a_first_step_that_takes_longer_at_the_end_shows_drift(again_ms, codes_) -> None:
    again = phase(1, 1, 20, experiment="drift", label="1 user (drift)")
    rows = busy(1) + busy(1, 100, start_s=20, total_ms=again_ms, phase=1)
    assert codes(rows, phases=[phase(0, 1, 0), again]) == codes_


def test_the_change_of_two_means_comes_with_its_error() -> None:
    draws = np.random.default_rng(3)
    changes = [log_change(draws.normal(100, 20, 60), draws.normal(120, 20, 60)) for _ in range(300)]
    missed = np.mean([abs(change - np.log(1.2)) > 2 * error for change, error in changes])
    assert missed < 0.09


@pytest.mark.parametrize(
    ("cpu", "said"),
    [(0.03, "only 3 % of a core: other programs held it up"), (0.9, "2 processes would have carried it")],
)
def test_a_client_that_lagged_is_told_more_processes_only_where_it_was_busy(cpu, said) -> None:
    seconds = [
        ClientSample(
            worker="w", wall_ns=WALL_NS + k * SECOND, mono_ns=0, phase=0, users=1, in_flight=1, cpu=cpu
        )
        for k in range(1, 10)
    ]
    (found,) = problems(busy(1, client_lag_ms=40.0), client=seconds)
    assert found[:2] == ("client_limited", "1 user")
    assert said in found[2]


def test_unknown_client_lag_is_said() -> None:
    assert codes(busy(1, client_lag_ms=None)) == [("client_lag_unknown", None)]


def test_failures_are_counted_with_their_most_frequent_outcome() -> None:
    bad = [
        request(900 + k, 2 + k, 10, outcome=o, client_lag_ms=0.1)
        for k, o in enumerate(["reset", "rejected", "reset"])
    ]
    ((_, step, text),) = [p for p in problems(busy(1) + bad) if p[0] == "failures"]
    assert step == "1 user"
    assert text.startswith("3 of 53 requests failed (5.7 %), most as reset (2)")


def test_a_mix_that_changes_between_steps_is_a_problem() -> None:
    mix = Traffic(mix=(PayloadSpec(kind="a"), PayloadSpec(kind="b")))
    phases = [phase(n, 1, 20 * n, label=f"step {n}") for n in range(4)]
    rows = []
    for n in range(4):
        kinds = "ab" if n < 3 else "aaaaab"
        part = busy(1, 100 * n, start_s=20 * n, phase=n)
        rows += [structs.replace(r, kind=kinds[k % len(kinds)]) for k, r in enumerate(part)]
    found = codes(rows, phases=phases, settings=runs.profile((1,), traffic=mix, observe=QUIET))
    assert [step for code, step in found if code == "mix_changed"] == ["step 3"]


def scrapes(seconds=13, **growing):
    """One scrape a second; growing: counter = (per second)."""
    return [
        EngineSample(
            wall_ns=WALL_NS + k * SECOND, mono_ns=k * SECOND, running=1, waiting=0, kv_usage=0.1,
            source="vllm",
            **{name: rate * k for name, rate in growing.items()},
        )
        for k in range(seconds)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("hits", "unique", "found"), [(0.5, True, False), (2.0, True, True), (2.0, False, False)]
)
def test_unique_traffic_that_hits_a_cache_by_one_percent_is_a_problem(hits, unique, found) -> None:
    traffic = Traffic(mix=(PayloadSpec(kind="a"),), unique=unique)
    settings = runs.profile((1,), traffic=traffic, observe=Observe(gpu="none"))
    engine = scrapes(prefix_hit_tokens_total=hits, prefix_query_tokens_total=100.0)
    assert (("cache_hits", "1 user") in codes(busy(1), settings=settings, engine=engine)) is found


def gpus(seconds=range(13), used=0.9, gpu="GPU-1", **more):
    return [
        GpuSample(
            seq=k, host="h", gpu=gpu, mono_ns=k * SECOND, mono_end_ns=k * SECOND,
            wall_ns=WALL_NS + k * SECOND, util=0.5, mem_used_bytes=round(used * 1e10),
            mem_total_bytes=10**10, source="nvml", **more,
        )
        for k in seconds
    ]  # fmt: skip


WATCHED = Observe(engine="none")


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        (gpus(), []),
        ([], [("gpu_missing", None)]),
        (gpus(range(6)), [("gpu_gap", "1 user")]),
        (gpus(gpu=None), [("identity_unknown", None)]),
    ],
)
def test_gpu_samples_that_are_not_there_are_named(samples, found) -> None:
    assert codes(busy(1), settings=runs.profile((1,), observe=WATCHED), gpu=samples) == found


def two_steps(used):
    phases = [phase(n, 1, 20 * n) for n in range(2)]
    rows = busy(1) + busy(1, 100, start_s=20, phase=1)
    samples = gpus(used=used[0]) + gpus(range(20, 33), used=used[1])
    return codes(rows, phases=phases, settings=runs.profile((1,), observe=WATCHED), gpu=samples)


@pytest.mark.parametrize(("used", "flat"), [((0.9, 0.9), True), ((0.8, 0.9), False), ((0.1, 0.1), False)])
def test_memory_that_an_engine_reserves_at_its_start_says_nothing(used, flat) -> None:
    assert (("preallocated_memory", None) in two_steps(used)) is flat


@pytest.mark.parametrize(
    ("samples", "found"),
    [
        (scrapes(), []),
        ([], [("engine_missing", None)]),
        ([EngineSample(wall_ns=WALL_NS, mono_ns=0, error="timeout")], [("engine_missing", None)]),
        ([structs.replace(s, wall_ns=s.wall_ns - 60 * SECOND) for s in scrapes()],
         [("engine_stale", "1 user")]),
    ],
)  # fmt: skip
def test_engine_metrics_that_are_not_there_are_named(samples, found) -> None:
    settings = runs.profile((1,), observe=Observe(gpu="none"))
    assert codes(busy(1), settings=settings, engine=samples) == found


def test_a_worker_s_clock_that_is_set_in_mid_run_is_named() -> None:
    rows = [structs.replace(r, wall_ns=r.wall_ns + (300 * MS if r.seq > 30 else 0)) for r in busy(1)]
    ((code, _, text),) = [p for p in problems(rows) if p[0] == "clock_jump"]
    assert code == "clock_jump"
    assert "worker w was set by +300 ms" in text


def test_one_late_reading_of_the_clock_is_no_jump() -> None:
    rows = [structs.replace(r, wall_ns=r.wall_ns + (300 * MS if r.seq == 30 else 0)) for r in busy(1)]
    assert "clock_jump" not in dict(codes(rows))


def test_hosts_whose_clocks_agree_badly_are_named() -> None:
    far = ClockExchange(t0_ns=0, t1_ns=500 * MS, t2_ns=500 * MS, t3_ns=1000 * MS)
    ((code, _, text),) = problems(busy(1), info={"sampler_clock": [far]})
    assert (code, "agree only to 500 ms" in text) == ("clock_bound", True)


def test_a_service_that_reports_no_usage_leaves_tokens_estimated() -> None:
    assert codes(busy(1, in_tokens=None)) == [("tokens_estimated", None)]
