"""`knee engine` as a process: ready line, signals, mistakes."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "harness", "engine"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_is_ready_and_ends_at_a_signal_with_a_stream_open(
    number: signal.Signals, tmp_path: Path
) -> None:
    log = tmp_path / "engine.jsonl"
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", "--log", str(log)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout
        word, _, url = process.stdout.readline().decode().strip().partition(" ")
        assert word == "ready"
        assert url.startswith("http://127.0.0.1:")
        connection = http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]), timeout=10)
        body = {"model": "sim-vlm", "prompt": "x", "stream": True, "max_tokens": 4000}
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        assert answer.readline().startswith(b"data:")
        begun = time.monotonic()
        process.send_signal(number)
        out, _ = process.communicate(timeout=10)
        assert time.monotonic() - begun < 5
        assert (process.returncode, out) == (0, b"")
        answer.close()
        connection.close()
        assert len(log.read_bytes().splitlines()) == 1
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE is not set"),
        (["--log", "/no/such/folder/log"], "/no/such/folder/log"),
        (["--port", "TAKEN"], "cannot listen on 127.0.0.1:"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [*COMMAND, *(port if a == "TAKEN" else a for a in arguments)],
            check=False,
            capture_output=True,
            timeout=30,
        )
    assert done.returncode == 2
    assert words in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
