"""The sidecar as a whole: what it keeps, serves and fetches while parts of it fail."""

import http.client
import json
import time
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pytest

from harness.analysis.clock import offsets_of_table
from harness.errors import UserError
from harness.observe.clocks import HOST_CLOCKS, Clocks
from harness.observe.sampler import Settings, Sidecar
from harness.observe.sources import describe, open_source
from harness.records import ClockRow, EngineSample, GpuSample
from harness.rundir import read_table

GPUS = [
    {
        "uuid": "SIM-0",
        "index": 0,
        "name": "Simulated GPU",
        "util": 0.5,
        "mem_used_bytes": 10,
        "mem_total_bytes": 20,
    },
    {
        "uuid": "SIM-1",
        "index": 1,
        "name": "Simulated GPU",
        "util": 0.7,
        "mem_used_bytes": 11,
        "mem_total_bytes": 20,
    },
]
METRICS = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n"
AHEAD_NS = 7_250_000_000
OTHER_HOST = Clocks(
    wall_ns=lambda: time.time_ns() + AHEAD_NS, mono_ns=lambda: time.monotonic_ns() + 500_000_000_000
)


@pytest.fixture
def engine(service):
    service.answers = {"/sim/gpu": json.dumps(GPUS).encode(), "/metrics": METRICS}
    return service


@pytest.fixture
def start():
    with ExitStack() as stack:

        def begin(clocks=HOST_CLOCKS, **settings):
            sidecar = Sidecar(Settings(**{"port": 0, "interval_s": 0.05, **settings}), clocks)
            stack.callback(sidecar.close)
            sidecar.start()
            return sidecar

        yield begin


def gpu_rows(path):
    return [msgspec.json.decode(line, type=GpuSample) for line in path.read_bytes().splitlines()]


def test_rows_are_kept_numbered_and_whole(start, engine, tmp_path, wait_for):
    out, engine_out = tmp_path / "gpu.jsonl", tmp_path / "engine.jsonl"
    sidecar = start(source=f"sim:{engine.url}", engine=engine.url, out=out, engine_out=engine_out)
    wait_for(lambda: sidecar.status()["samples"] >= 6 and sidecar.status()["engine_samples"] >= 3)
    rows = gpu_rows(out)
    assert [row.seq for row in rows] == list(range(len(rows)))
    assert {(row.gpu, row.util, row.source) for row in rows} == {("SIM-0", 0.5, "sim"), ("SIM-1", 0.7, "sim")}
    assert rows[0].missing["temp_c"] == "not simulated"
    table = read_table(engine_out, EngineSample)
    assert set(table["running"]) == {3.0}
    assert set(table["source"]) == {"vllm"}


def test_gpus_are_chosen_by_uuid_or_index(start, engine, tmp_path, wait_for):
    out = tmp_path / "gpu.jsonl"
    sidecar = start(source=f"sim:{engine.url}", gpus=("1",), out=out)
    wait_for(lambda: sidecar.status()["samples"] >= 2)
    assert {row.gpu for row in gpu_rows(out)} == {"SIM-1"}
    with pytest.raises(UserError, match=r"no GPU SIM-7 .*0 = SIM-0, 1 = SIM-1"):
        Sidecar(Settings(source=f"sim:{engine.url}", gpus=("SIM-1", "SIM-7"), port=0))


def test_auto_takes_nvml_then_the_simulated_gpu_then_none(stub, engine, service):
    with closing(open_source("auto", engine.url, HOST_CLOCKS)) as source:
        assert source.words == "NVML: 1 GPU(s)"
    stub(init__err=9)
    with closing(open_source("auto", engine.url, HOST_CLOCKS)) as source:
        assert source.words.startswith("simulated GPU of")
    service.answers = {}
    with closing(open_source("auto", engine.url, HOST_CLOCKS)) as source:
        assert (source.words, source.read()) == ("none: NVIDIA driver not loaded", [])
    assert describe("auto", None) == (False, "NVIDIA driver not loaded gives no samples")
    assert open_source("none", None, HOST_CLOCKS) is None


@pytest.mark.parametrize("text", ["amd", "sim", "dcgm:", "nvml:0"])
def test_an_unknown_source_is_the_users_mistake(text):
    with pytest.raises(UserError, match="unknown GPU source"):
        open_source(text, None, HOST_CLOCKS)


def test_an_engine_that_hangs_holds_up_no_gpu_row(start, engine, tmp_path, wait_for):
    out, engine_out = tmp_path / "gpu.jsonl", tmp_path / "engine.jsonl"
    sidecar = start(source=f"sim:{engine.url}", engine=engine.url, out=out, engine_out=engine_out)
    wait_for(lambda: sidecar.status()["engine_samples"] >= 2)
    engine.answers["/metrics"] = lambda handler: time.sleep(3)
    before = sidecar.status()["samples"]
    wait_for(lambda: "no answer in time" in set(read_table(engine_out, EngineSample)["error"].dropna()))
    times = np.array([row.mono_ns for row in gpu_rows(out)[before:] if row.gpu == "SIM-0"])
    assert len(times) > 10
    assert np.diff(times).max() < 1e9


def test_another_hosts_rows_and_clock(start, engine, tmp_path, wait_for):
    far, near, clock_out = tmp_path / "far.jsonl", tmp_path / "near.jsonl", tmp_path / "clock.jsonl"
    there = start(OTHER_HOST, source=f"sim:{engine.url}", out=far)
    here = start(source=there.url, out=near, clock_out=clock_out)
    assert here.status()["gpu"] == f"sidecar at {there.url}"
    wait_for(lambda: here.status()["samples"] >= 20)
    there._stop.set()
    time.sleep(0.2)
    here.close()
    kept, fetched = gpu_rows(far), gpu_rows(near)
    first = fetched[0].mono_ns
    again = [row for row in kept if row.mono_ns >= first]
    assert [without_number(row) for row in fetched] == [without_number(row) for row in again]
    assert [row.seq for row in fetched] == list(range(len(fetched)))
    table = read_table(clock_out, ClockRow)
    assert set(table.groupby("burst").size()) == {16}
    offsets = offsets_of_table(table, there.board.host)
    assert len(offsets.offset_ns) == table["burst"].nunique() >= 2, "at the start and at the end"
    assert np.all(np.abs(offsets.offset_ns - AHEAD_NS) <= offsets.bound_ns)
    assert offsets.bound_ns.max() < 50e6


def without_number(row):
    return msgspec.structs.replace(row, seq=0)


def test_a_sidecar_that_starts_late_and_one_that_begins_anew(start, engine, tmp_path, wait_for, free_port):
    port, near = free_port(), tmp_path / "near.jsonl"
    here = start(source=f"http://127.0.0.1:{port}", out=near)
    assert here.status()["gpu"].startswith("none: sidecar at")
    there = start(source=f"sim:{engine.url}", port=port)
    wait_for(lambda: here.status()["samples"] >= 6)
    there.close()
    seen = gpu_rows(near)[-1].mono_ns
    start(source=f"sim:{engine.url}", port=port)  # without the old rows: its numbers begin again
    wait_for(lambda: gpu_rows(near)[-1].mono_ns > seen)
    times = [row.mono_ns for row in gpu_rows(near) if row.gpu == "SIM-0"]
    assert times == sorted(set(times))


def test_a_sidecar_with_a_token(start, engine, wait_for):
    there = start(source=f"sim:{engine.url}", token="secret", ask_token=True)
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(there.url).port)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 401
    connection.close()
    assert start(source=there.url, token="wrong").status()["gpu"].endswith("HTTP 401")
    here = start(source=there.url, token="secret")
    wait_for(lambda: here.status()["samples"] >= 2)
