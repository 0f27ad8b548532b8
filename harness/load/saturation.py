"""Whether this process kept up with its own load: loop lag, CPU, and waits that the machine imposed.

CPU alone does not tell: a loop stalled for 30 ms at a time stays at 29 % of a core while every first token
comes 46 ms late. So a sleeper measures how late the event loop comes round, and the kernel says how long the
process waited for a core, was held back by its quota, or lost time to other guests of the host.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import gevent

from harness.load.answer import quantile
from harness.records import ClientSample

TICK_S = 0.025
KEPT_TICKS = 16_000  # the longest request that loop lag is asked for
PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Counters:
    """What the kernel has counted so far; None where it does not say."""

    wall_ns: int
    cpu_s: float  # all threads
    runqueue_ns: int | None  # the main thread, which runs the loop, was ready and had no core
    throttled_ns: int | None  # by a quota, summed over cores
    steal: tuple[int, int] | None  # ticks stolen, ticks in all

    @classmethod
    def read(cls, proc: Path = PROC, cgroup: Path = CGROUP) -> Counters:
        """Read the counters of this process and its host."""
        return cls(
            time.monotonic_ns(),
            time.process_time(),
            _runqueue_ns(_text(proc / "self/schedstat")),
            _throttled_ns(_quota_files(_text(proc / "self/cgroup"), cgroup)),
            _steal(_text(proc / "stat")),
        )


class Saturation:
    """Watches the process's event loop; `sample` covers the time since the one before."""

    def __init__(self) -> None:
        self._ticks: deque[tuple[int, int]] = deque(maxlen=KEPT_TICKS)  # when (monotonic), how late, in ns
        self._since_ns = time.monotonic_ns()
        self._last = Counters.read()
        self._sleeper = gevent.spawn(self._watch)

    def sample(self, *, worker: str, phase: int, users: int, in_flight: int) -> ClientSample:
        """Return the sample of the time since the last one."""
        now, last = Counters.read(), self._last
        recent = itertools.takewhile(lambda tick: tick[0] >= self._since_ns, reversed(self._ticks))
        lags = sorted(late for _, late in recent)
        self._last, self._since_ns = now, now.wall_ns
        seconds = max(now.wall_ns - last.wall_ns, 1) / 1e9
        return ClientSample(
            worker=worker,
            wall_ns=time.time_ns(),
            mono_ns=now.wall_ns,
            phase=phase,
            users=users,
            in_flight=in_flight,
            lag_p50_ms=quantile(lags, 0.5) / 1e6 if lags else None,
            lag_p99_ms=quantile(lags, 0.99) / 1e6 if lags else None,
            lag_max_ms=lags[-1] / 1e6 if lags else None,
            cpu=(now.cpu_s - last.cpu_s) / seconds,
            runqueue_ms=_rise(last.runqueue_ns, now.runqueue_ns, 1e6),
            throttled_ms=_rise(last.throttled_ns, now.throttled_ns, 1e6),
            steal=_share(last.steal, now.steal),
            rss_bytes=_rss_bytes(_text(PROC / "self/statm")),
        )

    def worst_ms(self, since_ns: int) -> float | None:
        """Return the worst lag since a moment (monotonic); None where no tick was due since."""
        worst: int | None = None
        for at, late in reversed(self._ticks):
            if at < since_ns:
                break
            worst = late if worst is None else max(worst, late)
        return worst / 1e6 if worst is not None else None

    def close(self) -> None:
        """Stop watching."""
        self._sleeper.kill()

    def _watch(self) -> None:
        tick_ns = round(TICK_S * 1e9)
        while True:
            due_ns = time.monotonic_ns() + tick_ns
            gevent.sleep(TICK_S)
            now_ns = time.monotonic_ns()
            self._ticks.extend((now_ns, late) for late in _lateness(now_ns - due_ns, tick_ns))


def _lateness(late_ns: int, tick_ns: int) -> list[int]:
    """Return how late a tick was, and those that it swallowed, each of which would have been late as well."""
    return [max(0, late_ns), *range(late_ns - tick_ns, 0, -tick_ns)]


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _quota_files(groups: str | None, cgroup: Path) -> list[Path]:
    """Return `cpu.stat` of this process's groups, up to the roots: the quota may lie on any of them.

    A container often sees its own group as the root of the mount, while the kernel names a path outside.
    """
    files: list[Path] = []
    for line in (groups or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mounts = [cgroup, cgroup / "unified"]  # version 2, alone or beside version 1
        elif "cpu" in controllers.split(","):
            mounts = [cgroup / controllers]
        else:
            continue
        for mount in mounts:
            own = mount / path.strip().lstrip("/")
            files += [group / "cpu.stat" for group in (own, *own.parents) if group.is_relative_to(mount)]
    return files


def _runqueue_ns(schedstat: str | None) -> int | None:
    parts = (schedstat or "").split()
    return int(parts[1]) if len(parts) == 3 else None


def _throttled_ns(files: list[Path]) -> int | None:
    """Return the sum of `throttled_time` (ns, version 1) or `throttled_usec` (version 2)."""
    found = []
    for line in "\n".join(_text(file) or "" for file in files).splitlines():
        name, _, value = line.partition(" ")
        if name in ("throttled_time", "throttled_usec"):
            found.append(int(value) * (1000 if name == "throttled_usec" else 1))
    return sum(found) if found else None


def _steal(stat: str | None) -> tuple[int, int] | None:
    """Return ticks stolen and ticks in all; guest time (the last two) is counted in user time already."""
    parts = (stat or "").partition("\n")[0].split()
    if len(parts) < 9 or parts[0] != "cpu":
        return None
    ticks = [int(part) for part in parts[1:9]]
    return ticks[7], sum(ticks)


def _rss_bytes(statm: str | None) -> int | None:
    parts = (statm or "").split()
    return int(parts[1]) * os.sysconf("SC_PAGE_SIZE") if len(parts) > 1 else None


def _rise(before: int | None, after: int | None, unit: float) -> float | None:
    return (after - before) / unit if before is not None and after is not None else None


def _share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])
