import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.records import (
    FORMAT_VERSION,
    ClientSample,
    ClockRow,
    EngineSample,
    GpuSample,
    Request,
    decode_lines,
    encode_line,
)

REQUEST = Request(
    run="r", worker="w1", user=0, seq=3, phase=1, label="2 users", kind="one_image", payload="one_image-ab",
    in_img=1, img_wh=[(512, 384)], img_bytes=9, body_bytes=99, wall_ns=1, start_ns=2, total_ms=3.5,
    outcome="ok", req_id="x",
)  # fmt: skip
ROWS = [
    REQUEST,
    ClientSample(worker="w1", wall_ns=1, mono_ns=2, phase=0, users=3, in_flight=3),
    GpuSample(
        seq=0, host="h", gpu=None, mono_ns=1, mono_end_ns=2, wall_ns=3, source="nvml", missing={"util": "no"}
    ),
    EngineSample(wall_ns=1, mono_ns=2, error="timed out"),
    ClockRow(peer="h", burst=0, t0_ns=1, t1_ns=2, t2_ns=3, t3_ns=4, mono_ns=5, peer_mono_ns=6),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: type(row).__name__)
def test_every_row_survives_being_written(row: msgspec.Struct) -> None:
    line = encode_line(row)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert list(decode_lines([line], type(row))) == [row]
    assert msgspec.json.decode(line)["v"] == FORMAT_VERSION


@given(
    st.builds(
        Request,
        run=st.text(), worker=st.text(), user=st.integers(0, 2**31), seq=st.integers(0, 2**62),
        phase=st.integers(-1, 99), label=st.text(), kind=st.text(), payload=st.text(), req_id=st.text(),
        img_wh=st.lists(st.tuples(st.integers(1, 9999), st.integers(1, 9999)), max_size=3),
        body_bytes=st.integers(0, 2**40), wall_ns=st.integers(0, 2**62), start_ns=st.integers(0, 2**62),
        total_ms=st.floats(0, 1e9), ttft_ms=st.none() | st.floats(0, 1e9), error=st.none() | st.text(),
    )
)  # fmt: skip
def test_any_request_survives_being_written(row: Request) -> None:
    line = encode_line(row)
    assert line.count(b"\n") == 1  # line breaks inside a text are escaped
    assert list(decode_lines([line], Request)) == [row]


def test_a_line_cut_anywhere_is_counted_and_hides_no_other() -> None:
    line = encode_line(REQUEST)
    for cut in range(1, len(line) - 1):
        assert list(decode_lines([line, line[:cut], line], Request)) == [REQUEST, None, REQUEST]
    assert list(decode_lines([line, line[:-1]], Request)) == [REQUEST, REQUEST]  # only the newline is missing


@pytest.mark.parametrize(
    "line",
    [
        b"null\n",
        b"[]\n",
        b"{}\n",
        b"\xff\xfe\n",
        b"nvidia-smi: command not found\n",
        encode_line(REQUEST).replace(b'"ok"', b'"fine"'),  # an outcome out of the closed list
        encode_line(REQUEST).replace(b'"seq":3', b'"seq":"3"'),
        encode_line(REQUEST).replace(
            b'"v":1', b'"v":99'
        ),  # of a newer format: its fields may mean other things
    ],
)
def test_a_foreign_line_is_none(line: bytes) -> None:
    assert list(decode_lines([line], Request)) == [None]


def test_blank_lines_are_no_rows_and_new_fields_of_the_same_format_are_passed_over() -> None:
    more = encode_line(REQUEST).replace(b'"v":1', b'"v":1,"later":[1]')
    assert list(decode_lines([b"\n", b"  \r\n", more], Request)) == [REQUEST]


@given(st.binary(max_size=80))
def test_any_bytes_are_a_row_none_or_nothing(line: bytes) -> None:
    assert list(decode_lines([line], Request)) in ([None], [])


def test_a_format_of_before_defaults_what_it_lacks() -> None:
    optional = {field.name for field in msgspec.structs.fields(Request) if not field.required}
    least = {k: v for k, v in msgspec.json.decode(encode_line(REQUEST)).items() if k not in optional}
    (row,) = decode_lines([msgspec.json.encode(least)], Request)
    assert row is not None
    assert (row.ttft_ms, row.out_tokens, row.status) == (None, None, None)  # not known, never 0
