"""One sender: whatever the client answers or raises, one record, and the right wait after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent import GreenletExit

from harness.load.answer import Answer
from harness.load.sender import Sender
from harness.plan import Entry, Phase
from harness.profile import Hold
from harness.records import Outcome, Request

ENTRY = Entry(0, True, True)
BODY = SimpleNamespace(
    segments=(b"{}",), length=2, kind="text", payload="p", in_img=0, img_wh=(), img_bytes=0, body_bytes=2
)


def phase(rate: float | None = None) -> Phase:
    return Phase(
        index=3,
        label="2 users",
        experiment="steps",
        users=None if rate else 2,
        rate=rate,
        schedule=(ENTRY,),
        hold=Hold(),
    )


def answer(outcome: Outcome, **more: Any) -> Answer:
    return Answer(time.time_ns(), time.monotonic_ns(), 12.5, outcome, **more)


class Desk:
    """Stands for the worker."""

    run, id, running = "r", "w", 2

    def __init__(self) -> None:
        self.corpus = SimpleNamespace(body=lambda entry, nonce: BODY)
        self.in_flight: dict[str, int] = {}
        self.kept: list[Request] = []
        self.seen_in_flight: list[int] = []

    def next_id(self) -> tuple[str, int]:
        return f"id{len(self.kept)}", len(self.kept)

    def keep(self, make: Callable[[int], Request]) -> Request:
        self.kept.append(make(len(self.kept)))
        return self.kept[-1]


class ScriptedClient:
    """Answers what it is told to, one thing after the other."""

    def __init__(self, desk: Desk, *script: Answer | Exception) -> None:
        self.desk, self.script = desk, list(script)

    def send(self, segments: Any, req_id: str, *, length: int) -> Answer:
        self.desk.seen_in_flight.append(len(self.desk.in_flight))
        told = self.script.pop(0)
        if isinstance(told, Exception):
            raise told
        return told


def sender(*script: Answer | Exception) -> tuple[Sender, Desk]:
    desk = Desk()
    return Sender(desk, 7, ScriptedClient(desk, *script)), desk  # type: ignore[arg-type]


def test_a_record_says_who_what_and_where() -> None:
    s, desk = sender(answer("ok", ttft_ms=4.0, out_tokens=9), answer("ok"))
    first, second = s.send(phase(), ENTRY), s.send(phase(), ENTRY)
    assert (first.run, first.worker, first.user, first.seq, first.phase) == ("r", "w", 7, 0, 3)
    assert (first.label, first.users, first.rate) == ("2 users", 2, None)
    assert (first.kind, first.ttft_ms, first.out_tokens, first.total_ms) == ("text", 4.0, 9, 12.5)
    assert [first.first, second.first] == [True, False]
    assert first.due_ns is None
    assert desk.seen_in_flight == [1, 1]
    assert desk.in_flight == {}


def test_the_wait_doubles_while_it_fails_and_starts_anew_after_a_success() -> None:
    bad: list[Outcome] = [
        "reset",
        "http_error",
        "timeout_ttft",
        "empty",
        "truncated",
        "rejected",
        "malformed",
    ]
    s, _ = sender(*[answer(outcome) for outcome in [*bad, "ok", "reset"]])  # type: ignore[list-item]
    waits = [s.send(phase(), ENTRY).backoff_ms for _ in range(9)]
    assert waits == [100, 200, 400, 800, 1600, 2000, 2000, 0, 100]


def test_an_open_loop_does_not_wait_and_counts_from_when_it_was_due() -> None:
    s, _ = sender(answer("reset"))
    due_ns = time.monotonic_ns() - 50_000_000
    record = s.send(phase(rate=2.0), ENTRY, due_ns)
    assert record.backoff_ms == 0
    assert (record.rate, record.users, record.due_ns) == (2.0, None, due_ns)
    assert record.queued_ms == pytest.approx((record.start_ns - due_ns) / 1e6)


@pytest.mark.parametrize("raised", [GreenletExit(), gevent.Timeout(1)])
def test_what_is_thrown_into_a_waiting_user_is_recorded_once_and_raised_again(raised: BaseException) -> None:
    s, desk = sender(answer("cancelled", killed=raised))
    with pytest.raises(type(raised)) as caught:
        s.send(phase(), ENTRY)
    assert caught.value is raised
    assert [(r.outcome, r.backoff_ms) for r in desk.kept] == [("cancelled", 0)]
    assert desk.in_flight == {}


def test_a_fault_of_the_client_is_a_failed_request(caplog: pytest.LogCaptureFixture) -> None:
    s, desk = sender(ValueError("bug"), answer("ok"))
    record = s.send(phase(), ENTRY)
    assert (record.outcome, record.error) == ("malformed", "client: ValueError('bug')")
    assert record.backoff_ms == 100
    assert desk.in_flight == {}
    assert "the client failed" in caplog.text
    assert s.send(phase(), ENTRY).outcome == "ok"


def test_a_request_that_was_never_sent_is_due_but_not_first() -> None:
    s, _ = sender(answer("ok"))
    due_ns = time.monotonic_ns() - 1_000_000_000
    unsent = s.give_up(phase(rate=2.0), ENTRY, due_ns, "too many")
    assert (unsent.outcome, unsent.error, unsent.first, unsent.sent_ms) == (
        "cancelled",
        "too many",
        False,
        None,
    )
    assert unsent.queued_ms == pytest.approx(1000, abs=50)
    assert s.send(phase(rate=2.0), ENTRY, time.monotonic_ns()).first
