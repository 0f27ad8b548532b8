"""Ticks on absolute deadlines."""

import threading
import time

from harness.observe.pacing import Pace


def test_late_ticks_are_counted_and_not_caught_up():
    stop = threading.Event()
    pace, seen = Pace(0.1, stop), []
    began = time.monotonic()
    for _ in pace.ticks():
        seen.append(time.monotonic() - began)
        if len(seen) == 2:
            time.sleep(0.35)  # until 0.45: the ticks at 0.2, 0.3 and 0.4 are gone
        if len(seen) == 4:
            stop.set()
    assert pace.overruns >= 3
    assert seen[2] - seen[1] > 0.34
    assert seen[3] - seen[2] > 0.01, "no burst to catch up"
    assert seen[3] > 0.1 * (3 + pace.overruns) - 0.01, "deadlines stay on the grid"


def test_an_interval_is_kept_without_drift():
    stop = threading.Event()
    pace, began = Pace(0.02, stop), time.monotonic()
    for count, _ in enumerate(pace.ticks(), 1):
        if count + pace.overruns >= 25:
            stop.set()
    assert time.monotonic() - began > 24 * 0.02 - 0.005
