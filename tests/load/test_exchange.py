"""The verdict on one answer, and its times: bytes from a connection that a script stands for."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Literal

import gevent
import pytest
from gevent.hub import get_hub

from harness.load import exchange as exchange_module
from harness.load.answer import Answer
from harness.load.exchange import Exchange
from harness.load.target import Target
from harness.profile import Timeouts

FIN = None
RST = ConnectionResetError(104, "Connection reset by peer")
Step = bytes | OSError | float | None  # bytes that come, an end of the connection, seconds of silence
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
DONE = "[DONE]"
JSON = "content-type: application/json"


def chunk(*events: Any) -> bytes:
    data = b"".join(
        b"data: %b\n\n" % (each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)).encode()
        for each in events
    )
    return b"%x\r\n%b\r\n" % (len(data), data)


def text(content: str = "好", finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}], **more}


def plain(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def error(code: Any, message: str = "full") -> dict[str, Any]:
    return {"error": {"message": message, "type": "t", "param": None, "code": code}}


class Script:
    """A connection that brings what a script says, one step a turn of the loop."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps, self.wait_ns, self.open = list(steps), None, True
        self.timer: Any = None
        self.at_ns: int | None = None  # each step is said to have come 10 ms after the one before

    def attach(self, listener: Exchange) -> None:
        self.listener: Exchange | None = listener

    def detach(self) -> None:
        self.listener = None

    def close(self) -> None:
        self.open, self.listener = False, None
        if self.timer is not None:
            self.timer.close()

    def send(self, segments: Sequence[bytes]) -> None:
        assert self.listener is not None
        self.at_ns = time.monotonic_ns()
        self.listener.sent()
        get_hub().loop.run_callback(self.step)

    def step(self) -> None:
        if self.listener is None or not self.steps:
            return
        step = self.steps.pop(0)
        if isinstance(step, float):
            self.timer = get_hub().loop.timer(step)
            self.timer.start(self.step)
            return
        get_hub().loop.run_callback(self.step)
        if isinstance(step, bytes):
            assert self.at_ns is not None
            self.at_ns += 10_000_000
            self.listener.received(step, self.at_ns)
        else:
            listener = self.listener
            self.close()
            listener.ended(step)


def target(*, stream: bool = True, **timeouts: float) -> Target:
    limits = Timeouts(**{"connect_s": 1, "ttft_s": 5, "idle_s": 5, "total_s": 10, **timeouts})
    return Target("http", "127.0.0.1", 1, "/", (), True, stream, "chat", limits)


def exchanged(*steps: Step, to: Target | None = None) -> Exchange:
    made = Exchange(to or target(), Script(steps))  # type: ignore[arg-type]
    made.run([b"request"])
    return made


def answered(*steps: Step, to: Target | None = None) -> Answer:
    return exchanged(*steps, to=to).describe()


GOOD = STREAM_HEAD + b"".join(map(chunk, (text(""), text(), text(), text("", "stop"), DONE))) + LAST


@pytest.mark.parametrize(
    ("outcome", "steps"),
    [
        ("ok", [GOOD]),
        ("ok", [STREAM_HEAD, chunk(text()), chunk(DONE), LAST]),  # no finish_reason
        ("ok", [STREAM_HEAD, chunk(text("a", "length")), LAST]),  # no [DONE]
        ("ok", [STREAM_HEAD, chunk(text("a", "length")), FIN]),
        ("ok", [STREAM_HEAD, chunk(text(), DONE), RST]),  # it was whole
        (
            "ok",
            [
                b"HTTP/1.0 200 OK\r\n\r\n",
                b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
                b"data: [DONE]",
                FIN,
            ],
        ),
        ("truncated", [STREAM_HEAD, chunk(text()), LAST]),
        ("truncated", [STREAM_HEAD, chunk(text()), FIN]),
        ("truncated", [STREAM_HEAD, FIN]),
        ("truncated", [STREAM_HEAD, chunk(text())[:-20], FIN]),
        ("empty", [STREAM_HEAD, LAST]),
        ("empty", [STREAM_HEAD, chunk(text(""), text("", "stop"), DONE), LAST]),
        ("empty", [plain("200 OK")]),
        ("empty", [plain("204 No Content")]),
        ("reset", [RST]),
        ("reset", [FIN]),
        ("reset", [STREAM_HEAD[:30], FIN]),
        ("reset", [STREAM_HEAD, RST]),
        ("reset", [STREAM_HEAD, chunk(text()), RST]),
        ("reset", [STREAM_HEAD, chunk(text("a", "stop")), RST]),  # usage may be missing
        ("in_band_error", [STREAM_HEAD, chunk(text()), chunk(error(500)), chunk(DONE), LAST]),
        ("in_band_error", [STREAM_HEAD, chunk(text()), chunk(error(500)), RST]),
        ("in_band_error", [STREAM_HEAD, chunk({"object": "error", "message": "m", "code": 400}), LAST]),
        (
            "in_band_error",
            [plain("200 OK", json.dumps(error(None)).encode(), JSON)],
        ),
        ("rejected", [STREAM_HEAD, chunk(error(503)), chunk(DONE), LAST]),
        ("rejected", [STREAM_HEAD, chunk(error("429")), LAST]),
        ("rejected", [plain("429 Too Many Requests", b"{}", "retry-after: 2")]),
        ("rejected", [plain("503 Busy"), FIN]),
        ("rejected", [plain("413 Too Large", b'{"error_code":"image_too_large"}')]),
        ("http_error", [plain("500 Oops", b"<html>")]),
        ("http_error", [plain("401 Unauthorized", b'{"detail":"no key"}')]),
        ("http_error", [plain("302 Found", b"", "location: /login")]),
        ("http_error", [plain("500 Oops", b"1234")[:-2], RST]),  # the status is known
        ("malformed", [b"SSH-2.0-OpenSSH\r\n"]),
        ("malformed", [STREAM_HEAD, b"zz\r\n"]),
        ("malformed", [STREAM_HEAD, chunk("{nonsense"), chunk(text(), DONE), LAST]),
        ("malformed", [plain("200 OK", b"xx", "content-encoding: gzip")]),
        ("malformed", [plain("200 OK", b"<html>", JSON)]),
    ],
)
def test_verdict(outcome: str, steps: list[Step]) -> None:
    answer = answered(*steps)
    assert (answer.outcome, answer.error is None) == (outcome, outcome == "ok"), answer.error


def test_every_cut_gives_the_same_answer() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 7}}
    events = (text(""), text("😀"), text("b", "stop"), usage, DONE)
    raw = STREAM_HEAD + b"".join(chunk(event) for event in events) + LAST
    for cut in range(1, len(raw)):
        answer = answered(raw[:cut], raw[cut:])
        seen = (answer.outcome, answer.chunks, answer.out_tokens, answer.in_tokens, answer.finish_reason)
        assert seen == ("ok", 2, 7, 3, "stop"), cut
    answer = answered(*(raw[place : place + 1] for place in range(len(raw))))
    assert (answer.outcome, answer.chunks) == ("ok", 2)


def test_cut_short_anywhere_it_is_never_ok() -> None:
    raw = STREAM_HEAD + chunk(text()) + chunk(text())
    end = STREAM_HEAD + chunk(text())
    for cut in range(1, len(raw)):
        outcome = answered(raw[:cut], FIN).outcome
        assert outcome == ("reset" if cut < len(STREAM_HEAD) else "truncated"), cut
        assert answered(raw[:cut], RST).outcome == "reset"
    assert answered(end, FIN).chunks == 1


def test_times_are_those_of_arrival() -> None:
    answer = answered(
        STREAM_HEAD, chunk(text("")), chunk(text()), chunk(text()), chunk(text()), chunk(DONE), LAST
    )
    assert answer.headers_ms == pytest.approx(10, abs=2)
    assert answer.ttft_ms == pytest.approx(30, abs=2)
    assert answer.last_token_ms == pytest.approx(50, abs=2)
    assert answer.total_ms == pytest.approx(70, abs=2)
    assert (answer.itl_p50_ms, answer.itl_max_ms) == (10.0, 10.0)
    assert answer.status == 200


@pytest.mark.parametrize(
    ("outcome", "limits", "steps", "least_ms"),
    [
        ("timeout_ttft", {"ttft_s": 0.05}, [], 50),
        ("timeout_ttft", {"ttft_s": 0.05}, [STREAM_HEAD, chunk(text("")), 0.03, chunk(text(""))], 50),
        ("timeout_idle", {"idle_s": 0.05}, [STREAM_HEAD, chunk(text())], 50),
        (
            "timeout_idle",
            {"idle_s": 0.05},
            [plain("200 OK", b"1234", JSON)[:-1]],
            50,
        ),
        ("timeout_total", {"total_s": 0.1}, [STREAM_HEAD, *[chunk(text()), 0.01] * 30], 100),
        ("timeout_total", {"total_s": 0.05, "ttft_s": 9}, [STREAM_HEAD], 50),
        ("http_error", {"idle_s": 0.05}, [plain("500 Oops", b"1234")[:-1]], 50),
        ("ok", {"idle_s": 0.05}, [STREAM_HEAD, chunk(text(), DONE)], 0),  # whole, though its end never came
    ],
)
def test_deadlines(outcome: str, limits: dict[str, float], steps: list[Step], least_ms: float) -> None:
    answer = answered(*steps, to=target(**limits))
    assert answer.outcome == outcome
    assert least_ms <= answer.total_ms < 2000


def test_a_deadline_moves_with_what_comes() -> None:
    drip = [step for _ in range(10) for step in (chunk(text()), 0.02)]
    answer = answered(STREAM_HEAD, *drip, chunk(DONE) + LAST, to=target(idle_s=0.15, ttft_s=0.15))
    assert (answer.outcome, answer.chunks) == ("ok", 10)


def test_an_answer_asked_for_whole_has_no_deadline_for_its_first_text() -> None:
    body = json.dumps({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}).encode()
    to = target(stream=False, ttft_s=0.02, idle_s=0.02)
    answer = answered(0.1, plain("200 OK", body, "server-timing: queue;dur=2"), to=to)
    assert (answer.outcome, answer.ttft_ms == answer.total_ms) == ("ok", True)
    assert (answer.queue_ms, answer.stage_source) == (2.0, "server_timing")


def test_a_body_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "MAX_BODY_BYTES", 100)
    answer = answered(plain("200 OK", b"x" * 101, JSON))
    assert (answer.outcome, answer.error) == ("malformed", "a body of more than 100 bytes")


@pytest.mark.parametrize(
    ("steps", "error", "more"),
    [
        (
            [plain("429 No", b'{"error":{"message":"slow  down"}}', "retry-after: 2")],
            "HTTP 429: slow down",
            2.0,
        ),
        ([plain("302 Found", b"", "location: /login")], "HTTP 302 to /login", None),
        ([plain("500 Oops", b"<h1>\n oops")], "HTTP 500: <h1> oops", None),
        ([STREAM_HEAD, chunk(error(500, "boom")), LAST], "boom", None),
        ([RST], "[Errno 104] Connection reset by peer", None),
    ],
)
def test_what_the_service_said_is_kept(steps: list[Step], error: str, more: float | None) -> None:
    answer = answered(*steps)
    assert (answer.error, answer.retry_after_s) == (error, more)


@pytest.mark.parametrize(
    ("kept", "stale", "steps"),
    [
        (True, False, [GOOD]),
        (True, False, [plain("500 Oops", b"x")]),
        (False, False, [plain("500 Oops", b"x", "connection: close")]),
        (False, False, [GOOD + b"HTTP/1.1 200 OK\r\n"]),  # bytes nobody asked for
        (False, False, [STREAM_HEAD, chunk(text(), DONE), RST]),
        (False, False, [b"H", FIN]),
        (False, True, [FIN]),
        (False, True, [RST]),
    ],
)
def test_whether_the_connection_can_be_used_again(kept: bool, stale: bool, steps: list[Step]) -> None:
    made = exchanged(*steps)
    assert (made.keeps_connection, made.stale) == (kept, stale)


def test_an_answer_before_the_body_is_sent_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exchange, "sent", lambda self: None)
    made = exchanged(plain("413 Too Large", b"x"))
    assert (made.describe().outcome, made.keeps_connection) == ("rejected", False)


@pytest.mark.parametrize("raised", [gevent.GreenletExit(), KeyboardInterrupt(), gevent.Timeout()])
def test_what_is_raised_into_the_wait_is_handed_on(raised: BaseException) -> None:
    script = Script([STREAM_HEAD, chunk(text()), 5.0])
    made = Exchange(target(), script)  # type: ignore[arg-type]
    waiting = gevent.spawn(made.run, [b"request"])
    gevent.sleep(0.02)
    waiting.kill(raised)
    script.close()
    answer = made.describe()
    assert (answer.outcome, answer.killed, answer.chunks) == ("cancelled", raised, 1)
    assert not made.keeps_connection
    assert answer.total_ms >= 15


def killed_after_the_end(raised: BaseException, *steps: Step) -> Exchange:
    made = Exchange(target(), Script(steps))  # type: ignore[arg-type]

    class Kill:
        paced, sending = False, set[object]()

        def wake(self, waiter: Any) -> None:
            waiting.kill(raised, block=False)

    made._turns = Kill()  # type: ignore[assignment]
    waiting = gevent.spawn(made.run, [b"request"])
    waiting.join(timeout=10)
    return made


def test_a_kill_after_the_end_leaves_the_answer_whole() -> None:
    raised = gevent.GreenletExit()
    made = killed_after_the_end(raised, GOOD)
    answer = made.describe()
    assert (answer.outcome, answer.killed, answer.chunks) == ("ok", raised, 2)
    assert not made.keeps_connection


def test_a_kill_after_a_kept_connection_was_found_closed_is_not_followed_by_another_try() -> None:
    raised = gevent.GreenletExit()
    made = killed_after_the_end(raised, FIN)
    answer = made.describe()
    assert (made.stale, answer.outcome, answer.killed) == (False, "cancelled", raised)


def test_what_comes_after_the_end_is_no_part_of_the_answer() -> None:
    """The user is woken late; by then the service has sent more and hung up."""
    script = Script([GOOD, chunk(text()), RST])
    made = Exchange(target(), script)  # type: ignore[arg-type]
    turns = made._turns

    class Late:
        paced, sending = False, set[object]()

        def wake(self, waiter: Any) -> None:
            gevent.spawn_later(0.02, turns.wake, waiter)

    made._turns = Late()  # type: ignore[assignment]
    made.run([b"request"])
    answer = made.describe()
    assert (answer.outcome, answer.chunks, answer.error) == ("ok", 2, None)


@pytest.mark.parametrize("raw", [GOOD, plain("200 OK", json.dumps(text()).encode(), JSON)])
def test_a_fault_of_ours_is_raised_not_counted(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, event: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("harness.load.sse.Reader._take", broken)
    with gevent.Timeout(10), pytest.raises(ZeroDivisionError):
        exchanged(raw)


def test_a_loop_in_which_nothing_is_left_has_no_timer_left() -> None:
    exchanged(GOOD)
    waited: Literal[True] | None = gevent.get_hub().join(timeout=1)
    assert waited is True


def test_bytes_after_a_whole_answer_cost_the_connection_only() -> None:
    made = exchanged(GOOD + b"HTTP/1.1 500 Oops\r\n\r\n")
    answer = made.describe()
    assert (answer.outcome, answer.chunks, answer.status) == ("ok", 2, 200)
    assert not made.keeps_connection


def test_a_body_that_does_not_end_after_done_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The idle limit is 5 s: what ends this answer is the shorter wait."""
    monkeypatch.setattr(exchange_module, "END_S", 0.05)
    limits: list[float] = []
    set_timer = Exchange._set_timer
    monkeypatch.setattr(
        Exchange, "_set_timer", lambda self, left_s: (limits.append(left_s), set_timer(self, left_s))[1]
    )
    made = exchanged(STREAM_HEAD, chunk(text(), DONE), 9.0)
    answer = made.describe()
    assert (answer.outcome, answer.error) == ("ok", None)
    assert not made.keeps_connection
    assert limits[-1] < 1
