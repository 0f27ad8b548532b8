"""What the web UI shows of a report: the sentences and figures that `knee report` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.analysis.wording import load_unit, verdict_sentence
from harness.plan import Phase
from harness.results import Knee, Report, Step, Vote

Tone = Literal["good", "warn", "bad"]
DECIDED = ("knee", "none_in_range")
OPEN = ("inconclusive", "below_first")
FAULTS = ("client_limited", "load_not_applied")


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The verdict, how it is coloured, and the figures that stand out."""

    sentence: str
    tone: Tone
    facts: list[tuple[str, str]]


def conclusion(report: Report) -> Conclusion:
    """Return what a report concludes."""
    sentences = [found.text for found in report.experiments.values()]
    if report.knee is not None:
        sentences.insert(0, verdict_sentence(report.knee, load_unit(report.steps)))
    facts = [("Status", report.knee.status.replace("_", " ")), *_of_knee(report.knee)] if report.knee else []
    if report.bottleneck is not None:
        where = f"{report.bottleneck.stage}, {report.bottleneck.resource.replace('_', ' ')}"
        facts.append(("Bottleneck", where))
    return Conclusion(" ".join(sentences) or "Nothing was measured.", _tone(report), facts)


def _of_knee(knee: Knee) -> list[tuple[str, str]]:
    loads = (
        ("Cap", knee.cap),
        ("Steady", knee.steady),
        ("Knee at", knee.knee_step),
        ("Most likely cap", knee.most_likely if knee.cap is None else None),
        ("Cap by the SLO", knee.slo_cap),
    )
    facts = [(name, f"{load:g}") for name, load in loads if load is not None]
    if knee.confidence is not None:
        facts.append(("Confidence", f"{100 * knee.confidence:.0f} %"))
    return facts


def _tone(report: Report) -> Tone:
    if report.knee is not None and report.knee.status in OPEN:
        return "warn"
    if report.knee is not None and report.knee.status not in DECIDED:
        return "bad"
    open_questions = any(found.verdict == "undecided" for found in report.experiments.values())
    return "good" if report.valid and not open_questions else "warn"


def step_votes(report: Report, phase: Phase) -> Vote | None:
    """Return the votes of the verdict at a phase's load."""
    votes = report.knee.votes if report.knee is not None and phase.experiment == "steps" else []
    step = _step(report, phase)
    return next((vote for vote in votes if vote.users == phase.load and step is not None and step.used), None)


def is_left_out(report: Report, phase: Phase) -> bool:
    """Return whether the verdict does without a phase."""
    step = _step(report, phase)
    return step is not None and not step.used


def step_notes(report: Report, phase: Phase) -> str:
    """Return what the verdict makes of a phase: cap, knee, or why it is left out, and what weakens it."""
    step, notes = _step(report, phase), []
    if step is None:
        return ""
    if not step.used:
        notes.append(f"left out: {step.why_not}")
    elif report.knee is not None and step.load is not None:
        names = {report.knee.knee_step: "knee", report.knee.cap: "cap"}
        notes += [names[step.load]] if step.load in names else []
    codes = {problem.code for problem in report.problems if problem.step == step.label}
    if not step.used:
        codes.difference_update(FAULTS)
    return "; ".join([*notes, *(code.replace("_", " ") for code in sorted(codes))])


def _step(report: Report, phase: Phase) -> Step | None:
    return next((step for step in report.steps if step.phase == phase.index), None)
