"""What weakens or voids a run's figures, each in words that a reviewer can act on.

The codes are a closed list (`records.ProblemCode`). What the run itself saw while it went on comes first and
is not said twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from harness.analysis.clock import JUMP_NS, SLEW, Jump
from harness.analysis.groups import Floats, Rows, Window
from harness.analysis.samples import LITTLE_RANGE, SENT_LEAST
from harness.analysis.steps import occupancy
from harness.analysis.tagging import LEAST_COVERAGE, clock_bound_ms, clock_jumps
from harness.profile import Hold, Profile
from harness.records import Problem
from harness.results import Step
from harness.rundir import RunData

HIT_LEAST = 0.01
MIX_SHIFT = 0.1  # of all good requests
RISE = 1.25  # of the median latency from the first to the last third of a window
CLOCK_BOUND_MS = 200.0
FLAT_MEMORY = 0.02
DRIFT = 0.1  # of the latency


def find_problems(run: RunData, rows: Rows, pairs: Sequence[tuple[Window, Step]]) -> list[Problem]:
    """Return all problems; `pairs` are all windows of the run, each with its figures."""
    found = list(run.info.problems)
    seen = {(p.code, p.step) for p in found}
    ladder = [(w, s) for w, s in pairs if w.phase.experiment == "steps"]
    sources = (
        _of_records(run),
        _of_clocks(run),
        _of_the_end(run),
        _of_load(run.profile, ladder),
        _of_drift(pairs),
        _of_client([s for _, s in pairs]),
        _of_traffic(run.profile, pairs, rows),
        _of_gpu(run, [s for _, s in ladder]),
        _of_engine(run, [s for _, s in ladder]),
    )
    for problem in chain.from_iterable(sources):
        if (problem.code, problem.step) not in seen:
            seen.add((problem.code, problem.step))
            found.append(problem)
    return found


def _of_records(run: RunData) -> Iterator[Problem]:
    lost = [w for w in run.info.workers if w.lost]
    if lost:
        names = ", ".join(f"{w.id} on {w.host}" for w in lost)
        yield Problem(
            code="workers_lost",
            text=f"{_many(len(lost), 'load-generating process', 'es')} went away during the run ({names}): "
            "fewer users ran than planned. Find out why it died and run again.",
        )
    have: dict[Any, int] = run.requests.groupby("worker", observed=True)["seq"].count().to_dict()
    top: dict[Any, int] = run.requests.groupby("worker", observed=True)["seq"].max().to_dict()
    missing, files = 0, []
    for worker in run.info.workers:
        made = worker.records_made if worker.records_made is not None else top.get(worker.id, -1) + 1
        if made > have.get(worker.id, 0):
            missing += made - have.get(worker.id, 0)
            files.append(worker.file or f"the file of {worker.id} on {worker.host}")
    broken = {name: n for name, n in run.broken_lines.items() if n}
    if missing or broken:
        parts = []
        if missing:
            parts.append(f"{_many(missing, 'record')} did not arrive; copy {', '.join(files)} into the run's "
                         "workers folder and report again")  # fmt: skip
        if broken:
            parts.append(
                "unreadable lines were dropped: " + ", ".join(f"{n} of {name}" for name, n in broken.items())
            )
        yield Problem(code="records_lost", text="; ".join(parts) + ".")


def _of_clocks(run: RunData) -> Iterator[Problem]:
    for jump in [*clock_jumps(run), *_worker_jumps(run)]:
        yield Problem(
            code="clock_jump",
            text=f"The wall clock of {jump.host} was set by {jump.by_ns / 1e6:+.0f} ms during the run: "
            "requests and "
            "samples near it may lie in the wrong step. Let the clock settle before a run.",
        )
    bound_ms = clock_bound_ms(run)
    if bound_ms is not None and bound_ms > CLOCK_BOUND_MS:
        yield Problem(
            code="clock_bound",
            text=f"The clocks of the hosts agree only to {bound_ms:.0f} ms: samples near the edge of a "
            "step may "
            "belong to its neighbour. Use a closer host or hold steps longer.",
        )


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
    left = [p.label for p in run.info.phases if p.t1_ns is None]
    if run.info.stopped_early:
        yield Problem(
            code="stopped_early",
            text=f"The climb ended early: {run.info.stopped_early}."
            + (f" Not measured: {', '.join(left)}." if left else ""),
        )
    elif run.info.ended_ns is None or left:
        yield Problem(
            code="stopped_early",
            text="The run was cut off"
            + (f"; not measured: {', '.join(left)}." if left else " while it ended."),
        )


def wanted_requests(hold: Hold, users: int | None) -> int:
    """Return how many good requests a window needs."""
    return max(hold.min_requests, 20, 4 * (users or 0))


def _of_load(profile: Profile, ladder: Sequence[tuple[Window, Step]]) -> Iterator[Problem]:
    for window, step in ladder:
        wanted = wanted_requests(profile.load.hold, step.users)
        if window.complete and step.n < wanted:
            yield Problem(
                code="hold_too_short",
                step=step.label,
                text=f"{step.n} good requests, {wanted} asked for: raise load.hold.max_seconds "
                f"(now {profile.load.hold.max_seconds:g} s).",
            )
        busy = occupancy(window, with_waits=True)
        if busy is not None and not LITTLE_RANGE[0] <= busy <= LITTLE_RANGE[1]:
            yield Problem(
                code="load_not_applied",
                step=step.label,
                text=f"Requests in flight came to {100 * busy:.0f} % of the users, so this is not the "
                "load it says. "
                "Look for waits in the load generator, or hold the step longer.",
            )
        elif step.sent_due is not None and step.sent_due < SENT_LEAST:
            yield Problem(
                code="load_not_applied",
                step=step.label,
                text=f"{100 * step.sent_due:.0f} % of the requests due were sent: give the load generator "
                "more "
                "processes or raise load.max_in_flight.",
            )
        rise = latency_rise(window)
        if rise is not None and rise > RISE:
            yield Problem(
                code="not_stationary",
                step=step.label,
                text=f"Latency still rose by {100 * (rise - 1):.0f} % inside the step: its queue had not "
                "settled, "
                "and its figures are too good. Hold longer or raise load.hold.settle_s.",
            )


def _of_drift(pairs: Sequence[tuple[Window, Step]]) -> Iterator[Problem]:
    """Compare a step with the same load measured again at the end of the run."""
    for again, repeated in pairs:
        if again.phase.experiment != "drift" or not repeated.latency.mean_ms:
            continue
        for before, step in pairs:
            same = (before.phase.users, before.phase.rate) == (again.phase.users, again.phase.rate)
            if before is again or not same or not step.latency.mean_ms:
                continue
            change, error = log_change(before.good.latency_ms, again.good.latency_ms)
            if abs(change) > max(DRIFT, 3 * error):
                yield Problem(
                    code="not_stationary",
                    step=step.label,
                    text=f"Measured again at the end, {step.label} took {100 * np.expm1(change):+.0f} % "
                    "time: the "
                    "service or its host changed during the run, so steps are not fully comparable.",
                )
            break


def log_change(before: Floats, after: Floats) -> tuple[float, float]:
    """Return the log of the ratio of two means, and its standard error."""
    means = before.mean(), after.mean()
    error = np.hypot(*(v.std() / np.sqrt(len(v)) / m for v, m in zip((before, after), means, strict=True)))
    return float(np.log(means[1] / means[0])), float(error)


def latency_rise(window: Window) -> float | None:
    """Return the median latency of the last third of a window over the first's, None where it is no trend.

    A trend is a rank correlation of start and latency that chance gives in 1 of 1,000 windows.
    """
    latency = window.good.latency_ms
    n = len(latency)
    if n < 30:
        return None
    ranks = np.empty(n)
    ranks[np.argsort(latency, kind="stable")] = np.arange(n)
    rho = float(np.corrcoef(np.arange(n), ranks)[0, 1])
    if rho * np.sqrt(n - 1) < 3.3:
        return None
    third = n // 3
    first, last = np.median(latency[:third]), np.median(latency[-third:])
    return float(last / first) if first > 0 else None


def _of_client(steps: Sequence[Step]) -> Iterator[Problem]:
    for step in steps:
        if step.client.limited:
            yield Problem(
                code="client_limited",
                step=step.label,
                text=f"Arrived bytes waited {step.client.lag_p99_ms:.0f} ms (p99) in the load generator: "
                "the step "
                f"measures the client and leaves the verdict. {step.client.processes_needed} processes "
                "would have "
                "carried it.",
            )
    measured = [step for step in steps if step.n + step.failures]
    if measured and all(step.client.lag_p99_ms is None for step in measured):
        yield Problem(
            code="client_lag_unknown",
            text="How long arrived bytes waited in the load generator was not recorded: that the client "
            "was fast "
            "enough is not proved.",
        )


def _of_traffic(profile: Profile, pairs: Sequence[tuple[Window, Step]], rows: Rows) -> Iterator[Problem]:
    ladder = [(w, s) for w, s in pairs if w.phase.experiment == "steps"]
    for _, step in ladder:
        if step.failures:
            share = step.failures / (step.n + step.failures)
            worst = max(
                ((n, name) for name, n in step.outcomes.items() if name not in ("ok", "cancelled")),
                default=(0, "failed"),
            )
            yield Problem(
                code="failures",
                step=step.label,
                text=f"{step.failures} of {step.n + step.failures} requests failed ({100 * share:.1f} %), "
                "most of "
                f"them {worst[1]} ({worst[0]}): they count neither as throughput nor in latency.",
            )
    yield from _of_mix(ladder)
    if profile.traffic.unique:
        for window, step in pairs:
            if window.phase.experiment not in ("repeat", "cache"):  # these repeat on purpose
                yield from _of_hits(step)
    tokens = rows.figures["out_tokens"][rows.ok]
    if len(tokens) and np.isnan(rows.figures["in_tokens"][rows.ok]).all():
        yield Problem(
            code="tokens_estimated",
            text="The service reports no usage: output tokens are counted deltas, input tokens are not "
            "known.",
        )


def _of_mix(ladder: Sequence[tuple[Window, Step]]) -> Iterator[Problem]:
    shares: dict[str, Mapping[str, float]] = {
        step.label: {kind: stats.n / step.n for kind, stats in step.by_kind.items()}
        for _, step in ladder
        if step.n >= 20
    }
    if len(shares) < 2:
        return
    kinds = sorted({kind for share in shares.values() for kind in share})
    for kind in kinds:
        usual = float(np.median([share.get(kind, 0.0) for share in shares.values()]))
        for label, share in shares.items():
            if abs(share.get(kind, 0.0) - usual) > MIX_SHIFT:
                yield Problem(
                    code="mix_changed",
                    step=label,
                    text=f"{100 * share.get(kind, 0.0):.0f} % of the good requests were {kind}, "
                    f"{100 * usual:.0f} % "
                    "elsewhere: this step is not comparable with the others. See by kind.",
                )


def _of_hits(step: Step) -> Iterator[Problem]:
    engine = step.engine
    if engine is None:
        return
    for name, ratio in (("prefix", engine.prefix_hit_ratio), ("image", engine.mm_hit_ratio)):
        if ratio is not None and ratio >= HIT_LEAST:
            yield Problem(
                code="cache_hits",
                step=step.label,
                text=f"{100 * ratio:.1f} % hits in the engine's {name} cache although the traffic is "
                "meant to be "
                "unique: real traffic may be slower. Check what the requests share (a system prompt, a "
                "template).",
            )


def _of_gpu(run: RunData, steps: Sequence[Step]) -> Iterator[Problem]:
    if run.profile.observe.gpu == "none" or not steps:
        return
    if not len(run.gpu):
        yield Problem(
            code="gpu_missing",
            text="No GPU samples: no memory headroom and no utilization. Run `knee sample` on the GPU "
            "host and "
            "name it in observe.gpu.",
        )
        return
    if run.gpu["gpu"].isna().all():
        yield Problem(
            code="identity_unknown",
            text="The samples do not say which GPU they come from: they are counted and given to none.",
        )
    for step in steps:
        thin = [stats for stats in step.gpu.values() if stats.coverage < LEAST_COVERAGE]
        if thin or not step.gpu:
            share = min((stats.coverage for stats in thin), default=0.0)
            yield Problem(
                code="gpu_gap",
                step=step.label,
                text=f"GPU samples cover {100 * share:.0f} % of the step, under "
                f"{100 * LEAST_COVERAGE:.0f} %: no "
                "figure is given for it.",
            )
    flat = _flat_memory(steps)
    if flat is not None:
        known = any(step.engine is not None and step.engine.kv_p95 is not None for step in steps)
        yield Problem(
            code="preallocated_memory",
            text=f"GPU memory stays at {100 * flat:.0f} % at every load: the engine reserves it at its "
            "start, so it "
            "says nothing of headroom. "
            + (
                "KV-cache usage stands in."
                if known
                else "Let observe.engine read the engine's KV-cache usage."
            ),
        )


def _flat_memory(steps: Sequence[Step]) -> float | None:
    """Return the share of memory used where it is high and the same at every step, else None."""
    ratios: dict[str, list[float]] = {}
    for step in steps:
        for gpu, stats in step.gpu.items():
            if stats.mem_used_ratio_p95 is not None:
                ratios.setdefault(gpu, []).append(stats.mem_used_ratio_p95)
    flat = [v[0] for v in ratios.values() if len(v) > 1 and min(v) > 0.7 and max(v) - min(v) < FLAT_MEMORY]
    return max(flat, default=None)


def _of_engine(run: RunData, steps: Sequence[Step]) -> Iterator[Problem]:
    if run.profile.observe.engine == "none" or not steps:
        return
    if not len(run.engine) or run.engine["error"].notna().all():
        yield Problem(
            code="engine_missing",
            text="No engine metrics: queue, KV-cache usage and preemptions are not known. Give the "
            "address of "
            "/metrics in observe.engine.",
        )
        return
    for step in steps:
        if step.engine is None or not step.engine.n:
            yield Problem(
                code="engine_stale",
                step=step.label,
                text="The engine's metrics were not answered during this step: its queue and memory are "
                "not known.",
            )


def _many(n: int, word: str, plural: str = "s") -> str:
    return f"{n} {word}{'' if n == 1 else plural}"
