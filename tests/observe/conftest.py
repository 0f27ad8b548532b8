"""A stub of the driver's library under the real binding, and HTTP services that answer as told."""

import ctypes
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.observe.clocks import Clocks

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub, built; its name and soname are the driver library's."""
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(path)]
    subprocess.run([*command, str(HERE / "stub_nvml.c")], check=True)
    return path


class Stub:
    """What the stub answers: set it with `stub(count=2, dev0_util=50)`; `_` after devN stands for a dot."""

    def __init__(self, path: Path) -> None:
        self.path, self._settings = path, {}

    def __call__(self, **settings: int | None) -> None:
        for name, value in settings.items():
            key = name.replace("__", ".")
            self._settings.pop(key, None) if value is None else self._settings.update({key: value})
        scratch = self.path.with_suffix(".new")
        scratch.write_text("".join(f"{key} {value}\n" for key, value in self._settings.items()))
        os.replace(scratch, self.path)


@pytest.fixture
def stub(stub_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stub:
    """The stub loaded into this process, with one healthy GPU; a double underscore in a key is a dot."""
    ctypes.CDLL(str(stub_library))  # by its soname, the binding now finds this one
    path = tmp_path / "nvml-stub"
    monkeypatch.setenv("NVML_STUB", str(path))
    answers = Stub(path)
    answers(count=1)
    return answers


class ManualClock:
    """A host's clocks that stand still until moved."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000_000
        self.clocks = Clocks(wall_ns=lambda: 10**18 + self.now_ns, mono_ns=lambda: self.now_ns)

    def move(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


Answer = Callable[[BaseHTTPRequestHandler], None]


class Service:
    """An HTTP service; `answers` maps a path to bytes, a status, or a function of the handler."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | int | Answer] = {}
        self.asked: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = 1 << 16

            def do_GET(self) -> None:
                service.asked.append(self.path)
                answer = service.answers.get(self.path.partition("?")[0], 404)
                if callable(answer):
                    answer(self)
                    return
                status, body = (200, answer) if isinstance(answer, bytes) else (answer, b"no")
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                pass  # clients that give up are what tests are about

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    yield running
    running.close()


@pytest.fixture
def wait_for() -> Callable[..., Any]:
    """Return a function that gives the first true value of a condition, or fails after some seconds."""

    def wait(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError("it never came")

    return wait
