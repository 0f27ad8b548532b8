"""`knee sample` and `knee gpu-log` as processes and as commands."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import pytest

from harness.commands.sample import parse_listen, read_token
from harness.errors import UserError
from harness.observe.sampler import Settings, Sidecar
from harness.records import GpuSample

KNEE = [sys.executable, "-m", "harness"]


@pytest.fixture
def run_sidecar(stub_library, stub):
    """Start `knee sample` on the stub driver; yields a function that gives its process and ready line."""
    with ExitStack() as stack:

        def start(*args):
            environment = os.environ | {
                "LD_LIBRARY_PATH": str(stub_library.parent),
                "NVML_STUB": str(stub.path),
            }
            command = [*KNEE, "sample", "--source", "nvml", "--interval-s", "0.1", *args]
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            stack.callback(process.stdout.close)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process, json.loads(process.stdout.readline())

        yield start


def whole_rows(path):
    rows = []
    for line in path.read_bytes().splitlines():
        try:
            rows.append(msgspec.json.decode(line, type=GpuSample))
        except msgspec.DecodeError:
            continue
    return rows


def test_ready_line_rows_and_a_clean_end(run_sidecar, stub, tmp_path, wait_for):
    stub(count=2)
    out = tmp_path / "gpu.jsonl"
    process, ready = run_sidecar("--listen", "127.0.0.1:0", "--out", str(out))
    assert ready["gpu"] == "NVML: 2 GPU(s)"
    assert ready["engine"] == "none: not asked for"
    wait_for(lambda: len(whole_rows(out)) >= 6)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert out.read_bytes().endswith(b"\n")
    assert {(row.gpu, row.util) for row in whole_rows(out)} == {("GPU-0", 0.4), ("GPU-1", 0.4)}


def test_kill_stop_and_restart_of_the_sidecar_with_the_harness_attached(
    run_sidecar, stub, tmp_path, wait_for, free_port
):
    far, near, port = tmp_path / "far.jsonl", tmp_path / "near.jsonl", free_port()
    where = ("--listen", f"127.0.0.1:{port}", "--out", str(far))
    first, ready = run_sidecar(*where)
    here = Sidecar(Settings(source=ready["url"], port=0, interval_s=0.1, out=near))
    here.start()

    def arrived():
        return len(whole_rows(near))

    try:
        wait_for(lambda: arrived() >= 5)
        first.send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        frozen = arrived()
        first.send_signal(signal.SIGCONT)
        wait_for(lambda: arrived() >= frozen + 5)
        first.kill()
        first.wait()
        with far.open("ab") as file:
            file.write(b'{"v":1,"seq":')
        wait_for(lambda: here.status()["gpu"].startswith("none: sidecar"))
        killed = arrived()
        time.sleep(0.5)
        second, _ = run_sidecar(*where)
        wait_for(lambda: arrived() >= killed + 5)
        second.terminate()
        second.wait(10)
    finally:
        here.close()
    kept, fetched = whole_rows(far), whole_rows(near)
    stamps = [row.mono_ns for row in fetched]
    assert stamps == sorted(set(stamps)), "each row once, in order"
    assert set(stamps) == {row.mono_ns for row in kept if stamps[0] <= row.mono_ns <= stamps[-1]}
    gaps = np.diff(np.array(stamps)) / 1e9
    assert gaps.max() > 0.9, "the stop is a hole"
    assert (gaps > 0.3).sum() >= 2, "and so is the kill"
    assert np.median(gaps) < 0.3


def test_the_sidecar_ends_with_the_process_that_started_it(tmp_path, wait_for):
    out = tmp_path / "pid"
    command = [*KNEE, "sample", "--source", "none", "--listen", "127.0.0.1:0", "--with-parent"]
    parent = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen({command!r}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
        f"p.stdout.readline(); open({str(out)!r}, 'w').write(str(p.pid))\n"
    )
    subprocess.run([sys.executable, "-c", parent], check=True, timeout=30)
    pid = int(out.read_text())
    stat = Path(f"/proc/{pid}/stat")
    wait_for(lambda: not stat.exists() or stat.read_text().split()[2] == "Z")


@pytest.mark.parametrize(
    "args",
    [
        ["--listen", "0.0.0.0:0"],
        ["--listen", "[::]:0"],
        ["--token-env", "KNEE_NO_SUCH"],
        ["--listen", "9877"],
    ],
)
def test_mistakes_end_with_2_and_one_line(knee, args):
    done = knee("sample", "--source", "none", *args, timeout=30)
    assert done.returncode == 2
    assert done.stderr.startswith("knee: --")
    assert len(done.stderr.splitlines()) == 1


def test_listen_and_token(monkeypatch):
    assert parse_listen("[::1]:9877") == ("::1", 9877)
    assert parse_listen("gpu-host:0") == ("gpu-host", 0)
    for text in ("host", "host:port", ":1", "host:70000"):
        with pytest.raises(UserError, match="not HOST:PORT"):
            parse_listen(text)
    monkeypatch.setenv("KNEE_TOKEN", " abc\n")
    assert read_token("KNEE_TOKEN") == "abc"
    assert read_token(None) is None


def test_gpu_log_prints_what_other_tools_read(knee, tmp_path):
    log = tmp_path / "smi.csv"
    log.write_text(
        "timestamp, index, utilization.gpu [%], memory.used [MiB]\n"
        "2026/07/01 12:00:00.000, 0, 50 %, 1024 MiB\n"
        "2026/07/01 12:00:01.000, 0, [N/A], 2048 MiB\n"
        "garbage\n"
    )
    done = knee("gpu-log", str(log), "--tz", "Asia/Shanghai", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "samples": 2,
        "gpus": {
            "0": {
                "n": 2,
                "util_mean": 0.5,
                "mem_used_peak_bytes": 2048 * 2**20,
                "first_utc": "2026-07-01T04:00:00.000Z",
                "last_utc": "2026-07-01T04:00:01.000Z",
            }
        },
        "identity_known": True,
        "gaps": 0,
        "duplicates": 0,
        "skipped": {"not data": 1},
        "missing": {"util": {"N/A": 1}},
    }
    words = knee("gpu-log", str(log)).stdout
    assert "GPU 0: 2 samples, 2026-07-01T12:00:00.000Z" in words
    assert "busy 50.0 %" in words
    bad = knee("gpu-log", str(log), "--tz", "Mars/Base")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "unknown time zone 'Mars/Base'" in bad.stderr
