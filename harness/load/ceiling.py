"""What this machine's load generator can carry, measured with the real client against the null server.

Chunks: streams are added until arrived bytes wait longer than a step of a run may have them wait, or the core
is full; the highest rate kept is the ceiling. That is the rule by which a run is judged, so a ladder below
the ceiling is not client-limited on this machine. Requests: short answers, one after the other, as many as a
full core gives. The null server shares the machine's cores with the load processes; where it is what gave
out, the figure is a lower bound and says so.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Literal

import gevent

from harness.load import null_server
from harness.load.answer import Answer, quantile
from harness.load.client import Client, Target
from harness.profile import Timeouts

TOKENS, ITL_MS = 60, 5.0
FIRST_STREAMS = 128
LAG_LIMIT_MS = 10.0  # the floor of the limit above which a step counts as client-limited
FULL = 0.97  # of a core
KEPT_UP = 0.9  # of the chunks that the streams should have brought
SHORT_USERS = 16
GOLDEN = 0.618033988749895  # spreads the users' starts so that their chunks do not come in step
BODY = b'{"model":"null","messages":[{"role":"user","content":"%b"}],"stream":true}' % (b"x" * 200)
LEVELS = 4  # of streams, per number of processes

LimitedBy = Literal["client_lag", "client_cpu", "machine"]


@dataclass(frozen=True, slots=True)
class Level:
    """A load to put on: `users` per process, each with one request after the other."""

    port: int
    users: int
    tokens: int
    itl_ms: float  # 0: the answer comes in one piece
    seconds: float

    @property
    def expected_chunks_per_s(self) -> float:
        """What the streams bring where nothing holds them up."""
        return self.users * 1000 / self.itl_ms if self.itl_ms else 0.0


@dataclass(frozen=True, slots=True)
class Carried:
    """What one process did in a level's window."""

    requests_per_s: float
    chunks_per_s: float
    cpu: float  # 0-1 of a core
    lag_p99_ms: float | None  # None: the kernel gives no stamps
    held_up: bool  # surely more than one in a hundred waited longer than LAG_LIMIT_MS
    failures: int


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What a number of processes carry together."""

    processes: int
    chunks_per_s: float
    streams: int  # in all, at ITL_MS
    cpu_us_per_chunk: float
    lag_p99_ms: float | None
    limited_by: LimitedBy
    requests_per_s: float
    cpu_us_per_request: float
    failures: int
    levels: list[tuple[int, float]] = field(default_factory=list)  # streams, chunks/s; as tried


def measure(level: Level) -> Carried:
    """Put a level on from this process and return what it carried; requests are counted by their end."""
    target = _target(level)
    answers: list[Answer] = []
    spread_s = level.tokens * level.itl_ms / 1000
    greenlets = [
        gevent.spawn(_user, Client(target), answers, spread_s * (user * GOLDEN % 1.0))
        for user in range(level.users)
    ]
    try:
        gevent.sleep(spread_s * 1.2 + 0.2)
        answers.clear()
        began_s, cpu_s = time.monotonic(), time.process_time()
        _sleep_while_owned(level.seconds)
        lasted_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
        ended = list(answers)
    finally:
        gevent.killall(greenlets)
    lags = sorted(answer.client_lag_ms for answer in ended if answer.client_lag_ms is not None)
    return Carried(
        requests_per_s=len(ended) / lasted_s,
        chunks_per_s=sum(answer.chunks for answer in ended) / lasted_s,
        cpu=cpu_s / lasted_s,
        lag_p99_ms=quantile(lags, 0.99) if lags else None,
        held_up=sum(lag > LAG_LIMIT_MS for lag in lags) > len(lags) / 100 + 2 * math.sqrt(len(lags) / 100),
        failures=sum(answer.outcome != "ok" for answer in ended),
    )


def _sleep_while_owned(seconds: float) -> None:
    """Sleep, but no longer than the process lives that asked: nobody else would end the load."""
    owner, deadline_s = multiprocessing.parent_process(), time.monotonic() + seconds
    while (left_s := deadline_s - time.monotonic()) > 0:
        if owner is not None and not owner.is_alive():
            raise SystemExit
        gevent.sleep(min(left_s, 0.5))


def _target(level: Level) -> Target:
    return Target(
        scheme="http",
        host="127.0.0.1",
        port=level.port,
        path=f"/v1/chat/completions?tokens={level.tokens}&itl_ms={level.itl_ms:g}",
        headers=((b"host", b"127.0.0.1"), (b"content-type", b"application/json")),
        verify_tls=True,
        stream=True,
        endpoint="chat",
        timeouts=Timeouts(),
    )


def _user(client: Client, answers: list[Answer], after_s: float) -> None:
    gevent.sleep(after_s)
    try:
        while True:
            answer = client.send([BODY], "0" * 16, length=len(BODY))
            if answer.killed is not None:
                raise answer.killed
            answers.append(answer)
    finally:
        client.close()


@contextlib.contextmanager
def generators(processes: int) -> Iterator[Crew]:
    """Run the null server and a number of load processes while the block lasts."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        pipes = []
        for work in (null_server.serve, *[_serve] * processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(ours.close)  # first: it is what ends the process
            pipes.append(ours)
        yield Crew(port=pipes[0].recv(), pipes=pipes[1:])


def _serve(owner: Connection) -> None:
    """Measure one level after the other, until the owner closes the pipe."""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            owner.send(measure(owner.recv()))


@dataclass(frozen=True, slots=True)
class Crew:
    """Load processes that wait for a level, and the null server's port."""

    port: int
    pipes: list[Connection]

    def put_on(
        self, users: int, seconds: float, processes: int, *, tokens: int, itl_ms: float
    ) -> tuple[Level, list[Carried]]:
        """Put `users` in all on the first `processes` processes."""
        level = Level(self.port, max(1, users // processes), tokens, itl_ms, seconds)
        for pipe in self.pipes[:processes]:
            pipe.send(level)
        return level, [pipe.recv() for pipe in self.pipes[:processes]]


def ceiling(crew: Crew, processes: int, seconds: float) -> Ceiling:
    """Find what `processes` carry, in about `seconds` of measuring."""
    window_s = seconds / (LEVELS + 1)
    _, short = crew.put_on(SHORT_USERS * processes, window_s, processes, tokens=1, itl_ms=0)
    kept: tuple[int, list[Carried]] | None = None  # the most that nothing held up
    limited_by: LimitedBy = "client_cpu"
    streams, tried = FIRST_STREAMS * processes, list[tuple[int, float]]()
    while True:
        level, carried = crew.put_on(streams, window_s, processes, tokens=TOKENS, itl_ms=ITL_MS)
        tried.append((streams, _sum(carried)))
        limit = _limit(level, carried)
        if limit is not None:
            limited_by = limit
        elif kept is None or streams > kept[0]:
            kept = streams, carried
        if len(tried) == LEVELS:
            break
        streams = _next_streams(streams, kept[0] if kept else 0, limit, max(one.cpu for one in carried))
    streams, carried = kept or (streams, carried)
    return Ceiling(
        processes=processes,
        chunks_per_s=_sum(carried),
        streams=streams,
        cpu_us_per_chunk=1e6 * sum(one.cpu for one in carried) / max(_sum(carried), 1.0),
        lag_p99_ms=max((one.lag_p99_ms for one in carried if one.lag_p99_ms is not None), default=None),
        limited_by=limited_by,
        requests_per_s=sum(one.requests_per_s for one in short),
        cpu_us_per_request=1e6
        * sum(one.cpu for one in short)
        / max(sum(one.requests_per_s for one in short), 1.0),
        failures=sum(one.failures for one in (*carried, *short)),
        levels=tried,
    )


def _sum(carried: list[Carried]) -> float:
    return sum(one.chunks_per_s for one in carried)


def _limit(level: Level, carried: list[Carried]) -> LimitedBy | None:
    """Return what gave out at a level; None: everything kept up."""
    if any(one.held_up for one in carried):
        return "client_lag"
    if any(one.cpu > FULL for one in carried):
        return "client_cpu"
    if any(one.chunks_per_s < KEPT_UP * level.expected_chunks_per_s for one in carried):
        return "machine"
    return None


def _next_streams(streams: int, kept: int, limit: LimitedBy | None, cpu: float) -> int:
    """Aim at nine tenths of a core; after a level that was too much, half way back."""
    if limit is not None:
        return max(1, (streams + kept) // 2)
    return max(streams + 1, min(round(streams * 0.9 / max(cpu, 0.05)), 4 * streams))
