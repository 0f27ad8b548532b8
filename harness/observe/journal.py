"""An append-only file of JSON lines that also serves "what came after row N".

Each row is written whole and at once, so that a kill leaves at most one cut line, which readers drop. The
file is the only copy: rows are served from it by their offsets (24 bytes a row in memory), however long a
reader was away. A journal's identity is its first row's: a reader that sees another one begins at its start.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
import time
from array import array
from bisect import bisect_left
from pathlib import Path

import msgspec

from harness.errors import UserError
from harness.records import encode_line


class Journal:
    """Rows of one type in one file, numbered 0, 1, ...; without a path a file that vanishes at the end."""

    def __init__(self, path: Path | None, row_type: type[msgspec.Struct]) -> None:
        self._lock = threading.Lock()
        self._numbered = "seq" in row_type.__struct_fields__
        self._ends = array("Q")  # where each row ends
        self._starts = array("Q")
        self._times = array("Q")  # monotonic, at append; 0 for rows that were there before
        self.identity, self.lost = "", 0
        if path is None:
            self._file, name = tempfile.mkstemp(prefix="knee-")
            os.unlink(name)
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._take_up(path, row_type)
        except OSError as error:
            raise UserError(f"cannot write here: {error.strerror}", file=path) from None

    def _take_up(self, path: Path, row_type: type[msgspec.Struct]) -> None:
        """Number the rows that an earlier process left, so that its readers find the same ones."""
        decoder, at = msgspec.json.Decoder(row_type), 0
        with path.open("rb") as lines:
            for line in lines:
                at += len(line)
                if not line.endswith(b"\n"):
                    os.write(self._file, b"\n")  # a killed process cut it: keep it a line of its own
                    continue
                try:
                    decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    if not self._ends and at == len(line):
                        raise UserError(
                            f"holds something else than {row_type.__name__} rows",
                            file=path,
                            remedy="give another file",
                        ) from None
                    continue
                self._note(at - len(line), at, line)

    def append(self, row: msgspec.Struct) -> None:
        """Append a row, its `seq` if any set to its number; a full disk loses the row, and is counted."""
        with self._lock:
            if self._numbered:
                row = msgspec.structs.replace(row, seq=len(self._ends))
            line = encode_line(row)
            start = os.fstat(self._file).st_size
            try:
                if os.write(self._file, line) != len(line):
                    raise OSError("no space left")
            except OSError as error:
                os.ftruncate(self._file, start)
                if not self.lost:
                    print(f"knee sample: rows are being lost: {error}", file=sys.stderr, flush=True)
                self.lost += 1
                return
            self._note(start, start + len(line), line, time.monotonic_ns())

    def _note(self, start: int, end: int, line: bytes, mono_ns: int = 0) -> None:
        if not self.identity:
            self.identity = hashlib.sha1(line).hexdigest()[:16]
        self._starts.append(start)
        self._times.append(mono_ns)
        self._ends.append(end)

    def last(self) -> int:
        """Return the number of the last row; -1: none."""
        return len(self._ends) - 1

    def before(self, age_s: float) -> int:
        """Return the number of the last row appended more than `age_s` ago; -1: none."""
        with self._lock:
            return bisect_left(self._times, max(0, time.monotonic_ns() - int(age_s * 1e9))) - 1

    def after(self, since: int, limit: int) -> tuple[int, bytes]:
        """Return at most `limit` rows after number `since`, as lines, and the number of the last of them."""
        with self._lock:
            first = max(0, since + 1)
            count = min(limit, len(self._ends) - first)
            if count <= 0:
                return since, b""
            starts, ends = self._starts[first : first + count], self._ends[first : first + count]
        data, zero = os.pread(self._file, ends[-1] - starts[0], starts[0]), starts[0]
        rows = (data[start - zero : end - zero] for start, end in zip(starts, ends, strict=True))
        return first + count - 1, b"".join(rows)  # without what a kill cut between them

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
