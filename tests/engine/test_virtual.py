"""A run in virtual time has the rows of a real one, and they fit together."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from harness import rundir
from harness.engine.config import EngineConfig, Limits
from harness.engine.presets import PRESETS
from harness.engine.virtual import ladder, save, simulate
from harness.profile import Hold, ImageSpec, PayloadSpec, TextSpec

replace = msgspec.structs.replace
MIX = PRESETS["demo"].traffic
SHORT = Hold(seconds=3, min_requests=40, max_seconds=60, settle_s=1)


def test_windows_follow_the_rules_of_a_step() -> None:
    run = simulate(EngineConfig(), ladder(MIX, hold=SHORT))
    assert [phase.users for phase in run.phases] == [1, 2, 4, 6, 8, 12]
    for phase in run.phases:
        assert phase.ready_ns + 1_000_000_000 <= phase.t0_ns < phase.t1_ns <= phase.end_ns
        started = [r for r in run.requests if phase.t0_ns <= r.wall_ns < phase.t1_ns]
        assert len([r for r in started if r.outcome == "ok"]) >= max(40, 4 * phase.users)
        assert all(r.wall_ns + r.total_ms * 1e6 <= phase.end_ns + 1e6 for r in started)
        assert {r.phase for r in started} == {phase.index}
        in_flight = sum(r.total_ms for r in started) / (phase.t1_ns - phase.t0_ns) * 1e6
        assert 0.9 < in_flight / phase.users < 1.1


def test_rows_are_consistent() -> None:
    run = simulate(EngineConfig(), ladder(MIX, hold=SHORT))
    assert sorted(r.seq for r in run.requests) == list(range(len(run.requests)))
    for row in run.requests:
        assert row.outcome == "ok"
        stages = [row.pre_ms, row.queue_ms, row.prefill_ms, row.decode_ms]
        assert all(s is not None and s >= 0 for s in stages)
        assert sum(s or 0 for s in stages) == pytest.approx(row.total_ms - 0.3, abs=1e-6)
        assert row.ttft_ms == pytest.approx(row.total_ms - (row.decode_ms or 0), abs=1e-6)
        assert row.out_tokens == row.chunks == 24
    assert sum(r.first for r in run.requests) == 12
    counts = Counter(r.kind for r in run.requests)
    assert counts["text_only"] / len(run.requests) == pytest.approx(0.5, abs=0.05)
    one_image = next(r for r in run.requests if r.kind == "one_image")
    assert (one_image.img_wh, one_image.in_tokens) == ([(512, 512)], 15 + 19 * 19)


def test_the_same_seed_gives_the_same_rows_and_another_seed_others() -> None:
    profile = ladder(MIX, users=[1, 4], hold=SHORT)
    first, again, other = (simulate(EngineConfig(), profile, seed=s) for s in (1, 1, 2))
    assert first.requests == again.requests
    assert [r.total_ms for r in first.requests[:50]] != [r.total_ms for r in other.requests[:50]]


def test_samples_come_each_second_and_counters_never_fall() -> None:
    run = simulate(EngineConfig(), ladder(MIX, hold=SHORT))
    for rows in (run.engine, run.gpu):
        gaps = {b.wall_ns - a.wall_ns for a, b in itertools.pairwise(rows)}
        assert gaps == {1_000_000_000}
    totals = [s.generation_tokens_total or 0 for s in run.engine]
    assert totals == sorted(totals)
    assert sum(r.out_tokens or 0 for r in run.requests) - totals[-1] < 30 * 24
    assert all(s.name == "Simulated GPU" and 0 <= (s.util or 0) <= 1 for s in run.gpu)
    energy = [s.energy_j or 0 for s in run.gpu]
    assert energy == sorted(energy)


def test_an_open_loop_sends_at_its_rate_whatever_comes_back() -> None:
    run = simulate(EngineConfig(), ladder(MIX, rates=[10, 40], hold=SHORT))
    for phase in run.phases:
        started = [r for r in run.requests if phase.t0_ns <= r.wall_ns < phase.t1_ns]
        assert all(r.due_ns == r.start_ns and r.rate == phase.rate for r in started)
        assert len(started) / (phase.t1_ns - phase.t0_ns) * 1e9 == pytest.approx(phase.rate, rel=0.4)
    queued = [r.queue_ms or 0 for r in run.requests]
    assert max(queued[-20:]) > 300 > max(queued[:20])  # 40/s is more than it carries


def test_a_full_queue_refuses_and_its_users_back_off() -> None:
    config = replace(EngineConfig(), limits=Limits(queue_max=1))
    run = simulate(config, ladder(MIX, users=[12], hold=SHORT))
    outcomes = Counter(r.outcome for r in run.requests)
    assert outcomes["rejected"] > 10
    assert outcomes["ok"] > 40
    refused = [r for r in run.requests if r.outcome == "rejected"]
    assert {r.status for r in refused} == {503}
    assert all(r.ttft_ms is None and r.out_tokens is None and 100 <= r.backoff_ms <= 2000 for r in refused)


def test_waiting_too_long_is_a_504() -> None:
    config = replace(EngineConfig(), limits=Limits(queue_wait_ms=100))
    run = simulate(config, ladder(MIX, users=[12], hold=SHORT))
    late = [r for r in run.requests if r.status == 504]
    assert len(late) > 10
    assert all(r.outcome == "http_error" and r.total_ms > 100 for r in late)


def test_every_experiment_runs_and_repeated_input_hits_the_caches() -> None:
    run = simulate(EngineConfig(), ladder(MIX, hold=SHORT), "review")
    labels = [phase.experiment for phase in run.phases]
    assert list(dict.fromkeys(labels)) == ["steps", "modality", "image_sweep", "repeat", "isolation", "cache"]
    by_kind = Counter(r.kind for r in run.requests)
    assert [by_kind[k] for k in ("repeat_one_image", "image_unique", "prefix_repeated")] == [20, 11, 11]
    cached = [r.prefill_ms or 0 for r in run.requests if r.kind == "image_repeated"]
    unique = [r.prefill_ms or 0 for r in run.requests if r.kind == "image_unique"]
    assert max(cached[1:]) < 0.7 * min(unique)
    assert run.engine[-1].mm_hits_total in (28, 29)  # 19 + 10, the last one after the last sample perhaps
    ladder_only = simulate(EngineConfig(), ladder(MIX, hold=SHORT))
    assert (ladder_only.engine[-1].mm_hits_total, ladder_only.engine[-1].prefix_hit_tokens_total) == (0, 0)


def test_lengths_are_counted_as_the_engine_counts_them() -> None:
    specs = [
        PayloadSpec(kind="english", text=TextSpec(chars=41)),
        PayloadSpec(kind="chinese", text=TextSpec(chars=41, lang="zh")),
        PayloadSpec(kind="tokens", text=TextSpec(tokens=100), max_tokens=7),
        PayloadSpec(kind="images", images=ImageSpec(count=2, width=57, height=28), text=TextSpec(chars=4)),
    ]
    run = simulate(EngineConfig(), ladder(specs, users=[1], hold=SHORT))
    tokens = {r.kind: (r.in_tokens, r.out_tokens) for r in run.requests}
    assert tokens == {"english": (11, 24), "chinese": (41, 24), "tokens": (100, 7), "images": (1 + 2 * 3, 24)}


def test_a_virtual_run_can_be_saved_and_read_as_any_run(tmp_path: Path) -> None:
    run = simulate(EngineConfig(), ladder(MIX, users=[1, 2], hold=SHORT))
    data = rundir.read_run(save(run, tmp_path).path)
    assert len(data.requests) == len(run.requests)
    assert data.info == run.info
    assert data.requests["total_ms"].sum() == pytest.approx(sum(r.total_ms for r in run.requests))
    assert (len(data.gpu), len(data.engine)) == (len(run.gpu), len(run.engine))
    assert data.broken_lines == {}


def test_a_ladder_of_2000_requests_is_simulated_in_a_moment() -> None:
    profile = ladder(MIX, hold=replace(SHORT, min_requests=300))
    begun = time.process_time()
    run = simulate(EngineConfig(), profile)
    assert len(run.requests) > 1800
    assert time.process_time() - begun < 2.0  # about 0.15 s on a quiet machine
