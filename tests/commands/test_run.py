"""`knee run` ended from outside: what was measured is kept, and nothing goes on loading the service."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.commands.processes import end, harness_command

PROFILE = """\
name: ended
target: {{base_url: "{url}/v1", model: sim-vlm}}
generation: {{max_tokens: 4}}
traffic: {{mix: [{{kind: text_only, text: {{chars: 40}}}}]}}
load: {{users: [2], hold: {{seconds: 60, min_requests: 1, max_seconds: 60, settle_s: 0}}}}
observe: {{gpu: none, engine: none}}
"""


@pytest.fixture
def loading(
    tmp_path: Path, start_engine: Callable[..., str]
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A `knee run` that has begun to load the service, and its run directory."""
    (tmp_path / "p.yaml").write_text(PROFILE.format(url=start_engine()))
    command = harness_command("run", str(tmp_path / "p.yaml"), "--out", str(tmp_path / "runs"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process, until(lambda: next((r.parent for r in requests(tmp_path) if lines(r) > 5), None))
        finally:
            end(process)


def requests(folder: Path) -> list[Path]:
    return list(folder.glob("runs/*/requests.jsonl"))


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def until(found: Callable[[], Any]) -> Any:
    """Return what is found within 40 s."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.1)
    raise AssertionError("did not come")


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_reported(
    by: signal.Signals, loading: tuple[subprocess.Popen[bytes], Path]
) -> None:
    process, run = loading
    process.send_signal(by)
    shown, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"interrupted" in said
    assert str(run / "report.html").encode() in shown
    assert json.loads((run / "run.json").read_bytes())["stopped_early"] == "interrupted"


def test_the_load_ends_with_the_command_that_began_it(loading: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, run = loading
    process.kill()
    until(lambda: json.loads((run / "run.json").read_bytes())["ended_ns"])
    until((run / "report.json").exists)
    before = lines(run / "requests.jsonl")
    time.sleep(1)
    assert lines(run / "requests.jsonl") == before


def test_a_package_of_the_same_name_in_the_working_directory(
    tmp_path: Path, start_engine: Callable[..., str]
) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").touch()
    profile = PROFILE.format(url=start_engine()).replace("60", "1")
    (tmp_path / "p.yaml").write_text(profile)
    knee = Path(sys.executable).with_name("knee")
    subprocess.run([knee, "run", "p.yaml"], cwd=tmp_path, check=False, capture_output=True, timeout=120)
    assert next(tmp_path.glob("runs/*/report.html"))
