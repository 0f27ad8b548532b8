"""The folder of request bodies: private, and rid of what killed runs have left."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.load.spool import KEPT_S, spool


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_only_its_user_can_look_into_it() -> None:
    assert spool() == spool()
    assert spool().stat().st_mode & 0o777 == 0o700


def test_what_is_old_goes_and_the_rest_stays() -> None:
    old, new, records = (spool() / name for name in ("a.corpus", "b.corpus", "run.jsonl"))
    for file in (old, new, records):
        file.touch()
    long_ago = time.time() - KEPT_S - 60
    for file in (old, records):
        os.utime(file, (long_ago, long_ago))
    assert sorted(path.name for path in spool().iterdir()) == ["b.corpus", "run.jsonl"]


def test_a_folder_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = spool()
    monkeypatch.setattr(os, "getuid", lambda: int(folder.name.rpartition("-")[2]))
    assert spool() == folder
    folder.rmdir()
    folder.touch()
    with pytest.raises(UserError, match="cannot be used: File exists"):
        spool()
