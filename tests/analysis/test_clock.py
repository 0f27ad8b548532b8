"""Offsets against a peer whose true clock is known; jumps found, and none in noise."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.clock import error_bound_ms, find_jumps, offset_at, offsets_of, offsets_of_table
from harness.records import ClockExchange, ClockRow

START = 1_750_000_000_000_000_000
MS, SECOND = 1_000_000, 1_000_000_000


def exchanges(rng, offset_at_s, bursts, *, out_ms=0.2, back_ms=0.2, tail_ms=5.0):
    """Rows of ClockRow with a peer `offset_at_s(seconds)` ahead; each way takes a least time and a tail."""
    rows = []
    for burst, at_s in enumerate(bursts):
        t = START + int(at_s * SECOND)
        for _ in range(16):
            out = int((out_ms + rng.exponential(tail_ms)) * MS)
            back = int((back_ms + rng.exponential(tail_ms)) * MS)
            ahead = int(offset_at_s(at_s) * SECOND)
            rows.append(
                {
                    "v": 1,
                    "peer": "gpu-host",
                    "burst": burst,
                    "t0_ns": t,
                    "t1_ns": t + out + ahead,
                    "t2_ns": t + out + ahead + 20_000,
                    "t3_ns": t + out + back + 20_000,
                    "mono_ns": t - START,
                    "peer_mono_ns": t + out - START + 77 * SECOND,
                }
            )
            t += out + back + 50_000
    return pd.DataFrame(rows, columns=list(ClockRow.__struct_fields__))


def plain(table):
    return [
        ClockExchange(t0_ns=r.t0_ns, t1_ns=r.t1_ns, t2_ns=r.t2_ns, t3_ns=r.t3_ns) for r in table.itertuples()
    ]


@given(
    st.integers(0, 2**31),
    st.floats(-20_000, 20_000),
    st.floats(0.01, 30),
    st.floats(0.01, 30),
    st.floats(0.001, 50),
)
def test_the_bound_holds_whatever_the_two_ways_take(seed, ahead_s, out_ms, back_ms, tail_ms):
    rng = np.random.default_rng(seed)
    table = exchanges(rng, lambda _: ahead_s, [0, 30], out_ms=out_ms, back_ms=back_ms, tail_ms=tail_ms)
    offsets = offsets_of_table(table, "gpu-host")
    assert len(offsets.offset_ns) == 2
    assert np.all(np.abs(offsets.offset_ns - int(ahead_s * SECOND)) <= offsets.bound_ns + 1)
    assert np.array_equal(offsets_of(plain(table)).offset_ns, offsets.offset_ns), (
        "bursts are told by their pauses"
    )


def test_the_least_round_trip_of_a_burst_is_taken():
    rng = np.random.default_rng(1)
    table = exchanges(rng, lambda _: 2.0, [0], out_ms=0.1, back_ms=0.1, tail_ms=20)
    trip = (table["t3_ns"] - table["t0_ns"] - (table["t2_ns"] - table["t1_ns"])) / MS
    assert error_bound_ms(plain(table)) == pytest.approx(trip.min() / 2, abs=1e-5)
    assert trip.min() < trip.mean() / 3


def test_a_drift_is_followed_between_bursts():
    def ahead(at_s):
        return 3.0 + 200e-6 * at_s

    rng = np.random.default_rng(2)
    table = exchanges(rng, ahead, [0, 30, 60, 90], tail_ms=0.1)
    offsets = offsets_of_table(table, "gpu-host")
    at = np.linspace(1, 89, 50)
    peer = np.array([START + int((s + ahead(s)) * SECOND) for s in at])
    ours = np.array([START + int(s * SECOND) for s in at])
    assert np.abs(offsets.ours(peer) - ours).max() < 1 * MS
    assert np.abs(offset_at(plain(table), peer) - (peer - ours)).max() < 1 * MS


def test_a_peer_whose_wall_clock_is_set_moves_no_sample_with_monotonic_stamps():
    def ahead(at_s):
        return 1.0 if at_s < 40 else -30.0

    rng = np.random.default_rng(3)
    offsets = offsets_of_table(exchanges(rng, ahead, [0, 30, 60], tail_ms=0.1), "gpu-host")
    at = np.arange(0, 60, 1.0)
    peer = np.array([START + int((s + ahead(s)) * SECOND) for s in at])
    mono = np.array([int((s + 77) * SECOND) for s in at])
    ours = np.array([START + int(s * SECOND) for s in at])
    assert np.abs(offsets.ours(peer, mono) - ours).max() < 1 * MS
    assert np.abs(offsets.ours(peer) - ours).max() > 5 * SECOND, "the wall clock alone cannot tell"


def test_no_exchanges_are_no_offset():
    assert offsets_of([]) is None
    assert error_bound_ms([]) is None
    assert offset_at([], np.array([START])).tolist() == [0]


def test_jumps_are_found_with_their_size():
    mono = np.arange(0, 100) * SECOND
    wall = START + mono
    wall[40:] += 3600 * SECOND
    wall[70:] -= 200 * MS
    first, second = find_jumps("h", wall, mono)
    assert (first.host, first.at_ns, first.by_ns) == ("h", wall[40], 3600 * SECOND)
    assert (second.at_ns, second.by_ns) == (wall[70], -200 * MS)


def test_no_jump_in_slewing_late_readings_and_reboots():
    rng = np.random.default_rng(4)
    mono = np.cumsum(rng.integers(900 * MS, 1100 * MS, 3000))
    wall = START + mono + (mono * 500e-6).astype(np.int64) + rng.integers(0, 20 * MS, 3000)
    wall[rng.integers(5, 2990, 20)] += 400 * MS  # the process was held between its two readings
    assert find_jumps("h", wall, mono) == []
    rebooted = np.concatenate([mono, mono[:50]])
    assert find_jumps("h", np.concatenate([wall, wall[-1] + mono[:50]]), rebooted) == []
    assert find_jumps("h", wall[:1], mono[:1]) == []
