import pytest

from harness.report import verdict
from harness.report.messages import messages
from harness.report.sections import make_document
from harness.report.text import markdown
from harness.results import Experiment, Knee, Report, Step, Vote

from . import sample
from .sample import replace

EN = messages("en")
STEPS = [Step(label=f"{n} users", phase=i, users=n, n=50) for i, n in enumerate((1, 2, 4, 6, 8, 12))]


def report(knee: Knee | None, steps: list[Step] = STEPS) -> Report:
    return Report(run="r", profile="p", experiment="steps", valid=True, steps=steps, knee=knee)


@pytest.mark.parametrize(
    ("knee", "english", "chinese"),
    [
        (
            Knee(status="knee", cap=6, knee_step=8),
            "The service carries 6 users; at 8, latency outruns throughput.",
            "服务可承载 6 个并发用户；到 8 时，延迟的增长超过吞吐的增长。",
        ),
        (
            Knee(status="knee", cap=8, knee_step=12, votes=[Vote(users=12)]),
            "The service carries 8 users; at 12, the last step measured, latency outruns throughput.",
            "服务可承载 8 个并发用户；到 12（最后一个测量档位）时，延迟的增长超过吞吐的增长。",
        ),
        (
            Knee(status="none_in_range", cap=12),
            "The service carries at least 12 users: no knee up to the last step measured.",
            "服务至少可承载 12 个并发用户：直到最后一个测量档位仍未出现拐点。",
        ),
        (
            Knee(status="below_first", most_likely=1),
            "The service is saturated at the lowest step measured: test below 1 user.",
            "服务在最低档位已经饱和：请从低于 1 个并发用户处重新测量。",
        ),
        (
            Knee(status="inconclusive", undecided=(6, 8), most_likely=6, more_requests=1240),
            "The data cannot decide between 6 and 8 users; 6 is most likely. "
            "About 1,240 more good requests at these steps would decide it.",
            "数据不足以在 6 与 8 个并发用户之间判定；最可能是 6。在这些档位再测约 1,240 个成功请求即可判定。",
        ),
        (
            Knee(status="inconclusive"),
            "The data cannot decide where the knee lies.",
            "数据不足以判定拐点的位置。",
        ),
        (
            Knee(status="client_limited", safe_cap=8),
            "The load generator was the limit, not the service: it carries at least 8 users, "
            "its cap is not known.",
            "瓶颈在压测端而不在服务：服务至少可承载 8 个并发用户，上限未知。",
        ),
        (
            Knee(status="load_not_applied", safe_cap=1),
            "The load asked for was not applied: the service carries at least 1 user, its cap is not known.",
            "未能施加预定的负载：服务至少可承载 1 个并发用户，上限未知。",
        ),
        (
            Knee(status="insufficient"),
            "Too little was measured for a verdict: fewer than three steps can be used.",
            "测量量不足以得出结论：可用档位少于三个。",
        ),
        (
            None,
            "This run measured no load ladder; its other measurements are below.",
            "本次运行没有测量负载阶梯；其他测量见下文。",
        ),
    ],
)
def test_each_verdict_is_one_sentence_in_both_languages(knee, english, chinese):
    assert verdict.sentence(report(knee), STEPS, "en") == english
    assert verdict.sentence(report(knee), STEPS, "zh") == chinese


def measured(*verdicts):
    found = {f"m{i}": Experiment(verdict=v, text=f"No cache at work: {v}.") for i, v in enumerate(verdicts)}
    return replace(report(None, []), experiments=found)


def test_a_run_of_one_measurement_is_headed_by_its_own_finding():
    one = measured("no_cache")
    assert verdict.sentence(one, [], "en") == "No cache at work: no_cache."
    assert verdict.tone(one) == "good"
    assert verdict.tone(measured("undecided")) == "warn"
    assert verdict.tone(replace(one, valid=False)) == "bad"
    assert verdict.sentence(measured("a", "b"), [], "en").startswith("This run measured no load ladder")


def test_the_headline_is_not_said_again_below():
    run = sample.run()
    for found, times in ((measured("no_cache"), 1), (measured("no_cache", "no_cache"), 2)):
        text = markdown(make_document(found, run, [], "en"))
        assert text.count("No cache at work: no_cache.") == times


@pytest.mark.parametrize(("lang", "words"), [("en", "at least 0.5 requests/s"), ("zh", "0.5 个请求/秒")])
def test_an_open_loop_counts_requests_per_second(lang, words):
    steps = [Step(label="0.5 req/s", phase=0, offered_rps=0.5, n=50)]
    knee = Knee(status="none_in_range", cap=0.5)
    assert words in verdict.sentence(report(knee, steps), steps, lang)


def test_only_failures_are_said_to_be_only_failures():
    steps = [replace(step, n=0, failures=9) for step in STEPS]
    text = verdict.sentence(report(Knee(status="insufficient"), steps), steps, "en")
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
