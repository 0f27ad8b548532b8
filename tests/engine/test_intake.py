"""Tokens, sizes and prefixes as the engine counts them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engine.caches import Lru, PrefixCache, hash_blocks
from harness.engine.config import EngineConfig, Limits, Prefill
from harness.engine.intake import processed_size, tokens_of
from harness.engine.preprocess import CpuPool, encoder_tokens, visual_tokens
from harness.engine.wire import Envelope, RefusedError

replace = msgspec.structs.replace


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("abcd", 1),
        ("abcde", 2),
        ("a b c d e f", 3),
        ("容量评估", 4),
        ("容量abcdef评估", 6),
        ("한국어", 3),
        ("🙂", 1),
    ],
)
def test_english_is_four_characters_a_token_and_east_asian_one(text: str, tokens: int) -> None:
    assert len(tokens_of(text)) == tokens
    assert "".join(tokens_of(text)) == text


@pytest.mark.parametrize(
    ("size", "tokens"), [((28, 28), 1), ((29, 28), 2), ((512, 512), 361), ((1280, 720), 46 * 26)]
)
def test_an_image_is_one_token_per_patch_begun(size: tuple[int, int], tokens: int) -> None:
    assert visual_tokens(size, 28) == tokens


@pytest.mark.parametrize(
    ("size", "tokens"), [((768, 560), 28 * 20), ((769, 560), 4 * 28 * 20), ((560, 1000), 4 * 20 * 36)]
)
def test_an_image_over_the_large_side_costs_the_encoder_more(size: tuple[int, int], tokens: int) -> None:
    assert encoder_tokens(size, EngineConfig(prefill=Prefill(large_side=768))) == tokens
    assert encoder_tokens(size, EngineConfig()) == visual_tokens(size, 28)


@given(st.integers(1, 20_000), st.integers(1, 20_000))
def test_shrinking_keeps_within_both_limits(width: int, height: int) -> None:
    config = replace(
        EngineConfig(),
        limits=Limits(max_image_side=1000, max_image_pixels=500_000),
        on_exceed={"max_image_side": "downscale", "max_image_pixels": "downscale"},
    )
    small = processed_size((width, height), config)
    assert 1 <= max(small) <= 1000
    assert small[0] * small[1] <= 500_000
    if max(width, height) <= 1000 and width * height <= 500_000:
        assert small == (width, height)


def test_an_image_at_the_limit_passes_and_one_over_it_is_refused() -> None:
    config = replace(EngineConfig(), limits=Limits(max_image_side=1000, max_image_pixels=None))
    assert processed_size((1000, 20), config) == (1000, 20)
    with pytest.raises(RefusedError) as caught:
        processed_size((20, 1001), config)
    assert caught.value.status == 413
    assert caught.value.body["error"]["limit"] == 1000
    assert caught.value.body["error"]["actual"] == 1001


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), max_size=60))
def test_blocks_match_exactly_as_far_as_the_prompts_do(first: list[int], second: list[int]) -> None:
    same = next((n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    common = min(len(first), len(second)) if same is None else same
    cache = PrefixCache(10_000, 4)
    cache.add(hash_blocks(first, 4))
    cached = cache.cached_tokens(hash_blocks(second, 4), max(len(second), 1))
    assert cached == min(common // 4, max(len(second) - 1, 0) // 4) * 4


def test_the_cache_forgets_what_was_used_longest_ago() -> None:
    cache = Lru[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (1, None, 3, 2)


def test_cpu_workers_take_turns() -> None:
    pool = CpuPool(2)
    assert [pool.reserve(0.0, 1.0) for _ in range(4)] == [1.0, 1.0, 2.0, 2.0]
    assert pool.reserve(5.0, 1.0) == 6.0


@given(st.text(max_size=20))
def test_every_token_event_is_one_line_of_json_with_its_text(text: str) -> None:
    envelope = Envelope(chat=True, answer_id="x", model="m", created=1)
    for event in (
        envelope.token(msgspec.json.encode(text)),
        envelope.last(msgspec.json.encode(text), "length", {"pre_ms": 1.0}),
    ):
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n")
        assert event.count(b"\n") == 2
        parsed = msgspec.json.decode(event[6:])
        assert parsed["choices"][0]["delta"]["content"] == text
