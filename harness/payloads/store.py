"""A corpus file on disk: written once per host by whoever comes first, then mapped by all.

The first process holds a lock on `<name>.building` while it writes and then renames it; the others wait
for the lock and find the finished file. A process that dies or fails leaves nothing that could be taken
for a corpus.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from harness.errors import UserError
from harness.payloads.layout import MAGIC, Head, Span, Template

WAIT_S = 0.05


class Writer:
    """Appends bytes and templates to a corpus file."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._records = out, list[int]()
        out.write(MAGIC)

    def append(self, data: bytes) -> Span:
        """Write bytes and return where they lie."""
        span = Span(self._out.tell(), len(data))
        self._out.write(data)
        return span

    def add(self, template: Template) -> None:
        """Write the next payload's template."""
        span = self.append(msgspec.json.encode(template))
        self._records += (span.offset, span.length)

    def finish(self, notes: tuple[str, ...]) -> None:
        """Write the table; nothing may be added after it."""
        head = Head(records=struct.pack(f"<{len(self._records)}Q", *self._records), notes=notes)
        span = self.append(msgspec.json.encode(head))
        self._out.write(struct.pack("<Q", span.offset))


def write_once(path: Path, write: Callable[[Writer], None]) -> None:
    """Make `path` by `write` unless it is there; of several processes one makes it and the others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".building")
    while not path.exists():
        with open(
            os.open(scratch, os.O_RDWR | os.O_CREAT, 0o600), "r+b"
        ) as out:  # prompts: for the owner only
            try:
                fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(WAIT_S)  # not a blocking lock: a load-generating process must stay alive meanwhile
                continue
            if not _is_same_file(out, scratch):
                continue  # finished or given up by another since we opened it
            try:
                out.truncate()
                write(Writer(out))
                out.flush()
                os.replace(scratch, path)
            except BaseException:
                scratch.unlink(missing_ok=True)
                raise


def _is_same_file(out: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(out.fileno()), path.stat())
    except FileNotFoundError:
        return False


def map_file(path: Path) -> tuple[memoryview, Head]:
    """Map a corpus file and read its head; raises UserError where it is none."""
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise UserError(f"no corpus: {error}", file=path) from None
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise UserError("no corpus of this version", file=path, remedy="delete it")
    (at,) = struct.unpack("<Q", data[-8:])
    try:
        return data, msgspec.json.decode(data[at:-8], type=Head)
    except msgspec.DecodeError:
        raise UserError("a damaged corpus", file=path, remedy="delete it") from None
