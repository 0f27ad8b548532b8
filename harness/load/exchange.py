"""One request and its answer on a connection: deadlines, bytes in, and the verdict at the end.

The order of the verdict: our own kill, then what the service itself said (a status, an error event), then
what we saw happen (deadline, broken bytes, reset), then what is missing (end mark, text). An answer whose
`[DONE]` has arrived is whole, whatever the connection does afterwards.

The client's lag of a request is the longer of two waits: of the bytes that brought the first text, and of the
last. Moments are kernel stamps, so a wait in between bends nothing that is printed. One at the first text may
hide that text behind the next; one at the end delays the user's next request, and so the load. The worst wait
of all reads was tried: it grows with the length of an answer (p99 over 100 reads each is p99.99 of the reads)
and condemned steps on a busy machine whose times were true.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
from gevent.hub import Waiter, get_hub

from harness.load.answer import REJECTED_CODES, Answer, add_reading, error_text, is_rejection
from harness.load.connection import Connection, Segment
from harness.load.http import Framing, HTTPParseError, retry_after_s
from harness.load.sse import Reader
from harness.load.target import Target
from harness.load.turns import turns
from harness.records import Outcome

END_S = 1.0  # from [DONE] to the end of the body; then the connection is given up, the answer is whole
MAX_BODY_BYTES = 64 << 20  # of an answer that is not streamed
CLOSED = "the connection was closed"
_LATE = {
    "timeout_ttft": "no text came in time",
    "timeout_idle": "nothing more came in time",
    "timeout_total": "it was not finished in time",
}


class Exchange:
    """Listens to one connection for one request; made for it and thrown away after it."""

    def __init__(self, target: Target, connection: Connection) -> None:
        self._target, self._connection = target, connection
        self._framing = Framing(self._on_head)
        self._reader = Reader()
        self._body: list[bytes | bytearray] = []  # where the answer is not a stream
        self._body_bytes = 0
        self._streamed = False
        self._waiter = Waiter()
        self._turns = turns()
        self._wall_ns = self._start_ns = self._end_ns = 0
        self._sent_ns: int | None = None
        self._head_ns: int | None = None
        self._last_ns = 0  # arrival of the last bytes; 0: none came
        self._text_came = False
        self._text_wait_ns: int | None = None
        self._late: Outcome | None = None  # the deadline that was passed
        self._broken: str | None = None  # why the bytes are no answer
        self._lost: str | None = None  # how the connection went before the answer was whole
        self._closed_in_order = False
        self._over = False  # the answer has ended; the user may still have to be woken
        self._last_wait_ns: int | None = None
        self._bug: Exception | None = None
        self._killed: BaseException | None = None

    def run(self, segments: Sequence[Segment]) -> None:
        """Send the segments and sleep until the answer has ended, one way or another."""
        self._connection.attach(self)
        self._wall_ns, self._start_ns = time.time_ns(), time.monotonic_ns()
        self._turns.sending.add(self)
        self._connection.send(segments)
        self._set_timer(self._deadline()[0])
        try:
            self._waiter.get()
        except BaseException as killed:
            self._killed = killed
            if self.stale:  # it would have been sent anew, but its user is gone
                self._lost, self._over = None, False
            if not self._over:
                self._end_ns = time.monotonic_ns()
        finally:
            self._timer.stop()
            self._timer.close()
            self._turns.sending.discard(self)
            self._turns.paced = self._connection.wait_ns is not None
        if self._bug is not None:
            self._connection.close()
            raise self._bug

    @property
    def stale(self) -> bool:
        """Whether the connection ended before a single byte of an answer."""
        return self._lost is not None and not self._last_ns

    @property
    def keeps_connection(self) -> bool:
        """Whether the next request may use the connection, if it is open still."""
        whole = self._framing.complete and self._sent_ns is not None and self._broken is None
        return whole and self._killed is None and bool(self._framing.should_keep_alive())

    # What the connection reports.

    def received(self, data: bytes, at_ns: int) -> None:
        self._last_ns = self._reader.at_ns = at_ns
        try:
            self._framing.feed(data)
        except HTTPParseError as problem:
            self._broken = f"not HTTP: {problem.args[0]}"
        except Exception as bug:
            self._bug = bug
        if not self._text_came and self._reader.stamps:
            self._text_came, self._text_wait_ns = True, self._connection.wait_ns
        if self._framing.complete or self._broken is not None or self._bug is not None:
            self._finish(at_ns)
        elif self._reader.done:
            self._on_timer()  # the end of the body is waited for no longer than END_S

    def sent(self) -> None:
        self._sent_ns = time.monotonic_ns()
        self._turns.sending.discard(self)

    def ended(self, error: OSError | None) -> None:
        if error is None and self._framing.ends_with_connection:
            self._closed_in_order = True
        else:
            self._lost = error_text(error) if error is not None else CLOSED
        self._finish(time.monotonic_ns())

    def _finish(self, end_ns: int) -> None:
        self._over, self._end_ns, self._last_wait_ns = True, end_ns, self._connection.wait_ns
        self._connection.detach()  # what comes until the user wakes is no part of this answer
        self._timer.stop()
        try:
            self._read_rest()
        except Exception as bug:
            self._bug = bug
        if self._reader.done:
            self._end_ns = self._last_ns
        self._turns.wake(self._waiter)

    def _read_rest(self) -> None:
        if self._streamed:
            self._reader.end()
            return
        body = b"".join(self._body) if self._closed_in_order or self._framing.complete else b""
        if body.strip() and self._framing.status is not None and self._framing.status < 300:
            self._reader.whole(body)

    def _on_head(self, status: int, headers: dict[str, str]) -> Callable[[bytearray], None]:
        self._head_ns = self._last_ns
        coding = headers.get("content-encoding", "identity").lower()
        if coding not in ("", "identity"):
            self._broken = f"content-encoding {coding}, though identity was asked for"
        is_json = "json" in headers.get("content-type", "").lower()
        self._streamed = self._target.stream and status < 300 and not is_json
        return self._reader.feed if self._streamed else self._on_body

    def _on_body(self, piece: bytearray) -> None:
        self._body_bytes += len(piece)
        if self._body_bytes <= MAX_BODY_BYTES:
            self._body.append(piece)
        else:
            self._broken = f"a body of more than {MAX_BODY_BYTES} bytes"

    # Deadlines

    def _deadline(self) -> tuple[float, Outcome]:
        """Return the seconds left to the nearest deadline, and what passing it means."""
        limits = self._target.timeouts
        nearest: tuple[float, Outcome] = (self._start_ns / 1e9 + limits.total_s, "timeout_total")
        if self._reader.done:
            nearest = min(nearest, (self._last_ns / 1e9 + END_S, "timeout_idle"))
        elif self._reader.stamps or (self._head_ns is not None and not self._streamed):
            nearest = min(nearest, (self._last_ns / 1e9 + limits.idle_s, "timeout_idle"))
        elif self._target.stream:
            nearest = min(nearest, (self._start_ns / 1e9 + limits.ttft_s, "timeout_ttft"))
        return nearest[0] - time.monotonic(), nearest[1]

    def _set_timer(self, left_s: float) -> None:
        """Look again at the deadline, and before any that bytes still to come could set."""
        self._timer = get_hub().loop.timer(min(left_s, self._target.timeouts.idle_s))
        self._timer.start(self._on_timer)

    def _on_timer(self) -> None:
        left_s, outcome = self._deadline()
        if left_s > 0:
            self._timer.close()
            self._set_timer(left_s)
            return
        self._late = outcome
        self._finish(time.monotonic_ns())

    # The verdict

    def describe(self) -> Answer:
        """Return what is known of the request; call it once, after `run`."""
        outcome, error = self._outcome()
        answer = Answer(self._wall_ns, self._start_ns, self._since_start(self._end_ns) or 0.0, outcome)
        answer.error = error
        answer.sent_ms = self._since_start(self._sent_ns)
        answer.headers_ms = self._since_start(self._head_ns)
        answer.status = self._framing.status
        answer.killed = self._killed
        headers = self._framing.headers
        answer.retry_after_s = retry_after_s(headers.get("retry-after"), self._wall_ns / 1e9)
        waits = [ns for ns in (self._text_wait_ns, self._last_wait_ns) if ns is not None]
        answer.client_lag_ms = max(waits) / 1e6 if waits else None
        add_reading(answer, self._reader, streamed=self._streamed, server_timing=headers.get("server-timing"))
        return answer

    def _since_start(self, at_ns: int | None) -> float | None:
        return None if at_ns is None else (at_ns - self._start_ns) / 1e6

    def _outcome(self) -> tuple[Outcome, str | None]:
        reader, status = self._reader, self._framing.status
        if self._killed is not None and not self._over:
            return "cancelled", error_text(self._killed) or type(self._killed).__name__
        if status is not None and status >= 300:
            return ("rejected" if status in REJECTED_CODES else "http_error"), self._status_text(status)
        if reader.error is not None:
            return ("rejected" if is_rejection(reader.error) else "in_band_error"), error_text(reader.error)
        if self._late is not None and not reader.done:
            return self._late, _LATE[self._late]
        if (self._broken and not reader.done) or reader.malformed:
            return "malformed", self._broken or reader.malformed
        return self._ending()

    def _ending(self) -> tuple[Outcome, str | None]:
        reader = self._reader
        if not reader.done:
            if self._framing.status is None or (self._lost and self._lost != CLOSED):
                return "reset", self._lost
            if reader.finish_reason is None and (self._lost or reader.stamps):
                return "truncated", "the answer ended without [DONE] and without finish_reason"
        if not reader.stamps:
            return "empty", "the answer brought no text"
        return "ok", None

    def _status_text(self, status: int) -> str:
        body = b"".join(self._body)
        try:
            said = error_text(msgspec.json.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError):
            said = error_text(body[:2000].decode("utf-8", "replace"))
        place = self._framing.headers.get("location")
        return f"HTTP {status}" + (f" to {place}" if place else "") + (f": {said}" if said else "")
