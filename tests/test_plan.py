from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UserError
from harness.plan import EXPERIMENTS, Plan, make_plan, mix_schedule, refined_phase, step_label
from harness.profile import Profile
from harness.profile_reader import parse_profile

TEXT = {"kind": "text", "weight": 3, "text": {"tokens": 800}}
ONE = {"kind": "one", "weight": 2, "text": {"chars": 60}, "images": {"side": 512}}
FOUR = {"kind": "four", "text": {"chars": 70}, "images": {"count": 4, "side": 256}}


def profile(
    *mix: dict[str, Any], unique: bool = True, replay: dict[str, Any] | None = None, **more: Any
) -> Profile:
    traffic: dict[str, Any] = {"unique": unique} | (
        {"replay": replay} if replay else {"mix": list(mix or (TEXT, ONE, FOUR))}
    )
    raw = {"name": "p", "target": {"base_url": "http://h/v1"}, "traffic": traffic, **more}
    return parse_profile(yaml.safe_dump(raw), file=Path("/f/p.yaml"))


def kinds(plan: Plan, phase: int = 0) -> list[str]:
    return [plan.payloads[entry.payload].kind for entry in plan.phases[phase].schedule]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_a_round_holds_each_kind_by_its_weight_evenly_spread(weights: list[int]) -> None:
    order = mix_schedule(tuple(weights))
    assert Counter(order) == Counter(dict(enumerate(weights)))
    seen: Counter[int] = Counter()
    for place, kind in enumerate(order, 1):
        seen[kind] += 1
        for k, weight in enumerate(weights):
            assert abs(seen[k] - place * weight / sum(weights)) < len(weights)


def test_three_two_one_is_interleaved() -> None:
    assert mix_schedule((3, 2, 1)) == [0, 1, 0, 2, 1, 0]


def test_steps_are_the_ladder_with_one_schedule_and_the_first_again() -> None:
    plan = make_plan(profile(load={"users": [1, 2, 4]}))
    assert [(p.label, p.users, p.experiment) for p in plan.phases] == [
        ("1 user", 1, "steps"),
        ("2 users", 2, "steps"),
        ("4 users", 4, "steps"),
        ("1 user (drift)", 1, "drift"),
    ]
    assert [p.index for p in plan.phases] == [0, 1, 2, 3]
    assert len({p.schedule for p in plan.phases}) == 1  # the mix is equal at every step
    assert kinds(plan) == ["text", "one", "text", "four", "one", "text"]
    assert plan.max_users == 4


@pytest.mark.parametrize("unique", [True, False])
def test_nonces_are_fresh_where_the_profile_says_so(unique: bool) -> None:
    (phase, *_) = make_plan(profile(unique=unique)).phases
    assert {(e.fresh_text, e.fresh_images) for e in phase.schedule} == {(unique, unique)}


def test_rates_are_steps_of_an_open_loop() -> None:
    plan = make_plan(profile(load={"rates": [0.5, 4], "drift_check": False}))
    assert [(p.label, p.users, p.rate) for p in plan.phases] == [
        ("0.5 req/s", None, 0.5),
        ("4 req/s", None, 4),
    ]
    assert plan.max_users == 1


def test_repeats_shuffle_the_ladder_the_same_way_each_time() -> None:
    load = {"users": [1, 2, 4, 6, 8], "repeats": 3}
    plan = make_plan(profile(load=load))
    rounds = [[p.users for p in plan.phases[n : n + 5]] for n in (0, 5, 10)]
    assert rounds[0] == [1, 2, 4, 6, 8]
    assert all(sorted(r) == rounds[0] for r in rounds if r is not None)
    assert rounds[1] != rounds[0]
    assert plan.phases[5].label.endswith(" #2")
    assert len(plan.phases) == 15  # repeats show drift already
    assert make_plan(profile(load=load)) == plan


def test_one_step_needs_no_drift_check() -> None:
    assert len(make_plan(profile(load={"users": [4]})).phases) == 1


@pytest.mark.parametrize(("order", "same"), [("file", True), ("shuffle", False)])
def test_a_replay_is_sent_in_its_order_or_shuffled(order: str, same: bool) -> None:
    replayed = profile(replay={"file": "r.jsonl", "order": order})
    plan = make_plan(replayed, replay_lines=20)
    lines = [entry.payload for entry in plan.phases[0].schedule]
    assert sorted(lines) == list(range(20))
    assert (lines == list(range(20))) == same
    assert plan.payloads == ()
    assert make_plan(replayed, replay_lines=20) == plan


def test_modality_asks_text_one_and_several_images_in_turn() -> None:
    plan = make_plan(profile(experiments={"modality": {"rounds": 4}}), "modality")
    (phase,) = plan.phases
    assert kinds(plan) == ["text_only", "one_image", "multi_image"]
    assert (phase.users, phase.requests) == (1, 15)  # one round more: the first is reported apart
    classes = [plan.payloads[entry.payload] for entry in phase.schedule]
    assert len({spec.text for spec in classes}) == 1  # only the images differ
    assert [spec.images.count if spec.images else 0 for spec in classes] == [0, 1, 4]


def test_modality_makes_up_the_classes_that_a_mix_lacks() -> None:
    plan = make_plan(profile(TEXT), "modality")
    counts = [plan.payloads[e.payload].images for e in plan.phases[0].schedule]
    assert [images.count if images else 0 for images in counts] == [0, 1, 4]


def test_an_image_sweep_changes_the_side_alone() -> None:
    plan = make_plan(profile(experiments={"image_sweep": {"sides": [512, 768], "rounds": 3}}), "image_sweep")
    (phase,) = plan.phases
    specs = [plan.payloads[entry.payload] for entry in phase.schedule]
    assert [(s.kind, s.images.side if s.images else None) for s in specs] == [
        ("side_512", 512),
        ("side_768", 768),
    ]
    assert {s.images.count for s in specs if s.images} == {1}
    assert phase.requests == 8


def test_a_repeat_is_one_input_that_never_changes() -> None:
    plan = make_plan(profile(experiments={"repeat": {"rounds": 20}}), "repeat")
    (phase,) = plan.phases
    (entry,) = phase.schedule
    assert plan.payloads[entry.payload].kind == "repeat_one"  # the first kind with an image
    assert (entry.fresh_text, entry.fresh_images, phase.requests) == (False, False, 20)
    named = make_plan(profile(experiments={"repeat": {"kind": "four"}}), "repeat")
    assert named.payloads[named.phases[0].schedule[0].payload].kind == "repeat_four"


def test_isolation_measures_short_requests_alone_and_beside_long_ones() -> None:
    plan = make_plan(profile(experiments={"isolation": {"users": 3}}), "isolation")
    assert [(p.label, p.users) for p in plan.phases] == [("short alone", 3), ("short beside long", 3)]
    assert [kinds(plan, n) for n in (0, 1)] == [["text"], ["text", "four"]]
    alone, beside = (p.hold.min_requests for p in plan.phases)
    assert beside == 2 * alone  # as many short ones


def test_the_cache_experiment_holds_one_part_of_the_input_fixed_at_a_time() -> None:
    plan = make_plan(profile(), "cache")
    found = {plan.payloads[e.payload].kind: (e.fresh_text, e.fresh_images) for e in plan.phases[0].schedule}
    assert found["image_unique"] == (True, True)
    assert found["image_repeated"] == (True, False)  # so that only the image can be known
    assert found["prefix_unique"][0] is True
    assert found["prefix_repeated"][0] is False
    prefix = next(s for s in plan.payloads if s.kind == "prefix_unique")
    assert (prefix.text.tokens, prefix.images) == (800, None)  # the longest text shows most


def test_a_review_is_all_of_them_in_one_plan() -> None:
    plan = make_plan(profile(), "review")
    assert {p.experiment for p in plan.phases} == set(EXPERIMENTS) - {"review"} | {"drift"}
    assert [p.index for p in plan.phases] == list(range(len(plan.phases)))
    assert all(entry.payload < len(plan.payloads) for p in plan.phases for entry in p.schedule)


def test_phases_that_end_by_their_count_have_no_window_to_wait_for() -> None:
    (phase,) = make_plan(profile(load={"hold": {"seconds": 1, "max_seconds": 2}}), "repeat").phases
    assert phase.hold.settle_s == 0
    assert phase.hold.max_seconds >= 300  # slow services need their time


def test_a_refined_step_is_like_the_first_but_for_its_users() -> None:
    plan = make_plan(profile())
    found = refined_phase(plan, 7, 99)
    first = plan.phases[0]
    assert (found.label, found.users, found.index) == ("7 users (refined)", 7, 99)
    assert (found.schedule, found.hold, found.experiment) == (first.schedule, first.hold, first.experiment)


@pytest.mark.parametrize(
    ("users", "rate", "label"), [(1, None, "1 user"), (6, None, "6 users"), (None, 2.0, "2 req/s")]
)
def test_labels(users: int | None, rate: float | None, label: str) -> None:
    assert step_label(users, rate) == label


@pytest.mark.parametrize(
    ("made", "experiment", "what"),
    [
        (profile(), "stepps", "no experiment `stepps`"),
        (profile(replay={"file": "r"}), "modality", "needs traffic.mix"),
        (profile(load={"users": [1]}, safety={"max_users": 3}), "isolation", "`isolation` wants 4 users"),
    ],
)
def test_what_a_profile_cannot_carry_is_refused(made: Profile, experiment: str, what: str) -> None:
    with pytest.raises(UserError) as caught:
        make_plan(made, experiment, replay_lines=3)
    assert what in str(caught.value)
    assert caught.value.remedy
