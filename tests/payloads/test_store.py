import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.payloads.layout import MAGIC, Span, Template
from harness.payloads.store import Writer, map_file, write_once

TEMPLATE = Template(kind="a", name="a-1", parts=(Span(8, 5),))


def write(out: Writer) -> None:
    assert out.append(b"hello") == Span(len(MAGIC), 5)
    out.add(TEMPLATE)
    out.finish(("a note",))


def test_what_is_written_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "x.corpus"
    write_once(path, write)
    data, head = map_file(path)
    assert bytes(data[8:13]) == b"hello"
    assert head.notes == ("a note",)
    assert len(head.records) == 16
    assert [p.name for p in path.parent.iterdir()] == ["x.corpus"]
    assert path.stat().st_mode & 0o077 == 0  # it holds prompts


def test_a_file_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "x.corpus"
    write_once(path, write)
    before = path.stat()
    write_once(path, lambda _out: pytest.fail("written again"))
    assert path.stat().st_ino == before.st_ino


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(out: Writer) -> None:
        out.append(b"half")
        raise UserError("no picture")

    with pytest.raises(UserError):
        write_once(tmp_path / "x.corpus", fail)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "x.building").write_bytes(b"left over from a process that was killed while it wrote" * 100)
    write_once(tmp_path / "x.corpus", write)
    assert bytes(map_file(tmp_path / "x.corpus")[0][8:13]) == b"hello"
    assert [p.name for p in tmp_path.iterdir()] == ["x.corpus"]


SLOW_WRITER = """
import os, sys, time
from pathlib import Path
from harness.payloads.store import write_once
wrote = []
def write(out):
    wrote.append(1)
    time.sleep(0.3)
    out.append(b"hello")
    out.finish(())
path = Path(sys.argv[1])
write_once(path, write)
print(len(wrote), path.stat().st_ino)
"""


def test_of_several_processes_one_writes_and_all_get_its_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW_WRITER, str(tmp_path / "x.corpus")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [process.communicate(timeout=60)[0].split() for process in started]
    assert sorted(wrote for wrote, _ in answers) == ["0", "0", "0", "1"]
    assert len({inode for _, inode in answers}) == 1
    assert os.listdir(tmp_path) == ["x.corpus"]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "no corpus"),
        (b"", "no corpus"),
        (b"something else entirely", "no corpus of this version"),
        (MAGIC + b"cut off before its head", "a damaged corpus"),
    ],
)
def test_what_is_no_corpus_is_named(content: bytes | None, what: str, tmp_path: Path) -> None:
    path = tmp_path / "x.corpus"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        map_file(path)
    assert str(caught.value).startswith(f"{path}: {what}")
