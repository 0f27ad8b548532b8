import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.payloads.text import length_in_chars, nonce_width, prose, words_after_nonce
from harness.profile import TextSpec

LANGS = st.sampled_from(["en", "zh"])


@given(st.integers(1, 3000), LANGS, st.integers(0, 4), st.text(max_size=5))
def test_nonce_and_words_have_exactly_the_length_asked_for(
    chars: int, lang: str, images: int, seed: str
) -> None:
    words = words_after_nonce(chars, lang, images, seed)
    assert nonce_width(chars) + len(words) == chars
    assert words == words.rstrip()
    assert "\0" not in words


def test_the_same_seed_gives_the_same_text_and_another_seed_another() -> None:
    assert words_after_nonce(500, "en", 0, "1") == words_after_nonce(500, "en", 0, "1")
    assert words_after_nonce(500, "en", 0, "1") != words_after_nonce(500, "en", 0, "2")


@pytest.mark.parametrize(
    ("lang", "images", "start"),
    [
        ("en", 0, " Summarize the following text. "),
        ("en", 1, " Describe the image in detail. "),
        ("en", 4, " Describe the images one by one in detail. "),
        ("zh", 0, " 请概括下面的文字。"),
        ("zh", 1, " 请详细描述这张图片。"),
        ("zh", 4, " 请逐一详细描述这些图片。"),
    ],
)
def test_a_text_asks_for_what_stands_beside_it(lang: str, images: int, start: str) -> None:
    assert words_after_nonce(200, lang, images, "1").startswith(start)


def test_a_short_text_takes_the_request_that_fits() -> None:
    assert words_after_nonce(16 + 14, "en", 1, "1") == " Describe it.."
    assert "Describe" not in words_after_nonce(16 + 8, "en", 1, "1")


def test_prose_is_of_sentences_and_of_its_language() -> None:
    english, chinese = prose(400, "en", random.Random(1)), prose(400, "zh", random.Random(1))
    assert len(english) >= 400
    assert english.isascii()
    assert english.count(". ") >= 3
    assert english[0].isupper()
    assert sum("\u4e00" <= c <= "\u9fff" for c in chinese) > 0.85 * len(chinese)


@given(st.integers(1, 100_000), LANGS)
def test_a_token_more_is_never_fewer_characters(tokens: int, lang: str) -> None:
    shorter, longer = (length_in_chars(TextSpec(tokens=n, lang=lang)) for n in (tokens, tokens + 1))
    assert 0 < shorter <= longer
    assert longer - shorter <= 6


def test_a_calibration_replaces_the_estimate_of_its_own_language_only() -> None:
    spec = TextSpec(tokens=1000, lang="zh")
    assert length_in_chars(spec, {"zh": 1.2}) == 1200
    assert length_in_chars(spec, {"en": 4.0}) == length_in_chars(spec)


def test_a_length_in_characters_is_taken_as_it_is() -> None:
    assert length_in_chars(TextSpec(chars=60), {"en": 4.0}) == 60
