"""The engine's scheduler: a FIFO queue, a continuous batch, prefill, decode steps and a paged KV cache.

It knows no clock and never sleeps: the caller says what time it is and is told how long the next step takes.
So the server runs it in real time and the tests run whole ladders in virtual time, by the same code.

The order of a step is vLLM's: running sequences get room for their next token first, preempting the one
admitted last where there is none (it is computed anew later); then waiting requests are admitted in order
while there are places and blocks; then prefill work is handed out in order. A step takes the longer of its
memory and its compute time: prefill is free while it fits beside the weights that decoding reads anyway, and
its own server from there on. That is what lets a planted limit stand as a corner and not as a slope.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.engine.caches import PrefixCache
from harness.engine.config import EngineConfig

Refusal = Literal["queue_full", "too_long"]
_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


@dataclass(slots=True, eq=False)
class Job:
    """One request in the engine. Times are seconds of the caller's clock, None until they come."""

    prompt_tokens: int
    out_tokens: int  # the length at which the answer ends
    blocks: tuple[int, ...] = ()  # hashes of the prompt's full blocks; empty: nothing is reused
    vision_tokens: int = 0  # the encoder's work, in visual tokens
    owner: Any = None  # the caller's own
    queued: float = 0.0
    started: float | None = None  # first admitted to the batch
    first: float | None = None  # first token
    done: float | None = None
    generated: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    prefill_left_ms: float = 0.0
    kv_blocks: int = 0

    @property
    def stages_ms(self) -> dict[str, float]:
        """Queue, prefill and decode time of a finished job, in milliseconds."""
        started, first, done = self.started or 0.0, self.first or 0.0, self.done or 0.0
        return {
            "queue_ms": (started - self.queued) * 1e3,
            "prefill_ms": (first - started) * 1e3,
            "decode_ms": (done - first) * 1e3,
        }


@dataclass(slots=True, frozen=True)
class Step:
    """One step of the batch: what is true `duration_s` after it began."""

    duration_s: float
    tokens: list[Job]  # each got one token
    finished: list[Job]  # the last of them ended its answer; all are in `tokens` too
    expired: list[Job]  # waited longer than allowed, and left the queue


@dataclass(slots=True)
class Histogram:
    """Counts per bucket (upper bounds in seconds, the last one open) and their sum."""

    bounds: tuple[float, ...] = _BOUNDS_S
    counts: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_S) + 1))
    sum: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(slots=True)
class Totals:
    """Everything counted since the engine started."""

    preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0
    queue_s: Histogram = field(default_factory=Histogram)
    prefill_s: Histogram = field(default_factory=Histogram)
    decode_s: Histogram = field(default_factory=Histogram)


class Scheduler:
    """Queue and batch of one engine."""

    def __init__(self, config: EngineConfig) -> None:
        self.config, self.totals = config, Totals()
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []  # in the order of admission
        self.total_blocks = config.kv.tokens // config.kv.block_tokens
        self.free_blocks = self.total_blocks
        wait_ms = config.limit("queue_wait_ms")
        self._wait_s = None if wait_ms is None else wait_ms / 1e3
        self._most = config.limit("queue_max")
        self._prefix = PrefixCache(config.caches.prefix_tokens, config.kv.block_tokens)
        self._random = random.Random(config.seed)
        self._cold_ms = config.cold_ms

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0-1."""
        return 1 - self.free_blocks / self.total_blocks

    def submit(self, job: Job, now: float) -> Refusal | None:
        """Queue a job that is ready at `now`; returns why it is refused, None where it is taken."""
        places = self.config.batch.max_num_seqs
        if self._most is not None and len(self.running) + len(self.waiting) >= places + self._most:
            return "queue_full"
        room = self.total_blocks * self.config.kv.block_tokens - job.prompt_tokens
        if room < 1:
            return "too_long"
        job.out_tokens = min(job.out_tokens, room)
        job.queued = now
        self.waiting.append(job)
        return None

    def cancel(self, job: Job) -> None:
        """Forget a job whose caller has gone; one that has ended is ignored."""
        if job in self.running:
            self.running.remove(job)
            self._release(job)
        elif job in self.waiting:
            self.waiting.remove(job)

    def step(self, now: float) -> Step | None:
        """Run the step that begins at `now`; None where there is nothing to do at this time.

        Jobs queued later than `now` are not seen yet: a caller that lags behind its clock may catch up step
        by step.
        """
        expired = self._expire(now)
        preempted = self._grow()
        if not preempted:
            self._admit(now)
        if not self.running:
            return Step(0.0, [], [], expired) if expired else None
        decoding = [job for job in self.running if job.prefill_left_ms <= 0]
        work_ms, computed = self._prefill()
        duration_s = self._duration_s(len(decoding), work_ms)
        tokens = decoding + computed
        return Step(duration_s, tokens, self._emit(tokens, now + duration_s), expired)

    def _expire(self, now: float) -> list[Job]:
        if self._wait_s is None:
            return []
        late = [j for j in self.waiting if j.started is None and now - j.queued > self._wait_s]
        for job in late:
            self.waiting.remove(job)
        return late

    def _grow(self) -> bool:
        """Give each decoding job room for one more token; returns whether one had to be preempted."""
        size, preempted = self.config.kv.block_tokens, False
        for job in list(self.running):
            if job.prefill_left_ms > 0 or job.prompt_tokens + job.generated < job.kv_blocks * size:
                continue
            while not self.free_blocks and job.kv_blocks:
                self._preempt(self.running[-1])
                preempted = True
            if job.kv_blocks:  # 0: it was preempted itself
                job.kv_blocks += 1
                self.free_blocks -= 1
        return preempted

    def _preempt(self, job: Job) -> None:
        self.running.remove(job)
        self._release(job)
        job.prefill_left_ms = 0.0
        job.preemptions += 1
        self.totals.preemptions += 1
        self.waiting.appendleft(job)

    def _release(self, job: Job) -> None:
        self.free_blocks += job.kv_blocks
        job.kv_blocks = 0

    def _admit(self, now: float) -> None:
        size, places = self.config.kv.block_tokens, self.config.batch.max_num_seqs
        while self.waiting and len(self.running) < places and self.waiting[0].queued <= now:
            job = self.waiting[0]
            needed = -(-(job.prompt_tokens + job.generated) // size)
            if needed > self.free_blocks:
                return
            self.waiting.popleft()
            self.free_blocks -= needed
            job.kv_blocks = needed
            job.prefill_left_ms = self._prefill_ms(job)
            if job.started is None:
                job.started = now
            self.running.append(job)

    def _prefill_ms(self, job: Job) -> float:
        """Return the work of a prompt, or of a preempted sequence, whose images were encoded before."""
        cost, tokens, totals = self.config.prefill, job.prompt_tokens + job.generated, self.totals
        cached = 0
        if self.config.caches.prefix:
            cached = self._prefix.cached_tokens(job.blocks, job.prompt_tokens)
        vision_us = 0.0
        if job.started is None:
            job.cached_tokens = cached
            vision_us = cost.vision_us * job.vision_tokens
            if self.config.caches.prefix:
                totals.prefix_query_tokens += job.prompt_tokens
                totals.prefix_hit_tokens += cached
        token_us = cost.token_us * (tokens - cached)
        square_ns = cost.square_ns * (tokens * tokens - cached * cached)
        return max(cost.request_ms + (token_us + vision_us) / 1e3 + square_ns / 1e6, 1e-6)

    def _prefill(self) -> tuple[float, list[Job]]:
        """Hand out one step's prefill work in order; returns it in ms, and the jobs that it completed."""
        slice_ms = self.config.prefill.slice_ms or float("inf")
        done_ms, computed = 0.0, []
        for job in self.running:
            if job.prefill_left_ms <= 0:
                continue
            work_ms = min(job.prefill_left_ms, slice_ms - done_ms)
            job.prefill_left_ms -= work_ms
            done_ms += work_ms
            if job.prefill_left_ms > 0:
                break
            computed.append(job)
            if self.config.caches.prefix:
                self._prefix.add(job.blocks)
            if done_ms >= slice_ms or slice_ms == float("inf"):
                break
        return done_ms, computed

    def _duration_s(self, decoding: int, prefill_ms: float) -> float:
        cost = self.config.decode
        memory_ms = cost.step_ms + cost.seq_ms * decoding
        compute_ms = cost.compute_ms * decoding + prefill_ms
        wobble = max(0.5, self._random.gauss(1.0, self.config.noise)) if self.config.noise else 1.0
        cold_ms, self._cold_ms = self._cold_ms, 0.0
        return (max(memory_ms, compute_ms) * wobble + cold_ms) / 1e3

    def _emit(self, tokens: list[Job], at: float) -> list[Job]:
        """Count one token for each job; returns those whose answer is complete."""
        finished = []
        for job in tokens:
            job.generated += 1
            if job.first is None:
                job.first = at
            if job.generated >= job.out_tokens:
                job.done = at
                finished.append(job)
        for job in finished:
            self.running.remove(job)
            self._release(job)
            self._count(job)
        self.totals.generation_tokens += len(tokens)
        return finished

    def _count(self, job: Job) -> None:
        totals, stages = self.totals, job.stages_ms
        totals.finished += 1
        totals.prompt_tokens += job.prompt_tokens
        totals.queue_s.observe(stages["queue_ms"] / 1e3)
        totals.prefill_s.observe(stages["prefill_ms"] / 1e3)
        totals.decode_s.observe(stages["decode_ms"] / 1e3)
