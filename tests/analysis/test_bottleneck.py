import pytest

from harness.analysis.assess import assess
from harness.analysis.bottleneck import find_bottleneck
from harness.engine.presets import PRESETS
from harness.results import ClientStats, EngineStats, GpuStats, Knee, Quantiles, StageShare, Step

from . import runs

PLANTED = {
    "demo": ("queue", "slots"),
    "preprocess": ("preprocess", "cpu_preprocessing"),
    "queue": ("queue", "slots"),
    "prefill": ("prefill", "gpu_busy"),
    "decode": ("decode", "gpu_busy"),
    "kv": ("queue", "kv_memory"),
    "long": ("queue", "long_requests"),
}


@pytest.mark.parametrize("name", PRESETS)
def test_the_planted_bottleneck_is_named_and_the_cap_is_the_planted_one_ten_times_of_ten(name) -> None:
    for seed in range(1, 11):
        report = assess(runs.preset(name, seed=seed), seed=seed)
        found = report.bottleneck
        assert (found.stage, found.resource, report.knee.cap) == (*PLANTED[name], PRESETS[name].cap), seed
        assert report.knee.status == "knee"
        assert len(found.evidence) >= 2


def step(users, total, *, busy=None, kinds=None, engine=None, ttft=None, limited=False, **stages):
    """A step of mean latency `total` with stages in milliseconds."""
    return Step(
        label=f"{users} users",
        phase=users,
        users=users,
        n=100,
        latency=Quantiles(mean_ms=total),
        ttft=Quantiles(mean_ms=ttft),
        stages={name: StageShare(share=ms / total) for name, ms in stages.items()},
        gpu={} if busy is None else {"GPU-1": GpuStats(util_mean=busy)},
        engine=engine,
        client=ClientStats(limited=limited, lag_p99_ms=40.0 if limited else 0.1),
    )


KNEE = Knee(status="knee", knee_step=4, cap=2)


def test_where_share_and_swing_differ_the_swing_decides() -> None:
    low = step(1, 1000, prefill=100, queue=0, decode=900)
    found = find_bottleneck([low, step(4, 1500, prefill=550, queue=0, decode=950)], KNEE)
    assert found.stage == "prefill"
    assert "prefill grows most: 100 ms at 1 users, 550 ms at 4 users" in found.evidence[0]
    assert "decoding has the largest share: 63 %" in found.evidence[1]


def test_without_a_swing_the_largest_share_is_named() -> None:
    low = step(1, 1000, prefill=100, queue=0, decode=900)
    assert find_bottleneck([low, step(4, 1050, prefill=120, queue=0, decode=930)], KNEE).stage == "decode"


@pytest.mark.parametrize(
    ("busy", "resource"), [(0.95, "gpu_busy"), (0.3, "gpu_starved"), (0.7, "unknown"), (None, "unknown")]
)
def test_a_slow_forward_pass_is_the_gpu_s_only_where_the_gpu_is_busy(busy, resource) -> None:
    steps = [step(1, 500, decode=500), step(4, 1500, decode=1500, busy=busy)]
    found = find_bottleneck(steps, KNEE)
    assert (found.stage, found.resource) == ("decode", resource)


def test_utilization_may_fall_while_the_queue_grows() -> None:
    waiting = EngineStats(waiting_mean=2.0, kv_p95=0.4)
    steps = [
        step(1, 500, queue=0, prefill=100, decode=400, busy=0.79),
        step(4, 900, queue=400, prefill=100, decode=400, busy=0.67, engine=waiting),
    ]  # fmt: skip
    assert find_bottleneck(steps, KNEE).resource == "slots"


def test_a_full_cache_that_nobody_waits_for_is_no_bottleneck() -> None:
    idle = EngineStats(waiting_mean=0.0, kv_p95=0.97, preemptions=0)
    steps = [step(1, 500, decode=500), step(4, 1500, decode=1500, busy=0.95, engine=idle)]
    assert find_bottleneck(steps, KNEE).resource == "gpu_busy"


def test_what_the_network_adds_is_named_too() -> None:
    steps = [
        step(1, 500, pre=5, queue=0, prefill=95, decode=390),
        step(4, 1200, pre=5, queue=0, prefill=95, decode=390),
    ]
    assert find_bottleneck(steps, KNEE).stage == "network"


def test_up_to_no_limit_only_the_largest_share_is_told() -> None:
    open_end = Knee(status="none_in_range", cap=4)
    found = find_bottleneck([step(1, 500, decode=500), step(4, 505, decode=505, busy=0.95)], open_end)
    assert (found.stage, found.resource) == ("decode", "unknown")
    assert "no limit was reached" in found.evidence[-1]


def test_a_ladder_that_the_client_limited_blames_the_client() -> None:
    steps = [step(1, 500, decode=500), step(4, 1500, decode=1500, limited=True)]
    assert find_bottleneck(steps, Knee(status="client_limited")).stage == "client"
    assert find_bottleneck(steps[1:], KNEE).stage == "client"


def test_without_stages_only_what_the_client_sees_is_told() -> None:
    waiting = EngineStats(waiting_mean=3.0, kv_p95=0.2)
    queued = [step(1, 500, ttft=100), step(4, 900, ttft=490, engine=waiting)]
    assert (find_bottleneck(queued, KNEE).stage, find_bottleneck(queued, KNEE).resource) == ("queue", "slots")
    decoding = [step(1, 500, ttft=100), step(4, 900, ttft=120, busy=0.9)]
    assert find_bottleneck(decoding, KNEE).resource == "gpu_busy"
    nothing = find_bottleneck([step(1, 500, ttft=100), step(4, 900, ttft=490)], KNEE)
    assert (nothing.stage, nothing.resource) == ("unknown", "unknown")
    assert "harness.stages" in nothing.evidence[0]


def test_nothing_measured_gives_no_bottleneck() -> None:
    assert find_bottleneck([], None) is None
