"""The planted cap of every preset is a corner: growth well above the threshold before it, flat after it."""

from __future__ import annotations

import itertools
import math

import pytest

from harness.engine.presets import PRESETS
from harness.engine.virtual import VirtualRun, ladder, simulate
from harness.profile import Hold

# Throughput elasticity per pair of steps, ln(X2/X1) / ln(N2/N1); the knee rule's threshold is 0.35.
GROWS, FLAT = 0.6, 0.2
HOLD = Hold(seconds=10, min_requests=120, max_seconds=600, settle_s=2)


def throughput(run: VirtualRun) -> dict[int, float]:
    """Output tokens per second of each step's window."""
    rates = {}
    for phase in run.phases:
        ends = [(r.wall_ns + r.total_ms * 1e6, r) for r in run.requests if r.outcome == "ok"]
        tokens = sum(r.out_tokens or 0 for end, r in ends if phase.t0_ns <= end < phase.t1_ns)
        rates[phase.users] = tokens / (phase.t1_ns - phase.t0_ns) * 1e9
    return rates


def mean_stage(run: VirtualRun, users: int, stage: str) -> float:
    values = [getattr(r, stage) for r in run.requests if r.users == users]
    return sum(values) / len(values)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", PRESETS)
def test_the_planted_cap_is_a_corner(name: str, seed: int) -> None:
    preset = PRESETS[name]
    profile = ladder(preset.traffic, max_tokens=preset.max_tokens, hold=HOLD)
    x = throughput(simulate(preset.config, profile, seed=seed))
    for low, high in itertools.pairwise(x):
        e_x = math.log(x[high] / x[low]) / math.log(high / low)
        assert e_x > GROWS if high <= preset.cap else e_x < FLAT, (low, high, e_x)


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("preprocess", "pre_ms"),
        ("queue", "queue_ms"),
        ("prefill", "prefill_ms"),
        ("decode", "decode_ms"),
        ("long", "queue_ms"),
    ],
)
def test_the_planted_stage_is_the_one_that_swings(name: str, stage: str) -> None:
    preset = PRESETS[name]
    run = simulate(
        preset.config,
        ladder(preset.traffic, users=[1, preset.cap * 2], max_tokens=preset.max_tokens, hold=HOLD),
    )
    stages = ["pre_ms", "queue_ms", "prefill_ms", "decode_ms"]
    swing = {s: mean_stage(run, preset.cap * 2, s) - mean_stage(run, 1, s) for s in stages}
    assert max(swing, key=lambda s: swing[s]) == stage


def test_kv_memory_preempts_beyond_its_cap_and_not_before() -> None:
    preset = PRESETS["kv"]
    run = simulate(
        preset.config, ladder(preset.traffic, users=[2, 4, 6], max_tokens=preset.max_tokens, hold=HOLD)
    )
    counts = []
    for phase in run.phases:
        seen = [
            s.preemptions_total or 0 for s in run.engine if phase.ready_ns + 2e9 <= s.wall_ns < phase.end_ns
        ]
        counts.append(seen[-1] - seen[0])
    assert counts[:2] == [0, 0]
    assert counts[2] > 20


def test_preprocessing_starves_the_gpu_and_short_places_do_not() -> None:
    def util(name: str) -> float:
        preset = PRESETS[name]
        run = simulate(
            preset.config, ladder(preset.traffic, users=[12], max_tokens=preset.max_tokens, hold=HOLD)
        )
        return sum(s.util or 0 for s in run.gpu[5:]) / len(run.gpu[5:])

    assert util("preprocess") < 0.3
    assert util("queue") > 0.9
