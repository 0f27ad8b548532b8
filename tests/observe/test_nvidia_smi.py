"""Logs in every format met, and the same log cut into pieces at every byte."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.observe.nvidia_smi import LogParser

HEADER = "timestamp, index, utilization.gpu [%], memory.used [MiB], memory.total [MiB]\n"
ROW = "2026/03/14 09:15:0{}.417, {}, {} %, {} MiB, 81559 MiB\n"
TWO_GPUS = HEADER + "".join(ROW.format(t, g, 10 * t + g, 100 + g) for t in range(3) for g in (0, 1))
MIB = 2**20


def parse(*pieces):
    parser = LogParser()
    for piece in pieces:
        parser.feed(piece if isinstance(piece, bytes) else piece.encode())
    return parser.finish()


def same(a, b):
    assert a.gpus == b.gpus
    assert a.skipped == b.skipped
    assert np.array_equal(a.local_us, b.local_us)
    assert np.array_equal(a.gpu, b.gpu)
    for name, values in a.values.items():
        assert np.array_equal(values, b.values[name], equal_nan=True)


def test_columns_and_units():
    log = parse(TWO_GPUS)
    assert log.gpus == ["0", "1"]
    assert log.gpu.tolist() == [0, 1] * 3
    assert log.values["util"].tolist() == pytest.approx([0, 0.01, 0.10, 0.11, 0.20, 0.21])
    assert log.values["mem_used_bytes"].tolist() == [100 * MIB, 101 * MIB] * 3
    assert np.diff(log.local_us).tolist() == [0, 1_000_000] * 2 + [0]
    assert log.local_us[0] == int(
        np.datetime64("2026-03-14T09:15:00.417").astype("datetime64[us]").astype(int)
    )
    assert log.skipped == {}


def test_any_cut_gives_the_same():
    whole, data = parse(TWO_GPUS), TWO_GPUS.encode()
    for at in range(len(data)):
        same(parse(data[:at], data[at:]), whole)


@pytest.mark.parametrize(
    "written",
    [
        TWO_GPUS.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + TWO_GPUS.encode(),
        TWO_GPUS.encode("utf-16"),
        TWO_GPUS.encode("utf-16-le"),
        b"\xfe\xff" + TWO_GPUS.encode("utf-16-be"),
        TWO_GPUS.replace(" [%]", "").replace(" [MiB]", "").encode(),
        TWO_GPUS.replace(" %", "").replace(" MiB", "").encode(),
        TWO_GPUS.replace("[MiB]", "(MiB)").replace("[%]", "(%)").encode(),
        TWO_GPUS.replace(", ", ",").encode(),
        TWO_GPUS.replace("memory.used", "Memory.Used").replace("2026/03/14 ", "2026-03-14T").encode(),
    ],
    ids=[
        "crlf",
        "bom",
        "utf16",
        "utf16le",
        "utf16be",
        "bare-header",
        "bare-values",
        "parentheses",
        "tight",
        "other-stamps",
    ],
)
def test_however_it_was_written(written):
    same(parse(written), parse(TWO_GPUS))
    same(parse(*(written[i : i + 1] for i in range(len(written)))), parse(TWO_GPUS))


def test_without_milliseconds_and_with_microseconds():
    log = parse(
        "timestamp, utilization.gpu [%]\n2026/03/14 09:15:02, 5 %\n2026/03/14 09:15:02.5, 6 %\n"
        "2026/03/14 09:15:03.000250, 7 %\n"
    )
    assert np.diff(log.local_us).tolist() == [500_000, 500_250]


def test_no_header_is_the_usual_query_or_told_by_units():
    log = parse("2026/03/14 09:15:02.417, 12, 40211, 81920\n")
    assert (log.values["util"][0], log.values["mem_used_bytes"][0]) == (0.12, 40211 * MIB)
    log = parse("2026/03/14 09:15:02.417, GPU-aa, 12 %, 40211 MiB, 81920 MiB, 212.44 W\n")
    assert log.gpus == ["GPU-aa"]
    assert (log.values["util"][0], log.values["mem_total_bytes"][0], log.values["power_w"][0]) == (
        0.12,
        81920 * MIB,
        212.44,
    )
    assert parse("2026/03/14 09:15:02.417, 3, 12, 40211, 81920\n").skipped == {
        "no header, columns unknown": 1
    }


def test_a_cut_last_line_is_dropped_even_where_it_would_fit():
    log = parse(TWO_GPUS + "2026/03/14 09:15:05.417, 0, 9 %, 1 MiB, 8")
    same(log, parse(TWO_GPUS + "2026/03/14 09:1"))
    assert log.skipped == {"cut last line": 1}
    assert len(log.local_us) == 6


def test_foreign_lines_and_headers_in_the_middle():
    lines = TWO_GPUS.splitlines(keepends=True)
    log = parse(
        *lines[:3],
        "Unable to determine the device handle for GPU0000:1A:00.0: GPU is lost.\n",
        "\n",
        HEADER,
        *lines[3:5],
        "2026/03/14 09:15:04.417, 0, 9 %\n",
        "2026/13/45 09:15:04.417, 0, 9 %, 1 MiB, 81559 MiB\n",
        "timestamp, uuid, power.draw [W]\n",
        "2026/03/14 09:15:06.000, GPU-aa, 99.5 W\n",
        *lines[5:],
    )
    assert log.skipped == {
        "not data": 1,
        "blank": 1,
        "repeated header": 1,
        "other number of columns than the header": 3,
        "no such date": 1,
    }
    assert len(log.local_us) == 5
    assert log.gpus == ["0", "1", "GPU-aa"]
    assert log.values["power_w"].tolist()[-1] == 99.5
    assert np.isnan(log.values["power_w"][:-1]).all()
    assert log.reasons[log.reason["power_w"][0]] == "no such column here"


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("[N/A]", "N/A"),
        ("N/A", "N/A"),
        ("[Not Supported]", "Not Supported"),
        ("[GPU is lost]", "GPU is lost"),
        ("", "empty"),
        ("ERR!", "ERR!"),
        ("12 furlongs", "12 furlongs"),
        ("-5 %", "out of range"),
        ("101 %", "out of range"),
    ],
)
def test_what_is_no_number_is_missing_with_its_reason(cell, reason):
    log = parse("timestamp, utilization.gpu [%]\n", f"2026/03/14 09:15:02.417, {cell}\n")
    assert np.isnan(log.values["util"][0])
    assert log.reasons[log.reason["util"][0]] == reason


def test_a_total_of_zero_is_unified_memory():
    log = parse(HEADER, "2026/03/14 09:15:02.417, 0, 5 %, 0 MiB, 0 MiB\n")
    assert np.isnan([log.values["mem_used_bytes"][0], log.values["mem_total_bytes"][0]]).all()
    assert log.reasons[log.reason["mem_used_bytes"][0]] == "unified memory"
    assert log.values["util"][0] == 0.05


@given(st.binary(max_size=200), st.integers(1, 6))
def test_garbage_between_good_lines_is_counted_and_harms_none(garbage, after):
    garbage = garbage.translate(None, b"\r\n,").replace(b"timestamp", b"")
    lines = TWO_GPUS.encode().splitlines(keepends=True)
    log = parse(*lines[:after], garbage + b"\n", *lines[after:])
    assert len(log.local_us) == 6
    assert sum(log.skipped.values()) == 1
    assert set(log.skipped) <= {"blank", "not data"}
