import time
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from harness.analysis.assess import assess, exit_code, slo_by_load, work_unit
from harness.analysis.groups import steps_of
from harness.profile import Slo
from harness.records import WorkerInfo
from harness.results import Knee, Report, Step

from . import runs
from .runs import phase, request

structs = msgspec.structs


@pytest.fixture(scope="module")
def demo():
    return runs.preset("demo")


def test_the_demo_has_its_knee_and_every_part_of_the_report(demo) -> None:
    report = assess(demo)
    assert report.valid
    assert (report.knee.status, report.knee.cap, report.knee.knee_step, report.knee.steady) == (
        "knee",
        6,
        8,
        4,
    )
    assert [step.users for step in report.steps] == [1, 2, 4, 6, 8, 12]
    assert all(step.used for step in report.steps)
    assert (report.bottleneck.stage, report.bottleneck.resource) == ("queue", "slots")
    assert report.simulated
    assert report.problems == []
    assert report.target["model"] == "sim-vlm"


def test_the_same_run_gives_the_same_report(demo) -> None:
    assert assess(demo, seed=5) == assess(demo, seed=5)


@pytest.mark.parametrize(
    ("missing", "codes"),
    [
        (("gpu",), {"gpu_missing"}),
        (("engine",), {"engine_missing"}),
        (("gpu", "engine", "client"), {"gpu_missing", "engine_missing"}),
    ],
)
def test_what_was_not_observed_is_said_and_the_verdict_stands(demo, missing, codes) -> None:
    report = assess(runs.without(demo, *missing))
    assert report.knee.cap == 6
    assert {problem.code for problem in report.problems} == codes
    assert all(step.latency.p95_ms for step in report.steps)


def test_a_run_of_no_requests_is_not_valid_and_still_has_its_steps(demo) -> None:
    report = assess(runs.without(demo, "requests"))
    assert not report.valid
    assert report.knee.status == "insufficient"
    assert [step.n for step in report.steps] == [0] * 6
    assert report.bottleneck is None
    assert exit_code(report, demo.profile) == 3


def test_a_run_of_failures_only_is_not_valid(demo) -> None:
    failed = demo.requests.assign(outcome="connect_error", total_ms=1.0, ttft_ms=np.nan)
    report = assess(replace(demo, requests=failed))
    assert not report.valid
    assert all(step.n == 0 and step.failures for step in report.steps)
    assert {"failures"} <= {problem.code for problem in report.problems}
    assert all(limit.value is None for limit in report.limits if limit.key != "on_exceed")


def test_a_run_cut_off_in_a_step_is_read_up_to_there(demo) -> None:
    cut = demo.info.phases[4]
    phases = [*demo.info.phases[:4], structs.replace(cut, t1_ns=None, end_ns=None)]
    phases += [structs.replace(demo.info.phases[5], ready_ns=None, t0_ns=None, t1_ns=None, end_ns=None)]
    early = demo.requests[demo.requests.wall_ns < cut.t0_ns + 2_000_000_000]
    info = structs.replace(demo.info, phases=phases, ended_ns=None)
    report = assess(replace(demo, info=info, requests=early))
    assert report.valid
    assert (report.knee.status, report.knee.cap) == ("none_in_range", 6)
    assert [step.used for step in report.steps] == [True, True, True, True, False]
    assert report.steps[4].why_not == "the run ended inside this step"
    stopped = [problem.text for problem in report.problems if problem.code == "stopped_early"]
    assert stopped == ["The run was cut off; not measured: 8 users, 12 users."]


def one_step(total_ms=100.0, **more):
    rows = [request(k, 0.5 + k * total_ms / 1e3, total_ms) for k in range(int(11_000 / total_ms))]
    return runs.run([phase(0, 1, 0)], rows, settings=runs.profile((1,), **more))


@pytest.mark.parametrize(("bound", "code"), [(101, 0), (99, 1)])
def test_a_run_of_one_step_is_judged_by_its_slo(bound, code) -> None:
    data = one_step(slo=Slo(total_p95_ms=bound))
    report = assess(data)
    assert report.valid
    assert report.knee.status == "insufficient"
    assert exit_code(report, data.profile) == code


def test_a_lost_worker_voids_the_run(demo) -> None:
    workers = [WorkerInfo(id="w2", host="h", lost=True, records_made=0)]
    data = replace(demo, info=structs.replace(demo.info, workers=workers))
    report = assess(data)
    assert not report.valid
    assert report.knee.cap == 6  # still shown, for diagnosis
    assert exit_code(report, data.profile) == 3


def test_a_run_without_a_ladder_has_no_knee() -> None:
    rows = [request(k, 2 + k, 100, kind="repeat_a") for k in range(8)]
    data = runs.run([phase(0, 1, 0, experiment="repeat")], rows, info={"experiment": "repeat"})
    report = assess(data)
    assert report.valid
    assert (report.knee, report.steps) == (None, [])
    assert exit_code(report, data.profile) == 0


@pytest.mark.parametrize(
    ("valid", "knee", "code"),
    [
        (True, {"status": "knee", "cap": 4, "steady": 2}, 0),
        (True, {"status": "knee", "cap": 8, "steady": 6}, 1),
        (True, {"status": "none_in_range", "cap": 8, "steady": 6}, 1),
        (True, {"status": "inconclusive"}, 0),
        (True, {"status": "below_first"}, 0),
        (False, {"status": "insufficient"}, 3),
        (False, {"status": "client_limited"}, 3),
    ],
)
def test_the_slo_is_judged_at_the_steady_level_only(valid, knee, code) -> None:
    steps = [Step(label=f"{u} users", phase=i, users=u, meets_slo=u < 5) for i, u in enumerate((2, 4, 6, 8))]
    report = Report(run="r", profile="p", experiment="steps", valid=valid, steps=steps, knee=Knee(**knee))
    assert exit_code(report, runs.profile((2, 4, 6, 8))) == code


def test_a_load_measured_several_times_meets_the_slo_where_most_measures_do() -> None:
    met = [True, False, True]
    steps = [Step(label="2 users", phase=i, users=2, meets_slo=ok) for i, ok in enumerate(met)]
    assert slo_by_load(steps) == {2: True}


def test_throughput_is_counted_in_output_tokens_where_kinds_differ() -> None:
    def unit(**fields):
        rows = [request(k, 2 + k / 10, 50, kind="ab"[k % 2], **fields) for k in range(20)]
        return work_unit(steps_of(runs.run([phase(0, 1, 0)], rows)))

    assert unit(out_tokens=24) == "out_tokens"
    assert unit() is None
    rows = [request(k, 2 + k / 10, 50, out_tokens=24) for k in range(20)]
    assert work_unit(steps_of(runs.run([phase(0, 1, 0)], rows))) is None


def test_a_client_limited_step_leaves_the_verdict_and_names_the_processes(demo) -> None:
    lag = demo.requests.client_lag_ms.where(demo.requests.users != 12, 60.0)
    report = assess(replace(demo, requests=demo.requests.assign(client_lag_ms=lag)))
    assert (report.knee.cap, report.knee.knee_step) == (6, 8)
    last = report.steps[-1]
    assert (last.used, last.why_not) == (False, "the load generator was the limit there")
    assert last.meets_slo is None
    assert [(p.code, p.step) for p in report.problems] == [("client_limited", "12 users")]


def test_a_refined_step_and_one_measured_again_take_their_places(demo) -> None:
    first = structs.replace(demo.info.phases[0], experiment="drift", label="1 user (drift)")
    info = structs.replace(demo.info, phases=[*demo.info.phases, structs.replace(first, index=6)])
    report = assess(replace(demo, info=info))
    assert report.steps[-1].label == "1 user (drift)"
    assert not report.steps[-1].used
    assert report.knee.cap == 6
    assert report.problems == []


def test_ten_thousand_records_are_assessed_in_a_moment(demo) -> None:
    many = [demo.requests.assign(seq=demo.requests.seq + k * 10_000) for k in range(8)]
    import pandas as pd

    data = replace(demo, requests=pd.concat(many, ignore_index=True))
    begin = time.process_time()
    assess(data)
    assert time.process_time() - begin < 5
