"""CPU and truth of the load generator, beside a server that knows the true times and the least client in C.

python tests/perf/bench.py --referee PATH --refclient PATH     about 8 minutes

CPU is that of all processes of a run, a long one less a short one, so that start, analysis and report cancel
out; it is judged as a ratio to the C client against the same server. The table replaces its section of
RESULTS.md. Programs that are not given are said to be missing, and only the ceilings are measured.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
TITLE = "## The load generator"
TOKENS, TTFT_MS, ITL_MS = 128, 50, 10
SHORT_S, LONG_S = 2, 10
REPEATS = 3
STREAMS = {64: 3.0, 256: 2.0}  # at most so many times the C client's CPU
Row = tuple[str, str, str]


@dataclass(frozen=True)
class Run:
    """A finished run: its directory, and the CPU that it took."""

    path: Path
    cpu_s: float

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / name).read_bytes().splitlines()]

    @property
    def steps(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.path / "report.json").read_bytes())["steps"]
        return found


@dataclass
class Bench:
    """Where the two programs are, and a folder for everything that is written."""

    referee: str
    refclient: str
    folder: Path

    @contextlib.contextmanager
    def server(self, *flags: str) -> Iterator[tuple[int, Path]]:
        """Run the referee; yields its port, and the log that is whole after the block."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = self.folder / f"truth-{port}.jsonl"
        command = [self.referee, "--port", str(port), "--log", str(log), "--rt"]
        command += ["--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS), "--tokens", str(TOKENS), *flags]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 10
            while socket.socket().connect_ex(("127.0.0.1", port)) and time.monotonic() < until:
                time.sleep(0.05)
            yield port, log
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()

    def run(
        self,
        port: int,
        users: str,
        seconds: float,
        mix: str = "{kind: text, weight: 1, text: {chars: 50}}",
        *,
        command: tuple[str, ...] = ("harness", "run"),
        beside: Callable[[Path], None] = lambda out: None,
        **environ: str,
    ) -> Run:
        """Run a ladder; `beside` is called in a thread with the folder that its run directory will lie in."""
        out = Path(tempfile.mkdtemp(dir=self.folder))
        profile = out / "profile.yaml"
        profile.write_text(
            f"name: bench\ntarget: {{base_url: 'http://127.0.0.1:{port}/v1', model: referee}}\n"
            f"generation: {{max_tokens: {TOKENS}}}\ntraffic: {{mix: [{mix}]}}\n"
            f"load: {{users: {users}, hold: {{seconds: {seconds}, min_requests: 1, "
            f"max_seconds: {seconds}, settle_s: 0}}}}\nobserve: {{gpu: none, engine: none}}\n"
        )
        name, *args = command
        given = ["--profile", str(profile)] if name == "locust" else [str(profile)]
        watcher = threading.Thread(target=beside, args=(out / "runs",), daemon=True)
        watcher.start()
        before_s = _children_s()
        done = subprocess.run(
            [sys.executable, "-m", name, *args, *given, "--out", str(out / "runs")],
            env=os.environ | environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        runs = list((out / "runs").glob("*/report.json"))
        if len(runs) != 1:
            sys.exit(f"a run left no report: {done.stderr.strip()}")
        path = runs[0].parent
        cpu_s = _children_s() - before_s
        watcher.join(5)
        return Run(path, cpu_s)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _truth(log: Path) -> list[dict[str, Any]]:
    return [row for row in map(json.loads, log.read_bytes().splitlines()) if row["outcome"] == "ok"]


def streams(bench: Bench, count: int) -> Iterator[Row]:
    """Yield CPU per chunk and truth of TTFT at a number of streams: the median of several measures."""
    measures = [_measure(bench, count) for _ in range(REPEATS)]
    ratios = sorted(one.mine_us / one.c_us for one in measures)
    middle = next(one for one in measures if one.mine_us / one.c_us == ratios[REPEATS // 2])
    yield (
        f"{count} streams: CPU per chunk",
        f"{ratios[REPEATS // 2]:.2f} x C ({middle.mine_us:.1f} and {middle.c_us:.1f} us; "
        f"of {REPEATS} runs {ratios[0]:.2f} to {ratios[-1]:.2f})",
        f"at most {STREAMS[count]:g} x C",
    )
    p50, p99, n = np.median([one.ttft_error for one in measures], axis=0)
    yield (
        f"{count} streams: TTFT error",
        f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, n {n:.0f}",
        "p50 0.5 ms, p99 5 ms" if count == 64 else "p50 2 ms",
    )
    lag_ms = np.median([one.lag_p99_ms for one in measures])
    yield f"{count} streams: client lag", f"p99 {lag_ms:.2f} ms", ""


@dataclass(frozen=True)
class Measure:
    """CPU of ours and of the C client per chunk, and how true our times were."""

    mine_us: float
    c_us: float
    ttft_error: tuple[float, float, int]  # p50 and p99 in ms, requests
    lag_p99_ms: float


def _measure(bench: Bench, count: int) -> Measure:
    cpu_s, chunks = {}, {}
    for seconds in (SHORT_S, LONG_S):
        with bench.server() as (port, log):
            run = bench.run(port, f"[{count}]", seconds)
        truth = _truth(log)
        cpu_s[seconds], chunks[seconds] = run.cpu_s, sum(row["n_tokens"] for row in truth)
    with bench.server() as (port, log_c):
        before_s = _children_s()
        seconds = str(LONG_S - SHORT_S)
        command = [bench.refclient, "-p", str(port), "-c", str(count), "-d", seconds, "-t", str(TOKENS)]
        subprocess.run(command, stdout=subprocess.DEVNULL, timeout=60, check=True)
        c_s = _children_s() - before_s
    sent_ms = {row["id"]: (row["t_first_content_sent"] - row["t_body_complete"]) / 1e6 for row in truth}
    rows = [row for row in run.lines("requests.jsonl") if row["outcome"] == "ok" and row["req_id"] in sent_ms]
    error = [row["ttft_ms"] - sent_ms[row["req_id"]] for row in rows]
    p50, p99 = np.percentile(error, [50, 99])
    return Measure(
        mine_us=1e6 * (cpu_s[LONG_S] - cpu_s[SHORT_S]) / (chunks[LONG_S] - chunks[SHORT_S]),
        c_us=1e6 * c_s / sum(row["n_tokens"] for row in _truth(log_c)),
        ttft_error=(p50, p99, len(error)),
        lag_p99_ms=float(np.percentile([row["client_lag_ms"] for row in rows], 99)),
    )


def big_bodies(bench: Bench) -> Iterator[Row]:
    """Yield loop lag and memory with four pictures of 2 MB in each request, 12 users in two processes."""
    images = "images: {count: 4, side: 720, format: png, source: noise}"
    kinds = [f"{{kind: pictures_{n}, weight: 1, text: {{chars: {50 + n}}}, {images}}}" for n in range(4)]
    mix = ", ".join(kinds)
    grown: dict[int, list[int]] = {}

    def watch(out: Path) -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until and not list(out.glob("*/report.json")):
            time.sleep(0.5)
            for pid in _load_processes(out):
                with contextlib.suppress(OSError):
                    status = Path(f"/proc/{pid}/status").read_text()
                    grown.setdefault(pid, []).append(int(re.findall(r"RssAnon:\s+(\d+)", status)[0]))

    with bench.server() as (port, _):
        run = bench.run(port, "[12]", 10, mix, command=("harness", "run", "--processes", "2"), beside=watch)
    sent = {row["payload"]: row["body_bytes"] for row in run.lines("requests.jsonl")}
    corpus_mb = sum(sent.values()) / 1e6
    lag = max(row["lag_p99_ms"] for row in run.lines("client.jsonl"))
    more_mb = max(max(kb) - kb[0] for kb in grown.values()) / 1e3
    yield "4 x 2 MB a request, 12 users: loop lag", f"p99 of the worst second {lag:.1f} ms", "under 50 ms"
    yield (
        "the same: memory of a worker",
        f"grew by {more_mb:.1f} MB, corpus {corpus_mb:.0f} MB ({100 * more_mb / corpus_mb:.1f} %)",
        "under 5 %",
    )


def _load_processes(out: Path) -> list[int]:
    for info in out.glob("*/run.json"):
        with contextlib.suppress(json.JSONDecodeError, OSError):
            return [worker["pid"] for worker in json.loads(info.read_bytes())["workers"] if worker["pid"]]
    return []


def starved(bench: Bench) -> Iterator[Row]:
    """Yield which steps of 4, 8 and 12 users were found to measure the client."""
    cases = {
        "honest": ("no client is starved", "none"),
        "burn": ("a greenlet holds the loop for 30 ms slices at 8 users", "[8]"),
        "nice": ("niceness 19 beside one burner a core at 8 users", "[8]"),
    }
    for name, (what, asked) in cases.items():
        with bench.server() as (port, _):
            command = ("locust", "-f", str(HERE / "starved.py"), "--headless")
            run = bench.run(port, "[4, 8, 12]", 6, command=command, STARVE=name)
        limited = [step["users"] for step in run.steps if step["client"]["limited"]]
        lags = ", ".join(f"{step['client']['lag_p99_ms'] or 0:.1f}" for step in run.steps)
        yield what, f"limited: {limited or 'none'} (lag p99 {lags} ms)", asked


def ceilings() -> Iterator[Row]:
    """Yield what one process and two carry."""
    done = subprocess.run(
        [sys.executable, "-m", "harness", "calibrate", "--seconds", "12", "--json"],
        capture_output=True,
        check=True,
    )
    for one in json.loads(done.stdout)["ceilings"]:
        told = f"{one['chunks_per_s']:,.0f} chunks/s, {one['requests_per_s']:,.0f} requests/s"
        yield f"ceiling of {one['processes']} process(es)", f"{told} ({one['limited_by']})", ""


def section(rows: list[Row]) -> str:
    """Return the section of RESULTS.md."""
    head = (
        f"`make bench`, {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} shared cores (load average "
        f"{os.getloadavg()[2]:.1f}), Python {platform.python_version()}, gevent {version('gevent')}, "
        f"Locust {version('locust')}, geventhttpclient {version('geventhttpclient')}. "
        f"{TOKENS} tokens, ITL {ITL_MS} ms, TTFT {TTFT_MS} ms, one process where nothing else is said."
    )
    table = [
        "| what | measured | asked |",
        "| --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return f"{TITLE}\n\n{head}\n\n" + "\n".join(table) + "\n"


def write(text: str) -> None:
    """Replace the section in RESULTS.md, or add it."""
    old = RESULTS.read_text()
    found = re.search(rf"^{TITLE}\n.*?(?=^## |\Z)", old, re.M | re.S)
    if found is None:
        RESULTS.write_text(old.rstrip("\n") + "\n\n" + text)
    else:
        rest = old[found.end() :]
        RESULTS.write_text(old[: found.start()] + text + ("\n" + rest if rest else ""))


def main() -> int:
    """Measure, print each figure when it is known, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--referee", default="", help="the server in C that logs the true times")
    parser.add_argument("--refclient", default="", help="the least client, in C")
    given = parser.parse_args()
    rows: list[Row] = []

    def add(more: Iterator[Row]) -> None:
        for row in more:
            print(" | ".join(row), flush=True)
            rows.append(row)

    missing = [name for name in ("referee", "refclient") if not os.access(getattr(given, name), os.X_OK)]
    if missing:
        print(f"not given: {', '.join(missing)}; without them only the ceilings are measured.")
        print("make bench REFEREE=path/to/referee REFCLIENT=path/to/refclient")
    else:
        with tempfile.TemporaryDirectory(prefix="knee-bench-") as folder:
            bench = Bench(given.referee, given.refclient, Path(folder))
            for count in STREAMS:
                add(streams(bench, count))
            add(big_bodies(bench))
            add(starved(bench))
    add(ceilings())
    if not missing:
        write(section(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
