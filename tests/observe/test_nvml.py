"""The real binding against a stub of the driver's library: values, and every way to fail."""

import threading
import time

import pytest

from harness.observe.clocks import HOST_CLOCKS
from harness.observe.nvml import ALL_FIELDS, NvmlSource


@pytest.fixture
def source(stub, clock):
    opened = []

    def open_it(**settings):
        stub(**settings)
        opened.append(NvmlSource("host", clock.clocks, retry_s=5.0))
        return opened[-1]

    yield open_it
    for each in opened:
        each.close()


def test_every_field_has_its_value_and_unit(source, clock):
    (row,) = source(util=63, used=70_000, reserved=900, total=81_000).read()
    assert (row.gpu, row.index, row.name, row.host) == ("GPU-0", 0, "Stub GPU", "host")
    assert row.util == 0.63
    assert (row.mem_used_bytes, row.mem_reserved_bytes, row.mem_total_bytes) == (70_000, 900, 81_000)
    assert row.mem_api == "v2"
    assert (row.power_w, row.energy_j, row.sm_mhz, row.temp_c) == (250.5, 123.456, 1410, 61)
    assert row.throttle == ["power_cap", "hw_thermal"]
    assert row.missing == {}
    assert row.mono_ns == clock.now_ns
    assert row.wall_ns == 10**18 + clock.now_ns


def test_utilization_is_the_mean_of_the_drivers_samples_since_the_last_reading(source, stub):
    gpu = source(util=99, samples__n=3, samples__first_us=100, samples__value=10)
    assert gpu.read()[0].util == 0.99, "the first buffer reaches back too far"
    stub(samples__first_us=200, samples__value=20)  # 20, 30, 40
    assert gpu.read()[0].util == pytest.approx(0.30)
    assert gpu.read()[0].util == 0.99, "no new sample: a single reading"
    stub(samples__n=0)
    assert gpu.read()[0].util == 0.99, "an idle GPU keeps none"


def test_memory_of_an_old_driver_is_v1_and_says_so(source):
    (row,) = source(memory_v2__err=13, used=100, reserved=50, total=1000).read()
    assert (row.mem_used_bytes, row.mem_total_bytes, row.mem_api) == (150, 1000, "v1")
    assert row.mem_reserved_bytes is None
    assert row.missing == {"mem_reserved_bytes": "not given by this driver"}


def test_deprecated_functions_where_the_new_ones_are_missing(source):
    (row,) = source(temperature_v__err=13, events__err=13).read()
    assert row.temp_c == 62
    assert row.throttle == ["power_cap"]


@pytest.mark.parametrize(("code", "reason"), [(3, "not supported"), (4, "no permission")])
def test_a_field_that_is_refused_is_off_and_the_others_are_not(source, stub, code, reason):
    gpu = source(power__err=code, util__err=code, samples__err=code)
    (row,) = gpu.read()
    assert (row.power_w, row.util) == (None, None)
    assert row.missing == {"power_w": reason, "util": reason}
    assert row.mem_used_bytes == 100_000
    stub(power__err=None)
    assert gpu.read()[0].power_w is None, "it is not asked for again"


def test_an_unknown_error_is_tried_again_ever_later(source, stub, clock):
    gpu = source(energy__err=999)
    assert gpu.read()[0].missing == {"energy_j": "unknown NVML error"}
    stub(energy__err=None)
    assert gpu.read()[0].energy_j is None
    clock.move(2.5)
    assert gpu.read()[0].energy_j == 123.456


def test_unified_memory_is_missing_not_zero(source):
    (row,) = source(total=0, used=0, reserved=0).read()
    assert (row.mem_used_bytes, row.mem_total_bytes) == (None, None)
    assert row.missing["mem_total_bytes"] == "unified memory: the GPU has none of its own"
    assert row.util == 0.4


def test_mig_instances_are_gpus_of_their_own(source):
    gpu = source(count=2, dev1__mig=2, dev1__memory_v2__err=4, dev1__memory_v1__err=4)
    rows = {row.gpu: row for row in gpu.read()}
    assert list(rows) == ["GPU-0", "GPU-1", "MIG-1-0", "MIG-1-1"]
    assert rows["GPU-0"].missing == {}
    assert rows["GPU-1"].missing["util"] == "not supported"
    assert rows["GPU-1"].missing["mem_used_bytes"] == "no permission"
    assert rows["MIG-1-1"].index == 1
    assert gpu.words == "NVML: 2 GPU(s), 2 MIG instances"


@pytest.mark.parametrize(("code", "reason"), [(15, "GPU is lost"), (16, "GPU requires reset")])
def test_a_gpu_lost_in_mid_run_and_back(source, stub, clock, code, reason):
    gpu = source(count=2)
    assert [row.missing for row in gpu.read()] == [{}, {}]
    stub(dev1__err=code)
    first, second = gpu.read()
    assert first.missing == {}
    assert second.missing == dict.fromkeys(ALL_FIELDS, reason)
    assert (second.util, second.mem_used_bytes, second.power_w) == (None, None, None)
    clock.move(6)  # the library starts afresh, and this GPU still does not answer
    assert [row.missing == {} for row in gpu.read()] == [True, False]
    stub(dev1__err=None)
    assert [row.missing == {} for row in gpu.read()] == [True, False], "looked for again only after a wait"
    clock.move(11)
    assert [(row.gpu, row.missing) for row in gpu.read()] == [("GPU-0", {}), ("GPU-1", {})]


def test_a_driver_reloaded_in_mid_run(source, stub, clock):
    gpu = source()
    assert gpu.read()[0].missing == {}
    stub(err=9, init__err=9)
    assert gpu.read()[0].missing == dict.fromkeys(ALL_FIELDS, "NVIDIA driver not loaded")
    assert gpu.words == "none: NVIDIA driver not loaded"
    clock.move(6)
    assert gpu.read()[0].util is None
    stub(err=None, init__err=None)
    clock.move(61)
    assert gpu.read()[0].missing == {}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (9, "none: NVIDIA driver not loaded"),
        (12, "none: libnvidia-ml.so.1 not found: no NVIDIA driver on this host"),
        (18, "none: driver and NVML library versions differ: reboot or reload the driver"),
    ],
)
def test_no_driver_is_a_reason_not_an_error(source, stub, clock, code, words):
    gpu = source(init__err=code)
    assert (gpu.ready, gpu.words, gpu.read()) == (False, words, [])
    stub(init__err=None)
    clock.move(6)
    assert len(gpu.read()) == 1, "a driver that comes later is found"


def test_a_slow_driver_call_is_seen_in_the_stamps_and_holds_no_other_thread(stub):
    stub(latency_us=30_000)
    gpu = NvmlSource("host", HOST_CLOCKS)
    turns, done = 0, threading.Event()

    def count():
        nonlocal turns
        while not done.is_set():
            turns += 1
            time.sleep(0.001)

    other = threading.Thread(target=count)
    other.start()
    (row,) = gpu.read()
    done.set()
    other.join()
    gpu.close()
    assert (row.mono_end_ns - row.mono_ns) / 1e6 > 6 * 30
    assert turns > 50, "calls run without the interpreter's lock"
