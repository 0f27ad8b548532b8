"""The two clocks of a host, as one parameter: tests shift them, nothing else does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    """Wall clock and monotonic clock, both in nanoseconds."""

    wall_ns: Callable[[], int] = time.time_ns
    mono_ns: Callable[[], int] = time.monotonic_ns


HOST_CLOCKS = Clocks()
