"""What the web UI shows of a report."""

from __future__ import annotations

from typing import Any

import pytest

from harness.load.conclusion import conclusion, is_left_out, step_notes, step_votes
from harness.plan import Entry, Phase
from harness.profile import Hold
from harness.records import Problem
from harness.results import Bottleneck, Experiment, Knee, Report, Step, Vote


def report_of(**more: Any) -> Report:
    return Report(run="r", profile="p", experiment="steps", **{"valid": True, **more})


def phase(index: int, users: int, experiment: str = "steps") -> Phase:
    return Phase(
        index=index,
        label=f"{users} users",
        experiment=experiment,
        users=users,
        rate=None,
        schedule=(Entry(0, True, True),),
        hold=Hold(),
    )


STEPS = [
    Step(label="1 users", phase=0, users=1),
    Step(label="2 users", phase=1, users=2),
    Step(label="4 users", phase=2, users=4, used=False, why_not="the load generator was the limit there"),
    Step(label="8 users", phase=3, users=8),
]
KNEE = Knee(
    status="knee",
    cap=2.0,
    knee_step=8.0,
    steady=1.0,
    slo_cap=2.0,
    confidence=0.97,
    votes=[Vote(users=2.0, A=False, C=False), Vote(users=4.0, A=True), Vote(users=8.0, A=True, C=True)],
)


def test_a_knee_is_told_with_the_figures_that_stand_out() -> None:
    found = conclusion(
        report_of(steps=STEPS, knee=KNEE, bottleneck=Bottleneck(stage="prefill", resource="gpu_busy"))
    )
    assert found.sentence.startswith("The service carries 2 users; at 8")
    assert found.tone == "good"
    assert found.facts == [
        ("Status", "knee"),
        ("Cap", "2"),
        ("Steady", "1"),
        ("Knee at", "8"),
        ("Cap by the SLO", "2"),
        ("Confidence", "97 %"),
        ("Bottleneck", "prefill, gpu busy"),
    ]


def test_an_open_loop_is_told_in_requests() -> None:
    knee = Knee(status="none_in_range", cap=0.5)
    found = conclusion(report_of(steps=[Step(label="a", phase=0, offered_rps=0.5)], knee=knee))
    assert "at least 0.5 req/s" in found.sentence


@pytest.mark.parametrize(
    ("more", "tone"),
    [
        ({"knee": KNEE, "valid": False}, "warn"),
        ({"knee": Knee(status="inconclusive", most_likely=4.0)}, "warn"),
        ({"knee": Knee(status="client_limited")}, "bad"),
        ({"knee": Knee(status="insufficient")}, "bad"),
        ({"experiments": {"repeat": Experiment(verdict="steady", text="Steady.")}}, "good"),
        ({"experiments": {"repeat": Experiment(verdict="undecided", text="Open.")}}, "warn"),
    ],
)
def test_only_a_verdict_that_stands_is_green(more: dict[str, Any], tone: str) -> None:
    assert conclusion(report_of(**more)).tone == tone


def test_measurements_without_a_ladder_speak_for_themselves() -> None:
    experiments = {name: Experiment(verdict="x", text=f"{name}.") for name in ("cache", "repeat")}
    found = conclusion(report_of(experiments=experiments))
    assert (found.sentence, found.facts) == ("cache. repeat.", [])
    assert conclusion(report_of()).sentence == "Nothing was measured."


def test_steps_are_marked_and_those_left_out_say_why() -> None:
    problems = [
        Problem(code="client_limited", step="4 users", text="."),
        Problem(code="cache_hits", step="4 users", text="."),
        Problem(code="hold_too_short", step="1 users", text="."),
    ]
    report = report_of(steps=STEPS, knee=KNEE, problems=problems)
    phases = [phase(index, users) for index, users in enumerate((1, 2, 4, 8))]
    assert [step_notes(report, p) for p in phases] == [
        "hold too short",
        "cap",
        "left out: the load generator was the limit there; cache hits",
        "knee",
    ]
    assert [is_left_out(report, p) for p in phases] == [False, False, True, False]
    votes = [step_votes(report, p) for p in phases]
    assert votes == [None, KNEE.votes[0], None, KNEE.votes[2]]


def test_a_phase_of_another_measurement_has_neither_votes_nor_notes() -> None:
    report = report_of(steps=STEPS, knee=KNEE)
    other = phase(9, 2, "modality")
    assert (step_votes(report, other), step_notes(report, other), is_left_out(report, other)) == (
        None,
        "",
        False,
    )
