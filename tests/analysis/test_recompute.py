"""Every number of report.json's steps again, by a few lines of pandas from requests.jsonl and run.json."""

import json

import msgspec
import numpy as np
import pandas as pd
import pytest

from harness import rundir
from harness.analysis.assess import assess
from harness.engine.presets import PRESETS
from harness.engine.virtual import ladder, save, simulate
from harness.profile import Hold, Slo

SLO = {"ttft_p95_ms": 40.0, "total_p95_ms": 260.0}


@pytest.fixture(scope="module", params=["closed", "open"])
def written(request, tmp_path_factory):
    """A run directory of a ladder, and its report as JSON."""
    demo = PRESETS["demo"]
    loads = {"users": (2, 6, 12)} if request.param == "closed" else {"rates": (5.0, 20.0, 40.0)}
    hold = Hold(seconds=8, min_requests=40, max_seconds=12, settle_s=1)
    profile = ladder(demo.traffic, max_tokens=demo.max_tokens, hold=hold, **loads)
    profile = msgspec.structs.replace(profile, slo=Slo(**SLO))
    folder = save(simulate(demo.config, profile, seed=3), tmp_path_factory.mktemp("run"))
    report = json.loads(msgspec.json.encode(assess(rundir.read_run(folder.path))))
    return folder.path, report


def quantiles(values):
    p50, p95, p99 = np.percentile(values, [50, 95, 99])
    return {"p50_ms": p50, "p95_ms": p95, "p99_ms": p99, "mean_ms": values.mean(), "max_ms": values.max()}


def test_every_figure_of_every_step_is_what_the_records_say(written) -> None:
    path, report = written
    lines = (path / "requests.jsonl").read_text().splitlines()
    table = pd.DataFrame([json.loads(line) for line in lines])
    phases = json.loads((path / "run.json").read_text())["phases"]
    table["queued_ms"] = table.queued_ms.astype(float).fillna(0.0)
    table["end_ns"] = table.wall_ns + (table.total_ms * 1e6).round().astype("int64")
    table["due"] = table.wall_ns - (table.queued_ms * 1e6).round().astype("int64")
    assert len(report["steps"]) == len(phases) == 3

    for step, phase in zip(report["steps"], phases, strict=True):
        t0, t1 = phase["t0_ns"], phase["t1_ns"]
        seconds = (t1 - t0) / 1e9
        started = table[(table.wall_ns >= t0) & (table.wall_ns < t1)]
        ended = table[(table.end_ns >= t0) & (table.end_ns < t1)]
        good, served = started[started.outcome == "ok"], ended[ended.outcome == "ok"]
        latency, ttft = good.total_ms + good.queued_ms, good.ttft_ms + good.queued_ms
        within = (served.total_ms + served.queued_ms <= SLO["total_p95_ms"]) & (
            served.ttft_ms + served.queued_ms <= SLO["ttft_p95_ms"]
        )
        gaps = good.chunks - 1
        expected = {
            "label": phase["label"],
            "phase": phase["index"],
            "users": phase["users"],
            "offered_rps": phase["rate"],
            "seconds": seconds,
            "n": len(good),
            "failures": int((~started.outcome.isin(["ok", "cancelled"])).sum()),
            "outcomes": started.outcome.value_counts().to_dict(),
            "rps": len(served) / seconds,
            "out_tok_s": served.out_tokens.sum() / seconds,
            "in_tok_s": served.in_tokens.sum() / seconds,
            "rpm": 60 * len(served) / seconds,
            "tpm": 60 * (served.in_tokens + served.out_tokens).sum() / seconds,
            "latency": quantiles(latency),
            "ttft": quantiles(ttft),
            "itl": {
                "p50_ms": good.itl_p50_ms.median(),
                "p95_ms": np.percentile(good.itl_p95_ms, 95),
                "p99_ms": np.percentile(good.itl_p95_ms, 99),
                "mean_ms": (good.last_token_ms - good.ttft_ms).sum() / gaps.sum(),
                "max_ms": good.itl_max_ms.max(),
            },
            "stages": {
                stage: {
                    "p50_ms": good[f"{stage}_ms"].median(),
                    "p95_ms": np.percentile(good[f"{stage}_ms"], 95),
                    "share": good[f"{stage}_ms"].mean() / latency.mean(),
                }
                for stage in ("pre", "queue", "prefill", "decode")
            },
            "by_kind": {
                kind: {
                    "n": len(part),
                    "latency": quantiles(part.total_ms + part.queued_ms),
                    "ttft": quantiles(part.ttft_ms + part.queued_ms),
                }
                for kind, part in good.groupby("kind")
            },
            "goodput": within.sum() / seconds,
            "meets_slo": bool(
                np.percentile(latency, 95) <= SLO["total_p95_ms"]
                and np.percentile(ttft, 95) <= SLO["ttft_p95_ms"]
                and len(good) == len(started)
            ),
            "little": ended.total_ms.sum() / 1e3 / seconds / phase["users"] if phase["users"] else None,
            "sent_due": len(started) / ((table.due >= t0) & (table.due < t1)).sum()
            if phase["rate"]
            else None,
        }
        for name, value in expected.items():
            assert step[name] == approx(value), (phase["label"], name)
        elsewhere = {"gpu", "engine", "client", "p95_ci_ms", "used", "why_not"}
        assert set(step) == set(expected) | elsewhere


def approx(value):
    """The value with floats to nine digits, in depth."""
    if isinstance(value, dict):
        return {name: approx(part) for name, part in value.items()}
    return pytest.approx(value, rel=1e-9) if isinstance(value, float) else value


def test_gpu_and_engine_figures_are_those_of_the_samples_of_the_phase(written) -> None:
    path, report = written
    gpu = pd.DataFrame([json.loads(line) for line in (path / "gpu.jsonl").read_text().splitlines()])
    engine = pd.DataFrame([json.loads(line) for line in (path / "engine.jsonl").read_text().splitlines()])
    phases = json.loads((path / "run.json").read_text())["phases"]
    for step, phase in zip(report["steps"], phases, strict=True):
        inside = [t[(t.wall_ns >= phase["ready_ns"]) & (t.wall_ns < phase["end_ns"])] for t in (gpu, engine)]
        (stats,) = step["gpu"].values()
        assert stats["mem_used_peak_bytes"] == inside[0].mem_used_bytes.max()
        assert stats["util_mean"] == approx(
            inside[0].util[inside[0].wall_ns >= phase["ready_ns"] + 10**9].mean()
        )
        assert step["engine"]["waiting_mean"] == approx(float(inside[1].waiting.mean()))
        assert step["engine"]["kv_p95"] == approx(float(np.percentile(inside[1].kv_usage, 95)))
        assert step["engine"]["preemptions"] == float(np.ptp(inside[1].preemptions_total))


def test_p95_has_an_interval_that_holds_it_from_72_requests_on(written) -> None:
    _, report = written
    for step in report["steps"]:
        if step["n"] < 72:
            assert step["p95_ci_ms"] is None
        else:
            low, high = step["p95_ci_ms"]
            assert low <= step["latency"]["p95_ms"] <= high
