"""The measurements beside the ladder as users start them: real processes against real services.

Every profile that ships is run by its own locustfile, cut down to a few rounds. All are started at once,
since most of their time is waiting; verdicts on planted causes are tested in virtual time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.commands.processes import end, harness_command, running

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
ENGINE = "decode: {step_ms: 1.0, seq_ms: 0.01, compute_ms: 0.05}"  # fast, so that the test is
pytestmark = pytest.mark.end_to_end

FEW: dict[str, Any] = {
    "experiments": {
        "modality": {"rounds": 5},
        "image_sweep": {"sides": [128, 256], "rounds": 3},
        "repeat": {"rounds": 8, "kind": "one_image"},
        "isolation": {"users": 2, "short": "text_only", "long": "multi_image"},
        "cache": {"rounds": 5},
    },
    "load": {
        "users": [1, 2],
        "drift_check": False,
        "hold": {"seconds": 1, "min_requests": 20, "max_seconds": 20, "settle_s": 0.2},
    },
    "observe": {"gpu": "none", "engine": "none"},
}
COUNTED = {
    "modality": {"text_only": 6, "one_image": 6, "multi_image": 6},
    "image_sweep": {"side_128": 4, "side_256": 4},
    "repeat": {"repeat_one_image": 8},
    "cache": {"image_unique": 6, "image_repeated": 6, "prefix_unique": 6, "prefix_repeated": 6},
}
VERDICTS = {
    "modality": {"image_count", "text_or_decoding", "undecided"},
    "image_sweep": {"jump", "grows", "flat"},
    "repeat": {"one_time_cost", "steady", "swinging"},
    "isolation": {"separate_queues", "shared_queue", "undecided"},
    "cache": {"image_cache", "prefix_cache", "image_and_prefix_cache", "no_cache"},
}
HELD = {"steps": {"1 user", "2 users"}, "isolation": {"short alone", "short beside long"}}
FILES = ("steps", *VERDICTS, "review")


def small_profile(name: str, folder: Path, **more: Any) -> Path:
    """Write the profile that ships under this name, with a few rounds of everything."""
    values = yaml.safe_load((ROOT / "profiles" / f"{name}.yaml").read_text())
    mix = yaml.safe_load((ROOT / "profiles" / "review.yaml").read_text())["traffic"]["mix"]
    values |= FEW | {"traffic": {"mix": mix}, "generation": {"max_tokens": 8}} | more
    values["target"]["model"] = "sim-vlm"
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("engine")
    (folder / "engine.yaml").write_text(ENGINE)
    command = harness_command("engine", "--port", "0", "--config", str(folder / "engine.yaml"))
    with running(command, folder / "engine.log") as ready:
        yield ready.removeprefix("ready ")


@pytest.fixture(scope="module")
def finished(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Return a function that waits for a locustfile's run and gives its run directory."""
    with ExitStack() as stack:
        started: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        for name in FILES:
            folder = tmp_path_factory.mktemp(name)
            command = [sys.executable, "-m", "locust", "-f", str(ROOT / "locustfiles" / f"{name}.py")]
            command += ["--profile", str(small_profile(name, folder)), "--headless", "--host", engine]
            with (folder / "locust.log").open("wb") as log:
                process = subprocess.Popen(
                    [*command, "--out", str(folder / "runs")],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder,
                )  # fmt: skip
            stack.callback(end, process)
            started[name] = process, folder

        def wait(name: str) -> Path:
            process, folder = started[name]
            code = process.wait(120)
            said = (folder / "locust.log").read_text(errors="replace")
            # a ladder of two steps has no verdict of its own: not valid
            assert code == (3 if name in ("steps", "review") else 0), said
            (run,) = (folder / "runs").iterdir()
            return run

        yield wait


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "requests.jsonl").read_bytes().splitlines()]


def report_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "report.json").read_bytes())
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_locustfile_measures_what_its_plan_says(finished: Callable[[str], Path], name: str) -> None:
    run = finished(name)
    report = report_of(run)
    wanted = list(VERDICTS) if name == "review" else [name] if name in VERDICTS else []
    assert list(report["experiments"]) == wanted
    for experiment, found in report["experiments"].items():
        assert found["verdict"] in VERDICTS[experiment], found["text"]
        assert found["rows"]
    info, rows = json.loads((run / "run.json").read_bytes()), rows_of(run)
    assert {row["outcome"] for row in rows} <= {"ok", "cancelled"}
    for phase in info["phases"]:
        mine = [row for row in rows if row["phase"] == phase["index"]]
        if phase["experiment"] in COUNTED:
            assert Counter(row["kind"] for row in mine) == COUNTED[phase["experiment"]]
        else:
            assert phase["label"] in HELD[phase["experiment"]]
            window = [row for row in mine if phase["t0_ns"] <= row["wall_ns"] < phase["t1_ns"]]
            assert len(window) >= 20
    assert (run / "report.html").stat().st_size > 10_000
    if name == "review":
        text = (run / "report.md").read_text()
        assert all(found["text"] in text for found in report["experiments"].values())


def test_stages_that_a_service_logs_itself_arrive_in_the_report(
    tmp_path: Path, knee: Callable[..., subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "stages.jsonl"
    monkeypatch.setenv("KNEE_STAGES_FILE", str(log))
    profile = small_profile("steps", tmp_path, load=FEW["load"] | {"users": [1, 2, 3]})
    with running([sys.executable, str(HERE / "staged_service.py")], tmp_path / "service.log") as ready:
        host = ready.removeprefix("ready ")
        said = knee("run", str(profile), "--host", host, "--out", str(tmp_path / "runs"), "--json")
    assert said.returncode == 0, said.stderr
    run = Path(json.loads(said.stdout)["run_dir"])
    assert all(not step["stages"] for step in report_of(run)["steps"])
    assert {json.loads(line)["req_id"] for line in log.read_text().splitlines()} == {
        row["req_id"] for row in rows_of(run)
    }

    assert knee("report", str(run), "--stage-log", str(log)).returncode == 0
    alone, _, three = (step["stages"] for step in report_of(run)["steps"])
    assert 4 <= alone["pre"]["p50_ms"] < 15
    assert 15 <= alone["prefill"]["p50_ms"] < 40
    assert 12 <= alone["decode"]["p50_ms"] < 40
    # one place: the third waits for two, each of which holds it for 27 ms at least
    assert alone["queue"]["p50_ms"] < 10
    assert three["queue"]["p50_ms"] > 30
    assert report_of(run)["bottleneck"]["stage"] == "queue"
    assert "Stage times are missing" not in (run / "report.md").read_text()


def test_stages_of_answers_that_are_not_streamed_come_with_their_headers(
    engine: str, tmp_path: Path, knee: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    target = {"base_url": "http://127.0.0.1:1/v1", "stream": False}
    profile = small_profile("repeat", tmp_path, target=target)
    said = knee(
        "run", str(profile), "--experiment", "repeat", "--host", engine, "--out", str(tmp_path), "--json"
    )
    assert said.returncode == 0, said.stderr
    run = Path(json.loads(said.stdout)["run_dir"])
    rows = rows_of(run)
    assert [row["phase"] for row in rows].count(-1) == 1  # the request before the load
    assert {row["stage_source"] for row in rows} == {"server_timing"}
    assert all(row["ttft_ms"] > row["pre_ms"] + row["queue_ms"] + row["prefill_ms"] for row in rows)
    found = report_of(run)["experiments"]["repeat"]
    n = {row[0]: row[1] for row in found["rows"]}
    assert n == dict.fromkeys(("total", "ttft", "pre", "queue", "prefill", "decode"), 8)
    assert "time to first token includes decoding" in (run / "report.md").read_text()
