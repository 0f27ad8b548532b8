"""Interrupts that break nothing: they reach the main greenlet where it waits, and no other.

Python raises KeyboardInterrupt in whatever greenlet happens to run, be it in the middle of writing a record.
Locust, moreover, heeds SIGTERM only once a headless run has ended.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import gevent

AGAIN_S = 2.0  # a terminal and a parent process may both pass on one interrupt


class Interrupts:
    """Raises KeyboardInterrupt in the main greenlet at a signal; `may_wait` says when one is put off."""

    def __init__(self, *signals: signal.Signals, may_wait: Callable[[], bool] = lambda: False) -> None:
        self._hub = gevent.get_hub()
        self._may_wait = may_wait
        self._first_s: float | None = None
        for number in signals:
            gevent.signal_handler(number, self._heed)

    def _heed(self) -> None:
        first, now_s = self._first_s is None, time.monotonic()
        if self._first_s is not None and now_s - self._first_s < AGAIN_S:
            return
        self._first_s = now_s
        if not (first and self._may_wait()):
            self._hub.loop.run_callback(self._hub.parent.throw, KeyboardInterrupt())
