"""The head of the report: the verdict in one sentence, the figures that stand out, what weakens them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from urllib.parse import urlsplit, urlunsplit

from harness.analysis.wording import verdict_sentence
from harness.report.document import Fact, Facts, Tone
from harness.report.messages import Say, messages
from harness.report.messages.phrases import translate
from harness.report.numbers import NONE, duration, known, load, percent
from harness.results import Knee, Report, Step
from harness.rundir import RunData


def sentence(report: Report, ladder: Sequence[Step], lang: str) -> str:
    """Return the verdict in one sentence."""
    say, knee = messages(lang), report.knee
    if report.steps and not any(step.n for step in report.steps):
        return say("verdict.no_data")
    if headed_by_measurement(report):
        (found,) = report.experiments.values()
        return translate(found.text, lang)
    if knee is None:
        return say("verdict.none")
    rates = bool(ladder) and all(step.users is None for step in ladder)
    return translate(verdict_sentence(knee, "requests/s" if rates else "users"), lang)


def headed_by_measurement(report: Report) -> bool:
    """Return whether the verdict is the sentence of the only measurement there is."""
    return report.knee is None and len(report.experiments) == 1


def tone(report: Report) -> Tone:
    """Return how the verdict is coloured: confirmed, doubtful or none."""
    if report.knee is None:
        decided = [found.verdict != "undecided" for found in report.experiments.values()]
        if report.valid and decided:
            return "good" if all(decided) else "warn"
        return "good" if report.valid and any(step.n for step in report.steps) else "bad"
    if report.knee.status in ("knee", "none_in_range"):
        return "good" if report.valid else "warn"
    return "warn" if report.knee.status in ("inconclusive", "below_first") else "bad"


def facts(knee: Knee | None, say: Say) -> Facts:
    """Return the figures that stand out; a figure that the verdict does not give says why."""
    if knee is None:
        return Facts(())
    items: list[Fact] = []
    least = knee.status == "none_in_range"
    if knee.cap is not None:
        value = say("fact.least", cap=load(knee.cap)) if least else load(knee.cap)
        items.append(
            Fact(say("fact.cap"), value, say("fact.cap.least" if least else "fact.cap.note"), main=True)
        )
        steady = say("fact.steady.note" if knee.steady is not None else "fact.steady.none")
        items.append(Fact(say("fact.steady"), load(knee.steady), steady, main=True))
    else:
        items.append(Fact(say("fact.cap"), NONE, say("fact.cap.none"), main=True))
        if knee.most_likely is not None:
            items.append(Fact(say("fact.likely"), load(knee.most_likely), say("fact.likely.note")))
    if knee.knee_step is not None:
        items.append(Fact(say("fact.knee"), load(knee.knee_step), say("fact.knee.note")))
    if known(knee.confidence):
        items.append(Fact(say("fact.confidence"), percent(knee.confidence), say("fact.confidence.note")))
    if knee.range is not None:
        low, high = load(knee.range[0]), load(knee.range[1])
        value = low if low == high else say("fact.range.value", low=low, high=high)
        items.append(Fact(say("fact.range"), value, say("fact.range.note")))
    if knee.safe_cap is not None and knee.safe_cap != knee.cap:
        items.append(Fact(say("fact.safe"), load(knee.safe_cap), say("fact.safe.note")))
    if knee.slo_cap is not None:
        items.append(Fact(say("fact.slo"), load(knee.slo_cap), say("fact.slo.note")))
    return Facts(tuple(items))


def details(report: Report, say: Say) -> tuple[str, ...]:
    """Return what stands under the verdict: target, time, duration, run."""
    lines = []
    url = report.target.get("base_url")
    if url:
        lines.append(say("detail.target", url=without_secrets(str(url))))
    if report.started_ns is not None:
        stamp = time.strftime("%Y-%m-%d %H:%M", time.gmtime(report.started_ns / 1e9))
        lines.append(say("detail.started", when=stamp))
    if known(report.seconds):
        lines.append(say("detail.seconds", duration=duration(report.seconds)))
    return (*lines, say("detail.run", run=report.run))


def labels(report: Report, say: Say) -> tuple[str, ...]:
    """Return the labels beside the title."""
    found = []
    if is_simulated(report):
        found.append(say("label.simulated"))
    if not report.valid:
        found.append(say("label.invalid"))
    return tuple(found)


def alerts(report: Report, run: RunData, say: Say, lang: str) -> tuple[str, ...]:
    """Return what a reader must know before the figures."""
    found = []
    if not report.valid:
        found.append(say("alert.invalid"))
    if run.info.ended_ns is None:
        found.append(say("alert.cut_off"))
    if run.info.stopped_early:
        found.append(say("alert.stopped", reason=translate(run.info.stopped_early, lang)))
    if run.broken_lines:
        files = ", ".join(sorted(run.broken_lines))
        found.append(say("alert.broken", n=sum(run.broken_lines.values()), files=files))
    if is_simulated(report):
        found.append(say("alert.simulated"))
    if report.problems:
        names = list(dict.fromkeys(say(f"problem.{p.code}") for p in report.problems))
        key = "alert.problems.1" if len(report.problems) == 1 else "alert.problems"
        found.append(say(key, n=len(report.problems), names=", ".join(names)))
    return tuple(found)


def is_simulated(report: Report) -> bool:
    """Return whether any figure comes from the simulated engine or GPU."""
    return report.simulated or any(gpu.simulated for step in report.steps for gpu in step.gpu.values())


def without_secrets(url: str) -> str:
    """Return a URL without user, password, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
