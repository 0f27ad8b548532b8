import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from harness.errors import UserError
from harness.profile_reader import parse_profile
from harness.records import (
    FORMAT_VERSION,
    ClientSample,
    GpuSample,
    PhaseTimes,
    Request,
    RunInfo,
    WorkerInfo,
    encode_line,
)
from harness.rundir import RunDir, append_requests, create, read_run, read_table, write_atomically, write_info

PROFILE = parse_profile(
    "name: p\ntarget: {base_url: 'http://h/v1', headers: {x-token: hunter2}}\n"
    "traffic: {mix: [{kind: a, text: {chars: 9}}]}\n",
    file=Path("/f/p.yaml"),
)


def request(seq: int, worker: str = "w1", **more: Any) -> Request:
    fields: dict[str, Any] = {
        "run": "r",
        "user": 0,
        "phase": 0,
        "label": "1 user",
        "kind": "a",
        "payload": "a-1",
    }
    fields |= {"body_bytes": 9, "wall_ns": 10 + seq, "start_ns": seq, "total_ms": 1.5, "outcome": "ok"}
    fields["req_id"] = f"{worker}-{seq}"
    return Request(worker=worker, seq=seq, **(fields | more))


def run_with(parent: Path, records: list[Request], **more: Any) -> RunDir:
    run = create(parent, PROFILE, "steps")
    write_info(run, RunInfo(run=run.path.name, profile="p", experiment="steps", started_ns=1, **more))
    append_requests(run, records)
    return run


def test_each_run_has_a_folder_of_its_own_with_the_profile_and_no_secrets(tmp_path: Path) -> None:
    runs = [create(tmp_path / "runs", PROFILE, "steps") for _ in range(3)]
    assert len({run.path for run in runs}) == 3
    assert all("-p-steps" in run.path.name for run in runs)
    written = runs[0].profile.read_text()
    assert "hunter2" not in written
    assert yaml.safe_load(written)["target"]["base_url"] == "http://h/v1"


def test_a_folder_that_cannot_be_made_is_the_user_s_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make a run directory"):
        create(tmp_path / "file", PROFILE, "steps")


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    phases = [PhaseTimes(index=0, label="1 user", users=1, ready_ns=1, t0_ns=2, t1_ns=3, end_ns=4)]
    run = run_with(
        tmp_path, [request(0), request(1, ttft_ms=2.0, outcome="reset", img_wh=[(4, 3)])], phases=phases
    )
    data = read_run(run.path)
    assert data.info.phases == phases
    assert msgspec.structs.replace(data.profile, target=PROFILE.target) == PROFILE
    assert list(data.requests["seq"]) == [0, 1]
    assert list(data.requests["outcome"]) == ["ok", "reset"]
    assert list(data.requests["img_wh"]) == [[], [(4, 3)]]
    assert data.broken_lines == {}
    assert [len(t) for t in (data.client, data.gpu, data.engine, data.clock)] == [0, 0, 0, 0]


def test_a_missing_value_is_nan_or_none_and_never_0(tmp_path: Path) -> None:
    table = read_run(run_with(tmp_path, [request(0), request(1, ttft_ms=2.0, status=200)]).path).requests
    assert math.isnan(table["ttft_ms"][0])
    assert table["ttft_ms"][1] == 2.0
    assert math.isnan(table["status"][0])
    assert table["error"][0] is None
    assert table["seq"].dtype == "int64"
    assert table["wall_ns"].dtype == "int64"  # a float would lose nanoseconds


def test_a_column_that_is_wholly_unknown_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    rows = [
        GpuSample(seq=n, host="h", gpu=None, mono_ns=1, mono_end_ns=2, wall_ns=3, source="nvml")
        for n in (0, 1)
    ]
    path.write_bytes(b"".join(map(encode_line, rows)))
    table = read_table(path, GpuSample)
    assert table["util"].isna().all()
    assert table["gpu"].isna().all()
    assert list(table["missing"]) == [{}, {}]


def test_a_missing_file_is_an_empty_table_with_all_columns(tmp_path: Path) -> None:
    table = read_table(tmp_path / "client.jsonl", ClientSample)
    assert len(table) == 0
    assert list(table.columns) == list(ClientSample.__struct_fields__)


def test_lines_cut_or_foreign_are_dropped_and_counted_by_file(tmp_path: Path) -> None:
    run = run_with(tmp_path, [request(0), request(1)])
    with run.requests.open("ab") as out:
        out.write(b"not a record\n" + encode_line(request(2))[:-20])
    data = read_run(run.path)
    assert list(data.requests["seq"]) == [0, 1]
    assert data.broken_lines == {"requests.jsonl": 2}


def test_more_rows_than_are_held_at_once_keep_their_order_and_names(tmp_path: Path) -> None:
    records = [
        request(n, f"w{n // 700}", kind=f"kind{n % 3}", ttft_ms=float(n) if n % 2 else None)
        for n in range(1501)
    ]
    table = read_run(run_with(tmp_path, records).path).requests
    assert list(table["seq"]) == list(range(1501))
    assert list(table["kind"]) == [r.kind for r in records]
    assert list(table["worker"]) == [r.worker for r in records]
    assert table["ttft_ms"].isna().sum() == 751
    assert table["ttft_ms"][1499] == 1499.0


def test_gaps_in_the_master_s_copy_are_filled_from_the_workers_files(tmp_path: Path) -> None:
    workers = [WorkerInfo(id="w1", host="h", records_made=3), WorkerInfo(id="w2", host="h", records_made=1)]
    run = run_with(tmp_path, [request(0), request(2), request(0, "w2")], workers=workers, ended_ns=9)
    file = run.worker("w1")
    file.parent.mkdir()
    file.write_bytes(b"".join(encode_line(request(n)) for n in range(3)))
    table = read_run(run.path).requests
    assert sorted(zip(table["worker"], table["seq"], strict=True)) == [
        ("w1", 0),
        ("w1", 1),
        ("w1", 2),
        ("w2", 0),
    ]
    assert list(table["req_id"]).count("w1-2") == 1


def test_files_joined_by_hand_count_no_request_twice(tmp_path: Path) -> None:
    run = run_with(tmp_path, [request(0), request(1), request(0), request(0, "w2")])
    table = read_run(run.path).requests
    assert list(table["req_id"]) == ["w1-0", "w1-1", "w2-0"]


def test_a_run_cut_off_before_the_master_wrote_anything_is_read_from_the_workers(tmp_path: Path) -> None:
    run = run_with(tmp_path, [])
    run.worker("host/1").parent.mkdir()
    run.worker("host/1").write_bytes(encode_line(request(0)) + encode_line(request(1))[:-9])
    assert run.worker("host/1").name == "host_1.jsonl"
    data = read_run(run.path)
    assert list(data.requests["seq"]) == [0]
    assert data.broken_lines == {"host_1.jsonl": 1}


def test_run_json_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "run.json"
    for text in (b"first", b"second"):
        write_atomically(path, text)
        assert path.read_bytes() == text
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"{", "not readable"),
        (b"\xff\xfe", "not readable"),
        (b'{"run": 5}', "not readable"),
        (
            msgspec.json.encode(
                RunInfo(v=FORMAT_VERSION + 1, run="r", profile="p", experiment="steps", started_ns=1)
            ),
            "newer than this version reads",
        ),
    ],
)
def test_a_run_json_that_cannot_be_read_is_named(content: bytes, what: str, tmp_path: Path) -> None:
    run = run_with(tmp_path, [])
    run.info.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_run(run.path)
    assert what in str(caught.value)
    assert str(run.info) in str(caught.value)


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(UserError, match=r"report\.html: cannot be written: Is a directory"):
        write_atomically(tmp_path / "report.html", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run directory"):
        read_run(tmp_path / "gone")
    with pytest.raises(UserError, match="not a run directory"):
        read_run(tmp_path)
