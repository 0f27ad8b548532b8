"""How the event loop's turns go: all reads first, then the users whose answers ended, and not too many turns.

Reads first: a user that is woken reads its record out, takes its next payload and sends it, 0.2 to 0.5 ms in
which nothing is read. Where a whole wave of streams ends at once (256 streams of equal length), first texts
that came meanwhile would merge with those after them, and the kernel keeps only the last one's moment. So
ended exchanges queue up, and after `WAKE_NS` of waking the loop reads again.

Not too many turns: at 256 streams a turn that reads one or two chunks costs more in polling and cold caches
than in reading. A turn that would begin within `PACE_S` of the last one waits, as network cards do with
interrupts. The kernel has stamped what comes meanwhile, so a time is bent only where two pieces of one answer
come within that while, by less than it; a user's next request, and each turn of a handshake, may come that
much later. Nothing waits where the kernel gives no stamps, nor while a request is being sent: each turn sends
a part of it, so a body of 8 MB over TLS would take twice as long, and its first text with it. It saves about
a quarter of the CPU per chunk at 256 streams of a chunk every 10 ms, and a third at 64.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from typing import Any

import gevent.monkey
from gevent.hub import Waiter, get_hub

PACE_S = 0.001
WAKE_NS = 1_000_000

_block = gevent.monkey.get_original("time", "sleep")  # of the thread, not of a greenlet


class Turns:
    """The order of work on one event loop; `paced` says whether a busy loop may wait for more to read."""

    def __init__(self, loop: Any) -> None:
        self.paced = False
        self.sending: set[object] = set()  # whoever has a part of a request still to send
        self._ended: deque[Waiter] = deque()
        self._turned_s = 0.0
        self._nudge = loop.timer(0.0)  # active while users wait: the loop must not sleep then
        self._check = loop.check(ref=False, priority=-2)  # after all else of a turn
        self._check.start(self._after_reads)

    def wake(self, waiter: Waiter) -> None:
        """Wake who waits, once what has come in is read."""
        self._ended.append(waiter)
        self._stay_awake()

    def close(self) -> None:
        """Stop; who waits is not woken any more."""
        for watcher in (self._nudge, self._check):
            watcher.stop()
            watcher.close()

    def _after_reads(self) -> None:
        ended = self._ended
        if ended:
            until_ns = time.monotonic_ns() + WAKE_NS
            while ended:
                ended.popleft().switch(None)
                if time.monotonic_ns() >= until_ns:
                    break
        now_s = time.monotonic()
        if ended:
            self._stay_awake()
        elif self.paced and not self.sending and (left_s := self._turned_s + PACE_S - now_s) > 0:
            _block(left_s)
            now_s = time.monotonic()
        self._turned_s = now_s

    def _stay_awake(self) -> None:
        if not self._nudge.active:
            self._nudge.start(_nothing)


def _nothing() -> None:
    pass


@functools.cache
def _of(loop: Any) -> Turns:
    return Turns(loop)


def turns() -> Turns:
    """Return the one `Turns` of this thread's event loop."""
    return _of(get_hub().loop)
