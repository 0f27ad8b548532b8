"""From the report's figures to its document: which sections, in which order, with which words."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report import verdict
from harness.report.document import (
    Block,
    Bullets,
    Cell,
    Column,
    Document,
    Figure,
    Head,
    Para,
    Section,
    Table,
    tabulate,
)
from harness.report.experiments import chart_name, experiment_blocks
from harness.report.lanes import MAX_REQUESTS
from harness.report.messages import Say, has, messages
from harness.report.messages.phrases import translate
from harness.report.numbers import NONE, Missing, count, known, load
from harness.report.steps import (
    client_table,
    failures,
    kind_table,
    load_table,
    resource_table,
    unused,
    vote_table,
)
from harness.results import Limit, Report, Step
from harness.rundir import RunData


def ladder_steps(report: Report, run: RunData) -> list[Step]:
    """Return the steps of the ladder in order of load, without the one measured again to show drift."""
    again = {phase.index for phase in run.info.phases if phase.experiment == "drift"}
    chosen = [step for step in report.steps if step.phase not in again]
    return sorted(chosen, key=lambda s: (s.users or 0, s.offered_rps or 0.0, s.phase))


def make_document(report: Report, run: RunData, charts: Sequence[str], lang: str) -> Document:
    """Return the whole report as a document; `charts` are the names of the charts that could be drawn."""
    say, ladder = messages(lang), ladder_steps(report, run)
    model = report.target.get("model")
    eyebrow = "eyebrow.model" if model else "eyebrow"
    measured = _experiments(report, charts, say, lang)
    sections = [
        *((_findings(report, say, lang),) if report.knee is not None else measured),
        _limits(report, say, lang),
        _why(report, ladder, charts, say, lang),
        _bottleneck(report, charts, say, lang),
        _latency(report, charts, say),
        _time(report, run, charts, say),
        _steps(report, ladder, say, lang),
        _kinds(ladder, say, lang),
        *(measured if report.knee is not None else ()),
        _problems(report, say, lang),
        _method(report, say),
        _conditions(say),
        _versions(report, run, say),
    ]
    return Document(
        lang="zh-CN" if lang == "zh" else lang,
        title=f"{say('title')} · {report.profile}",
        eyebrow=say(eyebrow, profile=report.profile, model=model),
        verdict=verdict.sentence(report, ladder, lang),
        tone=verdict.tone(report),
        details=verdict.details(report, say),
        labels=verdict.labels(report, say),
        facts=verdict.facts(report.knee, say),
        alerts=verdict.alerts(report, run, say, lang),
        sections=tuple(s for s in sections if s is not None),
    )


def _limits(report: Report, say: Say, lang: str) -> Section | None:
    if not report.limits and report.knee is None:
        return None
    given = [limit for limit in report.limits if limit.value is not None]
    without = [limit for limit in report.limits if limit.value is None]
    blocks: list[Block] = []
    if given:
        columns = [
            Column(say("limits.setting"), lambda x: f"{x.section}.{x.key}", numeric=False),
            Column(say("limits.value"), _limit_value),
            Column(say("limits.why"), lambda x: translate(x.why, lang), numeric=False),
        ]
        blocks += [Para(say("limits.intro")), _simple(given, columns, say)]
    else:
        blocks.append(Para(say("limits.none")))
    if without:
        reasons = [(f"{x.section}.{x.key}", translate(x.why, lang)) for x in without]
        names = say("join").join(say("limits.unsupported.one", name=name, why=why) for name, why in reasons)
        blocks.append(Para(say("limits.unsupported", names=names), "note"))
    return Section("limits", say("limits.title"), tuple(blocks))


def _limit_value(limit: Limit) -> str:
    return f"{limit.value:g}" if isinstance(limit.value, float) else str(limit.value)


def _why(report: Report, ladder: list[Step], charts: Sequence[str], say: Say, lang: str) -> Section | None:
    knee = report.knee
    if knee is None and "knee" not in charts:
        return None
    blocks: list[Block] = []
    if "knee" in charts:
        ranged = knee is not None and knee.range is not None and knee.range[0] < knee.range[1]
        caption = (
            [say("why.figure.caption"), say("why.figure.range")] if ranged else [say("why.figure.caption")]
        )
        blocks.append(Figure("knee", say("why.figure"), " ".join(caption)))
    if knee is not None:
        blocks.append(Para(say("why.intro")))
        blocks.append(Bullets((say("why.A"), say("why.B"), say("why.C"))))
        blocks.append(vote_table(knee, say, lang) if knee.votes else Para(say("why.none"), "note"))
        if knee.notes:
            blocks.append(Bullets(tuple(translate(note, lang) for note in knee.notes)))
        if knee.cross_checks:
            columns = [
                Column(say("checks.name"), lambda x: _word("check", x[0], say, lang), numeric=False),
                Column(
                    say("checks.cap"),
                    lambda x: load(x[1].cap) if known(x[1].cap) else Missing(say("checks.none")),
                    always=True,
                ),
                Column(
                    say("checks.agrees"),
                    lambda x: NONE if x[1].agrees is None else say("yes" if x[1].agrees else "no"),
                    numeric=False,
                ),
                Column(say("checks.detail"), lambda x: translate(x[1].detail, lang) or NONE, numeric=False),
            ]
            rows = list(knee.cross_checks.items())
            blocks.append(_simple(rows, columns, say, title=say("checks.title")))
    return Section("why", say("why.title"), tuple(blocks))


def _bottleneck(report: Report, charts: Sequence[str], say: Say, lang: str) -> Section | None:
    found = report.bottleneck
    if found is None and report.knee is None:
        return None
    blocks: list[Block] = []
    if found is None:
        blocks.append(Para(say("bottleneck.none")))
    elif found.stage == "unknown" and found.resource == "unknown":
        blocks.append(Para(say("bottleneck.unknown"), "lead"))
    else:
        stage = _word("stage", found.stage, say, lang)
        resource = _word("resource", found.resource, say, lang)
        blocks.append(Para(say("bottleneck.sentence", stage=stage, resource=resource), "lead"))
    if found is not None and found.evidence:
        blocks.append(Bullets(tuple(translate(text, lang) for text in found.evidence)))
    if "stages" in charts:
        blocks.append(Figure("stages", say("bottleneck.figure")))
    else:
        blocks.append(Para(say("bottleneck.no_stages"), "note"))
    return Section("bottleneck", say("bottleneck.title"), tuple(blocks))


def _latency(report: Report, charts: Sequence[str], say: Say) -> Section | None:
    if not report.steps:
        return None
    if "ttft" not in charts:
        return Section("latency", say("latency.title"), (Para(say("latency.none")),))
    blocks: list[Block] = [Figure("ttft", say("latency.figure"))]
    if report.target.get("stream") is False:
        blocks.append(Para(say("latency.unstreamed"), "note"))
    return Section("latency", say("latency.title"), tuple(blocks))


def _time(report: Report, run: RunData, charts: Sequence[str], say: Say) -> Section:
    tables = {"panel.gpu": run.gpu, "panel.engine": run.engine, "panel.requests": run.requests}
    gone = [say(name) for name, table in tables.items() if not len(table)]
    blocks: list[Block] = []
    if "timeline" in charts:
        caption = [say("time.caption")]
        if len(run.gpu) and run.gpu.gpu.nunique(dropna=False) > 1:
            caption.append(say("time.gpus"))
        if len(run.requests) > MAX_REQUESTS:
            caption.append(say("time.thinned", drawn=count(MAX_REQUESTS), all=count(len(run.requests))))
        blocks.append(Figure("timeline", say("time.figure"), " ".join(caption)))
    else:
        blocks.append(Para(say("time.none")))
    if gone:
        blocks.append(Para(say("time.missing", names=", ".join(gone)), "note"))
    if known(report.clock_bound_ms) and len(run.gpu):
        blocks.append(Para(say("time.clock", ms=f"{report.clock_bound_ms:.3g}"), "note"))
    return Section("time", say("time.title"), tuple(blocks))


def _steps(report: Report, ladder: list[Step], say: Say, lang: str) -> Section | None:
    rest = [step for step in report.steps if step not in ladder]
    steps = [*ladder, *rest]
    if not steps and report.experiments:
        return None
    if not steps:
        return Section("steps", say("steps.title"), (Para(say("steps.none")),))
    blocks: list[Block] = [
        load_table(steps, report.knee, say, lang),
        *failures(steps, say, lang),
        *unused(steps, say, lang),
        resource_table(steps, report.knee, say, lang),
        client_table(steps, report.knee, say, lang),
    ]
    return Section("steps", say("steps.title"), tuple(blocks))


def _kinds(ladder: list[Step], say: Say, lang: str) -> Section | None:
    table = kind_table(ladder, say, lang)
    if table is None:
        return None
    return Section("kinds", say("kinds.title"), (Para(say("kinds.intro")), table))


def _findings(report: Report, say: Say, lang: str) -> Section | None:
    """Return what the measurements beside the ladder found, a line each: their sections come later."""
    if not report.experiments:
        return None
    columns = [
        Column(say("findings.what"), lambda x: _word("experiment", x[0], say, lang), numeric=False),
        Column(say("findings.found"), lambda x: translate(x[1].text, lang), numeric=False),
    ]
    table = _simple(list(report.experiments.items()), columns, say)
    return Section("findings", say("findings.title"), (table,))


def _experiments(report: Report, charts: Sequence[str], say: Say, lang: str) -> list[Section]:
    sections, lead = [], not verdict.headed_by_measurement(report)
    for name, experiment in report.experiments.items():
        charted = chart_name(name) in charts
        blocks = experiment_blocks(name, experiment, say, lang, charted=charted, lead=lead)
        if report.target.get("stream") is False:
            blocks.append(Para(say("latency.unstreamed"), "note"))
        sections.append(Section(f"experiment-{name}", _word("experiment", name, say, lang), tuple(blocks)))
    return sections


def _problems(report: Report, say: Say, lang: str) -> Section:
    if not report.problems:
        return Section("problems", say("problems.title"), (Para(say("problems.none")),))
    columns = [
        Column(say("problems.what"), lambda p: say(f"problem.{p.code}"), numeric=False),
        Column(
            say("problems.where"),
            lambda p: translate(p.step, lang) if p.step else say("problems.run"),
            numeric=False,
        ),
        Column(say("problems.detail"), lambda p: translate(p.text, lang), numeric=False),
    ]
    table = _simple(report.problems, columns, say)
    return Section("problems", say("problems.title"), (Para(say("problems.intro")), table))


def _method(report: Report, say: Say) -> Section:
    """Return how it was measured; how a measurement beside the ladder is judged stands in its own section."""
    about_steps = range(1, 5) if report.knee is not None or not report.experiments else ()
    lines = tuple(say(f"method.{i}") for i in (*about_steps, 5))
    return Section("method", say("method.title"), (Bullets(lines),))


def _conditions(say: Say) -> Section:
    lines = tuple(say(f"conditions.{i}") for i in range(1, 6))
    return Section("conditions", say("conditions.title"), (Para(say("conditions.intro")), Bullets(lines)))


def _versions(report: Report, run: RunData, say: Say) -> Section:
    target = report.target
    gpus = dict.fromkeys(s.name or gpu for step in report.steps for gpu, s in step.gpu.items())
    stream = target.get("stream")
    rows = [
        (say("versions.url"), verdict.without_secrets(str(target.get("base_url") or ""))),
        (say("versions.model"), target.get("model")),
        (say("versions.endpoint"), target.get("endpoint")),
        (say("versions.stream"), None if stream is None else say("yes" if stream else "no")),
        (say("versions.mix"), ", ".join(f"{p.weight} × {p.kind}" for p in run.profile.traffic.mix)),
        (say("versions.gpu"), ", ".join(gpus)),
        *sorted(report.versions.items()),
    ]
    table = Table(
        heads=(Head(say("versions.name"), numeric=False), Head(say("versions.value"), numeric=False)),
        rows=tuple((Cell(str(name)), Cell(str(text))) for name, text in rows if text),
        marks={},
    )
    return Section("versions", say("versions.title"), (table,))


def _simple(rows: Sequence[object], columns: Sequence[Column], say: Say, *, title: str = "") -> Table:
    return tabulate(
        rows,
        columns,
        absent=lambda names, why: say("missing.absent", names=names, reason=why),
        title=title,
    )


def _word(group: str, code: str, say: Say, lang: str) -> str:
    """Return the words for a code, or the code itself where there are none yet."""
    key = f"{group}.{code}"
    return say(key) if has(lang, key) else code.replace("_", " ")
