"""Ticks on absolute deadlines: what comes late is counted, never caught up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator


class Pace:
    """Yields once per interval until `stop` is set; `overruns` counts the ticks that were skipped."""

    def __init__(self, interval_s: float, stop: threading.Event) -> None:
        self._interval_s, self._stop, self.overruns = interval_s, stop, 0

    def ticks(self) -> Iterator[None]:
        """Yield at each deadline; the first one is now."""
        deadline = time.monotonic()
        while not self._stop.wait(max(0.0, deadline - time.monotonic())):
            yield
            deadline += self._interval_s
            late = time.monotonic() - deadline
            if late > 0:
                skipped = int(late / self._interval_s) + 1
                self.overruns += skipped
                deadline += skipped * self._interval_s
