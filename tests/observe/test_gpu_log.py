"""The sample logs with their known answers; identity, duplicates, gaps; the table for a report."""

from pathlib import Path

import numpy as np
import pytest

from harness.errors import UserError
from harness.observe.gpu_log import check_overlap, parse_file, read_gpu_log, sort_samples, summarize
from harness.records import GpuSample, PhaseTimes, RunInfo

DATA = Path(__file__).parent / "data"
MIB = 2**20


def summary_of(name, zone="UTC"):
    (path,) = DATA.glob(f"{name}_*.csv")
    return summarize(sort_samples(parse_file(path), zone, "--tz"))


@pytest.fixture
def write(tmp_path):
    def text(lines):
        path = tmp_path / "smi.csv"
        path.write_text(lines)
        return path

    return text


def test_01_one_gpu():
    found = summary_of("01")
    assert found["samples"] == 4
    assert found["gpus"]["0"]["util_mean"] == pytest.approx(0.65)
    assert found["gpus"]["0"]["mem_used_peak_bytes"] == 71_980 * MIB
    assert found["gpus"]["0"]["first_utc"] == "2026-03-14T09:15:02.417Z"
    assert (found["identity_known"], found["gaps"], found["skipped"], found["missing"]) == (True, 0, {}, {})


def test_02_two_gpus_without_identity():
    found = summary_of("02")
    assert found["identity_known"] is False
    assert found["gpus"] == {}
    assert found["samples"] == 7


def test_03_reasons_are_kept():
    found = summary_of("03")
    a100, gb10, k620 = found["gpus"].values()
    assert (a100["util_mean"], a100["mem_used_peak_bytes"]) == (None, 36_537 * MIB)
    assert (gb10["util_mean"], gb10["mem_used_peak_bytes"]) == (pytest.approx(0.425), None)
    assert (k620["util_mean"], k620["mem_used_peak_bytes"]) == (None, 812 * MIB)
    assert found["missing"]["util"] == {"N/A": 2, "Not Supported": 1, "Unknown Error": 1}
    assert found["missing"]["mem_used_bytes"] == {"N/A": 2, "Insufficient Permissions": 1}
    assert found["missing"]["power_w"] == {
        "Not Supported": 1,
        "N/A": 1,
        "Requested functionality has been deprecated": 1,
        "Function Not Found": 1,
    }


def test_04_a_lost_gpu_and_driver_messages():
    found = summary_of("04")
    assert found["samples"] == 5, "4 with numbers, and the lost one"
    assert found["skipped"] == {"not data": 4, "blank": 1}
    assert found["missing"]["util"] == {"GPU is lost": 1, "GPU requires reset": 1}
    assert found["missing"]["mem_used_bytes"] == {"GPU is lost": 1}
    assert found["gpus"]["0"]["mem_used_peak_bytes"] == 70_112 * MIB
    assert found["gpus"]["1"]["util_mean"] == pytest.approx(0.945)


def test_06_a_gap_and_a_duplicate():
    found = summary_of("06")
    assert (found["samples"], found["duplicates"], found["gaps"]) == (7, 1, 1)
    assert found["identity_known"] is True
    assert summary_of("06", "Europe/Berlin")["gpus"]["0"]["first_utc"] == "2026-03-14T12:00:00.000Z"


@pytest.mark.parametrize(("gpus", "spread_ms"), [(2, 4), (8, 1), (8, 0)])
def test_idle_gpus_whose_rows_are_alike_are_not_one(write, gpus, spread_ms):
    rows = [
        f"2026/03/14 09:{t // 60:02d}:{t % 60:02d}.{100 + g * spread_ms:03d}, 0, 4, 81559\n"
        for t in range(100)
        for g in range(gpus)
    ]
    found = summarize(sort_samples(parse_file(write("".join(rows))), "UTC", "--tz"))
    assert (found["identity_known"], found["samples"], found["duplicates"]) == (False, 100 * gpus, 0)


def test_one_gpu_with_jitter_and_holes_is_one(write):
    rng = np.random.default_rng(3)
    ms = np.cumsum(rng.integers(990, 1030, 500) + np.where(rng.random(500) < 0.02, 5000, 0))
    stamps = np.datetime64("2026-03-14T09:00:00.000") + ms
    rows = [f"{str(t).replace('-', '/').replace('T', ' ')}, 5, 4, 8\n" for t in stamps]
    found = summarize(sort_samples(parse_file(write("".join(rows))), "UTC", "--tz"))
    assert (found["identity_known"], found["samples"]) == (True, 500)
    assert found["gaps"] == int((np.diff(ms) > 5000).sum()) > 0


@pytest.mark.parametrize("text", ["", "no such thing\n", "timestamp, utilization.gpu [%]\n"])
def test_a_file_without_samples_is_the_users_mistake(write, text):
    with pytest.raises(UserError, match="no nvidia-smi samples"):
        parse_file(write(text))
    with pytest.raises(UserError, match="cannot be read"):
        parse_file(Path("/nonexistent/smi.csv"))


def test_table_for_a_report():
    (path,) = DATA.glob("03_*.csv")
    table = read_gpu_log(path, "Europe/Berlin")
    assert list(table.columns) == list(GpuSample.__struct_fields__)
    row = table[table["gpu"].str.startswith("GPU-bbbb")].iloc[1]
    assert (row["name"], row["source"], row["util"]) == ("NVIDIA GB10", "nvidia-smi", 0.44)
    assert row["wall_ns"] == np.datetime64("2026-03-14T09:00:01.001").astype("datetime64[ns]").astype(
        np.int64
    )
    assert row["missing"] == {
        "mem_used_bytes": "N/A",
        "mem_total_bytes": "N/A",
        "power_w": "Requested functionality has been deprecated",
    }
    assert np.isnan(row["mem_used_bytes"])
    (nameless,) = DATA.glob("02_*.csv")
    assert read_gpu_log(nameless, "UTC")["gpu"].isna().all()
    with pytest.raises(UserError, match="no time zone in it"):
        read_gpu_log(path, None)


def test_a_log_of_another_time_is_refused():
    (path,) = DATA.glob("01_*.csv")
    start = np.datetime64("2026-03-14T09:15:00").astype("datetime64[ns]").astype(np.int64)
    run = RunInfo(
        run="r",
        profile="p",
        experiment="steps",
        started_ns=int(start),
        phases=[PhaseTimes(index=0, label="1", ready_ns=int(start), end_ns=int(start + 60e9))],
    )
    check_overlap(read_gpu_log(path, "UTC"), run, path)
    with pytest.raises(UserError, match=r"no overlap: the log covers 2026-03-14T08:15:02.417Z"):
        check_overlap(read_gpu_log(path, "Europe/Berlin"), run, path)
