"""Records on their way from a worker to requests.jsonl: none lost unseen, none counted twice.

A worker writes each record at once to a file of its own (a killed worker loses none of them) and sends it on
in numbered batches, which it keeps until the master acknowledges them. The master appends the bytes as they
came. It knows from the sequence numbers which records it lacks; where it lacks some, the worker's file stays
and the run names it. Batches are small and frequent because one of 100,000 rows stalls the master for half a
second, and because the ladder steers by them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from harness.load.step import Finished
from harness.records import ClientSample, Request, encode_line

if TYPE_CHECKING:  # it brings the table library, which a worker does not need
    from harness.rundir import RunDir

MAX_ROWS = 1000  # per batch
MAX_KEPT = 100  # batches; beyond, only the worker's file has them
RESEND_AFTER_S = 5.0

Message = dict[str, Any]
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Batch:
    number: int
    message: Message
    sent_s: float


class WorkerRecorder:
    """A worker's end; `send` takes a message for the master, `file` is None in the master's own process."""

    def __init__(self, worker: str, file: Path | None, send: Callable[[Message], None]) -> None:
        self.worker, self.path = worker, file
        self.made = 0
        self._send = send
        self._file = None
        self._rows: deque[bytes] = deque()
        self._samples: list[bytes] = []
        self._sent_rows = 0
        self._number = 0
        self._kept: deque[_Batch] = deque()
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._file = file.open("ab", buffering=0)

    def add(self, row: Request) -> None:
        """Keep a record; its `seq` must be `made`."""
        line = encode_line(row)
        self.made += 1
        self._rows.append(line)
        if self._file is not None:
            try:
                self._file.write(line)
            except OSError as error:  # the batches still carry it
                log.error("%s: %s; records go to the master only", self.path, error.strerror)
                self._file.close()
                self._file = None

    def add_sample(self, sample: ClientSample) -> None:
        """Keep a sample of the process itself."""
        self._samples.append(encode_line(sample))

    def flush(self, status: bytes) -> None:
        """Send what has come up, in batches, with the worker's status on the last; resend what got lost."""
        now_s = time.monotonic()
        self.resend(older_than_s=RESEND_AFTER_S)
        while len(self._rows) > MAX_ROWS:
            self._ship(MAX_ROWS, None, now_s)
        self._ship(len(self._rows), status, now_s)

    def resend(self, older_than_s: float = -1.0) -> None:
        """Send again what was not acknowledged; what the master has already it leaves out."""
        now_s = time.monotonic()
        for batch in list(self._kept):
            if now_s - batch.sent_s > older_than_s:
                batch.sent_s = now_s
                self._send(batch.message)

    def _ship(self, count: int, status: bytes | None, now_s: float) -> None:
        message: Message = {"worker": self.worker, "status": status, "made": self.made}
        if count or self._samples:
            message |= {
                "number": self._number,
                "first": self._sent_rows,
                "count": count,
                "rows": b"".join(self._rows.popleft() for _ in range(count)),
                "samples": b"".join(self._samples),
            }
            self._samples.clear()
            self._sent_rows += count
            # A status is of its moment: a batch that is sent again must not bring an old one.
            self._kept.append(_Batch(self._number, message | {"status": None}, now_s))
            self._number += 1
            if len(self._kept) > MAX_KEPT:
                self._kept.popleft()
        self._send(message)

    def acknowledged(self, number: int) -> None:
        """Forget a batch that the master has on disk."""
        for batch in self._kept:
            if batch.number == number:
                self._kept.remove(batch)
                return

    @property
    def unacknowledged(self) -> int:
        """Batches that the master has not confirmed."""
        return len(self._kept)

    def close(self, *, complete: bool) -> None:
        """End the file; it is removed where the master has everything."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if complete and self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
                self.path.parent.rmdir()  # by the last one


@dataclass(slots=True)
class _Arrived:
    """What has come of one worker."""

    numbers: set[int] = field(default_factory=set)
    ranges: list[tuple[int, int]] = field(default_factory=list)  # of seq, half-open, sorted, apart
    received: int = 0
    made: int = 0


class MasterRecorder:
    """The master's end: appends to the files of a run directory and knows what is missing."""

    def __init__(self, run: RunDir) -> None:
        self._requests = run.requests.open("ab", buffering=0)
        self._client = run.client.open("ab", buffering=0)
        self._workers: dict[str, _Arrived] = {}
        self._decoder = msgspec.json.Decoder(Finished)
        self.failed: str | None = None  # why records could not be written

    def take(self, message: Message) -> tuple[int | None, list[Finished]]:
        """Append a batch; return the number to acknowledge (None: none) and its records, once."""
        arrived = self._workers.setdefault(message["worker"], _Arrived())
        arrived.made = max(arrived.made, message["made"])
        number = message.get("number")
        if number is None:
            return None, []
        if number in arrived.numbers:
            return number, []
        try:
            self._requests.write(message["rows"])
            self._client.write(message["samples"])
        except OSError as error:
            self.failed = error.strerror or str(error)
            return None, []
        arrived.numbers.add(number)
        arrived.received += message["count"]
        if message["count"]:
            arrived.ranges = _joined(arrived.ranges, (message["first"], message["first"] + message["count"]))
        return number, [self._decoder.decode(line) for line in message["rows"].splitlines()]

    def received(self, worker: str) -> int:
        """Return how many records of a worker are on disk."""
        return self._arrived(worker).received

    def made(self, worker: str) -> int:
        """Return how many records a worker had made when it was last heard."""
        return self._arrived(worker).made

    def gaps(self, worker: str) -> list[tuple[int, int]]:
        """Return the half-open ranges of seq that never came, as far as the worker was heard."""
        arrived = self._arrived(worker)
        gaps, at = [], 0
        for first, end in arrived.ranges:
            if first > at:
                gaps.append((at, first))
            at = end
        return [*gaps, (at, arrived.made)] if at < arrived.made else gaps

    def close(self) -> None:
        """Close the files."""
        self._requests.close()
        self._client.close()

    def _arrived(self, worker: str) -> _Arrived:
        return self._workers.get(worker, _Arrived())


def _joined(ranges: list[tuple[int, int]], new: tuple[int, int]) -> list[tuple[int, int]]:
    """Return sorted ranges with one more, neighbours joined."""
    if ranges and ranges[-1][1] == new[0]:
        return [*ranges[:-1], (ranges[-1][0], new[1])]
    joined: list[tuple[int, int]] = []
    for first, end in sorted([*ranges, new]):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined
