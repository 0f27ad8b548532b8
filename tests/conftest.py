"""Services that tests need: each started by the test on a free port, and ended after it."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

from harness.commands import processes
from harness.commands.processes import harness_command, running

settings.register_profile("busy", deadline=None)  # a busy machine is no failure
settings.load_profile("busy")

# A shell lets what it runs in the background ignore SIGINT; every process that a test interrupts would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Return a function that gives ports of this machine on which nothing listens."""
    return processes.free_port


@pytest.fixture
def start_engine(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Return a function that starts a simulated engine from a config's YAML text and gives its URL."""
    with ExitStack() as stack:

        def start(config: str = "", *more: str) -> str:
            args = ["engine", "--port", "0", *more]
            if config:
                file = tmp_path / "engine.yaml"
                file.write_text(config)
                args += ["--config", str(file)]
            ready = stack.enter_context(running(harness_command(*args), tmp_path / "engine.log"))
            return ready.removeprefix("ready ")

        yield start


@pytest.fixture
def knee() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs `knee ARGS` and gives its exit code and output."""

    def call(*args: str, timeout: float = 120, **more: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "harness", *args],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **more,
        )

    return call
