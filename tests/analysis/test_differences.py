import dataclasses

import msgspec
import numpy as np
import pytest

from harness.analysis.assess import assess
from harness.analysis.differences import GRADES, cautions, differences
from harness.profile import Hold, ImageSpec, Load, PayloadSpec, Profile, Replay, Target, TextSpec, Traffic
from harness.records import WorkerInfo

from . import runs
from .runs import phase, request

replace = msgspec.structs.replace
PICTURE = PayloadSpec(kind="picture", images=ImageSpec(side=512))


def made(settings=None, *, info=None, **row):
    rows = [request(k, 1 + k / 10, 10, **{"body_bytes": 1000, **row}) for k in range(60)]
    return runs.run([phase(0, 1, 0)], rows, settings=settings, info=info)


def found(a, b):
    return {d.key: (d.before, d.after, d.grade) for d in differences(a, b)}


def test_equal_runs_differ_in_nothing() -> None:
    assert differences(made(), made()) == []


def with_mix(*mix):
    return runs.profile(traffic=Traffic(mix=mix))


@pytest.mark.parametrize(
    ("changed", "key", "before", "after", "grade"),
    [
        ({"target": Target(base_url="http://127.0.0.1:2/v1")}, "target.base_url",
         "http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1", "service"),
        ({"target": Target(base_url="http://127.0.0.1:1/v1", model="m2")}, "target.model",
         "default", "m2", "service"),
        ({"target": Target(base_url="http://127.0.0.1:1/v1", stream=False)}, "target.stream",
         True, False, "traffic"),
        ({"traffic": Traffic(mix=(PayloadSpec(kind="a"),), seed=2)}, "traffic.seed", 1, 2, "measurement"),
        ({"traffic": Traffic(mix=(PayloadSpec(kind="a"),), unique=False)}, "traffic.unique",
         True, False, "traffic"),
        ({"traffic": Traffic(mix=(PayloadSpec(kind="a", text=TextSpec(chars=90)),))},
         "traffic.mix[a].text.chars", 60, 90, "traffic"),
    ],
)  # fmt: skip
def test_a_key_of_the_profile_is_named_and_graded(changed, key, before, after, grade) -> None:
    assert found(made(), made(runs.profile(**changed))) == {key: (before, after, grade)}


def test_an_entry_of_the_mix_stands_under_its_kind_whatever_its_place() -> None:
    text = PayloadSpec(kind="text")
    larger = replace(PICTURE, images=ImageSpec(side=1024))
    a, b = made(with_mix(text, PICTURE)), made(with_mix(larger, text))
    assert found(a, b) == {"traffic.mix[picture].images.side": (512, 1024, "traffic")}
    (gone,) = differences(a, made(with_mix(text)))
    assert (gone.key, gone.before["images"]["side"], gone.after) == ("traffic.mix[picture]", 512, None)


def test_default_users_written_out_are_no_difference() -> None:
    written = Load(users=(1, 2, 4, 6, 8, 12))
    assert differences(made(runs.profile(load=Load())), made(runs.profile(load=written))) == []


def test_keys_that_are_not_in_force_are_no_difference() -> None:
    closed = Load(users=(1, 2), arrivals="constant", max_in_flight=5)
    a, b = runs.profile(load=Load(users=(1, 2))), runs.profile(load=closed)
    assert differences(made(a), made(b)) == []
    rates = [Load(rates=(1, 2), arrivals=arrivals) for arrivals in ("poisson", "constant")]
    a, b = (made(runs.profile(load=load)) for load in rates)
    assert found(a, b) == {"load.arrivals": ("poisson", "constant", "traffic")}
    other = msgspec.convert({"repeat": {"rounds": 99}}, type(runs.profile().experiments))
    assert differences(made(), made(runs.profile(experiments=other))) == []  # not measured


def test_the_same_pictures_in_another_folder_are_no_difference() -> None:
    specs = [replace(PICTURE, images=ImageSpec(source=f"/{place}/pictures")) for place in ("a", "b")]
    assert differences(*(made(with_mix(spec)) for spec in specs)) == []
    files = [Traffic(replay=Replay(file=f"/a/{name}.jsonl")) for name in ("monday", "tuesday")]
    a, b = (made(runs.profile(traffic=traffic)) for traffic in files)
    assert found(a, b) == {"traffic.replay.file": ("monday.jsonl", "tuesday.jsonl", "traffic")}


@pytest.mark.parametrize(
    ("column", "before", "after", "grade"),
    [
        ("body_bytes", 1000, 1200, "traffic"),
        ("out_tokens", 24, 48, "traffic"),
        ("in_tokens", 100, 130, "service"),
        ("body_bytes", 1000, 1020, None),
    ],
)
def test_requests_that_were_not_alike_are_told_where_the_profiles_say_they_are(
    column, before, after, grade
) -> None:
    a, b = (made(**{column: size}) for size in (before, after))
    name = f"requests[a].{column}"
    apart = {"body_bytes": 7}.get(column, 0)  # the model's name is not counted
    assert found(a, b) == ({name: (before - apart, after - apart, grade)} if grade else {})


def test_lengths_that_differ_by_chance_are_no_difference() -> None:
    lengths = np.random.default_rng(1).integers(5, 60, (2, 30))
    means = lengths.mean(axis=1)
    assert abs(means[1] / means[0] - 1) > 0.05
    a, b = (
        runs.run(
            [phase(0, 1, 0)], [request(k, 1 + k / 10, 10, out_tokens=int(n)) for k, n in enumerate(part)]
        )
        for part in lengths
    )
    assert differences(a, b) == []


def test_a_longer_name_of_the_model_is_no_longer_request() -> None:
    name = "m" * 40
    target = Target(base_url="http://127.0.0.1:1/v1", model=name)
    body = 1000 + len(name) - len("default")
    assert list(found(made(), made(runs.profile(target=target), body_bytes=body))) == ["target.model"]


def test_another_machine_version_and_number_of_workers_are_told() -> None:
    about = {"host": "one", "versions": {"locust-knee": "0.1.0"}}
    two = [WorkerInfo(id=name, host="two") for name in "vw"]
    b = {"host": "two", "versions": {"locust-knee": "0.2.0"}, "workers": two}
    one = {**about, "workers": [WorkerInfo(id="w", host="one")]}
    assert found(made(info=one), made(info=b)) == {
        "run.hosts": (["one"], ["two"], "measurement"),
        "run.workers": (1, 2, "measurement"),
        "run.versions.locust-knee": ("0.1.0", "0.2.0", "measurement"),
    }


def test_what_spoils_a_comparison_comes_first() -> None:
    changed = runs.profile(
        target=Target(base_url="http://127.0.0.1:2/v1"),
        load=Load(users=(1, 2, 4), hold=Hold(seconds=20, min_requests=20), drift_check=False),
        traffic=Traffic(mix=(PayloadSpec(kind="b"),)),
    )
    grades = [d.grade for d in differences(made(), made(changed))]
    assert grades == ["traffic", "traffic", "measurement", "service"]


def test_every_section_of_a_profile_has_a_grade() -> None:
    assert set(Profile.__struct_fields__) <= set(GRADES)


def test_a_run_that_was_cut_off_and_its_weak_steps_are_told() -> None:
    phases = [phase(0, 1, 0), phase(1, 2, 20, t1_ns=None, end_ns=None)]
    rows = [request(k, 1 + k / 10, 10) for k in range(10)]
    cut = runs.run(phases, rows, info={"ended_ns": None})
    told = {(c.run, c.code): c for c in cautions(assess(made()), assess(cut))}
    assert told["B", "stopped_early"].text == "The run was cut off; not measured: 2 users."
    assert told["B", "hold_too_short"].steps == ["1 user"]
    assert not any(run == "A" and code == "stopped_early" for run, code in told)


def test_another_engine_is_told_and_one_that_was_not_seen() -> None:
    a = made()
    engine = runs.table(runs.EngineSample, [runs.EngineSample(wall_ns=1, mono_ns=1, source="vllm")])
    b = dataclasses.replace(a, engine=engine)
    c = dataclasses.replace(a, engine=engine.assign(source="sglang"))
    assert found(b, c) == {"engine.source": (["vllm"], ["sglang"], "service")}
    assert found(a, b) == {"engine.source": (None, ["vllm"], "service")}
