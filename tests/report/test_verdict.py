import pytest

from harness.report import verdict
from harness.report.messages import messages
from harness.results import Knee, Report, Step

from .sample import replace

EN, ZH = messages("en"), messages("zh")
STEPS = [Step(label=f"{n} users", phase=i, users=n, n=50) for i, n in enumerate((1, 2, 4, 6, 8, 12))]


def report(knee: Knee | None, steps: list[Step] = STEPS) -> Report:
    return Report(run="r", profile="p", experiment="steps", valid=True, steps=steps, knee=knee)


@pytest.mark.parametrize(
    ("knee", "text"),
    [
        (
            Knee(status="knee", cap=6, knee_step=8),
            "The service carries 6 concurrent users; at 8, latency outruns throughput.",
        ),
        (
            Knee(status="knee", cap=1, knee_step=2),
            "The service carries 1 concurrent user; at 2, latency outruns throughput.",
        ),
        (
            Knee(status="knee", cap=8, knee_step=12),
            "The service carries 8 concurrent users; at 12, the last step measured, "
            "latency outruns throughput.",
        ),
        (
            Knee(status="none_in_range", cap=12),
            "The service carries at least 12 concurrent users: no knee up to the last step measured.",
        ),
        (
            Knee(status="below_first"),
            "The service is saturated at the lowest step measured: test below 1 concurrent user.",
        ),
        (
            Knee(status="inconclusive", undecided=(6, 8), more_requests=240),
            "The data cannot decide between 6 and 8 concurrent users. "
            "About 240 more good requests at these steps would decide it.",
        ),
        (Knee(status="inconclusive"), "The data cannot decide where the knee lies."),
        (
            Knee(status="insufficient"),
            "Too little was measured for a verdict: fewer than three steps can be used.",
        ),
        (Knee(status="client_limited"), "The load generator was the limit, not the service: no verdict."),
        (Knee(status="load_not_applied"), "The load asked for was not applied: no verdict."),
        (None, "This run measured no load ladder; its other measurements are below."),
    ],
)
def test_each_verdict_is_one_sentence(knee, text):
    assert verdict.sentence(report(knee), STEPS, EN) == text


def test_the_same_in_chinese():
    knee = Knee(status="knee", cap=6, knee_step=8)
    assert (
        verdict.sentence(report(knee), STEPS, ZH)
        == "服务可承载 6 个并发用户；到 8 时，延迟的增长超过吞吐的增长。"
    )


def test_an_open_loop_counts_requests_per_second():
    steps = [Step(label="0.5 req/s", phase=0, offered_rps=0.5, n=50)]
    knee = Knee(status="none_in_range", cap=0.5)
    assert "at least 0.5 requests/s" in verdict.sentence(report(knee, steps), steps, EN)


def test_only_failures_are_said_to_be_only_failures():
    steps = [replace(step, n=0, failures=9) for step in STEPS]
    text = verdict.sentence(report(Knee(status="insufficient"), steps), steps, EN)
    assert text.startswith("No request was answered")


def test_facts_without_a_cap_say_why_and_give_the_most_likely():
    facts = verdict.facts(Knee(status="inconclusive", most_likely=6, confidence=0.6, range=(4, 8)), EN)
    shown = {fact.label: fact.value for fact in facts.items}
    assert shown == {
        "Cap": "–",
        "Most likely cap": "6",
        "Confidence": "60\u00a0%",
        "Range of the cap": "4 to 8",
    }
    assert facts.items[0].note == "not given by this verdict"


def test_no_lower_step_leaves_steady_open():
    facts = verdict.facts(Knee(status="knee", cap=1, knee_step=2, steady=None), EN)
    assert [(f.value, f.note) for f in facts.items if f.label == "Recommended steady level"] == [
        ("–", "no lower step was measured")
    ]


def test_an_address_loses_user_password_and_query():
    assert verdict.without_secrets("https://me:pw@host:8/v1?key=k#f") == "https://host:8/v1"
