"""Runs the engine's app: as a process until a signal, or in a thread while a block lasts."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import IO

import uvicorn

from harness.engine.config import EngineConfig
from harness.engine.server import EngineApp
from harness.errors import UserError


class _Server(uvicorn.Server):
    """Says when it listens, and ends without raising the signal again."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.stop)
        yield

    def stop(self) -> None:
        """End, leaving open streams a second."""
        self.should_exit = True


def serve(
    config: EngineConfig,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    log: IO[bytes] | None = None,
    api_key: str | None = None,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM; `on_ready` gets the base URL. Raises UserError for a taken port."""
    listener = _listen(host, port)
    url = _url(listener)
    server = _server(config, lambda: on_ready(url), log, api_key)
    with listener:
        server.run([listener])


@contextlib.contextmanager
def serving(
    config: EngineConfig, *, log: IO[bytes] | None = None, api_key: str | None = None
) -> Iterator[str]:
    """Serve on a free loopback port from a thread while the block lasts; yields the base URL."""
    ready = threading.Event()
    listener = _listen("127.0.0.1", 0)
    server = _server(config, ready.set, log, api_key)
    thread = threading.Thread(target=server.run, args=([listener],), name="engine", daemon=True)
    with listener:
        thread.start()
        try:
            if not ready.wait(10):
                raise RuntimeError("the engine did not start within 10 s")
            yield _url(listener)
        finally:
            server.stop()
            thread.join(10)


def _server(
    config: EngineConfig, on_ready: Callable[[], None], log: IO[bytes] | None, api_key: str | None
) -> _Server:
    settings = uvicorn.Config(
        EngineApp(config, log=log, api_key=api_key).app,
        http="h11",
        lifespan="on",
        log_level="error",
        access_log=False,
        timeout_keep_alive=75,  # a kept connection must not be closed under the next request
        timeout_graceful_shutdown=1,
    )
    return _Server(settings, on_ready)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named: asyncio sets TCP_NODELAY on no other, and Nagle would hold tokens back.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            remedy="choose another --port, 0 for a free one",
        ) from None
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
