"""The processes beside the load: the sampler while the run is on, the report at its end.

Neither may harm the run: a sampler that does not start, dies or hangs leaves a gap that the report names.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import gevent
import msgspec

from harness.profile import Profile
from harness.records import EngineSample, GpuSample, decode_lines
from harness.results import Report
from harness.rundir import RunDir

READY_WITHIN_S = 10.0
END_WITHIN_S = 5.0
REPORT_WITHIN_S = 600.0
TAIL_BYTES = 16 << 10
HARNESS = (sys.executable, "-P", "-m", "harness")  # -P: no module of the working folder in its place
Sample = TypeVar("Sample", bound=msgspec.Struct)
log = logging.getLogger(__name__)


class Sampler:
    """The sampler's process; none where the profile asks for neither GPU nor engine figures."""

    def __init__(self, profile: Profile, run: RunDir) -> None:
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        observe = profile.observe
        if observe.gpu == observe.engine == "none":
            return
        command = [*HARNESS, "sample", "--with-parent", "--source", observe.gpu]
        command += ["--interval-s", f"{observe.interval_s:g}", "--listen", "127.0.0.1:0"]
        command += ["--out", str(run.gpu), "--engine-out", str(run.engine), "--clock-out", str(run.clock)]
        if profile.engine_url is not None:
            command += ["--engine", profile.engine_url]
        if observe.gpus:
            command += ["--gpus", ",".join(observe.gpus)]
        if observe.token_env:
            command += ["--token-env", observe.token_env]
        with run.sampler_log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )

    def wait_ready(self) -> None:
        """Wait for its first line, which says what it found; a run without it goes on."""
        process = self._process
        if process is None or process.stdout is None:
            return
        line = b""
        with gevent.Timeout(READY_WITHIN_S, False):
            line = process.stdout.readline()
        if line:
            log.info("sampler: %s", line.decode(errors="replace").strip())
        else:
            log.warning("no GPU or engine figures: the sampler did not start, see %s", self._run.sampler_log)

    def latest(self) -> tuple[dict[str, GpuSample], EngineSample | None]:
        """Return the last sample of each GPU, and of the engine."""
        gpus = {str(sample.gpu): sample for sample in _tail(self._run.gpu, GpuSample)}
        engine = _tail(self._run.engine, EngineSample)
        return gpus, engine[-1] if engine else None

    def end(self) -> None:
        """End it, by force where it hangs."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()


def fullest(gpus: dict[str, GpuSample], engine: EngineSample | None) -> float | None:
    """Return the fullest memory (0-1): the engine's KV cache where it is known, else the GPUs'."""
    if engine is not None and engine.kv_usage is not None:
        return engine.kv_usage
    shares = [
        g.mem_used_bytes / g.mem_total_bytes for g in gpus.values() if g.mem_used_bytes and g.mem_total_bytes
    ]
    return max(shares, default=None)


def make_report(run: RunDir) -> int:
    """Write the report in a process of its own, print what it prints, and return its exit code."""
    command = [*HARNESS, "report", str(run.path)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=REPORT_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        log.error("the report took more than %g s; run `knee report %s`", REPORT_WITHIN_S, run.path)
        return 3
    print(done.stdout + done.stderr, end="", flush=True)
    return done.returncode


def read_report(run: RunDir) -> Report | None:
    """Return what the report says; None where none could be made, which `make_report` has printed."""
    try:
        return msgspec.json.decode(run.report_json.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError):
        return None


def _tail(path: Path, kind: type[Sample]) -> list[Sample]:
    """Return the rows at the end of a file that is being written."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return []
    whole = [line for line in lines if line.endswith(b"\n")]
    return [row for row in decode_lines(whole, kind) if row is not None]
