"""The ceiling: found where a generator of known strength gives out; the real client and the null server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from harness.load import ceiling as module
from harness.load.ceiling import FIRST_STREAMS, ITL_MS, LEVELS, Carried, Level, ceiling, generators

PER_STREAM = 1000 / ITL_MS  # chunks/s


def carried(chunks_per_s: float, *, cpu: float, held_up: bool = False, failures: int = 0) -> Carried:
    return Carried(
        requests_per_s=chunks_per_s / 60,
        chunks_per_s=chunks_per_s,
        cpu=cpu,
        lag_p99_ms=20.0 if held_up else 1.0,
        held_up=held_up,
        failures=failures,
    )


@dataclass
class Generators:
    """Load processes that each carry `chunks_per_s`, beside a server that sends no more than `sent_per_s`."""

    chunks_per_s: float
    sent_per_s: float = 1e9
    port: int = 1

    def put_on(
        self, users: int, seconds: float, processes: int, *, tokens: int, itl_ms: float
    ) -> tuple[Level, list[Carried]]:
        level = Level(self.port, users // processes, tokens, itl_ms, seconds)
        if not itl_ms:
            return level, [carried(1000.0, cpu=1.0)] * processes
        offered = min(level.expected_chunks_per_s, self.sent_per_s / processes)
        cpu = min(1.0, offered / self.chunks_per_s)
        brought = min(offered, self.chunks_per_s)
        return level, [carried(brought, cpu=cpu, held_up=cpu > 0.95)] * processes


@pytest.mark.parametrize("per_process", [5_000.0, 20_000.0, 60_000.0, 300_000.0])
@pytest.mark.parametrize("processes", [1, 2])
def test_the_ceiling_is_found_from_below(per_process: float, processes: int) -> None:
    found = ceiling(cast(Any, Generators(per_process)), processes, 5.0)
    assert 0.5 * per_process * processes <= found.chunks_per_s <= per_process * processes
    assert found.streams == pytest.approx(found.chunks_per_s / PER_STREAM, rel=0.02)
    assert found.cpu_us_per_chunk == pytest.approx(1e6 / per_process, rel=0.01)
    assert len(found.levels) == LEVELS
    assert found.levels[0][0] == FIRST_STREAMS * processes


def test_short_requests_are_counted_apart() -> None:
    found = ceiling(cast(Any, Generators(20_000.0)), 2, 5.0)
    assert found.requests_per_s == pytest.approx(2 * 1000 / 60)
    assert found.cpu_us_per_request == pytest.approx(60_000)


def test_where_the_server_gives_out_first_the_figure_says_so() -> None:
    found = ceiling(cast(Any, Generators(200_000.0, sent_per_s=40_000)), 1, 5.0)
    assert found.limited_by == "machine"
    assert found.chunks_per_s <= 40_000
    assert ceiling(cast(Any, Generators(10_000.0)), 1, 5.0).limited_by == "client_lag"


LEVEL = Level(port=1, users=10, tokens=60, itl_ms=5.0, seconds=1.0)  # 2,000 chunks/s


@pytest.mark.parametrize(
    ("one", "limit"),
    [
        (carried(2000, cpu=0.5), None),
        (carried(2000, cpu=0.5, held_up=True), "client_lag"),
        (carried(2000, cpu=0.99), "client_cpu"),
        (carried(1700, cpu=0.5), "machine"),
        (carried(1700, cpu=0.99, held_up=True), "client_lag"),
    ],
)
def test_what_gave_out_is_named(one: Carried, limit: str | None) -> None:
    assert module._limit(LEVEL, [carried(2000, cpu=0.1), one]) == limit


def test_the_real_client_reads_what_the_null_server_sends() -> None:
    with generators(2) as crew:
        level, streams = crew.put_on(16, 0.5, 2, tokens=20, itl_ms=5.0)
        _, short = crew.put_on(4, 0.3, 1, tokens=1, itl_ms=0)
    assert level.users == 8
    assert [one.failures for one in (*streams, *short)] == [0, 0, 0]
    assert [one.chunks_per_s == pytest.approx(20 * one.requests_per_s) for one in streams] == [True, True]
    assert all(0 < one.chunks_per_s <= 1.5 * level.expected_chunks_per_s for one in streams)
    assert len(short) == 1
    assert short[0].requests_per_s > 20
    assert short[0].chunks_per_s == pytest.approx(short[0].requests_per_s)
