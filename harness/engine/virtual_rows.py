"""Rows of a virtual run, in the types of a real one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from harness.engine.config import EngineConfig
from harness.engine.gpu import GpuReading
from harness.engine.preprocess import Preprocessor, Size, visual_tokens
from harness.engine.scheduler import Job, Scheduler
from harness.plan import Phase
from harness.profile import PayloadSpec, TextSpec
from harness.records import EngineSample, GpuSample, Outcome, Request

_WALL_NS, _MONO_NS = 1_750_000_000_000_000_000, 1_000_000_000_000  # where virtual time begins
_OUTCOMES: dict[int, Outcome] = {200: "ok", 503: "rejected"}


@dataclass(frozen=True, slots=True)
class Prepared:
    """One payload as the engine sees it."""

    spec: PayloadSpec
    text_tokens: int
    sizes: tuple[Size, ...]
    image_tokens: tuple[int, ...]
    out_tokens: int


@dataclass(slots=True, eq=False, kw_only=True)
class Flight:
    """One request on its way. Times are virtual seconds."""

    user: int
    seq: int
    phase: Phase
    payload: Prepared
    start: float
    first_of_user: bool
    in_window: bool
    ready: float = 0.0  # end of preprocessing
    tokens: list[float] = field(default_factory=list)  # when each left the engine


def prepare(spec: PayloadSpec, config: EngineConfig, max_tokens: int) -> Prepared:
    """Return a payload with its tokens counted by the engine's own rules."""
    text, images = spec.text or TextSpec(chars=60), spec.images
    chars = text.chars or 0
    side = (images.side or 512) if images else 0
    sizes = ((images.width or side, images.height or side),) * images.count if images else ()
    return Prepared(
        spec=spec,
        text_tokens=max(text.tokens or (chars if text.lang == "zh" else -(-chars // 4)), 1),
        sizes=sizes,
        image_tokens=tuple(visual_tokens(size, config.patch_px) for size in sizes),
        out_tokens=spec.max_tokens or max_tokens,
    )


def ns(seconds: float) -> int:
    """Return a virtual time as wall-clock nanoseconds."""
    return _WALL_NS + round(seconds * 1e9)


def request_row(
    flight: Flight, job: Job, end: float, status: int, backoff_s: float, one_way_s: float
) -> Request:
    """Return the record of a request that ended at `end` as its client saw it."""
    ok, payload, tokens = status == 200, flight.payload, flight.tokens
    seen = [(t + one_way_s - flight.start) * 1e3 for t in tokens]
    gaps = sorted(b - a for a, b in itertools.pairwise(seen))
    open_loop = flight.phase.rate is not None
    total_ms = (end - flight.start) * 1e3
    stages = job.stages_ms if ok else {}
    return Request(
        run="virtual",
        worker="virtual",
        user=flight.user,
        seq=flight.seq,
        phase=flight.phase.index,
        label=flight.phase.label,
        users=flight.phase.users,
        rate=flight.phase.rate,
        kind=payload.spec.kind,
        payload=payload.spec.kind,
        in_img=len(payload.sizes),
        img_wh=list(payload.sizes),
        img_bytes=sum(w * h // 6 for w, h in payload.sizes),
        body_bytes=300 + 4 * payload.text_tokens + sum(w * h * 4 // 18 for w, h in payload.sizes),
        in_tokens=job.prompt_tokens if ok else None,
        out_tokens=job.generated if ok else None,
        token_source="usage" if ok else None,
        chunks=len(tokens),
        wall_ns=ns(flight.start),
        due_ns=_MONO_NS + round(flight.start * 1e9) if open_loop else None,
        start_ns=_MONO_NS + round(flight.start * 1e9),
        sent_ms=0.05,
        headers_ms=seen[0] if ok else total_ms,
        ttft_ms=seen[0] if ok else None,
        last_token_ms=seen[-1] if ok else None,
        total_ms=total_ms,
        queued_ms=0.0 if open_loop else None,
        itl_p50_ms=_quantile(gaps, 0.5),
        itl_p95_ms=_quantile(gaps, 0.95),
        itl_max_ms=gaps[-1] if gaps else None,
        client_lag_ms=0.05,
        pre_ms=(flight.ready - flight.start - one_way_s) * 1e3 if ok else None,
        queue_ms=stages.get("queue_ms"),
        prefill_ms=stages.get("prefill_ms"),
        decode_ms=stages.get("decode_ms"),
        stage_source="timings" if ok else None,
        status=status,
        outcome=_OUTCOMES.get(status, "http_error"),
        error=None if ok else f"status {status}",
        finish_reason="length" if ok else None,
        reused=not flight.first_of_user,
        first=flight.first_of_user,
        backoff_ms=backoff_s * 1e3,
        req_id=f"virtual-{flight.seq}",
    )


def engine_row(scheduler: Scheduler, pre: Preprocessor, now: float) -> EngineSample:
    """Return what a scrape of /metrics would show."""
    totals = scheduler.totals
    return EngineSample(
        wall_ns=ns(now),
        mono_ns=_MONO_NS + round(now * 1e9),
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        kv_usage=scheduler.kv_usage,
        preemptions_total=totals.preemptions,
        prefix_hit_tokens_total=totals.prefix_hit_tokens,
        prefix_query_tokens_total=totals.prefix_query_tokens,
        queue_s_sum=totals.queue_s.sum,
        queue_count=totals.queue_s.count,
        prefill_s_sum=totals.prefill_s.sum,
        decode_s_sum=totals.decode_s.sum,
        prompt_tokens_total=totals.prompt_tokens,
        generation_tokens_total=totals.generation_tokens,
        mm_hits_total=pre.hits,
        mm_queries_total=pre.queries,
        source="vllm",
    )


def gpu_row(reading: GpuReading, seq: int, now: float) -> GpuSample:
    """Return what the sidecar would have read."""
    return GpuSample(
        seq=seq,
        host="virtual",
        gpu=reading.uuid,
        index=reading.index,
        name=reading.name,
        mono_ns=_MONO_NS + round(now * 1e9),
        mono_end_ns=_MONO_NS + round(now * 1e9),
        wall_ns=ns(now),
        util=reading.util,
        mem_used_bytes=reading.mem_used_bytes,
        mem_total_bytes=reading.mem_total_bytes,
        mem_api="sim",
        power_w=reading.power_w,
        energy_j=reading.energy_j,
        source="sim",
    )


def _quantile(values: list[float], q: float) -> float | None:
    """Return a quantile of sorted values by linear interpolation (numpy is slow on 24 values)."""
    if not values:
        return None
    place = q * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
