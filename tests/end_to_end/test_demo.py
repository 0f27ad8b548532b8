"""The demo as a user runs it: engine, sidecar, Locust master and two workers as real processes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The finished demo: its run directory and what it printed for machines."""
    out = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "harness", "demo", "--processes", "2", "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode in (0, 3), done.stderr
    said = json.loads(done.stdout)
    return Path(said["run_dir"]), said


def test_the_knee_stands_where_the_engine_is_full(demo) -> None:
    """A machine busy with other work may withhold the verdict, and then says why; it never moves it."""
    _, said = demo
    knee, codes = said["knee"], {problem["code"] for problem in said["problems"]}
    if knee["status"] == "knee":
        assert (knee["cap"], knee["knee_step"], knee["steady"]) == (6, 8, 4)
        assert knee["confidence"] >= 0.8
        assert said["valid"]
        assert said["bottleneck"]["resource"] == "slots"
    else:
        assert knee["status"] in ("inconclusive", "client_limited", "load_not_applied")
        assert knee["status"] == "inconclusive" or knee["status"] in codes
        assert (knee["cap"], knee["knee_step"], knee["steady"]) == (None, None, None)


def test_every_output_is_written(demo) -> None:
    run_dir, _ = demo
    for name in ("report.html", "report.md", "report.json", "limits.yaml", "run.json", "profile.yaml"):
        assert (run_dir / name).stat().st_size > 0
    charts = {path.name for path in (run_dir / "charts").iterdir()}
    assert {"knee.svg", "knee.png", "timeline.svg", "ttft.svg", "stages.svg"} <= charts


def test_the_page_needs_no_network(demo) -> None:
    run_dir, _ = demo
    page = (run_dir / "report.html").read_text()
    loaded = re.findall(r"""(?:src|href)\s*=\s*["'](?!data:|#)([^"']+)""", page)
    assert not [link for link in loaded if link.startswith(("http:", "https:", "//"))]
    assert not re.findall(r"@import|url\((?!['\"]?(?:data:|#))", page)


def test_nothing_is_lost_between_workers_and_master(demo) -> None:
    run_dir, _ = demo
    info = json.loads((run_dir / "run.json").read_text())
    rows = [json.loads(line) for line in (run_dir / "requests.jsonl").read_text().splitlines()]
    assert len(info["workers"]) == 2
    for worker in info["workers"]:
        own = sorted(row["seq"] for row in rows if row["worker"] == worker["id"])
        assert own == list(range(worker["records_made"]))
        assert not worker["gaps"]
    assert len({row["req_id"] for row in rows}) == len(rows)
    assert not (run_dir / "workers").exists() or not list((run_dir / "workers").iterdir())


def test_gpu_and_engine_were_sampled_each_second_and_are_called_simulated(demo) -> None:
    run_dir, _ = demo
    info = json.loads((run_dir / "run.json").read_text())
    seconds = (info["ended_ns"] - info["started_ns"]) / 1e9
    for name in ("gpu.jsonl", "engine.jsonl"):
        assert len((run_dir / name).read_text().splitlines()) > 0.8 * seconds
    assert json.loads((run_dir / "report.json").read_text())["simulated"]


def test_the_mix_is_equal_at_every_step(demo) -> None:
    run_dir, _ = demo
    table = pd.read_json(run_dir / "requests.jsonl", lines=True)
    table = table[table.phase >= 0]
    shares = table.groupby("phase").kind.value_counts(normalize=True).unstack()
    for kind, share in {"text_only": 3 / 6, "one_image": 2 / 6, "multi_image": 1 / 6}.items():
        assert np.allclose(shares[kind], share, atol=0.06)


def test_the_figures_of_the_steps_are_what_the_records_say(demo) -> None:
    run_dir, _ = demo
    report = json.loads((run_dir / "report.json").read_text())
    table = pd.read_json(run_dir / "requests.jsonl", lines=True)
    table["end_ns"] = table.wall_ns + (table.total_ms * 1e6).astype("int64")
    phases = {p["index"]: p for p in json.loads((run_dir / "run.json").read_text())["phases"]}
    assert len(report["steps"]) == 6
    for step in report["steps"]:
        t0, t1 = phases[step["phase"]]["t0_ns"], phases[step["phase"]]["t1_ns"]
        good = table[table.outcome == "ok"]
        started = good[(good.wall_ns >= t0) & (good.wall_ns < t1)]
        ended = good[(good.end_ns >= t0) & (good.end_ns < t1)]
        # clock offsets between processes of one host are microseconds: an edge may move by one request
        assert step["n"] == pytest.approx(len(started), abs=1)
        assert step["rps"] == pytest.approx(len(ended) / (t1 - t0) * 1e9, rel=0.02)
        assert step["latency"]["p95_ms"] == pytest.approx(np.percentile(started.total_ms, 95), rel=0.02)
        assert step["ttft"]["p50_ms"] == pytest.approx(np.percentile(started.ttft_ms, 50), rel=0.02)
