from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from harness.analysis.changes import discoveries
from harness.analysis.compare import compare
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
    assert int(suite.get("tests")) == len(found.changes) + 1
    text = comparison_markdown(found)
    assert text.startswith("# Regression: ")
    shown = [c for c in found.changes if c.word in ("regression", "improvement", "unclear")]
    assert text.count("\n| ") - 2 == len(shown)  # the head takes two lines
    assert "Cap: 6 in A, 6 in B." in text
