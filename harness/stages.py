"""A stage clock for your own Python service: five stamps per request, one JSON line.

    from harness.stages import StageMiddleware, current

    app.add_middleware(StageMiddleware)              # any ASGI application
    ...
    stages = current()                               # inside a request
    stages.received()                                # the body is here
    stages.ready()                                   # images decoded and resized: into the queue
    stages.started()                                 # taken from the queue: prefill begins
    stages.first_token()
    stages.done()                                    # the middleware does it where you do not

`knee report RUN --stage-log FILE` joins the lines by `x-request-id`. Between the stamps lie `transfer_ms`
(body, and images fetched by URL), `pre_ms`, `queue_ms`, `prefill_ms` and `decode_ms`; a stamp left out
leaves the stages beside it out. Times are monotonic. KNEE_STAGES=off turns everything off; KNEE_STAGES_FILE
names a file (default: stderr). It needs nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any, TextIO

STAMPS = ("begun", "received", "ready", "started", "first_token", "done")
BETWEEN = ("transfer_ms", "pre_ms", "queue_ms", "prefill_ms", "decode_ms")  # of two neighbouring stamps

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class StageClock:
    """The stamps of one request; each is taken once, the first call counts."""

    def __init__(self, req_id: str, *, now: Callable[[], int] = time.monotonic_ns) -> None:
        self.req_id, self._now = req_id, now
        self._at: dict[str, int] = {"begun": now()}
        self._images: list[tuple[int, int]] = []
        self._image_bytes = 0
        self._parts: dict[str, float] = {}

    def received(self) -> None:
        """The whole request is here, images fetched by URL included."""
        self._stamp("received")

    def ready(self) -> None:
        """Preprocessing is over: the request enters the queue."""
        self._stamp("ready")

    def started(self) -> None:
        """The request leaves the queue: prefill begins."""
        self._stamp("started")

    def first_token(self) -> None:
        """Prefill is over: the first token is there."""
        self._stamp("first_token")

    def done(self) -> None:
        """The answer is complete."""
        self._stamp("done")

    def image(
        self, width: int, height: int, size_bytes: int, *, decode_ms: float, resize_ms: float = 0.0
    ) -> None:
        """Note one image: its size as received, and what decoding and resizing took."""
        self._images.append((width, height))
        self._image_bytes += size_bytes
        for name, value in (("image_decode_ms", decode_ms), ("image_resize_ms", resize_ms)):
            self._parts[name] = self._parts.get(name, 0.0) + value

    def fields(self) -> dict[str, Any]:
        """Return what the JSON line holds: stages in milliseconds, None where a stamp is missing."""
        line: dict[str, Any] = {"v": 1, "req_id": self.req_id}
        for name, first, last in zip(BETWEEN, STAMPS[:-1], STAMPS[1:], strict=True):
            known = first in self._at and last in self._at
            line[name] = (self._at[last] - self._at[first]) / 1e6 if known else None
        if self._images:
            line |= {"img_wh": self._images, "img_bytes": self._image_bytes, **self._parts}
        return line

    def _stamp(self, name: str) -> None:
        self._at.setdefault(name, self._now())


class _Nothing(StageClock):
    """Takes every call and keeps nothing: outside a request, or turned off."""

    def _stamp(self, name: str) -> None:
        return

    def image(
        self, width: int, height: int, size_bytes: int, *, decode_ms: float, resize_ms: float = 0.0
    ) -> None:
        return


_NOTHING = _Nothing("")
_current: ContextVar[StageClock] = ContextVar("stages", default=_NOTHING)


def current() -> StageClock:
    """Return the clock of the request under way; outside one, a clock that keeps nothing."""
    return _current.get()


class StageWriter:
    """Writes one JSON line per request, whole lines only, from any thread."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._lock = out, threading.Lock()

    def write(self, clock: StageClock) -> None:
        """Write a request's line."""
        line = json.dumps(clock.fields(), separators=(",", ":")) + "\n"
        with self._lock:
            self._out.write(line)
            self._out.flush()

    def close(self) -> None:
        """Close the file."""
        self._out.close()


def is_on() -> bool:
    """Return whether stages are kept: yes, unless KNEE_STAGES is off, 0, false or no."""
    return os.environ.get("KNEE_STAGES", "on").strip().lower() not in ("off", "0", "false", "no")


def default_writer() -> StageWriter:
    """Return a writer to KNEE_STAGES_FILE, or stderr."""
    path = os.environ.get("KNEE_STAGES_FILE")
    return StageWriter(open(path, "a", encoding="utf-8") if path else sys.stderr)


class StageMiddleware:
    """ASGI middleware: a clock per HTTP request with an `x-request-id`, its line written at the end.

    It takes the stamps `received` (the last part of the body was read) and `done` (the last part of the
    answer was sent) where the service does not.
    """

    def __init__(self, app: App, *, writer: StageWriter | None = None) -> None:
        self._app = app
        self._writer = (writer or default_writer()) if is_on() else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        req_id = _request_id(scope) if self._writer and scope["type"] == "http" else None
        if req_id is None or self._writer is None:
            await self._app(scope, receive, send)
            return
        clock = StageClock(req_id)

        async def read() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                clock.received()
            return message

        async def write(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                clock.done()

        token = _current.set(clock)
        try:
            await self._app(scope, read, write)
        finally:
            _current.reset(token)
            clock.done()
            self._writer.write(clock)


def _request_id(scope: Scope) -> str | None:
    for name, value in scope.get("headers", ()):
        if name.lower() == b"x-request-id":
            return str(value.decode("latin-1"))
    return None
