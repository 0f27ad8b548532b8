"""What weakens or voids a run's figures, each in words that a reviewer can act on.

The codes are a closed list (`records.ProblemCode`). What the run itself saw while it went on comes first and
is not said twice. Here: the run as a whole, its records, clocks, GPU and engine; `load_problems` has the
steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from harness.analysis.clock import JUMP_NS, SLEW, Jump
from harness.analysis.groups import Rows, Window
from harness.analysis.load_problems import client_problems, drift_problems, load_problems, traffic_problems
from harness.analysis.tagging import LEAST_COVERAGE, clock_bound_ms, clock_jumps
from harness.records import Problem
from harness.results import Step
from harness.rundir import RunData

CLOCK_BOUND_MS = 200.0
FLAT_MEMORY = 0.02  # of the GPU's memory, over all steps
RESERVED_LEAST = 0.7  # memory that an engine reserves is most of it


def find_problems(run: RunData, rows: Rows, pairs: Sequence[tuple[Window, Step]]) -> list[Problem]:
    """Return all problems; `pairs` are all windows of the run, each with its figures."""
    found = list(run.info.problems)
    seen = {(p.code, p.step) for p in found}
    ladder = [(w, s) for w, s in pairs if w.phase.experiment == "steps"]
    steps = [step for _, step in ladder]
    sources = (
        _of_records(run),
        _of_clocks(run),
        _of_the_end(run),
        load_problems(run.profile, ladder),
        drift_problems(pairs),
        client_problems([s for _, s in pairs]),
        traffic_problems(run.profile, pairs, rows),
        _of_gpu(run, steps),
        _of_engine(run, steps),
    )
    for problem in chain.from_iterable(sources):
        if (problem.code, problem.step) not in seen:
            seen.add((problem.code, problem.step))
            found.append(problem)
    return found


def _of_records(run: RunData) -> Iterator[Problem]:
    lost = [worker for worker in run.info.workers if worker.lost]
    if lost:
        text = (
            f"{_many(len(lost), 'load-generating process', 'es')} went away during the run "
            f"({', '.join(f'{w.id} on {w.host}' for w in lost)}): fewer users ran than planned. Find out why "
            "and run again."
        )
        yield Problem(code="workers_lost", text=text)
    missing, files = _missing_records(run)
    broken = ", ".join(f"{n} of {name}" for name, n in run.broken_lines.items() if n)
    parts = []
    if missing:
        parts.append(
            f"{_many(missing, 'record')} did not arrive: copy {', '.join(files)} into the run's workers "
            "folder and report again."
        )
    if broken:
        parts.append(f"Unreadable lines were dropped: {broken}.")
    if parts:
        yield Problem(code="records_lost", text=" ".join(parts))


def _missing_records(run: RunData) -> tuple[int, list[str]]:
    """Return how many records are missing, and the files that hold them."""
    by_worker = run.requests.groupby("worker", observed=True)["seq"]
    have: dict[Any, int] = by_worker.count().to_dict()
    top: dict[Any, int] = by_worker.max().to_dict()
    missing, files = 0, []
    for worker in run.info.workers:
        made = worker.records_made if worker.records_made is not None else top.get(worker.id, -1) + 1
        lacking = made - have.get(worker.id, 0)
        if lacking > 0:
            missing += lacking
            files.append(worker.file or f"the file of {worker.id} on {worker.host}")
    return missing, files


def _of_clocks(run: RunData) -> Iterator[Problem]:
    for jump in [*clock_jumps(run), *_worker_jumps(run)]:
        text = (
            f"The wall clock of {jump.host} was set by {jump.by_ns / 1e6:+.0f} ms during the run: requests "
            "and samples near it may lie in the wrong step. Let the clock settle before a run."
        )
        yield Problem(code="clock_jump", text=text)
    bound_ms = clock_bound_ms(run)
    if bound_ms is not None and bound_ms > CLOCK_BOUND_MS:
        text = (
            f"The clocks of the hosts agree only to {bound_ms:.0f} ms: samples near the edge of a step may "
            "belong to its neighbour. Use a closer host or hold steps longer."
        )
        yield Problem(code="clock_bound", text=text)


def _worker_jumps(run: RunData) -> Iterator[Jump]:
    """Yield where a worker's wall clock left its monotonic one: for good, not in one late reading."""
    table = run.requests
    if not len(table):
        return
    apart = table["wall_ns"].to_numpy(dtype=np.int64) - table["start_ns"].to_numpy(dtype=np.int64)
    start, workers = table["start_ns"].to_numpy(dtype=np.int64), table["worker"].to_numpy(dtype=object)
    for worker in dict.fromkeys(workers):
        mine = np.flatnonzero(workers == worker)
        mine = mine[np.argsort(start[mine], kind="stable")]
        low, high = np.quantile(apart[mine], (0.02, 0.98))
        if high - low > JUMP_NS + SLEW * float(np.ptp(start[mine])):
            by = int(np.median(apart[mine[-9:]]) - np.median(apart[mine[:9]]))
            yield Jump(f"worker {worker}", 0, by)


def _of_the_end(run: RunData) -> Iterator[Problem]:
    left = ", ".join(phase.label for phase in run.info.phases if phase.t1_ns is None)
    if run.info.stopped_early:
        why = run.info.stopped_early.rstrip(".")
        text = f"The climb ended early: {why}." + (f" Not measured: {left}." if left else "")
        yield Problem(code="stopped_early", text=text)
    elif run.info.ended_ns is None or left:
        text = f"The run was cut off; not measured: {left}." if left else "The run was cut off at its end."
        yield Problem(code="stopped_early", text=text)


def _of_gpu(run: RunData, steps: Sequence[Step]) -> Iterator[Problem]:
    if run.profile.observe.gpu == "none" or not steps:
        return
    if not len(run.gpu):
        text = (
            "No GPU samples: neither memory headroom nor utilization is known. Run `knee sample` on the GPU "
            "host and name it in observe.gpu."
        )
        yield Problem(code="gpu_missing", text=text)
        return
    if run.gpu["gpu"].isna().all():
        text = "The samples do not say which GPU they come from: they are counted and given to none."
        yield Problem(code="identity_unknown", text=text)
        return
    for step in steps:
        cover = min((stats.coverage for stats in step.gpu.values()), default=0.0)
        if cover < LEAST_COVERAGE:
            text = (
                f"GPU samples cover {100 * cover:.0f} % of the step, under {100 * LEAST_COVERAGE:.0f} %: no "
                "figure is given for it."
            )
            yield Problem(code="gpu_gap", step=step.label, text=text)
    flat = _flat_memory(steps)
    if flat is not None:
        known = any(step.engine is not None and step.engine.kv_p95 is not None for step in steps)
        stands_in = "KV-cache usage stands in." if known else "Let observe.engine read KV-cache usage."
        text = (
            f"GPU memory stays at {100 * flat:.0f} % at every load: the engine reserves it at its start, so "
            f"it says nothing of headroom. {stands_in}"
        )
        yield Problem(code="preallocated_memory", text=text)


def _flat_memory(steps: Sequence[Step]) -> float | None:
    """Return the share of memory used where it is high and the same at every step, else None."""
    ratios: dict[str, list[float]] = {}
    for step in steps:
        for gpu, stats in step.gpu.items():
            if stats.mem_used_ratio_p95 is not None:
                ratios.setdefault(gpu, []).append(stats.mem_used_ratio_p95)
    several = [values for values in ratios.values() if len(values) > 1 and min(values) > RESERVED_LEAST]
    return max((v[0] for v in several if max(v) - min(v) < FLAT_MEMORY), default=None)


def _of_engine(run: RunData, steps: Sequence[Step]) -> Iterator[Problem]:
    if run.profile.observe.engine == "none" or not steps:
        return
    if not len(run.engine) or run.engine["error"].notna().all():
        text = (
            "No engine metrics: queue, KV-cache usage and preemptions are not known. Give the address of "
            "/metrics in observe.engine."
        )
        yield Problem(code="engine_missing", text=text)
        return
    counts_queue = any(step.engine is not None and step.engine.waiting_mean is not None for step in steps)
    for step in steps:
        engine = step.engine
        if engine is None or not engine.n or (counts_queue and engine.waiting_mean is None):
            text = (
                "The engine's metrics were not answered for most of this step: its queue and memory are not "
                "known."
            )
            yield Problem(code="engine_stale", step=step.label, text=text)


def _many(n: int, word: str, plural: str = "s") -> str:
    return f"{n} {word}{'' if n == 1 else plural}"
