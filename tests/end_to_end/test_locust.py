"""Locust as users start it: real processes, on free ports, against the simulated engine or a faulty server.

Runs that need no hand on them are started together, since most of their time is waiting.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.commands.processes import harness_command, running
from harness.records import Request, decode_lines

ROOT = Path(__file__).parent.parent.parent
SECRET = "sk-never-to-be-seen"
pytestmark = pytest.mark.end_to_end

PROFILE = """
name: small
target:
  base_url: http://127.0.0.1:1/v1
  model: sim-vlm
  api_key_env: SMALL_KEY
  timeouts: {{connect_s: 2, ttft_s: {idle_s}, idle_s: {idle_s}, total_s: 8}}
generation: {{max_tokens: 4}}
traffic:
  mix:
    - {{kind: text, weight: 3, text: {{chars: 100}}}}
    - {{kind: image, weight: 1, text: {{chars: 40}}, images: {{side: 64}}}}
load:
  {steps}
  drift_check: {drift}
  hold: {{seconds: {seconds}, min_requests: 20, max_seconds: 12, settle_s: 0.2}}
stop: {{error_rate: {error_rate}}}
observe: {{gpu: {gpu}, engine: none, interval_s: 0.2}}
"""


@dataclass
class Started:
    """A Locust process, its log and the runs it leaves."""

    process: subprocess.Popen[bytes]
    log: Path
    out: Path

    def wait(self, within_s: float = 90) -> int:
        return self.process.wait(within_s)

    @property
    def runs(self) -> list[Path]:
        return sorted(self.out.iterdir()) if self.out.exists() else []

    @property
    def counts(self) -> list[dict[str, Any]]:
        """Locust's own statistics."""
        (file,) = self.out.parent.glob("counts*")
        found: list[dict[str, Any]] = json.loads(file.read_text())
        return found

    def text(self) -> str:
        return self.log.read_text(errors="replace")


@dataclass
class Run:
    """A run directory, read without the code that wrote it."""

    path: Path

    @property
    def info(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / "run.json").read_bytes())
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "requests.jsonl").read_bytes().splitlines()]

    def phase(self, label: str) -> dict[str, Any]:
        return next(p for p in self.info["phases"] if p["label"] == label)

    def in_window(self, label: str) -> list[dict[str, Any]]:
        phase = self.phase(label)
        return [row for row in self.rows if phase["t0_ns"] <= row["wall_ns"] < phase["t1_ns"]]

    def check_complete(self) -> None:
        """Every record that was made is there, once, and of the format."""
        seqs: dict[str, list[int]] = {}
        for row in self.rows:
            seqs.setdefault(row["worker"], []).append(row["seq"])
        for worker in self.info["workers"]:
            made = worker["records_made"]
            assert sorted(seqs.get(worker["id"], [])) == list(range(made))
            assert worker["records_received"] == made
            assert worker["gaps"] == []
        assert not (self.path / "workers").exists()
        with (self.path / "requests.jsonl").open("rb") as lines:
            assert all(row is not None for row in decode_lines(lines, Request))


class FaultyServer(socketserver.ThreadingTCPServer):
    """Answers each request in the next of its ways, and counts them."""

    allow_reuse_address = daemon_threads = True
    ways = ("ok", "reset", "truncated", "stall", "busy", "empty")

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FaultyHandler)
        self.lock = threading.Lock()
        self.answered: Counter[str] = Counter()
        self._turn = itertools.cycle(self.ways)

    def next_way(self) -> str:
        with self.lock:
            way = next(self._turn)
            self.answered[way] += 1
            return way


EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
BUSY = b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\nretry-after: 1\r\n\r\n{}"


class FaultyHandler(socketserver.StreamRequestHandler):
    server: FaultyServer

    def handle(self) -> None:
        while self.read_request():
            way = self.server.next_way()
            if way == "busy":
                self.wfile.write(BUSY)
                continue
            self.wfile.write(HEAD)
            if way != "empty":
                self.chunk(EVENT)
            if way == "stall":
                time.sleep(1.2)
                return
            if way == "reset":
                time.sleep(0.05)  # the first event is read before the reset comes
                self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.request.close()
                return
            if way in ("ok", "empty"):
                self.chunk(LAST)
            self.wfile.write(b"0\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def read_request(self) -> bool:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.rfile.readline()
            if not line:
                return False
            head += line
        length = int(re.search(rb"content-length: (\d+)", head.lower())[1])  # type: ignore[index]
        return len(self.rfile.read(length)) == length

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()


@pytest.fixture(scope="module")
def faulty() -> Iterator[FaultyServer]:
    server = FaultyServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def write_profile(folder: Path, **values: Any) -> Path:
    """Write a small profile and return its path."""
    defaults = {
        "idle_s": 5,
        "steps": "users: [1, 2]",
        "drift": "false",
        "seconds": 1,
        "error_rate": 0.5,
        "gpu": "none",
    }
    file = folder / "small.yaml"
    file.write_text(PROFILE.format(**defaults | values))
    return file


def start_locust(stack: ExitStack, folder: Path, *args: str, file: str = "steps", **more: Any) -> Started:
    """Start `locust -f FILE ARGS`; whatever still runs is ended with the stack."""
    log, out = folder / f"locust{len(list(folder.glob('locust*.log')))}.log", folder / "runs"
    path = ROOT / "locustfiles" / f"{file}.py"
    if not path.exists():
        path = Path(__file__).parent / f"{file}.py"
    command = [sys.executable, "-m", "locust", "-f", str(path), "--out", str(out), *args]
    environ = {**os.environ, "SMALL_KEY": SECRET} | more.pop("environ", {})
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ, **more
        )
    stack.callback(_end, process)
    return Started(process, log, out)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("engine")
    with running(harness_command("engine", "--port", "0"), folder / "engine.log") as ready:
        yield ready.removeprefix("ready ")


@pytest.fixture
def profile(tmp_path: Path) -> Callable[..., Path]:
    return lambda **values: write_profile(tmp_path, **values)


@pytest.fixture
def locust(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    with ExitStack() as stack:
        yield lambda *args, **more: start_locust(stack, tmp_path, *args, **more)


@dataclass(frozen=True)
class Scenario:
    """A headless run: its profile, its locustfile, its processes and its target."""

    profile: dict[str, Any]
    file: str = "steps"
    processes: int | None = 2
    target: str = "engine"


SCENARIOS = {
    "distributed": Scenario({"steps": "users: [1, 3]", "drift": "true", "gpu": "sim:ENGINE"}),
    "open": Scenario({"steps": "rates: [8, 100]\n  arrivals: constant\n  max_in_flight: 4", "seconds": 3}),
    "counted": Scenario({}, file="repeat"),
    "faults": Scenario(
        {"steps": "users: [4]", "idle_s": 0.4, "error_rate": "null", "seconds": 4},
        processes=None,
        target="faulty",
    ),
    "timers": Scenario(
        {"steps": "users: [2]", "error_rate": "null", "seconds": 3}, file="stray_timers", processes=None
    ),
    "dead": Scenario({}, processes=None, target="dead"),
}


@pytest.fixture(scope="module", autouse=True)
def finished(
    engine: str, faulty: FaultyServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Started]]:
    """Return a function that waits for a scenario's end; all are started at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{probe.getsockname()[1]}"
    hosts = {"engine": engine, "faulty": f"http://127.0.0.1:{faulty.server_address[1]}", "dead": dead}
    with ExitStack() as stack:
        started = {}
        for name, scenario in SCENARIOS.items():
            folder = tmp_path_factory.mktemp(name)
            values = {k: str(v).replace("ENGINE", engine) for k, v in scenario.profile.items()}
            args = ["--headless", "--host", hosts[scenario.target], "--json-file", str(folder / "counts")]
            args += ["--profile", str(write_profile(folder, **values))]
            if scenario.processes:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", 0))
                    args += ["--master-bind-port", str(probe.getsockname()[1])]
                    args += ["--master-port", args[-1], "--processes", str(scenario.processes)]
            started[name] = start_locust(stack, folder, *args, file=scenario.file)

        def wait(name: str) -> Started:
            started[name].wait(120)
            return started[name]

        yield wait


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(condition: Callable[[], Any], within_s: float = 40) -> Any:
    """Return the first true value of a condition."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if value := condition():
                return value
        except (OSError, ValueError, KeyError):
            pass
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


def fetch(url: str, data: bytes | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=20) as answer:
        body: bytes = answer.read()
        return body


def test_separate_workers_one_that_joins_late_and_one_that_is_killed(
    locust: Callable[..., Started],
    profile: Callable[..., Path],
    engine: str,
    free_port: Callable[[], int],
    tmp_path: Path,
) -> None:
    port = str(free_port())
    master = locust(
        "--master", "--headless", "--expect-workers", "2", "--host", engine,
        "--master-bind-host", "127.0.0.1", "--master-bind-port", port,
        "--profile", str(profile(steps="users: [2, 4, 6]", seconds=3)),
    )  # fmt: skip
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()  # a worker needs neither the profile nor the master's folder
    join = ("--worker", "--master-host", "127.0.0.1", "--master-port", port)
    workers = [locust(*join, cwd=elsewhere) for _ in range(2)]
    began = until(lambda: master.runs and Run(master.runs[0]).phase("2 users")["t0_ns"])
    late = locust(*join, cwd=elsewhere)
    # the step is measured afresh with the worker that came late
    until(lambda: (Run(master.runs[0]).phase("2 users")["t0_ns"] or 0) > began)
    assert len(Run(master.runs[0]).info["workers"]) == 3
    until(lambda: Run(master.runs[0]).phase("4 users")["t0_ns"])
    victim = workers[0].process
    victim.kill()
    victim.wait()
    assert master.wait() == 3, master.text()
    run = Run(master.runs[0])
    assert {p["code"] for p in run.info["problems"]} == {"workers_lost"}
    assert "`4 users`" in run.info["problems"][0]["text"]
    assert run.phase("2 users")["t1_ns"] is not None
    assert run.phase("4 users")["t1_ns"] is None
    assert "was lost" in run.info["stopped_early"]
    lost = {w["pid"]: w for w in run.info["workers"] if w["lost"]}
    assert list(lost) == [victim.pid]
    (dead,) = lost.values()
    # what it had measured is kept in its own file, every record of it
    with Path(dead["file"]).open("rb") as lines:
        kept = [row for row in decode_lines(lines, Request) if row is not None]
    assert [row.seq for row in kept] == list(range(len(kept)))
    assert len(kept) >= dead["records_received"] > 0
    alive = [w for w in run.info["workers"] if not w["lost"]]
    made = Counter(row["worker"] for row in run.rows)
    assert all(w["gaps"] == [] and made[w["id"]] == w["records_made"] > 0 for w in alive)
    assert {w["pid"] for w in alive} == {workers[1].process.pid, late.process.pid}
    assert not [w.text() for w in (*workers, late) if "Traceback" in w.text()]
    assert [f.name for f in (run.path / "workers").iterdir()] == [Path(dead["file"]).name]


def test_the_web_ui_starts_stops_and_starts_again(
    locust: Callable[..., Started], profile: Callable[..., Path], engine: str, free_port: Callable[[], int]
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    started = locust("--web-port", url.rpartition(":")[2], "--host", engine, "--profile", str(profile()))

    def state() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(fetch(f"{url}/knee/data.json"))
        return found

    until(lambda: state()["state"] == "idle")
    fetch(f"{url}/swarm", b"user_count=1&spawn_rate=1")
    until(lambda: state()["state"] == "running" and state()["steps"])
    fetch(f"{url}/stop", b"")
    fetch(f"{url}/swarm", b"user_count=1&spawn_rate=1")  # before the first has its report
    until(lambda: len(started.runs) == 2 and state()["state"] == "running")
    first = Run(started.runs[0])
    assert (first.path / "report.html").exists()
    assert first.info["stopped_early"] == "stopped in the web UI"
    assert first.info["ended_ns"] is not None
    first.check_complete()
    assert [r["outcome"] for r in first.rows].count("cancelled") <= 1  # the one in flight
    table = until(lambda: json.loads(fetch(f"{url}/stats/requests"))["extended_stats"][0]["data"])
    assert table[0]["label"] == "1 user"
    until(lambda: state()["state"] in ("analysing", "done"))
    fetch(f"{url}/stop", b"")  # too late to end the load: the report is not lost
    done = until(lambda: (s := state())["state"] == "done" and s)
    assert done["run"] == started.runs[1].name
    assert done["headline"].startswith("Too little was measured for a verdict")  # two steps
    assert (done["report"], done["tone"]) == (True, "bad")
    assert [(s["label"], s["done"]) for s in done["steps"]] == [("1 user", True), ("2 users", True)]
    second = Run(started.runs[1])
    second.check_complete()
    assert second.info["stopped_early"] is None
    for step in done["steps"]:  # the page's figures are those of the records
        rows = [r for r in second.in_window(step["label"]) if r["outcome"] == "ok"]
        assert step["n"] == len(rows)
    assert min(row["user"] for row in second.rows) == 0
    assert not {r["req_id"] for r in first.rows} & {r["req_id"] for r in second.rows}
    pages = {path: fetch(url + path).decode() for path in ("/", "/knee", "/knee/data.json", "/knee/report")}
    assert "/knee" in pages["/"]
    assert pages["/knee/report"] == (second.path / "report.html").read_text()
    assert not [path for path, page in pages.items() if SECRET in page]
    assert SECRET not in started.text()
    started.process.terminate()
    assert started.wait(20) == 0


def test_an_interrupt_ends_a_distributed_run_with_a_report(
    locust: Callable[..., Started],
    profile: Callable[..., Path],
    engine: str,
    free_port: Callable[[], int],
) -> None:
    port = str(free_port())
    started = locust(
        "--headless", "--processes", "2", "--host", engine, "--master-bind-port", port, "--master-port", port,
        "--profile", str(profile(steps="users: [4]", seconds=9)),
        start_new_session=True,
    )  # fmt: skip
    until(lambda: started.runs and Run(started.runs[0]).phase("4 users")["t0_ns"])
    time.sleep(1)
    os.killpg(started.process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
    started.process.send_signal(signal.SIGINT)
    assert started.wait(30) == 130, started.text()
    run = Run(started.runs[0])
    run.check_complete()
    assert run.info["stopped_early"] == "interrupted"
    assert run.info["ended_ns"] is not None
    assert Counter(r["outcome"] for r in run.rows)["cancelled"] <= 4
    assert (run.path / "report.json").exists()


@pytest.mark.parametrize(
    ("args", "environ", "text", "said"),
    [
        ((), {}, "load:\n  user: [1]\n", "unknown key"),
        ((), {"SMALL_KEY": ""}, "", "SMALL_KEY is not set"),
        (("--profile", "nowhere.yaml"), {}, "", "no such profile"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    locust: Callable[..., Started],
    profile: Callable[..., Path],
    args: tuple[str, ...],
    environ: dict[str, str],
    text: str,
    said: str,
) -> None:
    file = profile()
    if text:
        file.write_text(file.read_text().partition("load:")[0] + text)
    started = locust("--headless", "--profile", str(file), *args, environ=environ)
    assert started.wait(30) == 2, started.text()
    log = started.text()
    assert "Traceback" not in log
    (line,) = [line for line in log.splitlines() if line.startswith("knee: ")]
    assert said in line
    assert started.runs == []  # nothing half-written


def test_a_distributed_run_loses_nothing_and_counts_each_request_once(
    finished: Callable[[str], Started],
) -> None:
    started = finished("distributed")
    assert started.process.returncode in (0, 3), started.text()  # 3: two steps are too few for a verdict
    (path,) = started.runs
    run = Run(path)
    run.check_complete()
    assert [p["label"] for p in run.info["phases"]] == ["1 user", "3 users", "1 user (drift)"]
    assert all(p["t1_ns"] is not None for p in run.info["phases"])
    assert len(run.info["workers"]) == 2
    assert run.info["stopped_early"] is None
    assert run.info["problems"] == []
    # Locust's own count, fed once per record
    assert sum(entry["num_requests"] for entry in started.counts) == len(run.rows)
    # a step down cuts nothing off, and ids and nonces are each used once
    assert {row["outcome"] for row in run.rows} == {"ok"}
    assert len({row["req_id"] for row in run.rows}) == len(run.rows)
    # the mix is the profile's at every step, and records say the users that ran
    for label, users in (("1 user", 1), ("3 users", 3)):
        rows = run.in_window(label)
        assert sum(r["outcome"] == "ok" for r in rows) >= 20
        assert {row["users"] for row in rows} == {users}
        share = Counter(row["kind"] for row in rows)["text"] / len(rows)
        assert 0.75 - 3 / len(rows) <= share <= 0.75 + 3 / len(rows)
    # clocks: at the start and at the end
    for worker in run.info["workers"]:
        exchanges = worker["clock"]
        assert len(exchanges) == 32
        assert all(e["t0_ns"] <= e["t3_ns"] and e["t1_ns"] <= e["t2_ns"] for e in exchanges)
    assert (path / "gpu.jsonl").stat().st_size > 0
    assert (path / "report.html").exists()
    assert SECRET not in "".join(f.read_text(errors="replace") for f in path.rglob("*") if f.is_file())
    assert "Traceback" not in started.text()


def test_an_open_loop_sends_when_due_and_counts_what_it_could_not(finished: Callable[[str], Started]) -> None:
    started = finished("open")
    run = Run(started.runs[0])
    run.check_complete()
    slow, fast = run.in_window("8 req/s"), run.in_window("100 req/s")
    seconds = (run.phase("8 req/s")["t1_ns"] - run.phase("8 req/s")["t0_ns"]) / 1e9
    assert abs(len(slow) - 8 * seconds) <= 2
    assert {row["users"] for row in slow} == {None}
    assert {row["rate"] for row in slow} == {8.0}
    dues = [row["due_ns"] for row in slow]
    gaps = [(b - a) / 1e9 for a, b in itertools.pairwise(sorted(dues))]
    assert abs(sum(gaps) / len(gaps) - 1 / 8) < 0.005  # no drift
    assert all(row["queued_ms"] == pytest.approx((row["start_ns"] - row["due_ns"]) / 1e6) for row in slow)
    assert all(row["backoff_ms"] == 0 for row in run.rows)
    # the fast rate: at most 4 in flight, the rest waits and is recorded as never sent
    unsent = [r for r in run.rows if r["outcome"] == "cancelled" and "max_in_flight" in r["error"]]
    assert len(unsent) > 50
    sent = sum(r["outcome"] == "ok" for r in fast)
    phase = run.phase("100 req/s")
    due = [r for r in run.rows if phase["t0_ns"] <= r["wall_ns"] - r["queued_ms"] * 1e6 < phase["t1_ns"]]
    assert sent < 0.8 * len(due)
    assert abs(len(due) - 100 * (phase["t1_ns"] - phase["t0_ns"]) / 1e9) <= 5
    ends = [(r["start_ns"], 1) for r in run.rows if r["outcome"] == "ok"]
    ends += [(r["start_ns"] + round(r["total_ms"] * 1e6), -1) for r in run.rows if r["outcome"] == "ok"]
    assert max(itertools.accumulate(change for _, change in sorted(ends))) <= 4


def test_a_counted_phase_sends_exactly_its_requests(finished: Callable[[str], Started]) -> None:
    started = finished("counted")
    run = Run(started.runs[0])
    run.check_complete()
    assert len(run.rows) == 20
    assert len(run.in_window("repeat")) == 20
    assert [row["first"] for row in sorted(run.rows, key=lambda r: r["seq"])] == [True] + [False] * 19


def test_every_failed_stream_is_recorded_once_and_no_user_is_lost(
    finished: Callable[[str], Started], faulty: FaultyServer
) -> None:
    started = finished("faults")
    run = Run(started.runs[0])
    run.check_complete()
    seen = Counter(row["outcome"] for row in run.rows)
    names = {"busy": "rejected", "stall": "timeout_idle"}
    assert seen == Counter({names.get(way, way): n for way, n in faulty.answered.items()})
    assert sum(entry["num_requests"] for entry in started.counts) == len(run.rows)
    assert sum(entry["num_failures"] for entry in started.counts) == len(run.rows) - seen["ok"]
    # all four users went on to the end
    phase = run.phase("4 users")
    assert phase["t1_ns"] is not None
    late = [r for r in run.rows if r["wall_ns"] > phase["t1_ns"] - 3e9]
    assert {row["user"] for row in late} == {0, 1, 2, 3}
    # backoff: 0.1 s, doubling while it goes on failing, none after a success
    for user in range(4):
        mine = sorted((r for r in run.rows if r["user"] == user), key=lambda r: r["start_ns"])
        expected = 0.0
        for row in mine:
            expected = 0.0 if row["outcome"] == "ok" else min(max(expected * 2, 100.0), 2000.0)
            assert row["backoff_ms"] == expected
        for row, after in itertools.pairwise(mine):
            assert (after["start_ns"] - row["start_ns"]) / 1e6 >= row["total_ms"] + row["backoff_ms"] - 1
    assert {row["retry_after_s"] for row in run.rows if row["outcome"] == "rejected"} == {1.0}


def test_timers_of_others_end_no_user(finished: Callable[[str], Started]) -> None:
    started = finished("timers")
    run = Run(started.runs[0])
    run.check_complete()
    phase = run.phase("2 users")
    assert phase["t1_ns"] is not None, started.text()
    seen = Counter(row["outcome"] for row in run.rows)
    assert seen["cancelled"] >= 2
    assert seen["ok"] >= 20
    assert {row["user"] for row in run.rows} == {0, 1}


def test_a_target_that_is_dead_ends_the_run_as_not_valid(finished: Callable[[str], Started]) -> None:
    started = finished("dead")
    assert started.process.returncode == 3, started.text()
    run = Run(started.runs[0])
    assert {row["outcome"] for row in run.rows} == {"connect_error"}
    assert "stop.error_rate" in run.info["stopped_early"]
    run.check_complete()


def test_spawn_messages_do_not_rebuild_the_argument_parser() -> None:
    code = (
        "import harness.load.user, locust.runners as r, time; r.argument_parser.default_args_dict(); "
        "t = time.perf_counter(); [r.argument_parser.default_args_dict() for _ in range(200)]; "
        "print(time.perf_counter() - t)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(out.stdout) < 0.05  # 200 options' worth; once per option it took 0.2-0.4 s
