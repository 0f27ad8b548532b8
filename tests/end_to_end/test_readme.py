"""Every command of the README is run in its order, as a reader would; only loads and addresses differ."""

import csv
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ENGINE = "decode: {step_ms: 3.0, seq_ms: 0.02, compute_ms: 0.1}"  # fast, so that the test is
SMALL = """\
name: my-service
target: {base_url: "http://127.0.0.1:8000/v1", model: sim-vlm}
generation: {max_tokens: 12}
traffic: {mix: [{kind: text_only, weight: 2, text: {chars: 80}}, {kind: one_image, images: {side: 128}}]}
load:
  users: [1, 2, 3]
  drift_check: false
  hold: {seconds: 2, min_requests: 20, max_seconds: 8, settle_s: 0}
"""
MAY_FAIL = {
    "knee compare": {0, 1},  # two short runs on a busy machine may well differ
    "knee probe": {0, 1},  # the engine does not have the limits that this run recommends
    "knee run": {0, 3},  # on a busy machine a short run may say of itself that it is not valid
    "knee report": {0, 3},
    "locust -f": {0, 3},
}


def commands() -> list[str]:
    """Return the command lines of the README's shell blocks, comments left off."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S)
    lines = [re.split(r"\s+#\s", line)[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


class Reader:
    """Someone who follows the README in a folder of their own."""

    def __init__(self, folder: Path, engine: str, ports: list[int]) -> None:
        self.folder, self.engine = folder, engine
        web, master, self.sidecar_port = ports
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SIDECAR_TOKEN": "a-token",
            "LOCUST_WEB_PORT": str(web),
            "LOCUST_MASTER_BIND_PORT": str(master),
            "LOCUST_MASTER_NODE_PORT": str(master),
        }
        self.web = f"http://127.0.0.1:{web}/"
        for name in ("profiles", "locustfiles"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))

    def start(self, command: str) -> subprocess.Popen[str]:
        line = command.replace("http://127.0.0.1:8000", self.engine).replace("9877", str(self.sidecar_port))
        return subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> None:
        process = self.start(command)
        try:
            said, _ = process.communicate(timeout=150)
        finally:
            process.kill()
        allowed = MAY_FAIL.get(" ".join(command.split()[:2]), {0})
        assert process.returncode in allowed, f"{command}\n{said}"
        assert "Traceback" not in said, f"{command}\n{said}"

    def end(self, process: subprocess.Popen[str], command: str) -> None:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=30)
        assert "Traceback" not in said, f"{command}\n{said}"

    def runs(self) -> list[Path]:
        return sorted((self.folder / "runs").glob("*-my-service-steps*"))


def wait_for(url: str, token: str = "") -> None:
    deadline = time.monotonic() + 30
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(request, timeout=5) as page:
                assert page.status == 200
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise AssertionError(f"{url} did not answer")


def write_smi_log(path: Path, run: Path) -> None:
    """Write an nvidia-smi log in Berlin's time that covers the run."""
    info = json.loads((run / "run.json").read_text())
    zone = ZoneInfo("Europe/Berlin")
    rows = ["timestamp, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB]"]
    for second in range(info["started_ns"] // 10**9, info["ended_ns"] // 10**9 + 1):
        at = datetime.datetime.fromtimestamp(second, zone)
        rows.append(f"{at:%Y/%m/%d %H:%M:%S}.000, GPU-0a, 50 %, 4000 MiB, 8000 MiB")
    path.write_text("\n".join(rows) + "\n")


@pytest.mark.end_to_end
def test_every_command_of_the_readme_works(tmp_path, start_engine, free_port) -> None:
    reader = Reader(tmp_path, start_engine(ENGINE), [free_port(), free_port(), free_port()])
    with (tmp_path / "ladder.csv").open("w", newline="") as out:
        csv.writer(out).writerows(
            [["users", "rps", "p95_ms"], [1, 4, 240], [2, 8, 250], [4, 16, 255], [8, 20, 500], [16, 20, 1000]]
        )
    waiting_master = None
    for command in commands():
        if command.startswith("make "):  # `make` itself is what runs this test
            target = command.split()[1]
            subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)
        elif command.startswith("cp "):
            reader.run(command)
            (tmp_path / "my-service.yaml").write_text(SMALL.replace("http://127.0.0.1:8000", reader.engine))
        elif command.startswith("knee sample"):
            sidecar = reader.start(command)
            wait_for(f"http://127.0.0.1:{reader.sidecar_port}/health", "a-token")
            reader.end(sidecar, command)
            write_smi_log(tmp_path / "smi.csv", reader.runs()[0])
        elif "--experiment" in command and "repeat" not in command:  # all run for real in test_experiments
            reader.run(f"{command} --dry-run")
        elif "--master " in command:
            waiting_master = reader.start(command)
        elif "--worker" in command:
            reader.run(command)
            said, _ = waiting_master.communicate(timeout=60)
            assert waiting_master.returncode in MAY_FAIL["locust -f"], said
        elif command.startswith("locust") and "--headless" not in command:
            page = reader.start(command)
            wait_for(reader.web)
            reader.end(page, command)
        else:
            if command == "knee run my-service.yaml":
                reader.run(command)  # twice, so that there is an other run to compare with
            reader.run(command)
            if reader.runs():
                reader.environment |= {"RUN": str(reader.runs()[0]), "OTHER": str(reader.runs()[-1])}
    assert len(reader.runs()) == 5


def test_the_first_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.M):
        assert re.search(rf"^{target}:", makefile, re.M)


def test_the_picture_is_there() -> None:
    for path in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / path).is_file()
