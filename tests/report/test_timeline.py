import dataclasses

import numpy as np
import pytest

from harness.records import ClockExchange, ClockRow, WorkerInfo
from harness.report import lanes
from harness.report.draw import draw
from harness.report.timeline import MAX_POINTS, on_our_clock, timeline_chart

from . import sample

RUN = sample.run()
TITLES = [
    "GPU busy",
    "GPU memory (GiB), up to its total",
    "GPU power (W)",
    "KV cache",
    "Requests",
    "Prefill of each request, one lane a user",
]


def titles(spec):
    return [panel["title"]["text"] for panel in spec["vconcat"]]


def series(panel, name):
    rows = [row for layer in panel["layer"] for row in layer["data"]["values"] if row.get("name") == name]
    return [(row["t"], row["value"]) for row in rows if "line" in row]


def test_all_panels_in_order_on_one_clock():
    spec = timeline_chart(RUN)
    assert titles(spec) == TITLES
    domains = {tuple(panel["encoding"]["x"]["scale"]["domain"]) for panel in spec["vconcat"]}
    assert domains == {(0, 420.0)}


def test_samples_are_drawn_where_they_were_taken():
    busy = series(timeline_chart(RUN)["vconcat"][0], "GPU busy")
    assert len(busy) == len(RUN.gpu)
    assert busy[3] == (3.0, round(float(RUN.gpu.util[3]), 4))


def test_windows_are_shaded_from_t0_to_t1():
    shades = timeline_chart(RUN)["vconcat"][2]["layer"][0]["data"]["values"]
    assert [(row["t"], row["t2"]) for row in shades][:2] == [(5.0, 65.0), (75.0, 135.0)]
    assert [row["name"] for row in shades] == ["1", "2", "4", "6", "8", "12"]


def test_a_long_run_keeps_its_highest_memory_and_its_mean_utilization():
    rows = [
        {
            "gpu": "g",
            "wall_ns": sample.START_NS + i * sample.SECOND,
            "util": float(i % 2),
            "mem_used_bytes": (90 if i == 4321 else 40) * 2**30,
        }
        for i in range(10_000)
    ]
    gpu = sample.table(sample.GpuSample, rows)
    spec = timeline_chart(dataclasses.replace(RUN, gpu=gpu))
    busy, memory = series(spec["vconcat"][0], "GPU busy"), series(spec["vconcat"][1], "GPU memory")
    assert len(busy) == MAX_POINTS
    assert max(v for _, v in memory) == 90
    assert np.mean([v for _, v in busy]) == pytest.approx(0.5, abs=0.01)


def test_a_gap_in_the_samples_breaks_the_line():
    gpu = RUN.gpu[(RUN.gpu.index < 100) | (RUN.gpu.index >= 130)]
    spec = timeline_chart(dataclasses.replace(RUN, gpu=gpu))
    rows = [r for layer in spec["vconcat"][0]["layer"] for r in layer["data"]["values"] if "line" in r]
    assert len({row["line"] for row in rows}) == 2


def test_each_request_names_its_prefill_and_the_gpu_samples_it_covers():
    spec = lanes.prefill_lanes(RUN, RUN.info.started_ns)
    rows = spec["layer"][0]["data"]["values"]
    assert len(rows) == lanes.MAX_REQUESTS
    assert {row["lane"] for row in rows} == set(range(1, 13))
    first, request = rows[0], RUN.requests.iloc[0]
    assert first["t"] == pytest.approx((request.ttft_ms - request.prefill_ms) / 1000, abs=0.002)
    assert first["t2"] - first["t"] == pytest.approx(0.66, abs=0.01)  # a pixel, the prefill being shorter
    assert first["tip"].startswith("text_only of 1 user: prefill ")
    assert any("GPU busy" in row["tip"] for row in rows)


def test_without_stages_the_time_to_first_token_is_drawn():
    requests = RUN.requests.assign(prefill_ms=None)
    spec = timeline_chart(dataclasses.replace(RUN, requests=requests))
    assert titles(spec)[-1] == "Time to first token, one lane a user"


@pytest.mark.parametrize(
    ("gone", "left"),
    [(("gpu",), TITLES[3:]), (("engine",), [*TITLES[:3], TITLES[-1]]), (("requests",), TITLES[:-1])],
)
def test_what_was_not_recorded_is_not_drawn(gone, left):
    spec = timeline_chart(sample.without(RUN, *gone))
    assert titles(spec) == left
    assert draw(spec)[0].startswith("<svg")


def test_nothing_recorded_is_no_chart():
    assert timeline_chart(sample.without(RUN, "gpu", "engine", "requests")) is None


def test_stamps_of_other_hosts_are_moved_onto_the_masters_clock():
    ahead = 7 * sample.SECOND
    exchange = {
        "t0_ns": sample.START_NS,
        "t1_ns": sample.START_NS + ahead,
        "t2_ns": sample.START_NS + ahead,
        "t3_ns": sample.START_NS,
    }
    worker = WorkerInfo(id="w1", host="h", clock=[ClockExchange(**exchange)])
    clock = sample.table(
        ClockRow, [{"peer": "gpu-1", "burst": 0, **exchange, "mono_ns": 0, "peer_mono_ns": 0}]
    )
    moved = dataclasses.replace(
        RUN,
        info=sample.replace(RUN.info, workers=[worker]),
        requests=RUN.requests.assign(wall_ns=RUN.requests.wall_ns + ahead),
        gpu=RUN.gpu.assign(wall_ns=RUN.gpu.wall_ns + ahead, mono_ns=RUN.gpu.wall_ns - sample.START_NS),
        clock=clock,
    )
    back = on_our_clock(moved)
    assert (back.requests.wall_ns == RUN.requests.wall_ns).all()
    assert (abs(back.gpu.wall_ns - RUN.gpu.wall_ns) < 1_000).all()
    assert draw(timeline_chart(moved)) == draw(timeline_chart(RUN))
