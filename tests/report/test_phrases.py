"""What the analysis really says, from runs against the engine in virtual time, is all said in Chinese."""

import re

import pytest

from harness.analysis.assess import assess
from harness.engine.presets import PRESETS
from harness.engine.virtual import ladder, save, simulate
from harness.profile import Hold
from harness.report.messages.phrases import translate
from harness.rundir import read_run

ENGLISH = re.compile(r"[A-Za-z]{2,} [a-z]{2,} [a-z]{2,}")


def said(report):
    """Return every sentence of a report that the analysis worded."""
    knee, bottleneck = report.knee, report.bottleneck
    texts = [limit.why for limit in report.limits] + [problem.text for problem in report.problems]
    texts += [step.why_not for step in report.steps if step.why_not]
    texts += [step.label for step in report.steps]
    if knee is not None:
        texts += [vote.why for vote in knee.votes] + knee.notes
        texts += [check.detail for check in knee.cross_checks.values()]
    texts += bottleneck.evidence if bottleneck is not None else []
    for experiment in report.experiments.values():
        texts += [experiment.text, *experiment.problems]
    return [text for text in texts if text]


def left_in_english(report):
    return [text for text in said(report) if ENGLISH.search(translate(text, "zh"))]


def run_of(tmp_path, name, experiment="steps", **settings):
    preset = PRESETS[name]
    hold = Hold(seconds=10, min_requests=60, max_seconds=120, settle_s=2)
    profile = ladder(preset.traffic, max_tokens=preset.max_tokens, hold=hold, **settings)
    return read_run(save(simulate(preset.config, profile, experiment), tmp_path).path)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_planted_bottlenecks_are_explained_in_chinese(name, tmp_path):
    report = assess(run_of(tmp_path, name))
    assert len(said(report)) > 15
    assert left_in_english(report) == []


def test_all_measurements_are_explained_in_chinese(tmp_path):
    report = assess(run_of(tmp_path, "demo", "review"))
    assert len(report.experiments) == 5
    assert left_in_english(report) == []


def test_an_open_loop_is_explained_in_chinese(tmp_path):
    report = assess(run_of(tmp_path, "demo", rates=(2.0, 5.0, 10.0, 20.0, 30.0)))
    assert left_in_english(report) == []


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        (
            "p95 rose 62 % while requests served rose 4 %; KV cache 95% full, 20% at the first step",
            "p95 上升 62 %，而完成的请求上升 4 %；KV 缓存占用 95%，最低档位为 20%",
        ),
        ("Steps 1, 2 and 4: left out: the load generator was the limit there.",
         "档位 1, 2 与 4：不计入，该处受限于压测端。"),
        ("The climb ended early: 3 of 8 users were running. Not measured: 12 users.",
         "阶梯提前结束：8 个用户中只有 3 个在运行。未测量：12 个用户。"),
        ("12 of 60 requests failed (20.0 %), most as reset (12): they count neither as throughput nor in "
         "latency.",
         "60 个请求中 12 个失败（20.0 %），多为 reset（12 个）：不计入吞吐与延迟。"),
        ("Throughput at 8 rules out a cap at 4 and 6, which cannot be used.",
         "8 处的吞吐排除了上限位于 4 与 6（该处数据不可用）的可能。"),
        ("8 users (refined)", "8 个用户（加密）"),
        ("Something nobody foresaw happened at 8 users.", "Something nobody foresaw happened at 8 users."),
    ],
)  # fmt: skip
def test_sentences_are_taken_apart_and_unknown_ones_stay(english, chinese):
    assert translate(english, "zh") == chinese
    assert translate(english, "en") == english
