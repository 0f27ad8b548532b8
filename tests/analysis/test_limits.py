import msgspec
import pytest
import yaml

from harness.analysis.assess import assess
from harness.analysis.limits import derive_limits, limits_yaml, round_up
from harness.profile import Slo
from harness.records import BEFORE_LOAD, Request
from harness.results import Experiment, Knee, Limit, Quantiles, Report, Step

from . import runs
from .runs import request

KEYS = {
    "input_limits": [
        "max_image_side", "max_image_pixels", "max_images_per_request", "max_input_tokens", "max_new_tokens",
    ],
    "concurrency": ["cap", "steady", "queue_max"],
    "timeouts": ["queue_wait_ms", "ttft_ms", "total_ms", "on_exceed"],
}  # fmt: skip
KNEE = Knee(status="knee", knee_step=8, cap=6, steady=4, confidence=0.97)


def report(*, knee=KNEE, n=250, rates=False, **more):
    def step(load, rps):
        return Step(
            label=f"{load} users", phase=load, n=n, rps=rps,
            users=None if rates else load, offered_rps=float(load) if rates else None,
            ttft=Quantiles(p50_ms=100, p95_ms=180, p99_ms=200, max_ms=300, mean_ms=110),
            latency=Quantiles(p50_ms=900, p95_ms=1000, p99_ms=1100, max_ms=1300, mean_ms=910),
        )  # fmt: skip

    steps = [step(load, 1.1 * load) for load in (1, 2, 4, 6, 8)]
    return Report(run="r", profile="p", experiment="steps", valid=True, knee=knee, steps=steps, **more)


def table(**more):
    fields = {"phase": 6, "in_tokens": 900, "out_tokens": 64} | more
    rows = [request(0, 2, 50, **fields), request(1, 3, 50, in_tokens=5000, phase=8, in_img=9)]
    return runs.table(Request, rows)


def values(limits):
    return {limit.key: limit.value for limit in limits}


def test_every_limit_is_derived_from_the_step_at_the_cap() -> None:
    images = {"in_img": 4, "img_wh": [(768, 512), (512, 768), (300, 200), (640, 640)]}
    found = values(derive_limits(report(), Slo(), table(**images)))
    assert found == {
        "max_image_side": 768,
        "max_image_pixels": 640 * 640,
        "max_images_per_request": 4,
        "max_input_tokens": 900,
        "max_new_tokens": 64,
        "cap": 6,
        "steady": 4,
        "queue_max": 1,  # 6.6 requests/s in 200 ms
        "queue_wait_ms": 200,  # 300 less 100
        "ttft_ms": 300,  # 1.5 x p99
        "total_ms": 1700,  # 1.5 x 1100 = 1650
        "on_exceed": "reject",
    }


def test_a_small_sample_has_no_p99_and_its_slowest_request_stands_in() -> None:
    found = values(derive_limits(report(n=60), Slo(), table()))
    assert (found["ttft_ms"], found["total_ms"]) == (450, 2000)


def test_no_timeout_lies_below_what_the_slo_allows() -> None:
    limits = derive_limits(report(), Slo(ttft_p95_ms=2000, total_p95_ms=1000), table())
    found = values(limits)
    assert (found["ttft_ms"], found["queue_wait_ms"], found["total_ms"]) == (2000, 1900, 1700)
    assert found["queue_max"] == 12  # 6.6 requests/s in 1.9 s
    assert "the SLO's bound" in next(limit.why for limit in limits if limit.key == "ttft_ms")


def test_an_arrival_rate_becomes_requests_in_flight() -> None:
    found = values(derive_limits(report(rates=True), Slo(), table()))
    assert found["cap"] == 7  # 6.6/s x 0.91 s = 6.006
    assert found["steady"] == 5  # 4.4/s x 0.91 s = 4.004


@pytest.mark.parametrize("status", ["inconclusive", "insufficient", "below_first", "client_limited"])
def test_without_a_cap_nothing_is_made_up(status) -> None:
    limits = derive_limits(report(knee=Knee(status=status)), Slo(), table())
    found = values(limits)
    assert {key for key in KEYS["concurrency"] + KEYS["timeouts"] if found[key] is not None} == {"on_exceed"}
    assert status in next(limit.why for limit in limits if limit.key == "cap")


def test_no_knee_in_range_is_read_as_at_least() -> None:
    limits = derive_limits(report(knee=Knee(status="none_in_range", cap=8, steady=6)), Slo(), table())
    assert values(limits)["cap"] == 8
    assert "at least" in next(limit.why for limit in limits if limit.key == "cap")


def sweep(verdict, side, *, bounded):
    figures = {"max_image_side": side, "max_image_pixels": side * side, "bounded": bounded}
    return {"image_sweep": Experiment(verdict=verdict, text="The sweep says so.", figures=figures)}


@pytest.mark.parametrize(
    ("swept", "bounded", "side"),
    [(512, True, 512), (1280, False, 1280), (512, False, 768), (1024, True, 1024)],
)
def test_the_sweep_sets_the_side_where_it_went_further_or_found_a_bound(swept, bounded, side) -> None:
    data = report(experiments=sweep("jump" if bounded else "flat", swept, bounded=bounded))
    found = values(derive_limits(data, Slo(), table(in_img=1, img_wh=[(768, 768)])))
    assert (found["max_image_side"], found["max_image_pixels"]) == (side, side * side)


def test_a_request_before_the_load_is_no_size_that_was_served() -> None:
    asked = request(0, 1, 50, in_tokens=1000, phase=BEFORE_LOAD, in_img=2)
    rows = runs.table(Request, [asked, request(1, 3, 50, in_tokens=100, phase=1)])
    found = values(derive_limits(report(knee=Knee(status="insufficient")), Slo(), rows))
    assert (found["max_input_tokens"], found["max_images_per_request"]) == (100, None)


def test_the_file_derives_each_number_in_a_comment_and_names_what_is_left_out() -> None:
    data = assess(runs.preset("queue"))
    text = limits_yaml(data, ["a note on top"])
    read = yaml.safe_load(text)
    assert {section: list(entries) for section, entries in read.items()} == KEYS
    assert read["concurrency"]["cap"] == 4
    assert "# a note on top" in text
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("  ") and not line.strip().startswith("#"):
            assert lines[number - 1].strip().startswith("# "), line

    missing = [Limit(section="timeouts", key="ttft_ms", value=None, why="no time\nto first token")]
    text = limits_yaml(msgspec.structs.replace(data, limits=missing, valid=False))
    assert "# ttft_ms is left out: no time to first token" in text
    assert "The run is not valid" in text
    assert yaml.safe_load(text) == {"input_limits": {}, "concurrency": {}, "timeouts": {}}


@pytest.mark.parametrize(
    ("ms", "rounded"), [(0.2, 1), (9.2, 10), (57, 57), (57.1, 58), (101, 110), (1650, 1700), (12000, 12000)]
)
def test_times_are_rounded_up_to_two_digits(ms, rounded) -> None:
    assert round_up(ms) == rounded
