"""Another host's sidecar: its rows, also those missed during a break, and clock exchanges with it."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from harness.observe.clocks import Clocks
from harness.observe.fetch import FetchError, Getter
from harness.records import ClockRow, GpuSample

BURST = 16  # exchanges; the one with the least round trip is used, half of it bounds the error


class _Answer(msgspec.Struct):
    journal: str
    since: int
    rows: list[GpuSample]


class _Clock(msgspec.Struct):
    host: str
    t1_ns: int
    t2_ns: int
    mono_ns: int


def describe_sidecar(getter: Getter) -> tuple[bool, str]:
    """Return whether a sidecar answers and samples, and what it says of itself or why not."""
    try:
        status = msgspec.json.decode(getter.get("/health"))
        words, there = str(status["gpu"]), int(status["samples"]) > 0
    except (FetchError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        words, there = str(error), False
    getter.close()
    return there, f"sidecar at {getter.url}: {words}"


class RemoteSidecar:
    """Fetches the rows that one sidecar took since now, in order, each once. For one thread."""

    def __init__(self, getter: Getter) -> None:
        self._getter = getter
        self._decoder = msgspec.json.Decoder(_Answer)
        self._journal, self._since = "", -1
        self._began = time.monotonic()
        self.words = f"sidecar at {getter.url} (not asked yet)"

    def fetch(self, take: Callable[[GpuSample], None]) -> None:
        """Hand over every row that the sidecar has and we have not; a failure leaves the rest for later."""
        try:
            while self._fetch_some(take):
                pass
            self.words = f"sidecar at {self._getter.url}"
        except (FetchError, msgspec.DecodeError) as error:
            self.words = f"none: sidecar at {self._getter.url}: {error}"

    def _fetch_some(self, take: Callable[[GpuSample], None]) -> bool:
        where = f"since={self._since}" if self._journal else f"age_s={time.monotonic() - self._began + 1:.3f}"
        answer = self._decoder.decode(self._getter.get(f"/samples?{where}"))
        if answer.journal != self._journal:
            began_anew = self._journal != ""
            self._journal = answer.journal
            if began_anew:  # a sidecar without the old file: its numbers mean other rows
                self._since = -1
                return True
        for row in answer.rows:
            take(row)
        self._since = answer.since
        return bool(answer.rows)

    def close(self) -> None:
        """Close the connection."""
        self._getter.close()


def exchange(getter: Getter, clocks: Clocks, burst: int) -> list[ClockRow]:
    """Return one burst of exchanges with a sidecar; raises FetchError where it does not answer."""
    rows = []
    for _ in range(BURST):
        mono, t0 = clocks.mono_ns(), clocks.wall_ns()
        body = getter.get("/clock")
        t3 = clocks.wall_ns()
        try:
            peer = msgspec.json.decode(body, type=_Clock)
        except msgspec.DecodeError:
            raise FetchError("not a sidecar's answer") from None
        rows.append(
            ClockRow(
                peer=peer.host,
                burst=burst,
                t0_ns=t0,
                t1_ns=peer.t1_ns,
                t2_ns=peer.t2_ns,
                t3_ns=t3,
                mono_ns=mono,
                peer_mono_ns=peer.mono_ns,
            )
        )
    return rows
