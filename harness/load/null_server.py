"""A server that costs next to nothing: it streams chunks made beforehand, so the client is what is measured.

It runs in a process of its own, on one thread and plain sockets. What it answers stands in the request's
query: `?tokens=100&itl_ms=5`; with `itl_ms=0` the whole answer is one write. All streams of a time should ask
for the same interval: they are served in the order in which they are due.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import time
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
READ_BYTES = 1 << 20
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
_TOKENS, _ITL = re.compile(rb"[?&]tokens=(\d+)"), re.compile(rb"[?&]itl_ms=([\d.]+)")


def _chunk(**fields: Any) -> bytes:
    event = {"id": "null", "object": "chat.completion.chunk", "created": 1, "model": "null", **fields}
    return _framed(json.dumps(event, separators=(",", ":")).encode())


def _framed(data: bytes) -> bytes:
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


def _delta(finish_reason: str | None = None, **delta: str) -> bytes:
    return _chunk(choices=[{"index": 0, "delta": delta, "finish_reason": finish_reason}])


ROLE = _delta(role="assistant", content="")
WORDS = [_delta(content=f" w{number:03d}") for number in range(64)]
STOP = _delta(finish_reason="length")


def _end(tokens: int) -> bytes:
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": 1 + tokens}
    return STOP + _chunk(choices=[], usage=usage) + _framed(b"[DONE]") + b"0\r\n\r\n"


class _Stream:
    """One connection and the answer that is on its way over it."""

    __slots__ = ("body_left", "due_s", "head", "itl_s", "sent", "sock", "tokens")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.head = b""  # of a request, as far as it has come
        self.body_left = self.tokens = self.sent = 0
        self.itl_s = self.due_s = 0.0


def serve(owner: Connection) -> None:
    """Tell the port to the process at the other end of `owner`, and answer until that has closed it."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listener.setblocking(False)
    owner.send(listener.getsockname()[1])
    poll = select.epoll()
    poll.register(listener.fileno(), select.EPOLLIN)
    poll.register(owner.fileno(), select.EPOLLIN)
    streams: dict[int, _Stream] = {}
    due: deque[_Stream] = deque()
    while True:
        wait_s = max(0.0, due[0].due_s - time.monotonic()) if due else -1.0
        for number, _ in poll.poll(wait_s):
            if number == owner.fileno():
                return
            if number == listener.fileno():
                sock, _ = listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                poll.register(sock.fileno(), select.EPOLLIN)
                streams[sock.fileno()] = _Stream(sock)
            elif not _read(streams[number], due):
                streams.pop(number).sock.close()
        _send_due(due)


def _read(stream: _Stream, due: deque[_Stream]) -> bool:
    """Read what has come of a request and begin its answer once it is whole; False: the client has left."""
    try:
        data = stream.sock.recv(READ_BYTES)
    except BlockingIOError:
        return True
    except OSError:
        return False
    if not data:
        return False
    if stream.body_left:
        stream.body_left -= len(data)
    else:
        stream.head += data
        head, end, body = stream.head.partition(b"\r\n\r\n")
        if not end:
            return True
        stream.head = b""
        length = _LENGTH.search(head)
        stream.body_left = (int(length[1]) if length else 0) - len(body)
        tokens, itl_ms = _TOKENS.search(head), _ITL.search(head)
        stream.tokens, stream.sent = int(tokens[1]) if tokens else 1, 0
        stream.itl_s = float(itl_ms[1]) / 1000 if itl_ms else 0.0
    if stream.body_left <= 0:
        stream.due_s = time.monotonic() + stream.itl_s
        due.append(stream)
    return True


def _send_due(due: deque[_Stream]) -> None:
    now_s = time.monotonic()
    for _ in range(len(due)):
        if due[0].due_s > now_s:
            return
        stream = due.popleft()
        if _send_next(stream):
            stream.due_s += stream.itl_s
            due.append(stream)


def _send_next(stream: _Stream) -> bool:
    """Send what is due of an answer; return whether more is to come."""
    if not stream.itl_s:
        words = b"".join(WORDS[number % len(WORDS)] for number in range(stream.tokens))
        data, stream.sent = HEAD + ROLE + words + _end(stream.tokens), stream.tokens
    else:
        data = WORDS[stream.sent % len(WORDS)]
        if not stream.sent:
            data = HEAD + ROLE + data
        stream.sent += 1
        if stream.sent >= stream.tokens:
            data += _end(stream.tokens)
    try:
        whole = stream.sock.send(data) == len(data)
    except OSError:
        whole = False
    if not whole:  # the client does not read: let it see an end, not a stream with a hole
        with contextlib.suppress(OSError):
            stream.sock.shutdown(socket.SHUT_RDWR)
        return False
    return stream.sent < stream.tokens
