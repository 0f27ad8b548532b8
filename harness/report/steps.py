"""The tables of steps: load and latency, resources, payload kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from harness.report.document import Block, Bullets, Column, Para, Table, tabulate
from harness.report.messages import Say
from harness.report.messages.phrases import translate
from harness.report.numbers import (
    GIB,
    NONE,
    Missing,
    Value,
    count,
    known,
    load,
    percent,
    plain,
    time_unit,
)
from harness.results import EngineStats, GpuStats, KindStats, Knee, Step

Number = float | int | None
SAMPLED = {  # figure of a step -> field of the samples it comes from
    "util_mean": "util",
    "mem_used_peak_bytes": "mem_used_bytes",
    "mem_used_ratio_p95": "mem_used_bytes",
    "power_mean_w": "power_w",
}


def value(x: Number, form: Callable[[Number], str], reason: str) -> Value:
    """Return a figure as text, or why it is missing."""
    return form(x) if known(x) else Missing(reason)


def row_marks(steps: Sequence[Step], knee: Knee | None) -> dict[int, str]:
    """Return which rows stand out: the cap, the knee step, steps that are not used."""
    marks: dict[int, str] = {}
    for row, step in enumerate(steps):
        if not step.used:
            marks[row] = "unused"
        elif knee is not None and step.load is not None and step.load == knee.cap:
            marks[row] = "cap"
        elif knee is not None and step.load is not None and step.load == knee.knee_step:
            marks[row] = "knee"
    return marks


def load_table(steps: Sequence[Step], knee: Knee | None, say: Say, lang: str) -> Table:
    """Return load, counts, throughput and latency of each step."""
    times = [t for s in steps for t in (s.latency.p99_ms, s.ttft.p99_ms) if t is not None]
    unit = time_unit(max(times, default=None))
    none, ttft = say("missing.requests"), say("missing.ttft")
    number: Callable[[Number], str] = plain

    def interval(step: Step) -> Value:
        if step.p95_ci_ms is None:
            return Missing(say("missing.interval"))
        return f"{unit.text(step.p95_ci_ms[0])}–{unit.text(step.p95_ci_ms[1])}"

    def slo(step: Step) -> Value:
        if step.meets_slo is None:
            left_out = say("missing.slo", why=translate(step.why_not, lang)) if step.why_not else none
            return Missing(left_out if step.n else none)
        return say("slo.met" if step.meets_slo else "slo.missed")

    open_loop = any(s.users is None for s in steps)
    columns = [
        Column(say("col.step"), lambda s: translate(s.label, lang), numeric=False),
        Column(say("col.n"), lambda s: count(s.n)),
        Column(say("col.failures"), lambda s: count(s.failures)),
        *(
            [Column(say("col.sent_due"), lambda s: value(s.sent_due, percent, say("missing.figure")))]
            if open_loop
            else []
        ),
        Column(say("col.rps"), lambda s: value(s.rps, number, none)),
        Column(say("col.out_tok_s"), lambda s: value(s.out_tok_s, number, none)),
        Column(say("col.p50", unit=unit.name), lambda s: value(s.latency.p50_ms, unit.text, none)),
        Column(say("col.p95", unit=unit.name), lambda s: value(s.latency.p95_ms, unit.text, none)),
        Column(say("col.ci", unit=unit.name), interval),
        Column(say("col.p99", unit=unit.name), lambda s: value(s.latency.p99_ms, unit.text, none)),
        Column(say("col.ttft50", unit=unit.name), lambda s: value(s.ttft.p50_ms, unit.text, ttft)),
        Column(say("col.ttft95", unit=unit.name), lambda s: value(s.ttft.p95_ms, unit.text, ttft)),
        Column(say("col.ttft99", unit=unit.name), lambda s: value(s.ttft.p99_ms, unit.text, ttft)),
        Column(say("col.slo"), slo, numeric=False),
    ]
    return tabulate(
        steps,
        columns,
        absent=partial(_absent, say),
        marks=row_marks(steps, knee),
        caption=say("steps.caption"),
        title=say("steps.load"),
    )


def resource_table(steps: Sequence[Step], knee: Knee | None, say: Say, lang: str) -> Table:
    """Return GPU and engine figures of each step, one row a GPU."""
    rows: list[_GpuRow] = []
    for measured in steps:
        each: list[_GpuRow] = [(measured, name, stats) for name, stats in sorted(measured.gpu.items())]
        rows += each or [(measured, None, None)]
    several = len({gpu for step in steps for gpu in step.gpu}) > 1

    def gpu(row: _GpuRow, name: str, form: Callable[[Number], str]) -> Value:
        stats = row[2]
        if stats is None:
            return Missing(say("missing.gpu"))
        few = say("missing.gpu_few" if stats.n else "missing.gpu")
        reason = stats.missing.get(name) or stats.missing.get(SAMPLED[name]) or ""
        return value(getattr(stats, name), form, translate(reason, lang) or few)

    def engine(row: _GpuRow, name: str, form: Callable[[Number], str]) -> Value:
        stats: EngineStats | None = row[0].engine
        if stats is None or not stats.n:
            return Missing(say("missing.engine"))
        return value(getattr(stats, name), form, say("missing.engine_field"))

    def memory(x: Number) -> str:
        return plain(x / GIB) if x is not None else ""

    def column(title: str, read: Callable[..., Value], name: str, form: Callable[[Number], str]) -> Column:
        return Column(say(f"col.{title}"), lambda row: read(row, name, form))

    columns = [
        Column(say("col.step"), lambda row: translate(row[0].label, lang), numeric=False),
        *(
            [Column("GPU", lambda row: row[1] or Missing(say("missing.gpu")), numeric=False)]
            if several
            else []
        ),
        column("util", gpu, "util_mean", percent),
        column("mem", gpu, "mem_used_peak_bytes", memory),
        column("mem_share", gpu, "mem_used_ratio_p95", percent),
        column("power", gpu, "power_mean_w", plain),
        column("running", engine, "running_mean", plain),
        column("waiting", engine, "waiting_mean", plain),
        column("kv", engine, "kv_p95", percent),
        column("preempt", engine, "preemptions", count),
        column("prefix", engine, "prefix_hit_ratio", percent),
        column("mm", engine, "mm_hit_ratio", percent),
    ]
    marks = row_marks([row[0] for row in rows], knee)
    return tabulate(
        rows,
        columns,
        absent=partial(_absent, say),
        marks=marks,
        caption=_gpus(steps, say),
        title=say("steps.resources"),
    )


def client_table(steps: Sequence[Step], knee: Knee | None, say: Say, lang: str) -> Table:
    """Return rates per minute, goodput, and how the load generator itself fared at each step."""
    none, client = say("missing.figure"), say("missing.client")
    columns = [
        Column(say("col.step"), lambda s: translate(s.label, lang), numeric=False),
        Column(say("col.rpm"), lambda s: value(s.rpm, plain, none)),
        Column(say("col.tpm"), lambda s: value(s.tpm, plain, none)),
        Column(say("col.goodput"), lambda s: value(s.goodput, plain, none)),
        Column(say("col.itl"), lambda s: value(s.itl.p50_ms, plain, none)),
        Column(say("col.little"), lambda s: value(s.little, percent, none)),
        Column(say("col.lag"), lambda s: value(s.client.lag_p99_ms, plain, client)),
        Column(say("col.cpu"), lambda s: value(s.client.cpu, percent, client)),
    ]
    marks = row_marks(steps, knee)
    title, caption = say("steps.client"), say("client.caption")
    return tabulate(steps, columns, absent=partial(_absent, say), marks=marks, title=title, caption=caption)


_GpuRow = tuple[Step, str | None, GpuStats | None]


def _gpus(steps: Sequence[Step], say: Say) -> str:
    """Return which GPUs the figures are of, simulated ones named as such."""
    found = {gpu: stats for step in steps for gpu, stats in step.gpu.items()}
    if not found:
        return ""
    names = ", ".join(dict.fromkeys(stats.name or gpu for gpu, stats in sorted(found.items())))
    simulated = any(stats.simulated for stats in found.values())
    return say("resources.simulated" if simulated else "resources.caption", gpu=names)


def kind_table(steps: Sequence[Step], say: Say, lang: str) -> Table | None:
    """Return latency and time to first token of each payload kind at each step; None for a single kind."""
    rows = [(step, kind, stats) for step in steps for kind, stats in sorted(step.by_kind.items())]
    if len({kind for _, kind, _ in rows}) < 2:
        return None
    unit = time_unit(max((stats.latency.p95_ms or 0 for _, _, stats in rows), default=None))
    none, ttft = say("missing.requests"), say("missing.ttft")

    def column(title: str, read: Callable[[KindStats], Number], reason: str) -> Column:
        return Column(say(title, unit=unit.name), lambda row: value(read(row[2]), unit.text, reason))

    columns = [
        Column(say("col.step"), lambda row: translate(row[0].label, lang), numeric=False),
        Column(say("col.kind"), lambda row: row[1], numeric=False),
        Column(say("col.n"), lambda row: count(row[2].n)),
        column("col.p50", lambda k: k.latency.p50_ms, none),
        column("col.p95", lambda k: k.latency.p95_ms, none),
        column("col.ttft50", lambda k: k.ttft.p50_ms, ttft),
        column("col.ttft95", lambda k: k.ttft.p95_ms, ttft),
        column("col.ttft99", lambda k: k.ttft.p99_ms, ttft),
    ]
    return tabulate(rows, columns, absent=partial(_absent, say))


def unused(steps: Sequence[Step], say: Say, lang: str) -> list[Block]:
    """Return why steps were left out of the verdict."""
    lines = [
        say("steps.unused.one", step=translate(s.label, lang), why=translate(s.why_not or "", lang) or NONE)
        for s in steps
        if not s.used
    ]
    return [Para(say("steps.unused")), Bullets(tuple(lines))] if lines else []


def failures(steps: Sequence[Step], say: Say, lang: str) -> list[Block]:
    """Return how requests failed, step by step."""
    lines = []
    for step in steps:
        counts = [f"{name} {count(n)}" for name, n in sorted(step.outcomes.items()) if name != "ok" and n]
        if step.failures and counts:
            lines.append(say("steps.failed.one", step=translate(step.label, lang), counts=", ".join(counts)))
    return [Para(say("steps.failed")), Bullets(tuple(lines))] if lines else []


def vote_table(knee: Knee, say: Say, lang: str) -> Table:
    """Return the three votes at each step, and in words what they rest on."""
    none = Missing(say("missing.vote"))

    def vote(given: bool | None, share: float | None) -> Value:
        if given is None:
            return none
        text = say("vote.yes" if given else "vote.no")
        return f"{text} ({percent(share)})" if known(share) else text

    columns = [
        Column(say("votes.step"), lambda v: load(v.users)),
        Column(say("votes.e_x"), lambda v: value(v.e_x, _signed, none.reason), always=True),
        Column(say("votes.e_p"), lambda v: value(v.e_p95, _signed, none.reason), always=True),
        Column(say("votes.A"), lambda v: vote(v.A, v.p_a), numeric=False, always=True),
        Column(say("votes.B"), lambda v: vote(v.B, None), numeric=False, always=True),
        Column(say("votes.C"), lambda v: vote(v.C, v.p_c), numeric=False, always=True),
        Column(
            say("votes.words"),
            lambda v: translate(v.why, lang) or NONE,
            numeric=False,
        ),
    ]
    marks = {}
    for row, entry in enumerate(knee.votes):
        if entry.users == knee.knee_step:
            marks[row] = "knee"
        elif entry.users == knee.cap:
            marks[row] = "cap"
    return tabulate(
        knee.votes, columns, absent=partial(_absent, say), marks=marks, caption=say("votes.caption")
    )


def _signed(x: Number) -> str:
    return f"{x:.2f}".replace("-", "−") if x is not None else ""


def _absent(say: Say, names: str, reason: str) -> str:
    return say("missing.absent", names=names, reason=reason)
