"""How figures are printed: three significant digits, a unit, and never a number where there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass

NONE = "–"
THIN = "\u00a0"  # keeps a figure and its unit on one line
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Missing:
    """A figure that is not there, and why."""

    reason: str


Value = str | Missing


def known(x: float | int | None) -> bool:
    """Return whether x is a finite number."""
    return x is not None and math.isfinite(x)


def plain(x: float | int | None) -> str:
    """Return x with three significant digits and thousands apart: 0.0412, 6.84, 123, 1,234; 2e-05."""
    if x is None or not math.isfinite(x):
        return NONE
    if x == 0 or abs(x) < 0.001:
        return f"{x:.2g}"
    x = float(f"{x:.3g}") if abs(x) < 1000 else x
    digits = max(0, 2 - math.floor(math.log10(abs(x))))
    return f"{x:,.{digits}f}"


def count(x: float | int | None) -> str:
    """Return a whole number with thousands apart."""
    return f"{round(x):,}" if x is not None and math.isfinite(x) else NONE


def load(x: float | None) -> str:
    """Return a load as it is called in a profile: 6, 0.5."""
    return f"{x:g}" if x is not None and math.isfinite(x) else NONE


def percent(x: float | None) -> str:
    """Return a ratio as per cent: 0.931 gives "93 %", 0.004 gives "0.4 %"."""
    if x is None or not math.isfinite(x):
        return NONE
    digits = 0 if x == 0 or abs(x) >= 0.0995 else 1
    return f"{100 * x:.{digits}f}{THIN}%"


def gib(x: float | None) -> str:
    """Return bytes as GiB without the unit."""
    return plain(x / GIB) if x is not None else NONE


def duration(seconds: float | None) -> str:
    """Return a time as 42 s, 7 min 0 s, 1 h 5 min."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    whole = round(seconds)
    if whole < 60:
        return f"{plain(seconds)} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """The unit that all latencies of one table or chart share."""

    name: str  # ms | s
    per_ms: float

    def text(self, ms: float | None) -> str:
        """Return a time given in milliseconds in this unit, without the unit."""
        return plain(ms * self.per_ms) if ms is not None else NONE


MS, SECONDS = TimeUnit("ms", 1.0), TimeUnit("s", 0.001)


def time_unit(longest_ms: float | None) -> TimeUnit:
    """Return milliseconds up to 10 s, seconds beyond."""
    return SECONDS if longest_ms is not None and longest_ms >= 10_000 else MS
