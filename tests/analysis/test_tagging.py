"""Samples to steps: to the right one, none borrowed, and no figure from too few."""

import numpy as np
import pandas as pd
import pytest

from harness.analysis.tagging import (
    clock_bound_ms,
    clock_jumps,
    cover_of,
    engine_by_step,
    gpu_by_step,
    increase,
)
from harness.observe.gpu_log import check_overlap, read_gpu_log
from harness.profile import PayloadSpec, Profile, Target, TextSpec, Traffic
from harness.records import ClockRow, EngineSample, GpuSample, PhaseTimes, Request, RunInfo
from harness.rundir import RunData

START = 1_780_000_000_000_000_000
SECOND = 1_000_000_000
MIB = 2**20
HOST, PEER = "load", "gpu-host"


def phase(index, ready_s, end_s):
    return PhaseTimes(
        index=index,
        label=str(index),
        users=index + 1,
        ready_ns=START + int(ready_s * SECOND),
        t0_ns=START + int((ready_s + 2) * SECOND),
        t1_ns=None if end_s is None else START + int((end_s - 1) * SECOND),
        end_ns=None if end_s is None else START + int(end_s * SECOND),
    )


LADDER = (phase(0, 0, 20), phase(1, 20.5, 40), phase(2, 40.5, 60))


def table(row_type, rows):
    return pd.DataFrame(rows, columns=list(row_type.__struct_fields__))


def gpu_rows(times_s, util, used=50, *, gpu="GPU-0", host=HOST, ahead_s=0.0, **more):
    """Rows at our times, as a host whose wall clock is `ahead_s` ahead stamps them."""
    return [
        {
            "v": 1,
            "seq": i,
            "host": host,
            "gpu": gpu,
            "name": "Stub",
            "mono_ns": int((t + 1000) * SECOND),
            "wall_ns": START + int((t + ahead_s) * SECOND),
            "util": util(t) if callable(util) else util,
            "mem_used_bytes": used(t) if callable(used) else used,
            "mem_total_bytes": 100,
            "power_w": 200.0,
            "source": "nvml",
            "missing": {},
            **more,
        }
        for i, t in enumerate(times_s)
    ]


def clock_rows(ahead_s, bursts_s=(0, 30, 60), trip_ms=2):
    return table(
        ClockRow,
        [
            {
                "v": 1,
                "peer": PEER,
                "burst": i,
                "t0_ns": START + int(t * SECOND),
                "t1_ns": START + int((t + ahead_s) * SECOND) + trip_ms * 500_000,
                "t2_ns": START + int((t + ahead_s) * SECOND) + trip_ms * 500_000,
                "t3_ns": START + int(t * SECOND) + trip_ms * 1_000_000,
                "mono_ns": int(t * SECOND),
                "peer_mono_ns": int((t + 1000) * SECOND) + trip_ms * 500_000,
            }
            for i, t in enumerate(bursts_s)
        ],
    )


def run_of(gpu=(), engine=(), clock=None, phases=LADDER):
    return RunData(
        info=RunInfo(
            run="r", profile="p", experiment="steps", host=HOST, started_ns=START, phases=list(phases)
        ),
        profile=Profile(
            name="p",
            target=Target(base_url="http://127.0.0.1:1/v1"),
            traffic=Traffic(mix=(PayloadSpec(kind="text_only", text=TextSpec(chars=10)),)),
        ),
        requests=table(Request, []),
        client=pd.DataFrame(),
        gpu=table(GpuSample, list(gpu)),
        engine=table(EngineSample, list(engine)),
        **({"clock": clock} if clock is not None else {}),
    )


EVERY_S = np.arange(0.25, 60, 1.0)


def step_of(t):
    return 0 if t < 20 else 1 if 20.5 <= t < 40 else 2 if t >= 40.5 else None


def told(t):
    """A utilization that names its step; 1 between steps, where no figure may come from."""
    step = step_of(t)
    return 1.0 if step is None else 0.1 * (step + 1)


def test_each_sample_to_its_step_and_the_edges_dropped():
    run = run_of(gpu_rows(EVERY_S, told, lambda t: int(10 * t)))
    found = gpu_by_step(run)
    assert [found[i]["GPU-0"].util_mean for i in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    assert [found[i]["GPU-0"].util_p95 for i in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    assert [found[i]["GPU-0"].n for i in range(3)] == [20, 19, 19]
    assert [found[i]["GPU-0"].mem_used_peak_bytes for i in range(3)] == [192, 392, 592]
    stats = found[0]["GPU-0"]
    assert (stats.name, stats.simulated, stats.power_mean_w, stats.mem_total_bytes) == (
        "Stub",
        False,
        200.0,
        100,
    )
    assert stats.coverage > 0.98
    assert stats.largest_gap_s == pytest.approx(1.0)


def test_utilization_leaves_out_the_first_second():
    busy_before = run_of(gpu_rows(EVERY_S, lambda t: 0.9 if t < 1 else 0.1))
    assert gpu_by_step(busy_before)[0]["GPU-0"].util_mean == pytest.approx(0.1)


def test_windows_are_half_open():
    touching = (phase(0, 0, 10), phase(1, 10, 20))
    found = gpu_by_step(run_of(gpu_rows(np.arange(0, 20, 1.0), 0.5, int), phases=touching))
    assert [found[i]["GPU-0"].n for i in (0, 1)] == [10, 10]
    assert [found[i]["GPU-0"].mem_used_peak_bytes for i in (0, 1)] == [9, 19]


@pytest.mark.parametrize("ahead_s", [2.0, -2.0, 10_800.0])
def test_a_hosts_clock_is_corrected(ahead_s):
    rows = gpu_rows(EVERY_S, told, host=PEER, ahead_s=ahead_s)
    found = gpu_by_step(run_of(rows, clock=clock_rows(ahead_s)))
    assert [found[i]["GPU-0"].util_mean for i in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    assert [found[i]["GPU-0"].n for i in range(3)] == [20, 19, 19]
    assert clock_bound_ms(run_of(rows, clock=clock_rows(ahead_s))) == pytest.approx(1.0, abs=0.01)


def test_a_clock_set_in_mid_run_is_named_and_moves_nothing():
    rows = gpu_rows(EVERY_S, told, host=PEER)
    for row in rows:
        if row["wall_ns"] > START + 30 * SECOND:
            row["wall_ns"] += 15 * SECOND
    clock = clock_rows(0.0, (0, 29))
    after = clock_rows(15.0, (60,)).assign(burst=2)
    run = run_of(rows, clock=pd.concat([clock, after], ignore_index=True))
    found = gpu_by_step(run)
    assert [found[i]["GPU-0"].util_mean for i in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    (jump,) = clock_jumps(run)
    assert (jump.host, jump.by_ns) == (PEER, 15 * SECOND)
    assert clock_jumps(run_of(gpu_rows(EVERY_S, 0.5))) == []


def test_few_samples_give_no_figure_and_say_why():
    times = [1.5, 2.5, 3.5, 4.5]
    stats = gpu_by_step(run_of(gpu_rows(times, 0.5), phases=(phase(0, 0, 5),)))[0]["GPU-0"]
    assert (stats.util_mean, stats.mem_used_peak_bytes, stats.n) == (None, None, 4)
    assert stats.missing["util"] == "4 samples, 5 are needed"
    assert stats.mem_total_bytes == 100


def test_a_hole_gives_no_figure_and_nothing_is_borrowed():
    times = [t for t in EVERY_S if not 25 <= t < 33]
    found = gpu_by_step(run_of(gpu_rows(times, told)))
    stats = found[1]["GPU-0"]
    assert (stats.util_mean, stats.power_mean_w, stats.mem_used_ratio_p95) == (None, None, None)
    assert stats.missing["util"] == "57 % of the step covered, 80 % are needed"
    assert stats.largest_gap_s == pytest.approx(9.0)
    assert found[0]["GPU-0"].util_mean == pytest.approx(0.1)
    none = gpu_by_step(run_of(gpu_rows([t for t in EVERY_S if not 20 <= t < 40], told)))
    assert none[1] == {}


def test_a_field_that_is_missing_has_its_reason_and_the_others_figures():
    rows = gpu_rows(EVERY_S, None, missing={"util": "not supported"})
    stats = gpu_by_step(run_of(rows))[0]["GPU-0"]
    assert (stats.util_mean, stats.missing) == (None, {"util": "not supported"})
    assert stats.mem_used_peak_bytes == 50
    assert stats.n == 20


def test_a_lost_gpu_covers_nothing():
    gone = {"mem_used_bytes": None, "power_w": None, "missing": {"util": "GPU is lost"}}
    rows = gpu_rows(EVERY_S[:25], 0.5) + gpu_rows(EVERY_S[25:], None, **gone)
    found = gpu_by_step(run_of(rows))
    assert found[0]["GPU-0"].util_mean == 0.5
    assert (found[2]["GPU-0"].n, found[2]["GPU-0"].coverage, found[2]["GPU-0"].util_mean) == (0, 0.0, None)
    assert found[2]["GPU-0"].missing["util"] == "GPU is lost"


def test_several_gpus_and_rows_of_none():
    rows = gpu_rows(EVERY_S, 0.2) + gpu_rows(EVERY_S, 0.8, gpu="GPU-1") + gpu_rows(EVERY_S, 0.9, gpu=None)
    found = gpu_by_step(run_of(rows))[0]
    assert {gpu: stats.util_mean for gpu, stats in found.items()} == pytest.approx(
        {"GPU-0": 0.2, "GPU-1": 0.8}
    )


def test_a_run_cut_off_inside_a_step():
    found = gpu_by_step(run_of(gpu_rows(EVERY_S[:15], 0.5), phases=(phase(0, 0, None),)))
    assert (found[0]["GPU-0"].n, found[0]["GPU-0"].util_mean) == (15, 0.5)
    assert gpu_by_step(run_of()) == {0: {}, 1: {}, 2: {}}


def test_a_slower_source_is_measured_by_its_own_interval():
    stats = gpu_by_step(run_of(gpu_rows(np.arange(0.5, 60, 2.0), 0.5)))[0]["GPU-0"]
    assert stats.util_mean == 0.5
    assert stats.coverage > 0.95


@pytest.mark.parametrize(
    ("times", "n", "covered", "gap"),
    [
        ([], 0, 0.0, 10.0),
        (range(10), 10, 1.0, 1.0),
        ([0, 1, 2, 3, 6, 7, 8, 9], 8, 0.8, 3.0),
        ([0, 0, 0, 1, 1], 5, 0.2, 9.0),
        ([5], 1, 0.2, 5.0),
    ],
)
def test_cover(times, n, covered, gap):
    cover = cover_of(np.array(list(times), dtype=np.int64) * SECOND, 0, 10 * SECOND, SECOND)
    assert (cover.n, cover.coverage, cover.gap_s) == (n, pytest.approx(covered), pytest.approx(gap))


def engine_rows(times_s, **columns):
    return [
        {
            "v": 1,
            "wall_ns": START + int(t * SECOND),
            "mono_ns": int(t * SECOND),
            "source": "vllm",
            **{name: value(t) if callable(value) else value for name, value in columns.items()},
        }
        for t in times_s
    ]


def test_engine_gauges_and_counters_by_difference():
    rows = engine_rows(
        EVERY_S,
        running=lambda t: (step_of(t) or 0) + 1,
        waiting=lambda t: 7 if 30 < t < 31 else 1,
        kv_usage=lambda t: min(1.0, t / 50),
        preemptions_total=lambda t: 100 + (5 if t > 50 else 0),
        queue_count=lambda t: 10 * t,
        queue_s_sum=lambda t: 2 * t,
        prefill_s_sum=lambda t: 5 * t,
        decode_s_sum=lambda t: 30 * t,
        prefix_hit_tokens_total=lambda t: 30 * t,
        prefix_query_tokens_total=lambda t: 100 * t,
    )
    found = engine_by_step(run_of(engine=rows))
    one = found[1]
    assert (one.n, one.running_mean, one.waiting_max) == (19, 2.0, 7)
    assert one.waiting_mean == pytest.approx(1 + 6 / 19)
    assert one.kv_p95 == pytest.approx(np.percentile(np.arange(21.25, 40) / 50, 95))
    assert (one.queue_mean_ms, one.prefill_mean_ms, one.decode_mean_ms) == pytest.approx((200, 500, 3000))
    assert one.prefix_hit_ratio == pytest.approx(0.3)
    assert one.mm_hit_ratio is None
    assert [found[i].preemptions for i in range(3)] == [0, 0, 5]


def test_a_scrape_that_failed_counts_for_nothing():
    rows = engine_rows(EVERY_S, running=2.0)
    for row in rows[22:36]:
        row.update(running=None, error="HTTP 500")
    found = engine_by_step(run_of(engine=rows))
    assert (found[1].running_mean, found[1].n) == (None, 5)
    assert found[0].running_mean == 2.0
    assert engine_by_step(run_of(engine=[{**row, "error": "refused"} for row in rows])) == {}


def test_a_counter_that_begins_again_is_no_negative_growth():
    assert increase(np.array([100.0, 110, 3, 8])) == 18
    assert increase(np.array([np.nan, 4.0, np.nan, 9.0])) == 5
    assert increase(np.array([np.nan, 4.0])) is None


def test_a_log_from_a_host_3_hours_off_in_zone_and_2_s_in_clock(tmp_path):
    rng = np.random.default_rng(5)
    lines = ["timestamp, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB]\n"]
    moscow = np.timedelta64(3, "h")
    for t in EVERY_S + rng.uniform(-0.1, 0.1, len(EVERY_S)):
        stamp = np.datetime64(START + int((t + 2.0) * SECOND), "ns").astype("datetime64[ms]") + moscow
        text = str(stamp).replace("-", "/").replace("T", " ")
        step = step_of(t)
        lines.append(f"{text}, GPU-0, {100 if step is None else 10 * (step + 1)} %, {t:.0f} MiB, 100 MiB\n")
    path = tmp_path / "smi.csv"
    path.write_text("".join(lines))
    log = read_gpu_log(path, "Europe/Moscow")
    run = run_of(clock=clock_rows(2.0))
    check_overlap(log, run.info, path)
    run = RunData(**{**{f: getattr(run, f) for f in run.__dataclass_fields__}, "gpu": log})
    found = gpu_by_step(run)
    for index in range(3):
        stats = found[index]["GPU-0"]
        assert stats.util_mean == pytest.approx(0.1 * (index + 1)), "every sample lies in its own step"
        assert stats.util_p95 == pytest.approx(0.1 * (index + 1))
    assert found[2]["GPU-0"].mem_used_peak_bytes == 59 * MIB
    assert 56 <= sum(found[index]["GPU-0"].n for index in range(3)) <= 60
