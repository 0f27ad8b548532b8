"""The client over real sockets: keeping, losing and renewing connections, big bodies, TLS, kills, lag."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gevent
import pytest

from harness.load import connection as connection_module
from harness.load.client import Client, Target
from harness.profile import Timeouts

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: str) -> bytes:
    raw = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(raw), raw)


TEXT = chunk('{"choices":[{"index":0,"delta":{"content":"好"},"finish_reason":null}]}')
END = chunk("[DONE]") + b"0\r\n\r\n"
GOOD = HEAD + TEXT + TEXT + END

Reply = Callable[[socket.socket], None]


def says(*pieces: bytes | float) -> Reply:
    """Send the pieces; a number is a pause in seconds."""

    def reply(sock: socket.socket) -> None:
        for piece in pieces:
            if isinstance(piece, float):
                time.sleep(piece)
            else:
                sock.sendall(piece)

    return reply


def resets(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def waits_for_the_end(sock: socket.socket) -> None:
    sock.settimeout(10)
    with contextlib.suppress(OSError):
        while sock.recv(1 << 20):
            pass


class Server:
    """One thread; the n-th connection is served by the n-th list of replies, one a request, then closed."""

    def __init__(self, *conversations: Sequence[Reply], tls: ssl.SSLContext | None = None, read: bool = True):
        self.conversations, self.tls, self.read = conversations, tls, read
        self.requests: list[bytes] = []  # heads
        self.bodies: list[bytes] = []
        self.failed: list[OSError] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        for conversation in self.conversations:
            try:
                sock, _ = self.listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.tls is not None:
                    sock = self.tls.wrap_socket(sock, server_side=True)
                with sock:
                    for reply in conversation:
                        self.take(sock)
                        reply(sock)
            except OSError as error:
                self.failed.append(error)

    def take(self, sock: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = sock.recv(1 << 16)
            if not piece:
                raise ConnectionError("the client closed")
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        self.requests.append(head)
        if not self.read:
            return
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        pieces, have = [body], len(body)
        while have < length:
            pieces.append(sock.recv(1 << 20))
            have += len(pieces[-1])
        self.bodies.append(b"".join(pieces))


@contextlib.contextmanager
def serving(*conversations: Sequence[Reply], **options: Any) -> Iterator[Server]:
    server = Server(*conversations, **options)
    server.thread.start()
    try:
        yield server
    finally:
        server.listener.close()
        server.thread.join(10)


def client(server: Server, **more: Any) -> Client:
    return client_of(server.port, **more)


def client_of(port: int, *, scheme: Any = "http", verify: bool = True, **more: Any) -> Client:
    limits = Timeouts(**{"connect_s": 2, "ttft_s": 10, "idle_s": 10, "total_s": 20, **more})
    headers = ((b"host", b"localhost"), (b"accept-encoding", b"identity"))
    where = Target(scheme, "localhost", port, "/v1/x", headers, verify, True, "chat", limits)
    return Client(where)


def test_one_connection_serves_one_request_after_the_other() -> None:
    with serving([says(GOOD)] * 3) as server, contextlib.closing(client(server)) as one:
        answers = [one.send([b"{}"], f"id{number}") for number in range(3)]
    assert [answer.outcome for answer in answers] == ["ok"] * 3
    assert [answer.reused for answer in answers] == [False, True, True]
    assert [answer.connect_ms is None for answer in answers] == [False, True, True]
    assert [answer.chunks for answer in answers] == [2, 2, 2]
    assert server.requests[1].split(b"\r\n") == [
        b"POST /v1/x HTTP/1.1",
        b"host: localhost",
        b"accept-encoding: identity",
        b"x-request-id: id1",
        b"content-length: 2",
    ]
    for answer in answers:
        assert answer.sent_ms is not None
        assert answer.ttft_ms is not None
        assert answer.sent_ms > 0
        assert 0 < answer.ttft_ms <= (answer.last_token_ms or 0) <= answer.total_ms < 5000


def test_an_answer_in_writes_of_one_byte() -> None:
    pieces = [GOOD[place : place + 1] for place in range(len(GOOD))]
    with serving([says(*pieces)]) as server, contextlib.closing(client(server)) as one:
        answer = one.send([b"{}"], "id")
    assert (answer.outcome, answer.chunks) == ("ok", 2)


def test_a_kept_connection_closed_in_the_meantime_is_opened_anew() -> None:
    with serving([says(GOOD)], [says(GOOD)]) as server, contextlib.closing(client(server)) as one:
        first = one.send([b"{}"], "a")
        gevent.sleep(0.1)  # its end arrives while nothing is sent
        second = one.send([b"{}"], "b")
    assert [(answer.outcome, answer.reused) for answer in (first, second)] == [("ok", False)] * 2
    assert len(server.requests) == 2


@pytest.mark.parametrize("leaves", [lambda sock: sock.close(), resets])
def test_a_kept_connection_closed_on_the_next_request_is_not_the_services_failure(leaves: Reply) -> None:
    with serving([says(GOOD), leaves], [says(GOOD)]) as server, contextlib.closing(client(server)) as one:
        one.send([b"{}"], "a")
        answer = one.send([b"{}"], "b")
    assert (answer.outcome, answer.reused, answer.connect_ms is None) == ("ok", False, False)
    assert len(server.requests) == 3


@pytest.mark.parametrize("leaves", [lambda sock: sock.close(), resets])
def test_a_new_connection_closed_without_an_answer_is_and_is_not_tried_again(leaves: Reply) -> None:
    with serving([leaves], [says(GOOD)]) as server, contextlib.closing(client(server)) as one:
        assert one.send([b"{}"], "a").outcome == "reset"
        assert len(server.requests) == 1
        assert one.send([b"{}"], "b").outcome == "ok"  # and the user goes on


def test_a_kept_connection_lost_within_the_answer_is_a_failure() -> None:
    with serving([says(GOOD), says(HEAD, TEXT)]) as server, contextlib.closing(client(server)) as one:
        one.send([b"{}"], "a")
        answer = one.send([b"{}"], "b")
    assert (answer.outcome, answer.reused, answer.chunks) == ("truncated", True, 1)


def test_nobody_listens() -> None:
    with serving() as server:
        pass
    answer = client(server).send([b"{}"], "a")
    assert (answer.outcome, answer.status, answer.ttft_ms) == ("connect_error", None, None)
    assert answer.error
    assert answer.connect_ms == answer.total_ms


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_big_body_goes_out_whole_and_uncopied(scheme: str, tls: Certificate) -> None:
    picture = bytes(range(256)) * (32 << 10)  # 8 MiB
    view = memoryview(picture)
    segments = [b"{", view[: 3 << 20], b"nonce", view[3 << 20 :], b"", b"}"]
    context = tls.context if scheme == "https" else None
    with serving([says(GOOD)], tls=context) as server:
        one = client(server, scheme=scheme, verify=False)
        tracemalloc.start()
        try:
            sending = gevent.spawn(one.send, segments, "a")
            before = tracemalloc.get_traced_memory()[0]
            answer = sending.get(timeout=20)
            # the server of this test reads in the same process, up to twice the body
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
            one.close()
    assert answer.outcome == "ok"
    assert hashlib.sha256(server.bodies[0]).digest() == hashlib.sha256(b"".join(segments)).digest()
    assert peak < 2.5 * len(picture)


def test_an_answer_before_the_body_was_read_is_heard() -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"

    def refuses(sock: socket.socket) -> None:
        sock.sendall(refusal)
        waits_for_the_end(sock)

    with serving([refuses], read=False) as server:
        answer = client(server).send([bytes(32 << 20)], "a")
    assert (answer.outcome, answer.status) == ("rejected", 413)


def test_the_loop_goes_on_while_a_body_waits_to_be_taken() -> None:
    def reads_late(sock: socket.socket) -> None:
        time.sleep(0.2)
        sock.sendall(GOOD)
        waits_for_the_end(sock)

    with serving([reads_late], read=False) as server:
        sending = gevent.spawn(client(server, total_s=0.6).send, [bytes(32 << 20)], "a")
        turns = 0
        while not sending.ready():
            gevent.sleep(0.01)
            turns += 1
    assert sending.get().outcome == "ok"
    assert turns > 5


def test_a_kill_ends_the_request_and_its_connection() -> None:
    left = threading.Event()

    def stalls(sock: socket.socket) -> None:
        sock.sendall(HEAD + TEXT)
        waits_for_the_end(sock)
        left.set()

    with serving([stalls]) as server:
        sending = gevent.spawn(client(server).send, [b"{}"], "a")
        gevent.sleep(0.1)
        sending.kill()
        answer = sending.get()
    assert (answer.outcome, type(answer.killed), answer.chunks) == ("cancelled", gevent.GreenletExit, 1)
    assert left.is_set()


@pytest.mark.parametrize(("killed", "outcome"), [(True, "cancelled"), (False, "timeout_connect")])
def test_a_handshake_that_does_not_end(killed: bool, outcome: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts by its backlog, and never answers
        one = client_of(silent.getsockname()[1], scheme="https", connect_s=0.2)
        sending = gevent.spawn(one.send, [b"{}"], "a")
        gevent.sleep(0.05)
        if killed:
            sending.kill()
        answer = sending.get(timeout=5)
    assert (answer.outcome, answer.killed is not None) == (outcome, killed)
    assert answer.total_ms >= 40


class Certificate:
    """A certificate for localhost that nobody trusts by default."""

    def __init__(self, folder: Path) -> None:
        self.file, key = folder / "cert.pem", folder / "key.pem"
        command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
        command += f" subjectAltName=DNS:localhost -keyout {key} -out {self.file}"
        subprocess.run(command.split(), check=True, capture_output=True)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.file, key)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    return Certificate(tmp_path_factory.mktemp("tls"))


def test_a_certificate_that_nobody_signed_is_refused(tls: Certificate) -> None:
    with serving([says(GOOD)], tls=tls.context) as server:
        answer = client(server, scheme="https").send([b"{}"], "a")
    assert answer.outcome == "connect_error"
    assert "certificate verify failed" in (answer.error or "")
    assert server.requests == []


def test_tls_with_a_trusted_certificate(tls: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls.file))
    connection_module._tls_context.cache_clear()
    pieces = [GOOD[place : place + 7] for place in range(0, len(GOOD), 7)]
    try:
        with serving([says(*pieces), says(HEAD, TEXT)], tls=tls.context) as server:
            with contextlib.closing(client(server, scheme="https")) as one:
                first, second = one.send([b"{}"], "a"), one.send([b"{}"], "b")
    finally:
        connection_module._tls_context.cache_clear()
    assert (first.outcome, first.chunks, first.reused) == ("ok", 2, False)
    assert (second.outcome, second.chunks, second.reused) == ("truncated", 1, True)


linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's stamps are Linux's")


@linux
def test_a_late_loop_bends_no_time_and_is_named() -> None:
    sent_s: list[float] = []

    def streams(sock: socket.socket) -> None:
        sock.sendall(HEAD)
        time.sleep(0.1)
        sent_s.append(time.monotonic())
        sock.sendall(TEXT)
        time.sleep(0.4)
        sock.sendall(END)

    with serving([streams]) as server, contextlib.closing(client(server)) as one:
        sending = gevent.spawn(one.send, [b"{}"], "a")
        gevent.sleep(0.05)
        time.sleep(0.25)  # the loop stands still while the first text arrives
        answer = sending.get()
    truth_ms = sent_s[0] * 1000 - answer.start_ns / 1e6
    assert answer.ttft_ms == pytest.approx(truth_ms, abs=40)
    assert answer.client_lag_ms > 80


def test_without_kernel_stamps_the_lag_is_that_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "SO_TIMESTAMPNS", 9999)  # as where the kernel refuses
    asked: list[int] = []

    def loop_lag(since_ns: int) -> float:
        asked.append(since_ns)
        return 7.5

    with serving([says(GOOD)]) as server:
        one = Client(client(server)._target, loop_lag=loop_lag)
        answer = one.send([b"{}"], "a")
        one.close()
    assert (answer.outcome, answer.client_lag_ms, asked) == ("ok", 7.5, [answer.start_ns])


PATCHED = """
from gevent import monkey; monkey.patch_all()
import sys
from harness.load.client import Client, Target
from harness.profile import Timeouts
target = Target(sys.argv[1], "localhost", int(sys.argv[2]), "/", (), False, True, "chat", Timeouts())
one = Client(target)
print(*(one.send([b"{}"], "a").outcome for _ in range(2)))
"""


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_it_works_in_a_process_that_locust_has_patched(scheme: str, tls: Certificate) -> None:
    context = tls.context if scheme == "https" else None
    with serving([says(GOOD), says(GOOD)], tls=context) as server:
        command = [sys.executable, "-W", "error", "-c", PATCHED, scheme, str(server.port)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("ok ok", "")
