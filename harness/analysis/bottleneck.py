"""Which stage limits, and which resource: the stage with the largest share or the largest swing comes first,
and where these differ, the swing.

The swing is what a stage's mean time gained from the lowest load to the step where the service gave in. A
queue is a symptom: what it waits for is looked up in the engine's figures, memory first, then long requests
that hold the places of others, then the places themselves. Prefill and decoding are the forward pass: slow
with the GPU busy, the GPU is the limit; slow with the GPU idle, it waits for data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.votes import KV_FULL, PREEMPTED_SHARE, PREEMPTIONS
from harness.results import Bottleneck, KindStats, Knee, Step

GPU_BUSY, GPU_IDLE = 0.8, 0.6
LONG_RATIO, LONG_SHARE = 3.0, 0.5
MATERIAL = 0.15  # of the latency at the lowest load: a swing below it is no swing
NAMES = {
    "pre": "preprocess",
    "queue": "queue",
    "prefill": "prefill",
    "decode": "decode",
    "network": "network",
}
WORDS = {
    "pre": "preprocessing",
    "queue": "waiting in the queue",
    "prefill": "prefill",
    "decode": "decoding",
    "network": "network and the rest outside the service's stages",
}


@dataclass(frozen=True, slots=True)
class _Stages:
    """Mean milliseconds of each stage at the lowest load and where the service gave in."""

    low: dict[str, float]
    high: dict[str, float]
    base_ms: float  # mean latency at the lowest load

    def swing(self, stage: str) -> float:
        return self.high[stage] - self.low.get(stage, 0.0)


def find_bottleneck(steps: Sequence[Step], knee: Knee | None) -> Bottleneck | None:
    """Return what limits a ladder; None where no step has a good request. `steps` in any order."""
    limited = [s for s in steps if s.client.limited]
    good = sorted((s for s in steps if s.n and not s.client.limited), key=lambda step: step.load or 0.0)
    measured = [s for s in good if s.used] or good
    if limited and (not measured or (knee is not None and knee.status == "client_limited")):
        return _client(limited[0])
    if not measured:
        return None
    low, high = measured[0], _limit_step(measured, knee)
    stages = _stages(low, high)
    if stages is None:
        return _without_stages(low, high)
    stage, evidence = _choose(stages, low, high)
    if knee is not None and knee.status == "none_in_range":
        evidence.append(
            f"no limit was reached up to {high.label}: this is where the time goes, not what gives in"
        )
        return Bottleneck(stage=NAMES[stage], resource="unknown", evidence=evidence)
    resource, why = _resource(stage, low, high)
    return Bottleneck(stage=NAMES[stage], resource=resource, evidence=evidence + why)


def _limit_step(steps: Sequence[Step], knee: Knee | None) -> Step:
    """Return the step at the knee, or the highest one."""
    if knee is not None and knee.knee_step is not None:
        at = [step for step in steps if step.load == knee.knee_step]
        if at:
            return at[0]
    return steps[-1]


def _client(step: Step) -> Bottleneck:
    return Bottleneck(
        stage="client",
        resource="unknown",
        evidence=[
            f"at {step.label} arrived bytes waited {step.client.lag_p99_ms or 0:.0f} ms (p99) in the load "
            "generator: it was the limit, not the service"
        ],
    )


def _stages(low: Step, high: Step) -> _Stages | None:
    if not low.stages or not high.stages or not low.latency.mean_ms or not high.latency.mean_ms:
        return None
    means = []
    for step in (low, high):
        total = step.latency.mean_ms or 0.0
        ms = {name: (stage.share or 0.0) * total for name, stage in step.stages.items()}
        if set(ms) >= {"queue", "prefill", "decode"}:
            ms["network"] = max(total - sum(ms.values()), 0.0)
        means.append(ms)
    return _Stages(low=means[0], high=means[1], base_ms=low.latency.mean_ms)


def _choose(stages: _Stages, low: Step, high: Step) -> tuple[str, list[str]]:
    """Return the stage by the rule, and the evidence for it."""
    largest = max(stages.high, key=lambda name: stages.high[name])
    swinging = max(stages.high, key=stages.swing)
    total, swing = sum(stages.high.values()), stages.swing(swinging)
    has_swing = low is not high and swing > MATERIAL * stages.base_ms
    evidence = []
    if has_swing:
        evidence.append(
            f"{WORDS[swinging]} grows most: {_ms(stages.low.get(swinging, 0.0))} at {low.label}, "
            f"{_ms(stages.high[swinging])} at {high.label}"
        )
    if largest != swinging or not has_swing:
        tail = " but it hardly grows" if has_swing else ""
        evidence.append(
            f"{WORDS[largest]} has the largest share: {100 * stages.high[largest] / total:.0f} % of the "
            f"time at {high.label}{tail}"
        )
    elif has_swing:
        evidence.append(f"and has the largest share: {100 * stages.high[largest] / total:.0f} % of the time")
    return (swinging if has_swing else largest), evidence


def _resource(stage: str, low: Step, high: Step) -> tuple[str, list[str]]:
    memory = _memory(low, high)
    if stage in ("queue", "prefill", "decode") and memory:
        return "kv_memory", memory
    if stage == "pre":
        return "cpu_preprocessing", ["preprocessing runs on the CPU before the queue", *_gpu_words(high)]
    if stage == "queue":
        return _queue(low, high)
    if stage in ("prefill", "decode"):
        return _forward(high)
    return "unknown", _gpu_words(high)


def _memory(low: Step, high: Step) -> list[str]:
    """Return the evidence that the KV cache is short; empty where it is not."""
    engine = high.engine
    if engine is None:
        return []
    asked = high.n + high.failures
    preempted = engine.preemptions or 0.0
    evidence = []
    if preempted >= max(PREEMPTIONS, PREEMPTED_SHARE * asked):
        evidence.append(
            f"{preempted:.0f} sequences were preempted at {high.label} for want of KV-cache blocks"
        )
    waits = (engine.waiting_mean or 0.0) >= 0.5
    if engine.kv_p95 is not None and engine.kv_p95 >= KV_FULL and (evidence or waits):
        before = low.engine.kv_p95 if low.engine and low.engine.kv_p95 is not None else None
        came = f", {100 * before:.0f} % at {low.label}" if before is not None and low is not high else ""
        evidence.append(f"the KV cache is {100 * engine.kv_p95:.0f} % full (p95) at {high.label}{came}")
    return evidence


def _queue(low: Step, high: Step) -> tuple[str, list[str]]:
    engine, evidence = high.engine, []
    if engine is not None and engine.waiting_mean is not None:
        running = f", {engine.running_mean:.1f} run" if engine.running_mean is not None else ""
        evidence.append(f"{engine.waiting_mean:.1f} requests wait on average at {high.label}{running}")
        if engine.kv_p95 is not None:
            evidence.append(
                f"the KV cache is only {100 * engine.kv_p95:.0f} % full: memory is not what they wait for"
            )
    long = _long_requests(low.by_kind)
    if long:
        return "long_requests", [*evidence, long]
    if engine is None or not engine.waiting_mean:
        evidence.append("the service's own queue time grows while its stages of work do not")
    return "slots", [*evidence, "the batch has no place for more requests at once", *_gpu_words(high)]


def _long_requests(kinds: dict[str, KindStats]) -> str | None:
    """Return the evidence that few long requests hold the places most of the time, at the lowest load."""
    means = {name: stats.latency.mean_ms for name, stats in kinds.items() if stats.latency.mean_ms}
    if len(means) < 2:
        return None
    held = {name: kinds[name].n * ms for name, ms in means.items()}
    longest, shortest = max(means, key=lambda k: means[k] or 0), min(means, key=lambda k: means[k] or 0)
    ratio, share = (means[longest] or 0) / (means[shortest] or 1), held[longest] / sum(held.values())
    of_requests = kinds[longest].n / sum(stats.n for stats in kinds.values())
    if ratio < LONG_RATIO or share < LONG_SHARE or of_requests > LONG_SHARE:
        return None
    return (
        f"{longest} is {100 * of_requests:.0f} % of the requests but holds {100 * share:.0f} % of the "
        f"places' time: one takes {ratio:.1f} times as long as {shortest}, which waits behind it"
    )


def _forward(high: Step) -> tuple[str, list[str]]:
    busy = _utilization(high)
    words = _gpu_words(high)
    if busy is None:
        return "unknown", [
            *words,
            "without GPU utilization, a busy GPU and one that waits for data look alike",
        ]
    if busy >= GPU_BUSY:
        return "gpu_busy", [*words, "the forward pass is slow while the GPU is busy: the GPU is the limit"]
    if busy < GPU_IDLE:
        return "gpu_starved", [*words, "the forward pass is slow while the GPU idles: it waits for data"]
    return "unknown", [*words, "neither busy nor idle enough to say which"]


def _utilization(step: Step) -> float | None:
    """Return the mean utilization of the busiest GPU."""
    return max((g.util_mean for g in step.gpu.values() if g.util_mean is not None), default=None)


def _gpu_words(step: Step) -> list[str]:
    busy = _utilization(step)
    return [f"the GPU is busy {100 * busy:.0f} % of the time at {step.label}"] if busy is not None else []


def _without_stages(low: Step, high: Step) -> Bottleneck:
    """Name what can be named when the service reports no stages."""
    evidence = ["the service reports no stage times (see harness.stages): only what the client sees is known"]
    first = (high.ttft.mean_ms or 0.0) - (low.ttft.mean_ms or 0.0)
    total = (high.latency.mean_ms or 0.0) - (low.latency.mean_ms or 0.0)
    material = total > MATERIAL * (low.latency.mean_ms or 0.0)
    engine = high.engine
    if material and first < total / 2 and low.ttft.mean_ms:
        evidence.append(
            f"the time after the first token grows by {_ms(total - first)}, the time to it by {_ms(first)}"
        )
        resource, why = _resource("decode", low, high)
        return Bottleneck(stage="decode", resource=resource, evidence=evidence + why)
    if material and engine is not None and (engine.waiting_mean or 0.0) >= 0.5:
        evidence.append(
            f"the time to the first token grows by {_ms(first)} while requests wait in the engine"
        )
        resource, why = _resource("queue", low, high)
        return Bottleneck(stage="queue", resource=resource, evidence=evidence + why)
    if material and low.ttft.mean_ms:
        evidence.append(f"the time to the first token grows by {_ms(first)}, in a stage that is not known")
    return Bottleneck(stage="unknown", resource="unknown", evidence=[*evidence, *_gpu_words(high)])


def _ms(value: float) -> str:
    return f"{value / 1e3:.1f} s" if value >= 9950 else f"{value:.0f} ms"
