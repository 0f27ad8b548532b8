"""One streaming request at a time over one kept connection: sends, waits, and says what happened.

A failed request is a value: `Client.send` returns an `Answer` whose outcome names the failure and whose
times stop where it ended. Nothing is retried, with one exception that is no retry of a failure: a *kept*
connection that turns out to be closed before a single byte of the answer came is opened anew, once. Servers
close idle connections whenever they like (llama.cpp after two streams), and that is not the service failing.
Times then count from the second start, and `reused` is false.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from harness.load.answer import Answer, error_text
from harness.load.connection import Connection, Segment, connect
from harness.load.exchange import Exchange
from harness.load.target import Target, target_of
from harness.records import Outcome

__all__ = ["Answer", "Client", "Target", "target_of"]

LoopLag = Callable[[int], float | None]


class Client:
    """One user's client: owns one kept connection, serves one greenlet.

    `loop_lag(since_ns)` gives the worst lag of the event loop in ms since that moment (monotonic clock); it
    stands in for the client's lag where the kernel gives no stamps.
    """

    def __init__(self, target: Target, *, loop_lag: LoopLag | None = None) -> None:
        self._target = target
        self._loop_lag = loop_lag
        self._connection: Connection | None = None
        lines = [b"POST %b HTTP/1.1\r\n" % target.path.encode("ascii")]
        lines += [b"%b: %b\r\n" % header for header in target.headers]
        self._head = b"".join(lines)

    def send(self, body: Sequence[Segment], req_id: str, *, length: int | None = None) -> Answer:
        """Send one request, its body in segments that are not copied, and wait for the whole answer.

        Never raises for a failed request. When something is raised into the waiting greenlet (a kill), the
        answer has outcome `cancelled` and `killed` holds what was raised: raise it again after recording.
        `length` is the body's size in bytes, where the caller knows it.
        """
        if length is None:
            length = sum(len(segment) for segment in body)
        head = b"%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
            self._head,
            req_id.encode("ascii"),
            length,
        )
        segments = [head, *body]
        connection = self._connection
        if connection is not None and connection.open:
            exchange = self._exchange(connection, segments)
            if not exchange.stale:
                return self._answer(exchange, reused=True)
        began_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        outcome, failure = self._connect()
        connect_ms = (time.monotonic_ns() - began_ns) / 1e6
        if self._connection is None:
            answer = Answer(wall_ns, began_ns, connect_ms, outcome)
            answer.error = error_text(failure) or type(failure).__name__
            answer.killed = failure if outcome == "cancelled" else None
        else:
            answer = self._answer(self._exchange(self._connection, segments), reused=False)
        answer.connect_ms = connect_ms
        return answer

    def close(self) -> None:
        """Close the kept connection; a later `send` opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> tuple[Outcome, BaseException | None]:
        """Set the connection; where that fails leave none, and return how and why."""
        target = self._target
        self._connection = None
        try:
            self._connection = connect(
                target.host,
                target.port,
                tls=target.scheme == "https",
                verify_tls=target.verify_tls,
                timeout_s=target.timeouts.connect_s,
            )
        except TimeoutError as failure:
            return "timeout_connect", failure
        except OSError as failure:
            return "connect_error", failure
        except BaseException as killed:
            return "cancelled", killed
        return "ok", None

    def _exchange(self, connection: Connection, segments: Sequence[Segment]) -> Exchange:
        exchange = Exchange(self._target, connection)
        exchange.run(segments)
        if not exchange.keeps_connection:
            self.close()
        return exchange

    def _answer(self, exchange: Exchange, *, reused: bool) -> Answer:
        answer = exchange.describe()
        answer.reused = reused
        if answer.error is not None:
            answer.error = self._target.redacted(answer.error)
        if answer.client_lag_ms is None and self._loop_lag is not None:
            answer.client_lag_ms = self._loop_lag(answer.start_ns)
        return answer
