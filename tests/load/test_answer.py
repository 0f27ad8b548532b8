"""What an answer says of tokens, times and stages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load.answer import Answer, add_reading, error_text, is_rejection, quantile
from harness.load.sse import Reader


def described(
    *stamps_ms: float, streamed: bool = True, server_timing: str | None = None, **said: Any
) -> Answer:
    answer = Answer(0, 1_000_000_000, 0.0, "ok")
    reader = Reader()
    reader.stamps = [1_000_000_000 + round(ms * 1e6) for ms in stamps_ms]
    for name, value in said.items():
        setattr(reader, name, value)
    add_reading(answer, reader, streamed=streamed, server_timing=server_timing)
    return answer


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50), st.floats(0, 1))
def test_quantiles_are_those_of_numpy(values: list[int], share: float) -> None:
    values.sort()
    assert quantile(values, share) == pytest.approx(float(np.quantile(values, share)), rel=1e-9, abs=1e-6)


def test_times_of_a_stream() -> None:
    answer = described(50, 60, 75, 80)
    assert (answer.ttft_ms, answer.last_token_ms, answer.chunks) == (50.0, 80.0, 4)
    assert (answer.itl_p50_ms, answer.itl_max_ms) == (10.0, 15.0)
    assert answer.itl_p95_ms == pytest.approx(14.5)


def test_one_text_has_no_interval_and_none_has_no_time() -> None:
    assert (described(50).itl_p50_ms, described(50).itl_max_ms) == (None, None)
    assert (described().ttft_ms, described().out_tokens, described().token_source) == (None, None, None)


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ({"usage": {"prompt_tokens": 7, "completion_tokens": 9}}, (7, 9, "usage")),
        ({"usage": {"prompt_tokens": 7}, "timings": {"predicted_n": 5}}, (7, 5, "server")),
        ({"usage": {"completion_tokens": None}}, (None, 2, "chunks")),
        ({"usage": {"completion_tokens": "many", "prompt_tokens": -1}}, (None, 2, "chunks")),
        ({"usage": {"completion_tokens": True}}, (None, 2, "chunks")),
        ({}, (None, 2, "chunks")),
    ],
)
def test_tokens(said: dict[str, Any], tokens: tuple[int | None, int | None, str | None]) -> None:
    answer = described(1, 2, **said)
    assert (answer.in_tokens, answer.out_tokens, answer.token_source) == tokens


def test_an_answer_that_is_not_streamed_has_no_interval_and_no_count_of_its_own() -> None:
    answer = described(90, streamed=False)
    assert (answer.ttft_ms, answer.chunks, answer.out_tokens) == (90.0, 0, None)
    assert described(90, streamed=False, usage={"completion_tokens": 4}).out_tokens == 4


@pytest.mark.parametrize(
    ("timings", "header", "stages"),
    [
        (
            {"pre_ms": 1, "queue_ms": 0.0, "prefill_ms": 3.5, "decode_ms": 4},
            None,
            (1, 0, 3.5, 4, "timings"),
        ),
        ({"prompt_ms": 5.0, "predicted_ms": 6.0, "prompt_n": 3}, None, (None, None, 5, 6, "timings")),
        (
            None,
            'pre;dur=1.5, queue;desc="a, b";dur=2, prefill; dur=3 ,decode;dur="4", total;dur=9',
            (1.5, 2, 3, 4, "server_timing"),
        ),
        (None, "queue_ms;dur=2", (None, 2, None, None, "server_timing")),
        ({"queue_ms": 1}, "queue;dur=7", (None, 1, None, None, "timings")),
        ({"queue_ms": "long", "pre_ms": -1}, "my-pre;dur=7, cache;dur=7", (None, None, None, None, None)),
        (None, None, (None, None, None, None, None)),
    ],
)
def test_stages(timings: dict[str, Any] | None, header: str | None, stages: tuple[Any, ...]) -> None:
    answer = described(1, timings=timings, server_timing=header)
    found = (answer.pre_ms, answer.queue_ms, answer.prefill_ms, answer.decode_ms, answer.stage_source)
    assert found == stages


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"error": {"message": "too\n  many", "code": 1}}, "too many"),
        ({"detail": [{"msg": "bad"}]}, "[{'msg': 'bad'}]"),
        ({"error": "plain"}, "plain"),
        ({"code": 7}, "{'code': 7}"),
        (ConnectionResetError(104, "Connection reset by peer"), "[Errno 104] Connection reset by peer"),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_error_text_is_one_short_line(value: Any, text: str) -> None:
    assert error_text(value) == text


@pytest.mark.parametrize(
    ("error", "rejected"),
    [
        ({"code": 503}, True),
        ({"code": "429"}, True),
        ({"code": 413}, True),
        ({"code": 500}, False),
        ("503", False),
    ],
)
def test_codes_by_which_work_is_turned_away(error: Any, rejected: bool) -> None:
    assert is_rejection(error) is rejected
