"""One sender of requests: a closed-loop user, or one slot of an open loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from harness.load.answer import Answer
from harness.load.client import Client
from harness.load.recording import record_of
from harness.plan import Entry, Phase
from harness.records import Request

if TYPE_CHECKING:
    from harness.payloads.corpus import Body, Corpus

BACKOFF_S, MAX_BACKOFF_S = 0.1, 2.0
log = logging.getLogger(__name__)


class Desk(Protocol):
    """What a sender needs of its worker."""

    run: str
    id: str
    corpus: Corpus
    running: int | None
    in_flight: dict[str, int]

    def next_id(self) -> tuple[str, int]:
        """Return an id and a nonce, each unique in the run."""

    def keep(self, make: Callable[[int], Request]) -> Request:
        """Give a record its number and keep it."""


class Sender:
    """Sends one request at a time; owns one connection."""

    def __init__(self, desk: Desk, number: int, client: Client) -> None:
        self.number = number
        self.client = client
        self._desk = desk
        self._sent = False
        self._failures = 0  # in a row

    def send(self, phase: Phase, entry: Entry, due_ns: int | None = None) -> Request:
        """Send the entry and return its record, kept already; `due_ns` in an open loop.

        Raises what was raised into the greenlet while it waited, once the request is recorded as cancelled.
        """
        desk = self._desk
        req_id, nonce = desk.next_id()
        body = desk.corpus.body(entry, nonce)
        desk.in_flight[req_id] = time.time_ns()
        try:
            answer = self._answer(body, req_id)
            record = self._keep(phase, body, answer, req_id, due_ns, first=not self._sent)
            self._sent = True
        finally:
            del desk.in_flight[req_id]
        if answer.killed is not None:
            raise answer.killed
        return record

    def give_up(self, phase: Phase, entry: Entry, due_ns: int, why: str) -> Request:
        """Record a request that was due and never sent."""
        now = Answer(time.time_ns(), time.monotonic_ns(), 0.0, "cancelled", error=why)
        req_id, nonce = self._desk.next_id()
        return self._keep(phase, self._desk.corpus.body(entry, nonce), now, req_id, due_ns, first=False)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def _answer(self, body: Body, req_id: str) -> Answer:
        wall_ns, start_ns = time.time_ns(), time.monotonic_ns()
        try:
            return self.client.send(body.segments, req_id, length=body.length)
        except Exception as error:  # a fault of ours must not end the user, nor pass as a success
            log.exception("the client failed")
            total_ms = (time.monotonic_ns() - start_ns) / 1e6
            return Answer(wall_ns, start_ns, total_ms, "malformed", error=f"client: {error!r}")

    def _keep(
        self, phase: Phase, body: Body, answer: Answer, req_id: str, due_ns: int | None, *, first: bool
    ) -> Request:
        failed = answer.outcome not in ("ok", "cancelled")
        self._failures = self._failures + 1 if failed else 0
        backoff_s = 0.0
        if failed and phase.rate is None:
            backoff_s = min(BACKOFF_S * 2 ** min(self._failures - 1, 10), MAX_BACKOFF_S)
        desk = self._desk
        return desk.keep(
            lambda seq: record_of(
                answer,
                body,
                run=desk.run,
                worker=desk.id,
                user=self.number,
                seq=seq,
                phase=phase.index,
                label=phase.label,
                req_id=req_id,
                first=first,
                users=desk.running if phase.rate is None else None,
                rate=phase.rate,
                due_ns=due_ns,
                backoff_ms=backoff_s * 1000,
            )
        )
