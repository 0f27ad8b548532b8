import math
import re
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from harness.analysis.changes import ALL_KINDS, POWER, _draft, _judged, discoveries, telling
from harness.analysis.compare import compare
from harness.analysis.compare_wording import outcome
from harness.engine.config import Batch, Caches, Prefill
from harness.engine.presets import PRESETS
from harness.engine.virtual import ladder, simulate
from harness.report.comparison import comparison_markdown
from harness.report.junit import comparison_junit

from . import runs
from .runs import phase, request

replace = msgspec.structs.replace
DEMO = PRESETS["demo"]


def demo(seed, **config):
    engine = replace(DEMO.config, **config)
    return runs.read(simulate(engine, ladder(DEMO.traffic, max_tokens=24), seed=seed))


@pytest.fixture(scope="module")
def baseline():
    return demo(1)


def slower(factor):
    return {"decode": replace(DEMO.config.decode, step_ms=DEMO.config.decode.step_ms * factor)}


@pytest.mark.parametrize("seed", range(2, 10))
def test_the_same_service_again_is_no_regression(baseline, seed) -> None:
    found = compare(baseline, demo(seed))
    assert not found.regressed, found.text
    assert found.text.startswith(("No figure differs beyond its noise: ", "No regression: ")), found.text
    assert (found.differs, found.cautions, found.same_run) == ([], [], False)
    assert (found.cap_a, found.cap_b, found.bottleneck_moved) == (6, 6, False)


def test_a_slowdown_by_an_eighth_is_found_everywhere(baseline) -> None:
    found = compare(baseline, demo(2, **slower(1.125)))
    assert found.regressed
    words = {(c.step, c.kind, c.figure): c.word for c in found.changes}
    assert words["all steps", "all", "total_mean_ms"] == "regression"
    assert words["4 users", "text_only", "total_mean_ms"] == "regression"
    overall = next(c for c in found.changes if c.step == "all steps" and c.figure == "total_mean_ms")
    assert overall.low < 1.12 < overall.high
    assert overall.before == pytest.approx(237, abs=3)


def test_the_threshold_is_the_user_s(baseline) -> None:
    assert not compare(baseline, demo(2, **slower(1.125)), max_regression=0.2).regressed


def test_a_faster_service_is_an_improvement(baseline) -> None:
    found = compare(demo(2, **slower(1.125)), baseline)
    assert not found.regressed
    assert sum(c.word == "improvement" for c in found.changes) > 10


def test_a_cap_that_fell_is_a_regression_by_itself(baseline) -> None:
    found = compare(baseline, demo(2, batch=Batch(max_num_seqs=4)), max_regression=10.0)
    assert (found.regressed, found.cap_fell, found.cap_a, found.cap_b) == (True, True, 6, 4)
    assert found.text == "Regression: the cap fell from 6 to 4."
    back = compare(demo(2, batch=Batch(max_num_seqs=4)), baseline)
    assert (back.regressed, back.cap_move) == (False, "rose")
    assert back.text.endswith(" The cap rose from 4 to 6.")


def test_a_ladder_that_ends_lower_is_no_cap_that_fell(baseline) -> None:
    short = runs.read(simulate(DEMO.config, ladder(DEMO.traffic, max_tokens=24, users=(1, 2, 4)), seed=3))
    found = compare(baseline, short)
    assert (found.regressed, found.cap_move, found.cap_a, found.cap_b) == (False, "unclear", 6, 4)
    assert [d.key for d in found.differs] == ["load.users"]


def test_a_run_compared_with_itself_says_so_and_what_would_have_shown(baseline) -> None:
    found = compare(baseline, baseline)
    assert found.same_run
    assert telling(found.changes) == []
    assert re.search(
        r"^No figure differs beyond its noise: \d+ compared.* A slowdown would have shown from about "
        r"\d+ % over all steps, \d+ % in a single figure \(the median\)\.$",
        found.text,
    ), found.text


def test_traffic_that_differs_is_said_in_the_outcome(baseline) -> None:
    longer = runs.read(simulate(DEMO.config, ladder(DEMO.traffic, max_tokens=48), seed=2))
    found = compare(baseline, longer)
    assert [(d.key, d.before, d.after, d.grade) for d in found.differs] == [
        ("generation.max_tokens", 24, 48, "traffic")
    ]
    assert found.regressed  # the figures stand as they are
    assert found.text.endswith(" The traffic differs: figures are not comparable.")
    case = ElementTree.fromstring(comparison_junit(found)).find(".//testcase[@name='traffic']/skipped")
    assert "generation.max_tokens: 24 -> 48" in case.get("message")


def of_ratios(log_ratios):
    return _judged([_draft("s", "k", "f", (1, 1), float(ratio), 0.03, 0.05) for ratio in log_ratios], 0.05)


def test_a_slowdown_of_the_size_named_is_seen_four_times_in_five() -> None:
    alone = of_ratios(np.zeros(50))[0].seen_from
    assert 0.05 < alone < of_ratios(np.zeros(100))[0].seen_from  # the more figures, the less is seen in one
    truth, draws = np.zeros(50), np.random.default_rng(1)
    truth[0] = math.log1p(alone)
    words = [of_ratios(truth + draws.normal(scale=0.03, size=50))[0].word for _ in range(400)]
    assert words.count("regression") / 400 == pytest.approx(POWER, abs=0.07)


def test_a_kind_is_told_where_it_says_more_than_its_step(baseline) -> None:
    found = compare(baseline, demo(2, batch=Batch(max_num_seqs=4)))
    told = telling(found.changes)
    worse = [c for c in found.changes if c.word == "regression"]
    assert 0 < len(told) < len(worse)
    left_out = [c for c in worse if c not in told]
    whole = {(c.step, c.figure): c for c in worse if c.kind == ALL_KINDS}
    assert all(c.low <= whole[c.step, c.figure].ratio <= c.high for c in left_out)
    assert all(change in told for change in whole.values())


def test_steps_above_the_baseline_s_cap_are_not_judged(baseline) -> None:
    found = compare(baseline, demo(2))
    assert {c.step for c in found.changes if c.word == "beyond_cap"} == {"8 users", "12 users"}


def test_steps_without_a_partner_are_named() -> None:
    loads = [(1, 2, 4), (2, 4, 6)]
    a, b = (runs.read(simulate(DEMO.config, ladder(DEMO.traffic, users=users))) for users in loads)
    found = compare(a, b)
    assert (found.only_a, found.only_b) == (["1 user"], ["6 users"])


def repeat(**config):
    engine = replace(DEMO.config, **config)
    return runs.experiment("repeat", engine)


def test_two_repeats_of_one_input_show_whether_the_bottleneck_moved() -> None:
    moved = compare(
        repeat(), repeat(caches=Caches(images=False, prefix=False), prefill=Prefill(vision_us=800))
    )
    assert (moved.bottleneck_a, moved.bottleneck_b, moved.bottleneck_moved) == ("decode", "prefill", True)
    assert [s.stage for s in moved.stages] == ["pre", "queue", "prefill", "decode"]
    assert compare(repeat(), repeat()).bottleneck_moved is False


def failing(share):
    rows = [
        request(k, 1 + k / 50, 10, outcome="reset" if k % 100 < 100 * share else "ok") for k in range(500)
    ]
    return runs.run([phase(0, 1, 0)], rows)


@pytest.mark.parametrize(
    ("before", "after", "regressed"), [(0.0, 0.1, True), (0.1, 0.1, False), (0.1, 0.0, False)]
)
def test_more_failures_are_a_regression(before, after, regressed) -> None:
    assert compare(failing(before), failing(after)).regressed is regressed


def test_runs_that_share_nothing_compare_nothing(baseline) -> None:
    found = compare(baseline, repeat())
    assert (found.changes, found.regressed) == ([], False)
    assert found.text.startswith("Nothing to compare")


def test_a_cap_that_fell_is_said_where_the_runs_share_no_step() -> None:
    said = outcome([], threshold=0.05, cap_move="fell", caps=["8", "3"], comparable=True)
    assert said == "Regression: the cap fell from 8 to 3."


def test_runs_without_a_request_compare_nothing() -> None:
    empty = runs.run([phase(0, 1, 0)], [])
    found = compare(empty, failing(0.0))
    assert (found.changes, found.regressed) == ([], False)
    assert compare(empty, empty).text.startswith("Nothing to compare")


def test_discoveries_are_those_of_benjamini_and_hochberg() -> None:
    p = [0.01, 0.04, 0.03, 0.005, 0.5]
    assert discoveries(p) == pytest.approx([0.025, 0.05, 0.05, 0.025, 0.5])
    draws = np.random.default_rng(1)
    alarms = [min(discoveries(list(draws.uniform(size=80)))) < 0.05 for _ in range(2000)]
    assert np.mean(alarms) < 0.065


def test_a_pipeline_reads_the_comparison_as_junit_and_markdown(baseline) -> None:
    found = compare(baseline, demo(2, **slower(1.125)))
    suite = ElementTree.fromstring(comparison_junit(found)).find("testsuite")
    assert int(suite.get("failures")) == sum(c.word == "regression" for c in found.changes)
    assert int(suite.get("tests")) == len(found.changes) + 2
    text = comparison_markdown(found)
    assert text.startswith("# Regression: ")
    assert "| cap | 6 | 6 |" in text
    rows = [line for line in text.splitlines() if re.match(r"\| (all steps|\d+ users?) \|", line)]
    assert len(rows) == len(telling(found.changes)) > 10
    everything = comparison_markdown(found, everything=True)
    rows = [line for line in everything.splitlines() if re.match(r"\| (all steps|\d+ users?) \|", line)]
    assert len(rows) == len(found.changes)
