"""Clocks of other hosts against ours: offset, its error bound, drift, jumps.

One exchange gives the offset ((t1-t0) + (t2-t3)) / 2 of a peer (NTP's formula) with an error of at most half
its round trip, whatever the two ways took. Of a burst the exchange with the least round trip is kept; between
bursts the offset is interpolated, which follows a steady drift. Samples are moved by the peer's *monotonic*
clock where it is known: a wall clock that is set in mid-run then moves none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.analysis.stats import Ints
from harness.records import ClockExchange, WorkerInfo

BURST_GAP_NS = 5_000_000_000  # exchanges further apart belong to different bursts
JUMP_NS = 50_000_000  # beyond what slewing (0.5 ms/s) and a late reading can do
SLEW = 0.001  # share of the time between two readings that a clock may honestly gain or lose


@dataclass(frozen=True, slots=True)
class Offsets:
    """The best exchange of each burst, in order: `peer_ns` the peer's wall clock, `peer_mono_ns` its other.

    `offset_ns` is peer minus us, right to within `bound_ns`. Without monotonic stamps `peer_mono_ns` is None.
    """

    peer_ns: Ints
    offset_ns: Ints
    bound_ns: Ints
    peer_mono_ns: Ints | None = None

    def at(self, peer_ns: Ints) -> Ints:
        """Return the offset at moments of the peer's wall clock."""
        return _interpolate(peer_ns, self.peer_ns, self.offset_ns)

    def ours(self, peer_ns: Ints, peer_mono_ns: Ints | None = None) -> Ints:
        """Return moments of the peer on our wall clock, by its monotonic clock where both sides have it."""
        mono = self.peer_mono_ns
        if peer_mono_ns is None or mono is None or np.any(np.diff(mono) <= 0):  # the peer was started again
            return peer_ns - self.at(peer_ns)
        return peer_mono_ns + _interpolate(peer_mono_ns, mono, self.peer_ns - self.offset_ns - mono)


@dataclass(frozen=True, slots=True)
class Jump:
    """A wall clock that was set: when (its own wall time, after) and by how much."""

    host: str
    at_ns: int
    by_ns: int


def offsets_of(exchanges: Sequence[ClockExchange]) -> Offsets | None:
    """Return the offsets that plain exchanges give; None without any."""
    if not exchanges:
        return None
    stamps = np.array([(e.t0_ns, e.t1_ns, e.t2_ns, e.t3_ns) for e in exchanges], dtype=np.int64)
    order = np.argsort(stamps[:, 0], kind="stable")
    burst = np.cumsum(np.diff(stamps[order, 0], prepend=stamps[order[0], 0]) > BURST_GAP_NS)
    return _best(stamps[order], burst, None)


def offsets_of_table(clock: pd.DataFrame, peer: str) -> Offsets | None:
    """Return the offsets of one peer in a table with the columns of ClockRow; None without any."""
    mine = clock[clock["peer"] == peer]
    if not len(mine):
        return None
    stamps = mine[["t0_ns", "t1_ns", "t2_ns", "t3_ns"]].to_numpy(dtype=np.int64)
    return _best(
        stamps, mine["burst"].to_numpy(dtype=np.int64), mine["peer_mono_ns"].to_numpy(dtype=np.int64)
    )


def offset_at(exchanges: Sequence[ClockExchange], peer_ns: Ints) -> Ints:
    """Return how far the peer's wall clock is ahead of ours at its moments `peer_ns`; 0 without exchanges."""
    offsets = offsets_of(exchanges)
    return offsets.at(peer_ns) if offsets is not None else np.zeros_like(peer_ns)


def requests_on_our_clock(requests: pd.DataFrame, workers: Sequence[WorkerInfo]) -> Ints:
    """Return when each request started by the master's wall clock; workers without exchanges stay."""
    moved = requests["wall_ns"].to_numpy(dtype=np.int64).copy()
    ids = requests["worker"].to_numpy(dtype=object)
    for worker in workers:
        if worker.clock:
            mine = ids == worker.id
            moved[mine] -= offset_at(worker.clock, moved[mine])
    return moved


def error_bound_ms(exchanges: Sequence[ClockExchange]) -> float | None:
    """Return the worst error bound among the bursts; None without exchanges."""
    offsets = offsets_of(exchanges)
    return float(offsets.bound_ns.max() / 1e6) if offsets is not None else None


def find_jumps(host: str, wall_ns: Ints, mono_ns: Ints) -> list[Jump]:
    """Return where a host's wall clock left its monotonic clock, from readings of both in order."""
    if len(wall_ns) < 3:
        return []
    apart = wall_ns - mono_ns
    padded = np.concatenate([apart[:1], apart, apart[-1:]])
    apart = np.diff(np.median([padded[:-2], apart, padded[2:]], axis=0))  # one late reading is no jump
    passed = np.diff(mono_ns)
    set_ = (np.abs(apart) > JUMP_NS + SLEW * np.abs(passed)) & (passed >= 0)  # backwards: another boot
    return [Jump(host, int(wall_ns[i + 1]), int(apart[i])) for i in np.flatnonzero(set_)]


def _best(stamps: Ints, burst: Ints, mono: Ints | None) -> Offsets:
    t0, t1, t2, t3 = stamps.T
    trip = (t3 - t0) - (t2 - t1)
    order = np.lexsort((trip, burst))
    _, first = np.unique(burst[order], return_index=True)
    best = order[first]
    return Offsets(
        peer_ns=t1[best],
        offset_ns=((t1 - t0)[best] + (t2 - t3)[best]) // 2,
        bound_ns=np.maximum(trip[best] + 1, 0) // 2,
        peer_mono_ns=None if mono is None else mono[best],
    )


def _interpolate(at: Ints, knots: Ints, values: Ints) -> Ints:
    """Interpolate between knots, constant beyond them, relative to the first (floats hold no wall clock)."""
    order = np.argsort(knots, kind="stable")
    x0, y0 = knots[order[0]], values[order[0]]
    moved = np.interp(
        (at - x0).astype(np.float64), (knots[order] - x0).astype(float), (values[order] - y0).astype(float)
    )
    return np.asarray(y0 + np.round(moved).astype(np.int64), dtype=np.int64)
