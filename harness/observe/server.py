"""What the sidecar serves: its rows since a number, clock exchanges, Prometheus metrics, its health.

The standard library's server on threads: a server with an event loop costs more idle than all the sampling.
Each answer leaves in one write, so that no delayed acknowledgement sits inside a clock exchange.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from harness.errors import UserError
from harness.observe.clocks import Clocks
from harness.observe.journal import Journal
from harness.records import GpuSample

MAX_ROWS = 2000  # in one answer
NEWEST_ROWS = 120  # where no `since` is given


@dataclass(slots=True)
class Board:
    """What the sampling threads write and the server reads."""

    host: str
    samples: Journal
    engine: Journal
    clocks: Clocks
    status: Callable[[], dict[str, Any]]
    latest: dict[str | None, GpuSample] = field(default_factory=dict)  # by GPU
    closed: bool = False  # kept connections outlive the server: they end at their next question


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reachable from this host alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def make_server(host: str, port: int, token: str | None, board: Board) -> ThreadingHTTPServer:
    """Return a bound server (port 0: any free one); with a token, every request must carry it."""

    class Handler(_Handler):
        pass

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True
        allow_reuse_address = True

    Handler.board, Handler.token = board, token
    try:
        return Server((host, port), Handler)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror}", key="--listen", remedy="take another port"
        ) from None


def serve(server: ThreadingHTTPServer) -> threading.Thread:
    """Serve in a thread of its own until `server.shutdown()`."""
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name="server", daemon=True)
    thread.start()
    return thread


class _Handler(BaseHTTPRequestHandler):
    board: Board
    token: str | None
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "knee-sample", ""
    disable_nagle_algorithm = True
    timeout = 60  # of an idle kept connection

    def do_GET(self) -> None:
        wall, mono = self.board.clocks.wall_ns(), self.board.clocks.mono_ns()
        if self.board.closed:
            self.close_connection = True
            return
        url = urlsplit(self.path)
        if not self._allowed():
            self._answer(401, b'{"error":"this sidecar asks for a token"}')
            return
        match url.path:
            case "/clock":
                self._clock(wall, mono)
            case "/samples":
                self._rows(self.board.samples, url.query)
            case "/engine":
                self._rows(self.board.engine, url.query)
            case "/health":
                self._answer(200, json.dumps(self.board.status()).encode())
            case "/metrics":
                self._answer(200, exposition(list(self.board.latest.values())), "text/plain; version=0.0.4")
            case _:
                self._answer(404, b'{"error":"/samples /engine /clock /metrics /health"}')

    def _allowed(self) -> bool:
        given = self.headers.get("Authorization", "")
        return self.token is None or hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode())

    def _clock(self, wall: int, mono: int) -> None:
        known = {"host": self.board.host, "t1_ns": wall, "mono_ns": mono}
        self._answer(200, json.dumps(known | {"t2_ns": self.board.clocks.wall_ns()}).encode())

    def _rows(self, journal: Journal, query: str) -> None:
        asked = {key: values[-1] for key, values in parse_qs(query).items()}
        try:
            limit = min(int(asked.get("limit", MAX_ROWS)), MAX_ROWS)
            if "age_s" in asked:
                since = journal.before(float(asked["age_s"]))
            else:
                since = int(asked.get("since", journal.last() - min(limit, NEWEST_ROWS)))
        except (ValueError, OverflowError):
            self._answer(400, b'{"error":"since, limit and age_s are numbers"}')
            return
        last, lines = journal.after(since, limit)
        rows = b",".join(lines.splitlines())
        self._answer(
            200, b'{"journal":"%s","since":%d,"rows":[%s]}' % (journal.identity.encode(), last, rows)
        )

    def _answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        head = (
            f"HTTP/1.1 {status} {self.responses[status][0]}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nCache-Control: no-store\r\n\r\n"
        )
        try:
            self.wfile.write(head.encode() + body)
        except OSError:
            self.close_connection = True  # the reader went away; its next question finds the same rows

    def log_message(self, *_: Any) -> None:
        pass


# field -> OpenTelemetry's name in Prometheus spelling, its meaning
METRICS = {
    "util": ("hw_gpu_utilization_ratio", "Share of time in which a kernel ran, 0-1."),
    "mem_used_bytes": ("hw_gpu_memory_usage_bytes", "GPU memory in use."),
    "mem_total_bytes": ("hw_gpu_memory_limit_bytes", "GPU memory in all."),
    "power_w": ("hw_power_watts", "Power drawn."),
    "energy_j": ("hw_energy_joules", "Energy drawn since the driver was loaded."),
    "temp_c": ("hw_temperature_celsius", "GPU temperature."),
}


def exposition(rows: list[GpuSample]) -> bytes:
    """Return the newest rows as Prometheus text; what is missing is left out."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

    class Rows:
        def collect(self) -> list[Metric]:
            families: list[Metric] = []
            for name, (metric, text) in METRICS.items():
                kind = CounterMetricFamily if name == "energy_j" else GaugeMetricFamily
                family = kind(metric, text, labels=["hw_id", "hw_type", "hw_name"])
                for row in rows:
                    value = getattr(row, name)
                    if value is not None:
                        family.add_metric([row.gpu or "", "gpu", row.name or ""], value)
                families.append(family)
            return families

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Rows())
    return generate_latest(registry)
