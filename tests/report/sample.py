"""A hand-made run: a ladder of 1, 2, 4, 6, 8, 12 users whose service carries 6 at once (knee at 8)."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from harness.profile import Load, PayloadSpec, Profile, Slo, Target, TextSpec, Traffic
from harness.records import (
    ClientSample,
    EngineSample,
    GpuSample,
    PhaseTimes,
    Problem,
    Request,
    RunInfo,
)
from harness.results import (
    Bottleneck,
    ClientStats,
    CrossCheck,
    EngineStats,
    Experiment,
    GpuStats,
    KindStats,
    Knee,
    Limit,
    Quantiles,
    Report,
    StageShare,
    Step,
    Vote,
)
from harness.rundir import RunData

LADDER = (1, 2, 4, 6, 8, 12)
SLOTS, SERVICE_MS, STEP_S = 6, 900.0, 60
START_NS = 1_790_000_000_000_000_000
GPU = "GPU-5f3a9c1e-77aa-4b1e-9f6e-0c2d4e6f8a10"
KINDS = ("text_only", "one_image", "multi_image")
SECOND = 1_000_000_000
replace = msgspec.structs.replace


def columns(row_type: type[Any]) -> list[str]:
    return [f.name for f in msgspec.structs.fields(row_type)]


def table(row_type: type[Any], rows: list[dict[str, Any]] | None = None) -> pd.DataFrame:
    return pd.DataFrame(rows or [], columns=columns(row_type))


def phases(loads: tuple[int, ...] = LADDER) -> list[PhaseTimes]:
    times = []
    for index, users in enumerate(loads):
        ready = START_NS + index * (STEP_S + 10) * SECOND
        label = f"{users} user{'' if users == 1 else 's'}"
        times.append(
            PhaseTimes(
                index=index,
                label=label,
                users=users,
                ready_ns=ready,
                t0_ns=ready + 5 * SECOND,
                t1_ns=ready + (5 + STEP_S) * SECOND,
                end_ns=ready + (8 + STEP_S) * SECOND,
            )
        )
    return times


def requests(loads: tuple[int, ...] = LADDER) -> pd.DataFrame:
    """Closed-loop requests: each user sends the next as soon as the last has ended."""
    random, rows = np.random.default_rng(7), []
    for phase in phases(loads):
        users = phase.users or 1
        wait = max(0.0, (users / SLOTS - 1)) * SERVICE_MS
        for user in range(users):
            now = float(phase.ready_ns or 0)
            while now < (phase.t1_ns or 0):
                kind = KINDS[len(rows) % 3]
                weight = {"text_only": 0.7, "one_image": 1.0, "multi_image": 1.6}[kind]
                queue = wait * random.gamma(6, 1 / 6)
                prefill = 260 * weight * random.gamma(30, 1 / 30) * (1 + 0.02 * users)
                decode = 560 * random.gamma(60, 1 / 60) * (1 + 0.015 * users)
                pre = 40 * weight
                ttft = pre + queue + prefill + 4
                rows.append(
                    {
                        "run": "sample", "worker": "w1", "user": user, "seq": len(rows), "users": users,
                        "phase": phase.index, "label": phase.label, "kind": kind, "payload": kind,
                        "body_bytes": 1000, "in_tokens": 800, "out_tokens": 64, "wall_ns": int(now),
                        "start_ns": int(now), "ttft_ms": ttft, "total_ms": ttft + decode, "pre_ms": pre,
                        "queue_ms": queue, "prefill_ms": prefill, "decode_ms": decode, "outcome": "ok",
                        "req_id": f"r{len(rows)}", "itl_p50_ms": decode / 64,
                    }
                )  # fmt: skip
                now += (ttft + decode) * 1e6
    return table(Request, rows)


def gpu(loads: tuple[int, ...] = LADDER) -> pd.DataFrame:
    rows = []
    for phase in phases(loads):
        users = phase.users or 1
        for second in range(STEP_S + 10):
            wall = (phase.ready_ns or 0) + second * SECOND
            busy = min(1.0, users / SLOTS) * 0.93 + 0.03 * np.sin(second)
            rows.append(
                {
                    "seq": len(rows), "host": "gpu-1", "gpu": GPU, "index": 0, "name": "NVIDIA H200",
                    "mono_ns": wall, "mono_end_ns": wall, "wall_ns": wall,
                    "util": float(min(1.0, max(0.0, busy))),
                    "mem_used_bytes": int((40 + 2.4 * users + 0.3 * np.cos(second)) * 2**30),
                    "mem_total_bytes": 139 * 2**30, "power_w": 180 + 420 * busy, "source": "nvml",
                }
            )  # fmt: skip
    return table(GpuSample, rows)


def engine(loads: tuple[int, ...] = LADDER) -> pd.DataFrame:
    rows = []
    for phase in phases(loads):
        users = phase.users or 1
        for second in range(STEP_S + 10):
            wall = (phase.ready_ns or 0) + second * SECOND
            rows.append(
                {
                    "wall_ns": wall, "mono_ns": wall, "running": min(users, SLOTS),
                    "waiting": max(0, users - SLOTS),
                    "kv_usage": min(1.0, 0.12 * users) * (0.97 + 0.03 * np.cos(second)), "source": "vllm",
                }
            )  # fmt: skip
    return table(EngineSample, rows)


def run(loads: tuple[int, ...] = LADDER, *, name: str = "staging-vlm") -> RunData:
    mix = tuple(PayloadSpec(kind=kind, text=TextSpec(chars=60)) for kind in KINDS)
    profile = Profile(
        name=name,
        target=Target(base_url="http://127.0.0.1:8000/v1", model="qwen2.5-vl-7b"),
        traffic=Traffic(mix=mix),
        load=Load(users=loads),
        slo=Slo(ttft_p95_ms=1500, total_p95_ms=2000, error_rate=0.01),
    )
    info = RunInfo(
        run="20260921T131320Z-staging-vlm-steps",
        profile=name,
        experiment="steps",
        started_ns=START_NS,
        ended_ns=START_NS + len(loads) * (STEP_S + 10) * SECOND,
        phases=phases(loads),
    )
    return RunData(
        info=info,
        profile=profile,
        requests=requests(loads),
        client=table(ClientSample),
        gpu=gpu(loads),
        engine=engine(loads),
    )


def _quantiles(values: pd.Series) -> Quantiles:
    if not len(values):
        return Quantiles()
    low, mid, high = np.percentile(values, [50, 95, 99]).tolist()
    return Quantiles(
        p50_ms=low, p95_ms=mid, p99_ms=high, mean_ms=float(values.mean()), max_ms=float(values.max())
    )


def _step(phase: PhaseTimes, data: RunData) -> Step:
    rows = data.requests[data.requests.phase == phase.index]
    rows = rows[(rows.wall_ns >= phase.t0_ns) & (rows.wall_ns < phase.t1_ns)]
    users, rps = phase.users or 1, len(rows) / STEP_S
    latency = _quantiles(rows.total_ms)
    mean = latency.mean_ms or 1.0
    stages = {
        stage: StageShare(
            p50_ms=float(rows[f"{stage}_ms"].median()),
            p95_ms=float(rows[f"{stage}_ms"].quantile(0.95)),
            share=float(rows[f"{stage}_ms"].mean()) / mean,
        )
        for stage in ("pre", "queue", "prefill", "decode")
    }
    busy = min(1.0, users / SLOTS) * 0.93
    return Step(
        label=phase.label, phase=phase.index, users=users, seconds=float(STEP_S), n=len(rows), rps=rps,
        out_tok_s=64 * rps, in_tok_s=800 * rps, rpm=60 * rps, tpm=60 * 864 * rps, latency=latency,
        ttft=_quantiles(rows.ttft_ms), itl=_quantiles(rows.itl_p50_ms), stages=stages,
        p95_ci_ms=((latency.p95_ms or 0) * 0.96, (latency.p95_ms or 0) * 1.05),
        by_kind={
            kind: KindStats(n=len(part), latency=_quantiles(part.total_ms), ttft=_quantiles(part.ttft_ms))
            for kind, part in rows.groupby("kind")
        },
        gpu={
            GPU: GpuStats(
                name="NVIDIA H200", util_mean=busy, util_p95=min(1.0, busy + 0.03), n=60, coverage=1.0,
                mem_used_peak_bytes=int((40 + 2.4 * users) * 2**30), mem_total_bytes=139 * 2**30,
                mem_used_ratio_p95=(40 + 2.4 * users) / 139, power_mean_w=180 + 420 * busy,
            )
        },
        engine=EngineStats(
            n=60, running_mean=min(users, SLOTS), waiting_mean=max(0, users - SLOTS),
            waiting_max=max(0, users - SLOTS), kv_p95=min(1.0, 0.12 * users), preemptions=0,
            queue_mean_ms=stages["queue"].p50_ms,
        ),
        client=ClientStats(lag_p99_ms=0.8 + 0.05 * users, cpu=0.02 * users), little=1.0,
        goodput=rps if users < 8 else rps * 0.4, meets_slo=users < 8,
    )  # fmt: skip


def report(data: RunData) -> Report:
    """Return a full report on the ladder: verdict, votes, bottleneck, experiments, limits."""
    steps = [_step(phase, data) for phase in data.info.phases]
    return Report(
        run=data.info.run, profile=data.info.profile, experiment="steps", valid=True, steps=steps,
        knee=knee(), bottleneck=Bottleneck(
            stage="queue", resource="slots",
            evidence=[
                "waiting in the queue grows most: 0 ms at 1 user, 301 ms at 8 users",
                "2.0 requests wait on average at 8 users, 6.0 run",
                "the batch has no place for more requests at once",
            ],
        ),
        experiments=experiments(), limits=limits(),
        problems=[
            Problem(code="hold_too_short", step="1 user",
                    text="67 good requests, 80 asked for: raise load.hold.max_seconds (60 s)."),
        ],
        versions={"locust-knee": "0.1.0", "locust": "2.47.0", "python": "3.11.9"},
        target={"base_url": "http://127.0.0.1:8000/v1", "model": "qwen2.5-vl-7b", "endpoint": "chat",
                "stream": True},
        started_ns=START_NS, seconds=420.0, clock_bound_ms=0.4,
    )  # fmt: skip


def knee() -> Knee:
    return Knee(
        status="knee", knee_step=8, cap=6, steady=4, safe_cap=6, slo_cap=6, most_likely=6, confidence=0.97,
        range=(6, 8),
        votes=[
            Vote(users=2, A=False, B=False, C=False, p_a=0.0, p_c=0.0, e_x=0.98, e_p95=0.03,
                 why="p95 rose 4 % while requests served rose 95 %"),
            Vote(users=4, A=False, B=False, C=False, p_a=0.0, p_c=0.0, e_x=0.97, e_p95=0.05,
                 why="p95 rose 4 % while requests served rose 95 %"),
            Vote(users=6, A=False, B=False, C=False, p_a=0.01, p_c=0.0, e_x=0.95, e_p95=0.08,
                 why="p95 rose 4 % while requests served rose 95 %"),
            Vote(users=8, A=True, B=False, C=True, p_a=1.0, p_c=0.99, e_x=0.03, e_p95=1.1,
                 why="p95 rose 33 % while requests served stayed level"),
            Vote(users=12, A=True, B=None, C=True, p_a=1.0, p_c=1.0, e_x=0.02, e_p95=1.2,
                 why="p95 rose 68 % while requests served fell 2 %"),
        ],
        cross_checks={
            "usl": CrossCheck(
                cap=6, agrees=True,
                detail="contention 0.010, coherency 0.0091, peak at 9.8, growth halved at 6.2",
            ),
            "kneedle": CrossCheck(cap=8, detail="largest bend of the throughput curve, S = 1", agrees=False),
            "power": CrossCheck(cap=None, detail="", agrees=None),
        },
        notes=["Warm-up cut at 1 and 2: 9 requests do not count for the votes."],
    )  # fmt: skip


def experiments() -> dict[str, Experiment]:
    return {
        "modality": Experiment(
            verdict="image_count",
            text="The number of images is the main variable: several images take 1.83 times as long as text "
            "alone.",
            columns=["kind", "n", "compared", "in_tokens", "ttft_p50_ms", "total_p50_ms", "first_ttft_ms"],
            rows=[["text_only", 5, 5, 210, 190.2, 760.0, 260.4],
                  ["one_image", 5, 5, 990, 301.0, 871.9, 410.0],
                  ["multi_image", 5, 4, 3300, 820.7, 1391.2, None]],
            problems=[
                "1 requests of multi_image are not compared: their answers differ from 64 tokens by more "
                "than 5 %"
            ],
        ),
        "image_sweep": Experiment(
            verdict="grows",
            text="No jump: the time to the first token grows steadily with the picture, by about 378 ms per "
            "million pixels (120 ms at 512 px, 640 ms at 1280 px).",
            columns=["side", "n", "in_tokens", "ttft_p50_ms", "ttft_p95_ms", "total_p50_ms"],
            rows=[[512, 5, 340, 120.0, 131.0, 690.0], [768, 5, 760, 180.0, 196.0, 750.0],
                  [1024, 5, 1370, 420.0, 455.0, 990.0], [1280, 5, 2130, 640.0, 702.0, 1210.0]],
            figures={"max_image_side": 768},
        ),
    }  # fmt: skip


def limits() -> list[Limit]:
    return [
        Limit(
            section="concurrency",
            key="cap",
            value=6,
            why="the last step before the knee at 8, confidence 97 %",
        ),
        Limit(
            section="concurrency",
            key="steady",
            value=4,
            why="one step below the cap; the rest is kept for bursts",
        ),
        Limit(
            section="timeouts",
            key="ttft_ms",
            value=1100,
            why="p99 of 367 requests at 6 users, 709 ms, x 1.5, rounded up",
        ),
        Limit(
            section="input_limits",
            key="max_image_side",
            value=768,
            why="the largest image served at the cap of 6 users",
        ),
        Limit(
            section="input_limits",
            key="max_input_tokens",
            value=None,
            why="the service reports no token counts",
        ),
    ]


def without(data: RunData, *names: str) -> RunData:
    """Return the run with some of its tables empty."""
    rows = {"requests": Request, "gpu": GpuSample, "engine": EngineSample}
    tables = {
        name: table(rows[name]) if name in names else getattr(data, name)
        for name in ("requests", "gpu", "engine")
    }
    return dataclasses.replace(data, **tables)
