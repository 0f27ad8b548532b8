"""A run in, a report out: every figure, the verdict, what weakens it, and the limits that follow.

Nothing here raises on a run that was cut off, has no GPU or engine figures, one step or only failures: what
is missing is None, and a problem says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from harness.analysis.bottleneck import find_bottleneck
from harness.analysis.experiments import assess_experiments
from harness.analysis.groups import Rows, Window, rows_of, steps_of
from harness.analysis.knee import find_knee
from harness.analysis.ladder_notes import FAULTS
from harness.analysis.limits import derive_limits
from harness.analysis.problems import find_problems
from harness.analysis.samples import StepSample
from harness.analysis.stages import with_stage_log
from harness.analysis.steps import occupancy, step_of
from harness.analysis.tagging import clock_bound_ms, engine_by_step, gpu_by_step
from harness.profile import Profile
from harness.results import Knee, Load, Report, Step
from harness.rundir import RunData, Table

INVALID_STATUS = ("insufficient", "client_limited", "load_not_applied")
replace = msgspec.structs.replace


def assess(run: RunData, *, seed: int = 0, stage_log: Table | None = None) -> Report:
    """Analyse a run; `stage_log` is the service's own timing lines (`stages.parse_stage_log`)."""
    if stage_log is not None:
        run = with_stage_log(run, stage_log)
    rows = rows_of(run)
    windows = steps_of(run, rows)
    unit = work_unit([w for w in windows if w.phase.experiment == "steps"])
    pairs = [(w, judged(w, s, unit)) for w, s in zip(windows, measure_steps(run, windows), strict=True)]
    ladder = [(w, s) for w, s in pairs if w.phase.experiment == "steps"]
    knee = verdict(run.profile, ladder, unit, seed=seed) if planned_loads(run) else None
    report = Report(
        run=run.info.run,
        profile=run.info.profile,
        experiment=run.info.experiment,
        valid=is_valid(run, windows, knee),
        problems=find_problems(run, rows, pairs),
        steps=[s for w, s in pairs if w.phase.experiment in ("steps", "drift")],
        knee=knee,
        bottleneck=find_bottleneck([s for _, s in ladder], knee),
        experiments=assess_experiments(run, rows, windows, seed=seed),
        versions=run.info.versions,
        target=about_target(run.profile),
        started_ns=run.info.started_ns,
        seconds=seconds_of(run, rows),
        simulated=is_simulated(run),
        clock_bound_ms=clock_bound_ms(run),
    )
    return replace(report, limits=derive_limits(report, run.profile.slo, run.requests))


def measure_steps(run: RunData, windows: Sequence[Window]) -> list[Step]:
    """Return one step per window, with GPU, engine and client figures joined by time."""
    gpu, engine = gpu_by_step(run), engine_by_step(run)
    phase_of = run.client["phase"].to_numpy(dtype=np.float64, na_value=np.nan)
    wall = run.client["wall_ns"].to_numpy(dtype=np.float64, na_value=np.nan)
    steps = []
    for window in windows:
        phase = window.phase
        t1 = phase.t1_ns if phase.t1_ns is not None else np.inf
        mine = run.client[(phase_of == phase.index) & (wall >= (phase.t0_ns or 0)) & (wall < t1)]
        steps.append(
            step_of(
                window,
                slo=run.profile.slo,
                client=mine,
                gpu=gpu.get(phase.index),
                engine=engine.get(phase.index),
            )
        )
    return steps


def judged(window: Window, step: Step, unit: str | None) -> Step:
    """Return the step with whether the verdict takes it, and why not; what cannot be judged meets no SLO."""
    if window.phase.experiment == "drift":
        return replace(step, used=False, why_not="measured again at the end to show drift", meets_slo=None)
    if not window.complete:
        return replace(step, used=False, why_not="the run ended inside this step", meets_slo=None)
    fault = sample_of(window, step, unit).fault if window.phase.experiment == "steps" else None
    if fault is None:
        return step
    met = step.meets_slo if fault == "too_few" else None
    return replace(step, used=False, why_not=FAULTS[fault].removeprefix("left out: "), meets_slo=met)


def verdict(profile: Profile, ladder: Sequence[tuple[Window, Step]], unit: str | None, *, seed: int) -> Knee:
    """Return the knee of a ladder."""
    return find_knee(
        [sample_of(window, step, unit) for window, step in ladder if window.complete],
        seed=seed,
        slo_ok=slo_by_load([step for _, step in ladder]),
        profile_loads=[float(users) for users in profile.users] or list(profile.load.rates or ()),
    )


def sample_of(window: Window, step: Step, unit: str | None) -> StepSample:
    """Return a step as the knee rule takes it; good requests in the order in which they ended."""
    good = window.good.take(np.argsort(window.good.end_ns, kind="stable"))
    served = window.served
    kv = step.engine.kv_p95 if step.engine else None
    memory = [s.mem_used_ratio_p95 for s in step.gpu.values() if s.mem_used_ratio_p95 is not None]
    work = good.figures[unit] if unit else np.ones(len(good))
    return StepSample(
        load=step.load or 0.0,
        seconds=window.seconds,
        latency_ms=good.latency_ms,
        work=work,
        done=len(served),
        done_work=float(np.nansum(served.figures[unit])) if unit else float(len(served)),
        asked=step.n + step.failures,
        failed=step.failures,
        refused=step.outcomes.get("rejected", 0),
        kv_p95=kv,
        nvml_p95=max(memory, default=None),
        preemptions=step.engine.preemptions if step.engine else None,
        open_loop=step.users is None,
        client_limited=step.client.limited,
        little=occupancy(window, with_waits=True),
        sent_due=step.sent_due,
        label=step.label,
    )


def work_unit(windows: Sequence[Window]) -> str | None:
    """Return what throughput is counted in: output tokens where payload kinds differ and all are known."""
    served = [window.served for window in windows if len(window.served)]
    kinds = {int(kind) for rows in served for kind in np.unique(rows.kind)}
    tokens = [rows.figures["out_tokens"] for rows in served]
    known = bool(tokens) and all(bool((t > 0).all()) for t in tokens)
    return "out_tokens" if len(kinds) > 1 and known else None


def slo_by_load(steps: Sequence[Step]) -> dict[Load, bool]:
    """Return whether each load meets the SLO; of a load measured several times, most must."""
    judged: dict[Load, list[bool]] = {}
    for step in steps:
        if step.load is not None and step.meets_slo is not None:
            judged.setdefault(step.load, []).append(step.meets_slo)
    return {load: sum(met) * 2 > len(met) for load, met in judged.items()}


def planned_loads(run: RunData) -> set[Load]:
    """Return the loads that the ladder was to hold; empty where the run had none."""
    loads = (phase.load for phase in run.info.phases if phase.experiment == "steps")
    return {load for load in loads if load is not None}


def is_valid(run: RunData, windows: Sequence[Window], knee: Knee | None) -> bool:
    """Return whether the run can support what it was made for.

    A ladder of one step was not made for a knee: it is judged by its SLO.
    """
    if not any(len(w.good) for w in windows) or any(worker.lost for worker in run.info.workers):
        return False
    if knee is None or (len(planned_loads(run)) == 1 and knee.status == "insufficient"):
        return True
    return knee.status not in INVALID_STATUS


def about_target(profile: Profile) -> dict[str, Any]:
    """Return what a report may say of the target."""
    target = profile.target
    return {
        "base_url": target.base_url,
        "model": target.model,
        "endpoint": target.endpoint,
        "stream": target.stream,
    }


def seconds_of(run: RunData, rows: Rows) -> float | None:
    """Return how long the run took; of one cut off, up to its last request."""
    end = run.info.ended_ns or (int(rows.end_ns.max()) if len(rows) else None)
    return None if end is None else max(end - run.info.started_ns, 0) / 1e9


def is_simulated(run: RunData) -> bool:
    """Return whether the GPU's or the engine's figures come from the simulated engine."""
    return any(bool((table["source"] == "sim").any()) for table in (run.gpu, run.engine) if len(table))


def exit_code(report: Report, profile: Profile) -> int:
    """Return 3 where the run is not valid, 1 where the service missed its SLO, else 0.

    A ladder passes its knee by design, so the SLO is judged at `steady`, or at the only step there is.
    """
    if not report.valid:
        return 3
    met = slo_by_load(report.steps)
    ladder = profile.users or profile.load.rates or ()
    at = report.knee.steady if report.knee is not None else None
    if at is None and len(ladder) == 1:
        at = float(ladder[0])
    return 1 if at is not None and met.get(at) is False else 0
