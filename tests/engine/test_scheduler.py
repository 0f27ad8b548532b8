"""The scheduler, stepped by hand: order, limits, memory, and how long things take."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine.config import Batch, Decode, EngineConfig, Kv, Limits, Prefill
from harness.engine.scheduler import Job, Scheduler

replace = msgspec.structs.replace
PLAIN = EngineConfig(
    noise=0,
    batch=Batch(max_num_seqs=2),
    prefill=Prefill(request_ms=2.0, token_us=0, square_ns=0, vision_us=10, slice_ms=6),
    decode=Decode(step_ms=10, seq_ms=1, compute_ms=0),
)


def drain(scheduler: Scheduler, now: float = 0.0) -> list[tuple[float, Job]]:
    """Step until nothing is left; returns (end, job) in the order of finishing."""
    ended = []
    for _ in range(100_000):
        step = scheduler.step(now)
        if step is None:
            return ended
        now += step.duration_s
        ended += [(now, job) for job in step.finished]
    raise AssertionError("never idle")


def test_a_lone_request_takes_a_prefill_step_and_one_decode_step_per_further_token() -> None:
    scheduler = Scheduler(PLAIN)
    job = Job(prompt_tokens=5, out_tokens=4)
    assert scheduler.submit(job, 0.0) is None
    assert drain(scheduler) == [(pytest.approx(0.010 + 3 * 0.011), job)]
    assert job.stages_ms == pytest.approx({"queue_ms": 0, "prefill_ms": 10, "decode_ms": 33})


def test_the_very_first_step_pays_for_a_cold_start() -> None:
    scheduler = Scheduler(replace(PLAIN, cold_ms=250))
    first, second = Job(5, 2), Job(5, 2)
    scheduler.submit(first, 0.0)
    ((ended, _),) = drain(scheduler)
    scheduler.submit(second, ended)
    drain(scheduler, ended)
    assert first.stages_ms == pytest.approx({"queue_ms": 0, "prefill_ms": 260, "decode_ms": 11})
    assert second.stages_ms == pytest.approx({"queue_ms": 0, "prefill_ms": 10, "decode_ms": 11})


def test_requests_beyond_the_places_wait_in_order() -> None:
    scheduler = Scheduler(PLAIN)
    jobs = [Job(5, 3) for _ in range(5)]
    for job in jobs:
        scheduler.submit(job, 0.0)
    scheduler.step(0.0)
    assert (len(scheduler.running), len(scheduler.waiting)) == (2, 3)
    assert [job for _, job in drain(scheduler, 0.01)] == jobs
    assert scheduler.totals.finished == 5
    assert scheduler.totals.generation_tokens == 15
    assert scheduler.totals.prompt_tokens == 25


def test_a_job_of_the_future_is_not_seen_yet() -> None:
    scheduler = Scheduler(PLAIN)
    scheduler.submit(Job(5, 1), 1.0)
    assert scheduler.step(0.99) is None
    assert scheduler.step(1.0) is not None


def test_prefill_is_sliced_in_order_and_its_work_beyond_the_memory_time_is_paid() -> None:
    config = replace(
        PLAIN, prefill=Prefill(request_ms=15.0, token_us=0, square_ns=0, slice_ms=6), decode=Decode(step_ms=1)
    )
    scheduler = Scheduler(config)
    first, second = Job(5, 1), Job(5, 1)
    scheduler.submit(first, 0.0)
    scheduler.submit(second, 0.0)
    ends = drain(scheduler)
    assert [job for _, job in ends] == [first, second]
    assert ends[0][0] == pytest.approx(0.018)  # 6 + 6 + 3 of its own + 3 of the second
    assert ends[1][0] == pytest.approx(0.030)


def test_prefill_grows_faster_than_the_prompt() -> None:
    scheduler = Scheduler(EngineConfig(noise=0, prefill=Prefill(slice_ms=0), limits=Limits()))

    def work_ms(tokens: int) -> float:
        scheduler.submit(Job(tokens, 1), 0.0)
        step = scheduler.step(0.0)
        assert step is not None
        return step.duration_s * 1e3

    base, one, two = EngineConfig().prefill.request_ms, work_ms(8000), work_ms(16_000)
    assert (two - base) / (one - base) > 2.5


def test_an_unsliced_prompt_holds_up_everyone_in_the_batch() -> None:
    config = replace(PLAIN, prefill=replace(PLAIN.prefill, slice_ms=0))
    scheduler = Scheduler(config)
    short = Job(5, 10)
    scheduler.submit(short, 0.0)
    scheduler.step(0.0)
    scheduler.submit(Job(5, 1, vision_tokens=10_000), 0.01)
    step = scheduler.step(0.01)
    assert step is not None
    assert step.duration_s == pytest.approx(0.102)
    assert short in step.tokens  # one token in a step ten times as long


@pytest.mark.parametrize(("running", "ms"), [(1, 10), (4, 10), (5, 12.5), (8, 20)])
def test_decoding_slows_once_compute_outlasts_memory(running: int, ms: float) -> None:
    scheduler = Scheduler(
        replace(
            PLAIN, batch=Batch(max_num_seqs=8), decode=Decode(step_ms=10, seq_ms=0, compute_ms=2.5), noise=0
        )
    )
    for _ in range(running):
        scheduler.submit(Job(5, 50), 0.0)
    for _ in range(10):
        step = scheduler.step(0.0)
    assert step is not None
    assert step.duration_s * 1e3 == pytest.approx(ms)


def test_the_job_admitted_last_is_preempted_and_computed_anew() -> None:
    config = replace(PLAIN, kv=Kv(tokens=64, block_tokens=16))
    scheduler = Scheduler(config)
    old, young = Job(32, 20), Job(32, 20)
    scheduler.submit(old, 0.0)
    scheduler.submit(young, 0.0)
    ended = drain(scheduler)
    assert [job for _, job in ended] == [old, young]
    assert (old.preemptions, young.preemptions) == (0, 1)
    assert scheduler.totals.preemptions == 1
    assert young.generated == 20
    assert scheduler.free_blocks == scheduler.total_blocks


def test_a_request_that_cannot_fit_is_refused_and_one_that_almost_fits_ends_at_the_edge() -> None:
    scheduler = Scheduler(replace(PLAIN, kv=Kv(tokens=64)))
    assert scheduler.submit(Job(64, 1), 0.0) == "too_long"
    job = Job(60, 100)
    assert scheduler.submit(job, 0.0) is None
    assert drain(scheduler)[0][1] is job
    assert job.generated == 4


def test_a_full_queue_refuses_and_free_places_are_no_queue() -> None:
    scheduler = Scheduler(replace(PLAIN, limits=Limits(queue_max=1)))
    assert [scheduler.submit(Job(5, 1), 0.0) for _ in range(4)] == [None, None, None, "queue_full"]
    ignoring = Scheduler(replace(PLAIN, limits=Limits(queue_max=1), on_exceed={"queue_max": "ignore"}))
    assert [ignoring.submit(Job(5, 1), 0.0) for _ in range(9)] == [None] * 9


def test_who_waits_too_long_leaves_and_who_was_admitted_once_stays() -> None:
    scheduler = Scheduler(replace(PLAIN, limits=Limits(queue_wait_ms=50)))
    jobs = [Job(5, 10) for _ in range(3)]
    for job in jobs:
        scheduler.submit(job, 0.0)
    now, expired = 0.0, []
    while (step := scheduler.step(now)) is not None:
        now += step.duration_s
        expired += [(round(now, 3), job) for job in step.expired]
    assert [job for _, job in expired] == jobs[2:]
    assert scheduler.totals.finished == 2


def test_a_repeated_prefix_is_not_computed_again() -> None:
    scheduler = Scheduler(
        replace(PLAIN, prefill=Prefill(request_ms=0, token_us=100, square_ns=0, slice_ms=0))
    )
    blocks = tuple(range(100, 110))
    times = []
    for chain in (blocks, blocks, (*blocks[:5], 1, 2, 3, 4, 5), tuple(range(10))):
        job = Job(160, 1, blocks=chain)
        scheduler.submit(job, 0.0)
        step = scheduler.step(0.0)
        assert step is not None
        times.append((job.cached_tokens, round(step.duration_s * 1e3, 3)))
    # The last token is always computed, so at most 9 of 10 blocks; no step is shorter than its memory time.
    assert times == [(0, 16.0), (144, 10.0), (80, 10.0), (0, 16.0)]
    assert scheduler.totals.prefix_query_tokens == 640
    assert scheduler.totals.prefix_hit_tokens == 224


def test_cancel_frees_the_place_whatever_the_state() -> None:
    scheduler = Scheduler(PLAIN)
    jobs = [Job(5, 5) for _ in range(3)]
    for job in jobs:
        scheduler.submit(job, 0.0)
    scheduler.step(0.0)
    for job in (jobs[0], jobs[2], jobs[2]):
        scheduler.cancel(job)
    assert [job for _, job in drain(scheduler, 0.01)] == [jobs[1]]
    assert scheduler.free_blocks == scheduler.total_blocks


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(1, 60), st.floats(0, 0.5)), min_size=1, max_size=25),
    st.integers(1, 8),
    st.integers(4, 20),
)
def test_every_job_ends_with_its_tokens_and_no_block_is_lost(
    jobs: list[tuple[int, int, float]], places: int, blocks: int
) -> None:
    scheduler = Scheduler(replace(PLAIN, batch=Batch(max_num_seqs=places), kv=Kv(tokens=blocks * 16)))
    taken = []
    for prompt, out, queued in sorted(jobs, key=lambda j: j[2]):
        job = Job(prompt, out)
        if scheduler.submit(job, queued) is None:
            taken.append(job)
    now = 0.0
    while scheduler.waiting or scheduler.running:
        step = scheduler.step(now)
        now = now + step.duration_s if step else scheduler.waiting[0].queued
        assert 0 <= scheduler.free_blocks <= scheduler.total_blocks
        assert len(scheduler.running) <= places
    assert all(job.generated == job.out_tokens for job in taken)
    assert all(min(job.stages_ms.values()) >= 0 for job in taken)
    assert scheduler.free_blocks == scheduler.total_blocks
