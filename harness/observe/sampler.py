"""The sidecar: one process that samples GPUs, scrapes the engine, and keeps and serves what it saw.

A process of its own, started fresh (not forked), because a blocking driver call would freeze a load
generator's event loop for its whole length. Each thing observed has its own thread: an engine that hangs
delays no GPU sample, and a reader that hangs delays neither. Started for a run, the same process also fetches
from the sidecar of another host, so that one way of observing serves all runs.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.observe.clocks import HOST_CLOCKS, Clocks
from harness.observe.engine_metrics import EngineScraper
from harness.observe.fetch import FetchError, Getter
from harness.observe.journal import Journal
from harness.observe.pacing import Pace
from harness.observe.remote import RemoteSidecar, exchange
from harness.observe.server import Board, make_server, serve
from harness.observe.sources import Source, check_choice, chosen, open_source, sidecar_address
from harness.records import ClockRow, EngineSample, GpuSample

CLOCK_EVERY_S = 30.0
SEARCH_EVERY_S = 10.0  # for an engine that has shown no metrics yet


@dataclass(frozen=True, slots=True)
class Settings:
    """What one sidecar does; `source` as in `open_source`, or the address of another sidecar."""

    source: str = "auto"
    engine: str | None = None
    gpus: tuple[str, ...] = ()
    interval_s: float = 1.0
    host: str = "127.0.0.1"
    port: int = 9877
    token: str | None = None  # asked of readers where `host` is not loopback, and sent to another sidecar
    out: Path | None = None
    engine_out: Path | None = None
    clock_out: Path | None = None
    ask_token: bool = False


class Sidecar:
    """Opened by its constructor, at work between `start` and `close`."""

    def __init__(self, settings: Settings, clocks: Clocks = HOST_CLOCKS) -> None:
        self._settings, self._clocks, self._stop = settings, clocks, threading.Event()
        self._source: Source | None = None
        self._remote: RemoteSidecar | None = None
        self._clock_getter: Getter | None = None
        self._scraper = EngineScraper(settings.engine, clocks) if settings.engine else None
        address = sidecar_address(settings.source)
        if address is not None:
            self._remote = RemoteSidecar(self._sidecar_getter(address))
            self._clock_getter = self._sidecar_getter(address)
        else:
            self._source = open_source(settings.source, settings.engine, clocks)
            if self._source is not None and settings.gpus:
                try:
                    check_choice(self._source.read(), settings.gpus)
                except UserError:
                    self._source.close()
                    raise
        self._clock = Journal(settings.clock_out, ClockRow)
        self.board = Board(
            socket.gethostname(),
            Journal(settings.out, GpuSample),
            Journal(settings.engine_out, EngineSample),
            clocks,
            self.status,
        )
        self._server = make_server(
            settings.host, settings.port, settings.token if settings.ask_token else None, self.board
        )
        self._paces = {name: Pace(settings.interval_s, self._stop) for name in ("gpu", "engine")}
        self._threads: list[threading.Thread] = []
        self._closed = False

    @property
    def url(self) -> str:
        """Return where the sidecar serves."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def status(self) -> dict[str, Any]:
        """Return what the sidecar is doing, for /health and the line it prints when ready."""
        gpu = self._source or self._remote
        return {
            "ready": True,
            "url": self.url,
            "host": self.board.host,
            "gpu": gpu.words if gpu else "none: not asked for",
            "engine": self._scraper.words if self._scraper else "none: not asked for",
            "samples": self.board.samples.last() + 1,
            "engine_samples": self.board.engine.last() + 1,
            "overruns": {name: pace.overruns for name, pace in self._paces.items()},
            "lost": self.board.samples.lost + self.board.engine.lost,
        }

    def start(self) -> None:
        """Begin to observe and to serve; the first readings are taken before this returns."""
        if self._remote is not None:
            self._remote.fetch(self._take)
            self._begin("clock", self._exchange_clocks)
            self._begin("gpu", self._fetch)
        elif self._source is not None:
            self._begin("gpu", self._sample)
        if self._scraper is not None:
            self._scrape_once(self._scraper)
            self._begin("engine", self._scrape)
        self._threads.append(serve(self._server))

    def close(self, timeout_s: float = 4.5) -> None:
        """End: fetch what is left, exchange clocks once more, let go of the driver after its last call."""
        if self._closed:
            return
        self._closed = self.board.closed = True
        self._stop.set()
        self._server.shutdown()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._server.server_close()
        if any(thread.is_alive() for thread in self._threads):
            return  # a call that hangs still uses library and files: the process's end closes them
        for part in (self._source, self._remote, self._clock_getter, self._scraper, self._clock):
            if part is not None:
                part.close()
        self.board.samples.close()
        self.board.engine.close()

    def _begin(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _take(self, row: GpuSample) -> None:
        for kept in chosen([row], self._settings.gpus):
            self.board.samples.append(kept)
            self.board.latest[kept.gpu] = kept

    def _sample(self) -> None:
        assert self._source is not None
        for _ in self._paces["gpu"].ticks():
            for row in self._source.read():
                self._take(row)

    def _fetch(self) -> None:
        assert self._remote is not None
        for _ in self._paces["gpu"].ticks():
            self._remote.fetch(self._take)
        self._remote.fetch(self._take)

    def _scrape(self) -> None:
        assert self._scraper is not None
        search_at = time.monotonic() + SEARCH_EVERY_S
        self._stop.wait(self._settings.interval_s)  # the first scrape was taken at the start
        for _ in self._paces["engine"].ticks():
            if not self._scraper.found and time.monotonic() < search_at:
                continue
            search_at = time.monotonic() + SEARCH_EVERY_S
            self._scrape_once(self._scraper)

    def _scrape_once(self, scraper: EngineScraper) -> None:
        self.board.engine.append(scraper.read())

    def _exchange_clocks(self) -> None:
        """Exchange stamps now, every CLOCK_EVERY_S (sooner while there is no answer), and at the end."""
        burst, stopping = 0, False
        while not stopping:
            wait_s = CLOCK_EVERY_S if self._burst(burst) else 2.0
            burst += 1
            stopping = self._stop.wait(wait_s)
        self._burst(burst)

    def _burst(self, number_: int) -> bool:
        assert self._clock_getter is not None
        try:
            rows = exchange(self._clock_getter, self._clocks, number_)
        except FetchError:
            return False
        for row in rows:
            self._clock.append(row)
        return True

    def _sidecar_getter(self, address: str) -> Getter:
        token = self._settings.token
        return Getter(address, headers={"Authorization": f"Bearer {token}"} if token else None)
