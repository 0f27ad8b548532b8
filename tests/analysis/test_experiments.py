"""Each measurement beside the ladder: its cause planted and not planted, in ten of ten runs of each."""

import dataclasses
import re

import msgspec
import pytest

from harness.analysis.assess import assess
from harness.engine.config import Batch, Caches, EngineConfig, Prefill, Preprocess
from harness.engine.presets import PRESETS
from harness.engine.virtual import ladder
from harness.profile import PayloadSpec, Slo, TextSpec
from harness.records import BEFORE_LOAD
from harness.report.messages.phrases import translate

from . import runs
from .runs import phase, request

replace = msgspec.structs.replace
DEMO = PRESETS["demo"].traffic
LONG_PROMPT = (PayloadSpec(kind="prompt", text=TextSpec(tokens=2000)), DEMO[1])
SHORT_AND_LONG = (replace(DEMO[0], max_tokens=8), replace(DEMO[0], kind="long", max_tokens=96))
ENGLISH = re.compile(r"[a-z]{2,} [a-z]{2,} [a-z]{2,}")
UNCACHED = Caches(prefix=False, images=False)
CHEAP_IMAGES = {
    "prefill": Prefill(token_us=0.2, square_ns=0, vision_us=0.2),
    "preprocess": Preprocess(mpixel_ms=0.5),
}

PLANTED = [
    ("modality", "image_count", EngineConfig(prefill=Prefill(vision_us=400)), DEMO, 24),
    ("modality", "text_or_decoding", EngineConfig(), DEMO, 24),
    ("image_sweep", "jump", EngineConfig(prefill=Prefill(large_side=768)), DEMO, 24),
    ("image_sweep", "jump", EngineConfig(prefill=Prefill(square_ns=400)), DEMO, 24),
    ("image_sweep", "grows", EngineConfig(), DEMO, 24),
    ("image_sweep", "flat", EngineConfig(**CHEAP_IMAGES), DEMO, 24),
    ("repeat", "one_time_cost", EngineConfig(prefill=Prefill(vision_us=100)), DEMO, 24),
    ("repeat", "one_time_cost", EngineConfig(cold_ms=500, caches=UNCACHED), DEMO, 24),
    ("repeat", "steady", EngineConfig(caches=UNCACHED), DEMO, 24),
    ("repeat", "swinging", EngineConfig(noise=0.9, caches=UNCACHED), DEMO, 4),
    ("isolation", "separate_queues", EngineConfig(batch=Batch(max_num_seqs=2)), SHORT_AND_LONG, 24),
    ("isolation", "shared_queue", EngineConfig(batch=Batch(max_num_seqs=32)), SHORT_AND_LONG, 24),
    ("cache", "image_and_prefix_cache", EngineConfig(), LONG_PROMPT, 24),
    ("cache", "image_cache", EngineConfig(caches=Caches(prefix=False)), LONG_PROMPT, 24),
    ("cache", "no_cache", EngineConfig(caches=UNCACHED), LONG_PROMPT, 24),
]


@pytest.mark.parametrize(
    ("name", "verdict", "config", "mix", "tokens"), PLANTED, ids=[f"{p[0]}-{p[1]}" for p in PLANTED]
)
def test_the_planted_cause_is_found_and_none_where_none_is_planted(
    name, verdict, config, mix, tokens
) -> None:
    for seed in range(1, 11):
        data = runs.experiment(name, config, mix, seed=seed, max_tokens=tokens)
        report = assess(data)
        found = report.experiments[name]
        assert found.verdict == verdict, (seed, found.text)
        assert report.valid
        assert all(len(row) == len(found.columns) for row in found.rows)
    assert [text for text in (found.text, *found.problems) if ENGLISH.search(translate(text, "zh"))] == []


def result(name, config, mix=DEMO, **more):
    return assess(runs.experiment(name, config, mix, **more)).experiments[name]


def test_the_modalities_table_holds_medians_with_the_first_of_each_apart() -> None:
    data = runs.experiment("modality", EngineConfig(), DEMO)
    found = assess(data).experiments["modality"]
    table = data.requests[data.requests.kind == "one_image"]
    row = dict(zip(found.columns, found.rows[1], strict=True))
    assert row["kind"] == "one_image"
    assert (row["n"], row["compared"]) == (5, 5)
    assert row["ttft_p50_ms"] == pytest.approx(table.ttft_ms.iloc[1:].median())
    assert row["first_ttft_ms"] == pytest.approx(table.ttft_ms.iloc[0])


def modality(lengths):
    """Six rounds of three kinds; lengths: output tokens of multi_image by round."""
    rows = []
    for number in range(6):
        for place, kind in enumerate(("text_only", "one_image", "multi_image")):
            tokens = lengths[number] if kind == "multi_image" else 24
            total = 10.0 * tokens
            rows.append(
                request(3 * number + place, 2 + number + place / 5, total, kind=kind, out_tokens=tokens)
            )
    return assess(runs.run([phase(0, 1, 0, experiment="modality")], rows)).experiments["modality"]


def test_a_longer_answer_is_not_taken_for_the_cost_of_an_image() -> None:
    found = modality([24, 24, 24, 48, 48, 24])
    assert found.verdict == "text_or_decoding"
    assert found.problems == [
        "2 requests of multi_image are not compared: their answers differ from 24 tokens by more than 5 %"
    ]


def test_too_few_comparable_answers_decide_nothing() -> None:
    assert modality([24, 48, 48, 48, 48, 24]).verdict == "undecided"


def sweep(times, *, slo=None):
    """Six rounds of each side; times: milliseconds to the first token by side."""
    rows = []
    for number in range(6):
        for place, (side, ttft) in enumerate(times.items()):
            total = ttft * (1 + 0.01 * number) + 100
            rows.append(
                request(
                    10 * number + place, 2 + number + place / 9, total, ttft_ms=ttft * (1 + 0.01 * number),
                    kind=f"side_{side}", payload=f"side_{side}", img_wh=[(side, side * 3 // 4)], in_img=1,
                )
            )  # fmt: skip
    settings = runs.profile((1,), slo=slo or Slo())
    data = runs.run([phase(0, 1, 0, experiment="image_sweep")], rows, settings=settings)
    return assess(data)


@pytest.mark.parametrize(
    ("times", "verdict", "side"),
    [
        ({512: 120, 768: 180, 1024: 420, 1280: 640}, "jump", 768),
        ({512: 120, 768: 600, 1024: 700, 1280: 800}, "jump", 512),
        ({512: 100, 768: 225, 1024: 400, 1280: 625}, "grows", None),  # as the area does: a cost, no jump
        ({512: 100, 768: 101, 1024: 99, 1280: 103}, "flat", 1280),
    ],
)
def test_a_jump_is_what_outruns_the_picture_s_area(times, verdict, side) -> None:
    found = sweep(times).experiments["image_sweep"]
    assert (found.verdict, found.figures["max_image_side"]) == (verdict, side)
    if side is not None:
        assert found.figures["max_image_pixels"] == side * (side * 3 // 4)


def test_steady_growth_is_bounded_by_the_slo_where_there_is_one() -> None:
    found = sweep({512: 100, 768: 225, 1024: 400, 1280: 625}, slo=Slo(ttft_p95_ms=450)).experiments[
        "image_sweep"
    ]
    assert (found.figures["max_image_side"], found.figures["bounded"]) == (1024, True)


def test_the_jump_becomes_the_limit_of_the_image_side() -> None:
    limits = {limit.key: limit for limit in sweep({512: 120, 768: 180, 1024: 420, 1280: 640}).limits}
    assert limits["max_image_side"].value == 768
    assert "jumps between 768 and 1024 px" in limits["max_image_side"].why


def test_repeat_names_the_stage_of_the_one_time_cost() -> None:
    found = result("repeat", EngineConfig(prefill=Prefill(vision_us=100)))
    assert found.figures["stage"] == "prefill"
    assert [row[0] for row in found.rows] == ["total", "ttft", "pre", "queue", "prefill", "decode"]


def repeat(times, before=(), phases=("repeat",), **stages):
    """Requests of one input, a quarter of a second apart; before: requests of earlier phases."""
    at = len(phases) - 1
    rows = list(before) + [
        request(
            100 + k, 50 * at + 1.1 + k / 4, ms, kind="repeat_a", phase=at, ttft_ms=ms / 2,
            **{name: values[k] for name, values in stages.items()},
        )
        for k, ms in enumerate(times)
    ]  # fmt: skip
    timeline = [phase(i, 1, 50 * i, experiment=name) for i, name in enumerate(phases)]
    return assess(runs.run(timeline, rows)).experiments["repeat"]


def sent_before(total_ms, kind):
    """The request that precedes the load."""
    return request(0, 0.1, total_ms, kind=kind, phase=BEFORE_LOAD, worker="preflight", ttft_ms=total_ms / 2)


def test_the_request_before_the_load_is_the_first_of_the_same_input() -> None:
    found = repeat([100.0] * 20, [sent_before(700, "repeat_a")])
    assert found.verdict == "one_time_cost"
    assert found.text == (
        "A one-time cost: the first, sent before the load, took 7.0 times as long to the first token and 7.0 "
        "times as long in all; after it all are alike."
    )
    total = dict(zip(found.columns, found.rows[0], strict=True))
    assert (total["n"], total["first_ms"], total["max_ms"]) == (20, 700, 100)
    assert repeat([100.0] * 20, [sent_before(101, "repeat_a")]).verdict == "steady"


def test_a_first_that_costs_next_to_nothing_is_no_one_time_cost() -> None:
    """A first token twice as late, but 10 ms of 400."""
    rows = [
        request(
            k, 1.1 + k / 2, 400.0 + 10 * (not k), kind="repeat_a", ttft_ms=10.0 * (1 + (not k)),
        )
        for k in range(20)
    ]  # fmt: skip
    data = runs.run([phase(0, 1, 0, seconds=30, experiment="repeat")], rows)
    assert assess(data).experiments["repeat"].verdict == "steady"


def test_after_other_measurements_a_cold_start_is_told_apart_from_the_input_s_own_first() -> None:
    ladder_step = [request(1 + k, 1.1 + k / 4, 100, kind="text", ttft_ms=50) for k in range(20)]
    phases = ("steps", "repeat")
    found = repeat([100.0] * 20, [sent_before(600, "text"), *ladder_step], phases)
    assert (found.verdict, found.rows[0][1]) == ("steady", 19)
    assert found.problems == [
        "the run's very first request took 300 ms to its first token, 6.0 times as long as others of its "
        "kind: the service was cold"
    ]
    assert not ENGLISH.search(translate(found.problems[0], "zh"))
    assert repeat([100.0] * 20, [sent_before(101, "text"), *ladder_step], phases).problems == []


def test_one_straggler_is_neither_a_one_time_cost_nor_a_swing() -> None:
    assert repeat([100.0] * 10 + [180.0] + [100.0] * 20).verdict == "steady"


def test_a_swing_names_the_stage_that_swings_most() -> None:
    queue = [0.0, 100.0] * 10
    found = repeat(
        [100.0 + q for q in queue],
        queue_ms=queue,
        prefill_ms=[30.0] * 20,
        decode_ms=[70.0] * 20,
        pre_ms=[0.0] * 20,
    )
    assert (found.verdict, found.figures["stage"]) == ("swinging", "queue")


def test_a_client_s_slow_first_request_is_no_one_time_cost_of_the_service() -> None:
    found = repeat(
        [180.0] + [100.0] * 19,
        queue_ms=[0.0] * 20,
        prefill_ms=[30.0] * 20,
        decode_ms=[70.0] * 20,
        pre_ms=[0.0] * 20,
    )
    assert found.verdict == "steady"


def test_isolation_gives_the_factor_with_its_interval() -> None:
    found = result("isolation", EngineConfig(batch=Batch(max_num_seqs=2)), SHORT_AND_LONG)
    low, high = found.figures["factor_interval"]
    assert low < found.figures["factor"] < high
    assert [row[0] for row in found.rows] == ["short alone", "short beside long"]


def isolation(factor, *, alone_ms, rest_ms):
    """Short requests with a first token at `alone_ms`, then at `factor` times that beside long ones."""
    rows = [
        request(
            100 * at + k, 50 * at + 2 + k / 10, ttft + rest_ms, kind="a", phase=at, ttft_ms=ttft + k % 3 / 10
        )
        for at, ttft in enumerate((alone_ms, factor * alone_ms))
        for k in range(60)
    ]  # fmt: skip
    timeline = [
        phase(i, 4, 50 * i, experiment="isolation", label=name)
        for i, name in enumerate(("short alone", "short beside long"))
    ]
    return assess(runs.run(timeline, rows)).experiments["isolation"]


@pytest.mark.parametrize(
    ("factor", "alone_ms", "rest_ms", "verdict"),
    [
        (1.6, 20, 200, "shared_queue"),  # 12 ms of 220: nobody notices
        (1.6, 20, 20, "separate_queues"),  # 12 ms of 40
        (1.6, 200, 5000, "separate_queues"),  # 120 ms are noticed beside the longest answer
        (1.1, 200, 200, "shared_queue"),
    ],
)
def test_separate_queues_are_worth_a_wait_that_is_noticed(factor, alone_ms, rest_ms, verdict) -> None:
    found = isolation(factor, alone_ms=alone_ms, rest_ms=rest_ms)
    assert found.verdict == verdict
    assert found.figures["factor"] == pytest.approx(factor, rel=0.02)
    assert found.figures["added_most_ms"] == pytest.approx((factor - 1) * alone_ms, abs=0.1 * alone_ms)
    assert ("at most" in found.text) == (verdict == "shared_queue" and factor > 1.2)
    assert not ENGLISH.search(translate(found.text, "zh"))


def test_cache_gives_the_share_saved_and_the_hits_of_the_engine() -> None:
    found = result("cache", EngineConfig(), LONG_PROMPT)
    assert 0.5 < found.figures["prefix_saved"] < 1
    assert 0.5 < found.figures["image_saved"] < 1
    assert found.figures["image_hits"] == pytest.approx(10 / 21, abs=0.03)
    assert found.problems == []


def test_times_and_hit_counters_that_contradict_each_other_are_named() -> None:
    data = runs.experiment("cache", EngineConfig(), LONG_PROMPT)
    engine = data.engine.assign(
        mm_hits_total=0.0, prefix_hit_tokens_total=data.engine.prefix_query_tokens_total * 0.9
    )
    problems = assess(dataclasses.replace(data, engine=engine)).experiments["cache"].problems
    assert "repeated requests are faster, yet the engine counts 0.0 % image hits" in problems
    assert any("traffic meant to be unique hits too" in problem for problem in problems)


@pytest.mark.parametrize("name", ["modality", "image_sweep", "repeat", "isolation", "cache"])
def test_an_experiment_of_failures_only_says_that_too_little_was_measured(name) -> None:
    data = runs.experiment(name, EngineConfig(), DEMO)
    failed = data.requests.assign(outcome="reset")
    found = assess(dataclasses.replace(data, requests=failed)).experiments[name]
    assert found.verdict == "undecided"
    assert found.text.startswith("Too little was measured")


def test_a_review_holds_the_ladder_and_all_the_others() -> None:
    profile = ladder(DEMO, max_tokens=24)
    data = runs.experiment("review", EngineConfig(), profile=profile)
    report = assess(data)
    assert list(report.experiments) == ["modality", "image_sweep", "repeat", "isolation", "cache"]
    assert report.knee.cap == 6
    assert [step.users for step in report.steps] == [1, 2, 4, 6, 8, 12]
