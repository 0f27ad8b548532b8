"""Rows kept whole, numbered, and served to readers that come and go."""

import msgspec
import pytest

from harness.errors import UserError
from harness.observe import journal as module
from harness.observe.journal import Journal
from harness.records import GpuSample


def row(number):
    return GpuSample(seq=0, host="h", gpu="GPU-0", mono_ns=number, mono_end_ns=0, wall_ns=0, source="nvml")


def rows(lines):
    return [
        (r.seq, r.mono_ns) for line in lines.splitlines() if (r := msgspec.json.decode(line, type=GpuSample))
    ]


@pytest.fixture(params=["file", "none"])
def journal(request, tmp_path):
    opened = Journal(tmp_path / "gpu.jsonl" if request.param == "file" else None, GpuSample)
    yield opened
    opened.close()


def test_rows_after_a_number(journal):
    assert journal.after(-1, 10) == (-1, b"")
    for number in range(5):
        journal.append(row(100 + number))
    last, lines = journal.after(1, 2)
    assert (last, rows(lines)) == (3, [(2, 102), (3, 103)])
    assert journal.after(3, 10)[0] == 4
    assert journal.after(4, 10) == (4, b"")
    assert rows(journal.after(-5, 1)[1]) == [(0, 100)]


def test_rows_by_age(journal):
    for number in range(3):
        journal.append(row(number))
    assert journal.before(60) == -1
    assert journal.before(-1) == 2


def test_a_process_started_again_goes_on_where_the_killed_one_was_cut(tmp_path):
    path = tmp_path / "gpu.jsonl"
    first = Journal(path, GpuSample)
    for number in range(3):
        first.append(row(number))
    identity = first.identity
    first.close()
    with path.open("ab") as file:
        file.write(b'{"v":1,"seq":3,"host"')  # killed here
    second = Journal(path, GpuSample)
    assert second.identity == identity
    assert second.last() == 2
    second.append(row(7))
    assert rows(second.after(1, 10)[1]) == [(2, 2), (3, 7)]
    second.close()
    lines = path.read_bytes().splitlines()
    assert len(lines) == 5
    assert rows(lines[-1]) == [(3, 7)]


def test_another_journal_has_another_identity(tmp_path):
    identities = set()
    for name in ("a", "b"):
        journal = Journal(tmp_path / name, GpuSample)
        journal.append(row(len(identities)))
        identities.add(journal.identity)
        journal.close()
    assert len(identities) == 2


def test_a_file_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n")
    with pytest.raises(UserError, match="holds something else"):
        Journal(path, GpuSample)
    assert path.read_text() == "my notes\n"


def test_a_place_that_cannot_be_written_is_the_users_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        Journal(tmp_path / "file" / "gpu.jsonl", GpuSample)


def test_a_full_disk_loses_rows_and_says_how_many(tmp_path, monkeypatch, capsys):
    journal = Journal(tmp_path / "gpu.jsonl", GpuSample)
    journal.append(row(0))
    write = module.os.write
    monkeypatch.setattr(module.os, "write", lambda fd, data: write(fd, data[:20]))
    journal.append(row(1))
    journal.append(row(2))
    monkeypatch.undo()
    journal.append(row(3))
    assert journal.lost == 2
    assert rows(journal.after(-1, 10)[1]) == [(0, 0), (1, 3)]
    journal.close()
    assert rows((tmp_path / "gpu.jsonl").read_bytes()) == [(0, 0), (1, 3)]
    assert capsys.readouterr().err.count("rows are being lost") == 1
