"""What the request before the load says of a target that does not answer it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness.errors import UserError
from harness.plan import make_plan
from harness.preflight import ATTEMPTS, _refusal, preflight
from harness.profile import PayloadSpec, Profile, Target, TextSpec, Traffic
from harness.records import Request

EVENT = {"choices": [{"delta": {"content": "yes"}, "finish_reason": "stop"}]}
GOOD = f"data: {json.dumps(EVENT)}\n\ndata: [DONE]\n\n".encode()


@contextmanager
def answering(*answers: tuple[int, bytes], models: bytes | None = None) -> Iterator[tuple[str, list[str]]]:
    """Serve the answers in turn, the last one again and again, and a list of models to those with a key.

    Yields the URL and the paths asked for by POST.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            asked.append(self.path)
            status, body = answers[min(len(asked), len(answers)) - 1]
            self.send_response(status)
            self.send_header("location", "http://127.0.0.1/elsewhere")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            listed = self.path == "/v1/models" and self.headers["authorization"] == "Bearer sk-12345678"
            body = (models if listed else None) or b"not here"
            self.send_response(200 if body == models else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def profile(url: str) -> Profile:
    mix = (PayloadSpec(kind="a", text=TextSpec(chars=60)),)
    return Profile(name="p", target=Target(base_url=url), traffic=Traffic(mix=mix))


def ask(url: str) -> list[Request]:
    wanted = profile(url)
    return preflight(wanted, make_plan(wanted), None)


def test_a_service_that_fails_now_and_then_is_one_to_measure() -> None:
    with answering((500, b"{}"), (500, b"{}"), (200, GOOD)) as (url, _):
        assert [record.outcome for record in ask(url)] == ["http_error", "http_error", "ok"]


@pytest.mark.parametrize(
    ("status", "tries", "remedy"),
    [
        (302, 1, "put the last address into target.base_url"),
        (401, 1, "target.api_key_env"),
        (404, 1, "check target.base_url"),
        (500, ATTEMPTS, "the service's log"),
    ],
)
def test_a_refusal_names_address_status_and_remedy_in_one_line(status: int, tries: int, remedy: str) -> None:
    with answering((status, b'{"error": {"message": "not\\nhere \\u001b[2J"}}')) as (url, asked):
        with pytest.raises(UserError) as caught:
            ask(url)
    assert len(asked) == tries
    assert str(caught.value).startswith(f"{url}: the target answered HTTP {status}")
    assert caught.value.remedy is not None
    assert remedy in caught.value.remedy
    assert str(caught.value).isprintable()


def models(*names: str) -> bytes:
    return json.dumps(
        {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}
    ).encode()


@pytest.mark.parametrize(
    ("served", "said"),
    [
        (models("qwen", "sk-12345678/x\x1b[2J"), "the server has: qwen, (hidden)/x\ufffd[2J"),
        (models(*"abcdefghij"), "the server has: a, b, c, d, e, f, g, h, 2 more"),
    ],
)
def test_a_model_that_is_not_served_is_told_with_those_that_are(served: bytes, said: str) -> None:
    with answering((404, b'{"error": {"message": "no such model"}}'), models=served) as (url, _):
        wanted = profile(url + "/v1")
        with pytest.raises(UserError) as caught:
            preflight(wanted, make_plan(wanted), "sk-12345678")
    assert str(caught.value) == f"target.model: `default` is not served; {said}"


@pytest.mark.parametrize("served", [None, b"<html>", b"{}", models(), models("default"), b'{"data": [1]}'])
def test_a_list_that_does_not_lack_the_model_says_nothing_of_it(served: bytes | None) -> None:
    with answering((404, b'{"error": {"message": "no such path"}}'), models=served) as (url, _):
        wanted = profile(url + "/v1")
        with pytest.raises(UserError, match=r"no such path \(check target\.base_url"):
            preflight(wanted, make_plan(wanted), "sk-12345678")


def test_a_key_that_the_target_repeats_is_hidden() -> None:
    with answering((401, b'{"error": {"message": "no such key: sk-12345678"}}')) as (url, _):
        wanted = profile(url)
        with pytest.raises(UserError, match=r"no such key: \(hidden\)"):
            preflight(wanted, make_plan(wanted), "sk-12345678")


def test_a_page_that_is_no_answer_points_to_the_address() -> None:
    with (
        answering((200, b"<html></html>")) as (url, _),
        pytest.raises(UserError, match=r"check target\.base_url"),
    ):
        ask(url)


def test_an_untrusted_certificate_is_not_a_service_that_is_down() -> None:
    words = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"
    record = Request(
        run="",
        worker="preflight",
        user=0,
        seq=0,
        phase=-1,
        label="preflight",
        kind="a",
        payload="a",
        body_bytes=1,
        wall_ns=1,
        start_ns=1,
        total_ms=1,
        outcome="connect_error",
        error=words,
        req_id="1",
    )
    error = _refusal(profile("https://127.0.0.1"), record)
    assert error.what == words
    assert "target.verify_tls: false" in str(error.remedy)
