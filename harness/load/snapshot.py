"""What the web UI shows of a run: one plain value, from the ladder's own rows."""

from __future__ import annotations

from typing import Any

from harness.load.answer import quantile
from harness.load.conductor import Conductor
from harness.load.step import Step
from harness.records import EngineSample, GpuSample


def snapshot(run: Conductor | None, *, state: str, error: str | None = None) -> dict[str, Any]:
    """Return the state of a run; figures that are not known are None."""
    if run is None:
        return {"state": state, "error": error, "run": None}
    ladder, sampled = run.ladder, run.sampler.latest()
    begun = [step for step in ladder.steps if step.t0_ns is not None]
    return {
        "state": state,
        "error": error,
        "run": run.dir.path.name,
        "profile": run.profile.name,
        "experiment": run.plan.experiment,
        "target": run.profile.target.base_url,
        "phase": _phase(ladder.step),
        "number": len(ladder.steps),
        "of": len(ladder.steps) + ladder.coming,
        "over": ladder.over,
        "stopped_early": ladder.stopped_early,
        "problems": [f"{p.step}: {p.text}" if p.step else p.text for p in ladder.problems],
        "workers": len(run.crew.ids),
        "users": sum(status.users for status in run.statuses.values()),
        "in_flight": sum(status.in_flight for status in run.statuses.values()),
        "requests": run.ended,
        "steps": [step_figures(step) for step in begun],
        "gpus": [_gpu(sample) for sample in sampled[0].values()],
        "engine": _engine(sampled[1]),
        "report": run.dir.report_html.exists(),
    }


def step_figures(step: Step) -> dict[str, Any]:
    """Return the figures of a step, finished or going on."""
    if step.shown is not None:
        return step.shown
    figures = _figures(step)
    if step.stage == "done":
        step.shown = figures
    return figures


def _figures(step: Step) -> dict[str, Any]:
    good = [row for row in step.window if row.ok]
    latencies = sorted(row.latency_ms for row in good)
    ttfts = sorted(row.ttft_ms + (row.queued_ms or 0.0) for row in good if row.ttft_ms is not None)
    seconds = step.seconds
    return {
        "label": step.phase.label,
        "experiment": step.phase.experiment,
        "load": step.phase.users if step.phase.users is not None else step.phase.rate,
        "done": step.t1_ns is not None,
        "n": len(good),
        "failures": step.failures,
        "rps": len(step.served) / seconds if seconds else None,
        "p50_ms": quantile(latencies, 0.50) if latencies else None,
        "p95_ms": quantile(latencies, 0.95) if latencies else None,
        "ttft_p95_ms": quantile(ttfts, 0.95) if ttfts else None,
    }


def _phase(step: Step) -> dict[str, Any]:
    return {
        "label": step.phase.label,
        "stage": step.stage,
        "done": step.in_phase if step.phase.requests is not None else step.good,
        "missing": max(0, step.missing),
    }


def _gpu(sample: GpuSample) -> dict[str, Any]:
    used, total = sample.mem_used_bytes, sample.mem_total_bytes
    return {
        "name": sample.name or sample.gpu or "GPU",
        "util": sample.util,
        "memory": used / total if used is not None and total else None,
        "simulated": sample.source.startswith("sim"),
    }


def _engine(sample: EngineSample | None) -> dict[str, Any] | None:
    if sample is None or sample.error is not None:
        return None
    return {"running": sample.running, "waiting": sample.waiting, "kv_usage": sample.kv_usage}
