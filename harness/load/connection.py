"""One TCP or TLS connection whose bytes arrive by callback, never by a greenlet that reads.

Why: waking a greenlet per chunk costs more than reading it. A libev read watcher stays on the socket for its
whole life; its callback reads, stamps and hands the bytes on, and the caller sleeps until its answer ends.
Writing is done the same way, so an answer that comes before the body is sent (413) is seen at once.

Moments are those at which the kernel received the bytes (SO_TIMESTAMPNS), not those at which this process
came round to reading them; the difference is kept, for the client's lag. It costs 0.6 us per read. Where
several segments are read at once the kernel gives the last one's moment. TLS runs over memory buffers
(`ssl.MemoryBIO`), so that both kinds of connection share one path, kernel stamps included.

Sockets are the unpatched C ones: it makes no difference whether Locust has patched the process.
"""

from __future__ import annotations

import _socket
import contextlib
import functools
import socket
import ssl
import struct
import sys
import time
from collections.abc import Sequence
from typing import Protocol

import gevent
import gevent.socket
from gevent.hub import get_hub

READ_BYTES = 64 << 10
TLS_WRITE_BYTES = 256 << 10  # ciphertext made at once
MAX_SEGMENTS = 64  # per sendmsg; the kernel takes 1024
SO_TIMESTAMPNS = 35  # Linux; the socket module does not name it
_CONTROL_BYTES = socket.CMSG_SPACE(16)
_timespec = struct.Struct("qq").unpack
_MAX_WAIT_NS = 60_000_000_000  # a longer "wait" is a step of the wall clock

Segment = bytes | memoryview


class Listener(Protocol):
    """Who is told of what happens on a connection."""

    def received(self, data: bytes, at_ns: int) -> None:
        """Take bytes that arrived at `at_ns` (monotonic clock)."""

    def sent(self) -> None:
        """Learn that the last byte was handed to the kernel."""

    def ended(self, error: OSError | None) -> None:
        """Learn that nothing more will come: None where the peer closed in order."""


class Connection:
    """A connected socket; at most one listener at a time, none while it is idle.

    An idle connection on which anything happens (the peer closes it, or sends unasked) closes itself.
    `wait_ns` is how long the bytes of the last read had lain here; None without kernel stamps.
    """

    def __init__(self, sock: _socket.socket, tls: _Tls | None) -> None:
        self.open = True
        self.wait_ns: int | None = None
        self._sock, self._tls = sock, tls
        self._recvmsg = sock.recvmsg
        self._listener: Listener | None = None
        self._unsent: list[Segment] = []
        loop = get_hub().loop
        self._reader = loop.io(sock.fileno(), 1)
        self._writer = loop.io(sock.fileno(), 2)
        self._reader.start(self._on_readable)

    def attach(self, listener: Listener) -> None:
        """Make `listener` hear of everything from now on."""
        self._listener, self.wait_ns = listener, None

    def detach(self) -> None:
        """Keep the connection for a later request."""
        self._listener = None

    def send(self, segments: Sequence[Segment]) -> None:
        """Send the segments in order without copying them; `sent()` or `ended()` tells when."""
        self._unsent = [segment for segment in reversed(segments) if len(segment)]
        self._on_writable()

    def close(self) -> None:
        """Close at once; nobody is told."""
        if not self.open:
            return
        self.open, self._listener, self._unsent = False, None, []
        for watcher in (self._reader, self._writer):
            watcher.stop()
            watcher.close()
        self._sock.close()

    def _on_readable(self) -> None:
        try:
            data, control, _, _ = self._recvmsg(READ_BYTES, _CONTROL_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        at_ns = time.monotonic_ns()
        if control:
            seconds, ns = _timespec(control[0][2])
            wait_ns = time.time_ns() - seconds * 1_000_000_000 - ns
            if 0 <= wait_ns < _MAX_WAIT_NS:
                at_ns -= wait_ns
                self.wait_ns = wait_ns
        if self._tls is not None and data:
            try:
                data = self._tls.decrypt(data)
            except ssl.SSLError as error:
                self._end(error)
                return
            if not data:  # no whole record yet, or a session ticket
                return
        listener = self._listener
        if not data or listener is None:
            self._end(None)
        else:
            listener.received(data, at_ns)  # last: it may start this connection's next request

    def _on_writable(self) -> None:
        try:
            self._write()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            # The peer may have answered before it hung up: the read side tells which it was.
            self._unsent = []
            self._writer.stop()
            return
        if self._unsent or (self._tls is not None and self._tls.unsent):
            if not self._writer.active:
                self._writer.start(self._on_writable)
            return
        self._writer.stop()
        if self._listener is not None:
            self._listener.sent()

    def _write(self) -> None:
        """One call per turn of the loop, so that megabytes for one peer do not hold up the others."""
        if self._tls is not None:
            self._tls.encrypt(self._unsent)
            self._tls.sent(self._sock.send(self._tls.unsent))
            return
        count = self._sock.sendmsg(self._unsent[: -MAX_SEGMENTS - 1 : -1])
        while count:
            segment = self._unsent.pop()
            if count < len(segment):
                self._unsent.append(memoryview(segment)[count:])
            count -= min(count, len(segment))

    def _end(self, error: OSError | None) -> None:
        listener = self._listener
        self.close()
        if listener is not None:
            listener.ended(error)


class _Tls:
    """TLS between bytes and bytes; the connection moves the ciphertext."""

    def __init__(self, host: str, verify: bool) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = _tls_context(verify).wrap_bio(self._in, self._out, server_hostname=host)
        self.unsent: memoryview = memoryview(b"")

    def handshake(self, sock: _socket.socket) -> None:
        """Shake hands over a non-blocking socket, sleeping in between; raises OSError where it fails."""
        while True:
            try:
                self._session.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            finally:
                self._flush(sock)
            if done:
                return
            gevent.socket.wait_read(sock.fileno())
            data = sock.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("the peer closed during the TLS handshake")
            self._in.write(data)

    def _flush(self, sock: _socket.socket) -> None:
        data = memoryview(self._out.read())
        while data:
            gevent.socket.wait_write(sock.fileno())
            data = data[sock.send(data) :]

    def decrypt(self, data: bytes) -> bytes:
        """Return the text that the ciphertext completes, maybe none; raises ssl.SSLError."""
        self._in.write(data)
        pieces = []
        try:
            while piece := self._session.read(READ_BYTES):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        return b"".join(pieces)

    def encrypt(self, segments: list[Segment]) -> None:
        """Move some of the reversed `segments` into `unsent`, unless enough waits there."""
        while segments and len(self.unsent) == 0:
            segment = memoryview(segments.pop())
            if len(segment) > TLS_WRITE_BYTES:
                segments.append(segment[TLS_WRITE_BYTES:])
            self._session.write(segment[:TLS_WRITE_BYTES])
            self.unsent = memoryview(self._out.read())

    def sent(self, count: int) -> None:
        """Forget what the kernel took."""
        self.unsent = self.unsent[count:]


@functools.cache
def _tls_context(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def connect(host: str, port: int, *, tls: bool, verify_tls: bool, timeout_s: float) -> Connection:
    """Connect, and shake hands where TLS is asked; the calling greenlet sleeps meanwhile.

    Raises OSError (ssl.SSLError and gaierror among it), and TimeoutError after `timeout_s` in all.
    """
    timeout = gevent.Timeout(timeout_s)
    try:
        with timeout:
            waiting = gevent.socket.create_connection((host, port))
            return _established(_socket.socket(fileno=waiting.detach()), host, tls, verify_tls)
    except gevent.Timeout as expired:
        if expired is not timeout:
            raise
        raise TimeoutError(f"no connection within {timeout_s:g} s") from None


def _established(sock: _socket.socket, host: str, tls: bool, verify_tls: bool) -> Connection:
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # a sandbox may refuse; the lag is unknown then
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        session = _Tls(host, verify_tls) if tls else None
        if session is not None:
            session.handshake(sock)
    except BaseException:
        sock.close()
        raise
    return Connection(sock, session)
