"""Requests sent when they are due, whatever the service does: one dispatcher per worker.

Why requests over the limit wait instead of being dropped: what was due and not sent in time is the sign that
the test no longer applies its load, so it must stay countable. They keep their due time while they wait, and
those that were never sent are recorded as such when the phase ends.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque

import gevent
from gevent.pool import Group

from harness.load.arrivals import arrivals
from harness.load.sender import Sender
from harness.load.worker import Worker
from harness.plan import Entry

NOT_SENT = "not sent: load.max_in_flight requests were in flight"


class OpenLoop:
    """One worker's share of a phase of arrivals."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._phase = worker.order.phase
        self._changed = worker.changed
        self._limit = max(1, worker.profile.load.max_in_flight // worker.order.workers)
        self._group = Group()
        self._waiting: deque[tuple[int, Entry]] = deque()

    def run(self) -> None:
        """Send until the phase ends, then wait for what is in flight; a kill cancels it."""
        try:
            self._dispatch()
            while self._waiting:
                due_ns, entry = self._waiting.popleft()
                with self._worker.sender() as sender:
                    sender.give_up(self._phase, entry, due_ns, NOT_SENT)
            self._group.join()
        finally:
            self._group.kill()

    def _dispatch(self) -> None:
        worker, phase = self._worker, self._phase
        share, shares = worker.index, worker.order.workers
        seed = f"{worker.profile.traffic.seed}/{phase.index}/{share}"
        dues = arrivals(
            phase.rate or 1.0, worker.profile.load.arrivals, share=share, shares=shares, seed=seed
        )
        start_ns = time.monotonic_ns()
        for number, offset_s in enumerate(dues):
            due_ns = start_ns + round(offset_s * 1e9)
            wait_s = max(0.0, (due_ns - time.monotonic_ns()) / 1e9)
            if self._changed.wait(wait_s):
                return
            entry = phase.schedule[(number * shares + share) % len(phase.schedule)]
            self._waiting.append((due_ns, entry))
            self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and len(self._group) < self._limit and not self._changed.is_set():
            due_ns, entry = self._waiting.popleft()
            self._group.spawn(self._send, due_ns, entry)

    def _send(self, due_ns: int, entry: Entry) -> None:
        with self._worker.sender() as sender:
            self._one(sender, due_ns, entry)
        gevent.spawn(self._start_waiting)  # once this greenlet has left the group

    def _one(self, sender: Sender, due_ns: int, entry: Entry) -> None:
        with contextlib.suppress(gevent.Timeout):  # not ours: the request is recorded, the schedule goes on
            sender.send(self._phase, entry, due_ns)
