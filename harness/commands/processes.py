"""Starts the parts that must be processes of their own, waits until they are ready, and ends them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from harness.errors import HarnessError

READY_WITHIN_S = 30.0
END_WITHIN_S = 5.0


def harness_command(*args: str) -> list[str]:
    """Return the command line of `knee ARGS` in a process of its own."""
    return [sys.executable, "-m", "harness", *args]


def own_modules() -> dict[str, str]:
    """Return the environment in which a process takes no module from the folder that it is started in."""
    return os.environ | {"PYTHONSAFEPATH": "1"}


def free_port() -> int:
    """Return a port of this machine on which nothing listens at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], log: Path) -> Iterator[str]:
    """Run a command while the block lasts; yields its first line of output, which says that it is ready."""
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, env=own_modules()
        )
    try:
        yield _first_line(process, command, log)
    finally:
        end(process)


def end(
    process: subprocess.Popen[bytes], within_s: float = END_WITHIN_S, by: signal.Signals = signal.SIGTERM
) -> None:
    """End a process by a signal, and by force where it goes on."""
    if process.poll() is None:
        process.send_signal(by)
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _first_line(process: subprocess.Popen[bytes], command: list[str], log: Path) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        if select.select([process.stdout], [], [], 0.1)[0]:
            line = process.stdout.readline().decode().strip()
            if line:
                return line
    tail = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
    raise HarnessError(
        f"`{' '.join(command[1:4])}` did not start: {''.join(tail) or 'no output'} (see {log})"
    )
