import json
from typing import Any

import pytest

from harness.errors import UserError
from harness.payloads.bodies import encode, pieces
from harness.payloads.layout import Slot, TextHole
from harness.profile import ImageSpec, PayloadSpec, TextSpec

TEXT: dict[str, Any] = {"kind": "a", "text": {"chars": 60}}


def joined(found: list) -> dict[str, Any]:
    """Put `N` for a nonce and `I0`, `I1` for the pictures, and parse."""
    parts = [
        b"N" * p.width if isinstance(p, TextHole) else b"I%d" % p.number if isinstance(p, Slot) else p
        for p in found
    ]
    return json.loads(b"".join(parts))


def test_a_text_body_is_what_the_profile_says(make) -> None:
    profile = make(TEXT, generation={"max_tokens": 9, "temperature": 0.5, "ignore_eos": False})
    assert joined(pieces(profile, profile.traffic.mix[0], 4, " words")) == {
        "model": "m",
        "messages": [{"role": "user", "content": "NNNN words"}],
        "max_tokens": 9,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_images_stand_after_the_text_as_data_urls_of_their_format(make) -> None:
    spec = PayloadSpec(kind="a", text=TextSpec(chars=9), images=ImageSpec(count=2, format="webp"))
    content = joined(pieces(make(TEXT), spec, 2, " w"))["messages"][0]["content"]
    assert content == [
        {"type": "text", "text": "NN w"},
        {"type": "image_url", "image_url": {"url": "data:image/webp;base64,I0"}},
        {"type": "image_url", "image_url": {"url": "data:image/webp;base64,I1"}},
    ]


def test_completions_take_a_prompt(make) -> None:
    profile = make(TEXT, target={"endpoint": "completions", "stream": False})
    body = joined(pieces(profile, profile.traffic.mix[0], 3, " w"))
    assert body["prompt"] == "NNN w"
    assert body["stream"] is False
    assert body["ignore_eos"] is True
    assert "messages" not in body
    assert "stream_options" not in body  # only a stream has options


def test_extra_comes_last_and_a_null_takes_a_key_away(make) -> None:
    extra = {"top_p": 0.9, "max_tokens": None, "max_completion_tokens": 5, "nested": {"a": [1]}}
    profile = make(TEXT, generation={"extra": extra})
    body = joined(pieces(profile, profile.traffic.mix[0], 1, ""))
    assert body["top_p"] == 0.9
    assert body["max_completion_tokens"] == 5
    assert body["nested"] == {"a": [1]}
    assert "max_tokens" not in body


@pytest.mark.parametrize("key", ["messages", "prompt"])
def test_extra_may_not_replace_the_prompt(key: str, make) -> None:
    profile = make(TEXT, generation={"extra": {key: []}})
    with pytest.raises(UserError, match=f"generation.extra.{key}"):
        pieces(profile, profile.traffic.mix[0], 1, "")


def test_a_payload_has_its_own_length(make) -> None:
    profile = make(TEXT)
    assert joined(pieces(profile, PayloadSpec(kind="b", max_tokens=3), 1, ""))["max_tokens"] == 3


def test_words_are_escaped_and_unicode_is_kept_as_utf_8(make) -> None:
    profile = make(TEXT)
    # The last words look like the mark of a nonce once they are escaped.
    words = ' "quoted" \\ back \n 图片 \\u0000text\\u0000'
    found = pieces(profile, profile.traffic.mix[0], 1, words)
    assert joined(found)["messages"][0]["content"] == "N" + words
    assert "图片".encode() in b"".join(p for p in found if isinstance(p, bytes))


def test_half_a_surrogate_pair_stays_an_escape() -> None:
    assert json.loads(encode({"a": "\ud83d"})) == {"a": "\ud83d"}
