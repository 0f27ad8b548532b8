"""What the load generator says of itself: true on fake files and clocks, None where nothing is told."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent
import pytest

from harness.load import saturation as module
from harness.load.saturation import Counters, Saturation
from harness.records import ClientSample

MS = 1_000_000
TICK_NS = 25 * MS


class Ended(BaseException):
    """Ends a sleeper that would go on for ever."""


class Loop:
    """An event loop whose clock only sleeping moves; each sleep is as late as `lates` says."""

    def __init__(self) -> None:
        self.now_ns = 5_000_000_000
        self.lates: Iterator[int] = iter(())

    def sleep(self, seconds: float) -> None:
        late_ms = next(self.lates, None)
        if late_ms is None:
            raise Ended
        self.now_ns += round(seconds * 1e9) + late_ms * MS


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    loop = Loop()
    clock = SimpleNamespace(monotonic_ns=lambda: loop.now_ns, time_ns=time.time_ns, process_time=lambda: 0.0)
    spawner = SimpleNamespace(sleep=loop.sleep, spawn=lambda run: SimpleNamespace(kill=lambda: None))
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "gevent", spawner)
    return loop


def after(loop: Loop, watched: Saturation, *lates_ms: int) -> ClientSample:
    """Return the sample of a time in which the sleeper came so late, again and again."""
    loop.lates = iter(lates_ms)
    with pytest.raises(Ended):
        watched._watch()
    loop.now_ns += 1
    return watched.sample(worker="w", phase=3, users=4, in_flight=2)


def test_an_idle_second_has_no_lag_and_is_tagged_with_the_load(loop: Loop) -> None:
    sample = after(loop, Saturation(), *[0] * 40)
    assert (sample.worker, sample.phase, sample.users, sample.in_flight) == ("w", 3, 4, 2)
    assert (sample.lag_p50_ms, sample.lag_p99_ms, sample.lag_max_ms) == (0, 0, 0)
    assert sample.mono_ns == 6_000_000_001


def test_a_stall_counts_for_every_tick_that_it_swallowed(loop: Loop) -> None:
    """100 ms beyond one tick: sleepers due 25, 50 and 75 ms after it would have been late by the rest."""
    sample = after(loop, Saturation(), *[0] * 20, 100, *[0] * 16)
    assert sample.lag_max_ms == 100
    assert sample.lag_p50_ms == 0
    assert sample.lag_p99_ms == pytest.approx(100 - 0.39 * 25)  # of 36 times 0, and 25, 50, 75, 100


def test_slices_of_30_ms_show(loop: Loop) -> None:
    sample = after(loop, Saturation(), *[30, 0] * 13)
    assert sample.lag_p99_ms == 30
    assert sample.lag_p50_ms == 5  # 30, the 5 of the tick it swallowed, and 0


def test_a_sample_covers_only_the_time_since_the_one_before(loop: Loop) -> None:
    watched = Saturation()
    assert after(loop, watched, 0, 90, 0).lag_max_ms == 90
    assert after(loop, watched, 0, 7, 0).lag_max_ms == 7
    assert watched.sample(worker="w", phase=0, users=0, in_flight=0).lag_p99_ms is None  # no tick was due


def test_a_tick_that_comes_early_is_no_lag(loop: Loop) -> None:
    assert after(loop, Saturation(), -2, -2).lag_max_ms == 0


def test_the_worst_lag_is_asked_for_since_a_moment(loop: Loop) -> None:
    watched = Saturation()
    assert watched.worst_ms(0) is None
    after(loop, watched, 80, 0, 3, 0)
    at_ns = loop.now_ns
    after(loop, watched, 0, 12, 0)
    assert watched.worst_ms(0) == 80
    assert watched.worst_ms(at_ns) == 12
    assert watched.worst_ms(loop.now_ns + 1) is None


def test_counters_become_what_happened_within_the_time(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter(
        [
            Counters(0, 1.0, 4 * MS, 90 * MS, (100, 1_000)),
            Counters(2_000_000_000, 2.0, 24 * MS, 340 * MS, (120, 1_200)),
            Counters(3_000_000_000, 2.0, 24 * MS, 340 * MS, (120, 1_200)),
        ]
    )
    monkeypatch.setattr(Counters, "read", lambda: next(told))
    watched = Saturation()
    sample = after(loop, watched, 0)
    assert (sample.cpu, sample.runqueue_ms, sample.throttled_ms, sample.steal) == (0.5, 20, 250, 0.1)
    sample = after(loop, watched, 0)
    assert (sample.cpu, sample.runqueue_ms, sample.throttled_ms) == (0, 0, 0)
    assert sample.steal is None  # no tick of the host passed


def test_what_the_kernel_does_not_tell_is_none_and_never_0(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counters, "read", lambda: Counters(loop.now_ns, 0.0, None, None, None))
    sample = after(loop, Saturation(), *[0] * 4)
    assert (sample.runqueue_ms, sample.throttled_ms, sample.steal) == (None, None, None)


PROC = {
    "proc/self/schedstat": "81721 5000 7\n",
    "proc/stat": "cpu  10 20 30 400 5 6 7 22 3 1\ncpu0 1 1 1 1 1 1 1 1 1 1\n",
}


def counters(root: Path, files: dict[str, str]) -> Counters:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Counters.read(root / "proc", root / "cgroup")


def test_the_counters_come_from_the_files_of_the_kernel(tmp_path: Path) -> None:
    found = counters(tmp_path, PROC)
    assert found.runqueue_ns == 5000
    assert found.steal == (22, 500)  # guest time, the last two, is user time already
    assert found.throttled_ns is None
    assert found.cpu_s > 0


def test_without_the_files_of_linux_nothing_is_known_but_the_cpu(tmp_path: Path) -> None:
    found = counters(tmp_path, {"proc/stat": "intr 5\n"})
    assert (found.runqueue_ns, found.throttled_ns, found.steal) == (None, None, None)


QUOTAS: dict[str, tuple[str, dict[str, str], int | None]] = {
    "version 1": (
        "4:cpu,cpuacct:/jobs/a\n0::/\n",
        {"cpu,cpuacct/jobs/a/cpu.stat": "nr_throttled 2\nthrottled_time 7000\n"},
        7000,
    ),
    "version 2, the quota of a group above": (
        "0::/a/b\n",
        {
            "a/b/cpu.stat": "usage_usec 9\nthrottled_usec 0\n",
            "a/cpu.stat": "throttled_usec 7\n",
            "cpu.stat": "usage_usec 99\n",  # the root has no quota
        },
        7000,
    ),
    "a container sees its own group as the root": (
        "2:cpu:/outside/of/it\n",
        {"cpu/cpu.stat": "throttled_time 5\n"},
        5,
    ),
    "both versions": (
        "1:cpu:/\n0::/x\n",
        {"cpu/cpu.stat": "throttled_time 5\n", "unified/x/cpu.stat": "usage_usec 1\n"},
        5,
    ),
    "a group of memory only": ("1:memory:/\n", {"memory/cpu.stat": "throttled_time 5\n"}, None),
    "no quota is known": ("0::/\n", {"cpu.stat": "usage_usec 1\n"}, None),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_throttling_is_read_from_every_group_above_the_process(tmp_path: Path, case: str) -> None:
    groups, files, throttled_ns = QUOTAS[case]
    placed = {f"cgroup/{name}": text for name, text in files.items()}
    assert counters(tmp_path, {"proc/self/cgroup": groups, **placed}).throttled_ns == throttled_ns


def test_a_real_loop_that_is_held_up_says_so_and_what_it_cost() -> None:
    watched = Saturation()
    try:
        gevent.sleep(0.03)
        time.sleep(0.2)  # nothing else on this loop can run
        gevent.sleep(0.05)
        sample: Any = watched.sample(worker="w", phase=0, users=1, in_flight=0)
    finally:
        watched.close()
    assert 150 < sample.lag_max_ms < 5_000
    assert 0 <= sample.cpu < 1.5
    assert sample.rss_bytes is None or sample.rss_bytes > os.sysconf("SC_PAGE_SIZE")
    assert sample.steal is None or 0 <= sample.steal <= 1
