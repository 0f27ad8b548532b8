import base64
import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.payloads.layout import Slot, TextHole
from harness.payloads.pictures import Source, picture
from harness.payloads.recorded import count, read
from harness.payloads.replay import LINKED, NO_TEXT, NOT_JPEG, Prepared, picture_files, prepared
from harness.profile import ImageSpec, Profile


def encoded_picture(kind: str = "jpeg", size: int = 64) -> bytes:
    out = io.BytesIO()
    picture(Source("photo", 0), ImageSpec(side=size), 1)[0].save(out, kind)
    return out.getvalue()


JPEG, PNG = encoded_picture(), encoded_picture("png")


def data_url(raw: bytes = JPEG, mime: str = "image/jpeg") -> str:
    return f"data:{mime};base64,{base64.b64encode(raw).decode()}"


def chat(*parts: Any, **more: Any) -> dict[str, Any]:
    content = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else list(parts)
    return {"model": "x", "messages": [{"role": "user", "content": content}], "stream": True, **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


@pytest.fixture
def recorded(make, tmp_path: Path):
    """Return a maker of profiles that replay the given lines (bodies or raw text)."""

    def made(*lines: Any, rewrite: bool = False, **sections: Any) -> Profile:
        raw = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
        (tmp_path / "traffic.jsonl").write_text(raw, encoding="utf-8", newline="")
        return make(replay={"file": "traffic.jsonl", "rewrite": rewrite}, **sections)

    return made


def joined(body: Prepared, nonce: bytes = b"N") -> bytes:
    """Return the body with its pictures, and `nonce` repeated for the text nonce."""
    return b"".join(
        nonce * piece.width
        if isinstance(piece, TextHole)
        else body.images[piece.number].encoded.text
        if isinstance(piece, Slot)
        else piece
        for piece in body.pieces
    )


def prepare_all(profile: Profile) -> list[Prepared]:
    return [prepared(line, nonces=True) for line in read(profile)]


ODD = (
    '{ "stream":true,"messages" : [ {"content":"caf\\u00e9 \\ud83d\\ude00 \\/ 图",'
    '"role":"user"} ],"n":1.50e0 , "seed" :-0}'
)


@pytest.mark.parametrize(
    ("line", "body"),
    [
        (ODD, ODD),  # blanks, escapes, order of keys and the spelling of numbers are kept
        (f'{{"id": 1, "body":{ODD} }}', ODD),  # as in batch files
        (f"  {ODD}\r", ODD),
    ],
)
def test_without_unique_and_rewrite_a_body_is_the_recorded_bytes(line: str, body: str, recorded) -> None:
    (found,) = read(recorded(line))
    assert joined(prepared(found, nonces=False)) == body.encode()


def test_with_nonces_only_the_start_of_the_first_text_changes(recorded) -> None:
    (found,) = read(recorded(ODD))
    body = prepared(found, nonces=True)
    assert joined(body) == ODD.replace("caf", "N" * 16 + " caf").encode()
    assert body.text_chars == 17 + len("café 😀 / 图")
    assert body.limits == ()


def test_the_nonce_stands_before_the_system_prompt_since_a_cache_matches_from_there(recorded) -> None:
    line = {
        "messages": [
            {"role": "system", "content": [text("be brief")]},
            {"role": "assistant", "content": None},
            {"role": "user", "content": "hello"},
        ],
        "stream": True,
    }
    (found,) = read(recorded(line))
    sent = json.loads(joined(prepared(found, nonces=True)))
    assert sent["messages"][0]["content"][0]["text"] == "N" * 16 + " be brief"
    assert sent["messages"][1:] == line["messages"][1:]


def test_kind_follows_from_the_number_of_images(recorded) -> None:
    one, two = [text("a"), image(data_url())], [text("a"), image(data_url()), image("https://h/x.jpg")]
    kinds = [prepared(line, nonces=False).kind for line in read(recorded(chat("a"), chat(*one), chat(*two)))]
    assert kinds == ["text_only", "one_image", "multi_image"]


def test_a_data_url_is_kept_and_takes_a_nonce_as_a_jpeg(recorded) -> None:
    line = chat(text("a"), image(data_url()), image(data_url(PNG, "image/png")))
    (found,) = read(recorded(line))
    body = prepared(found, nonces=True)
    sent = json.loads(joined(body))
    assert sent["messages"][0]["content"][1:] == line["messages"][0]["content"][1:]
    assert [i.encoded.hole is not None for i in body.images] == [True, False]
    assert [(i.size, i.encoded.raw_bytes) for i in body.images] == [
        ((64, 64), len(JPEG)),
        ((64, 64), len(PNG)),
    ]
    assert body.limits == (NOT_JPEG,)
    assert all(i.encoded.hole is None for i in prepared(found, nonces=False).images)


@pytest.mark.parametrize("url", ["a picture.png", "file:a%20picture.png", "file://{folder}/a picture.png"])
def test_a_file_becomes_a_data_url_of_its_own_bytes(url: str, recorded, tmp_path: Path) -> None:
    (tmp_path / "a picture.png").write_bytes(PNG)
    line = chat(text("a"), image(url.format(folder=tmp_path)))
    profile = recorded(line)
    (found,) = read(profile)
    sent = json.loads(joined(prepared(found, nonces=False)))
    assert sent["messages"][0]["content"][1] == image(data_url(PNG, "image/png"))
    assert [path.name for path in picture_files(profile)] == ["a picture.png"]


def test_links_are_kept_and_their_sizes_unknown(recorded) -> None:
    line = chat(
        text("a"), {"type": "image_url", "image_url": "https://host/x.jpg"}
    )  # some write the URL itself
    (found,) = read(recorded(line))
    body = prepared(found, nonces=True)
    assert json.loads(joined(body, b""))["messages"][0]["content"][1] == line["messages"][0]["content"][1]
    assert (body.images, body.other_images, body.limits) == ((), 1, (LINKED,))


def test_a_request_without_text_says_that_it_takes_no_nonce(recorded) -> None:
    (found,) = read(recorded(chat(image(data_url()))))
    assert prepared(found, nonces=True).limits == (NO_TEXT,)


def test_a_data_url_written_with_escapes_is_kept_byte_for_byte(recorded) -> None:
    raw = json.dumps(chat(text("a"), image(data_url()))).replace("/", "\\/")
    (found,) = read(recorded(raw))
    body = prepared(found, nonces=False)
    assert joined(body) == raw.encode()
    assert body.images[0].size == (64, 64)
    assert body.images[0].encoded.hole is None


def test_rewrite_sets_what_the_profile_fixes_and_keeps_the_rest(recorded) -> None:
    line = chat("a", max_completion_tokens=9, temperature=1, top_p=0.5, stream=False, tools=[{"x": 1}])
    profile = recorded(line, rewrite=True, generation={"max_tokens": 3, "extra": {"top_k": 1}})
    (found,) = read(profile)
    assert json.loads(joined(prepared(found, nonces=False))) == {
        "model": "m",
        "messages": line["messages"],
        "stream": True,
        "temperature": 0,
        "top_p": 0.5,
        "tools": [{"x": 1}],
        "max_tokens": 3,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "top_k": 1,
    }


def test_completions_are_replayed_too(recorded) -> None:
    lines = ({"prompt": "a", "stream": True, "messages": 5}, {"prompt": [1, 2], "stream": True})
    profile = recorded(*lines, target={"endpoint": "completions"})
    bodies = [prepared(line, nonces=True) for line in read(profile)]
    assert json.loads(joined(bodies[0]))["prompt"] == "N" * 16 + " a"
    assert json.loads(joined(bodies[1])) == lines[1]
    assert bodies[1].limits == (NO_TEXT,)


def test_blank_lines_are_passed_over_and_lines_keep_their_numbers(recorded) -> None:
    profile = recorded(chat("a"), "", "  ", chat("b"))
    assert [line.number for line in read(profile)] == [1, 4]
    assert count(profile) == 2


GOOD = json.dumps(chat("fine"))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (GOOD[:-9], "not JSON"),
        ("[]", "not a JSON object"),
        ('{"messages": []}', "no `messages`"),
        ('{"messages": ["x"]}', "a message is no object"),
        ('{"messages": [{"content": 5}]}', "a message is no object with `content`"),
        ('{"messages": [{"content": [{"text": "a"}]}]}', "has no `type`"),
        ('{"messages": [{"content": [{"type": "text"}]}]}', "a text part has no `text`"),
        ('{"messages": [{"content": [{"type": "image_url", "image_url": {}}]}]}', "an image part has no URL"),
        (json.dumps(chat("a", stream=False)), "`stream`"),
        (json.dumps(chat(image("gone.jpg"))), "no such picture: 'gone.jpg'"),
        (json.dumps(chat(image("file://[x"))), "no such picture"),
        (json.dumps(chat(image("\ud800.jpg"))), "no such picture"),
        (json.dumps(chat(image("/9j/" * 2000))), "no such picture"),  # `data:` forgotten
        (json.dumps(chat(image("data:image/jpeg,abc"))), "no base64 image"),
        (json.dumps(chat(image("data:image/jpeg;base64,!!!"))), "not base64"),
        (json.dumps(chat(image(data_url(b"no image")))), "is no image"),
        (json.dumps(chat(image("notes.txt"))), "notes.txt is no image"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_broken_line_37_is_named_with_its_file_and_a_remedy(
    line: str, what: str, recorded, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("no image")
    profile = recorded(*[GOOD] * 36, line, GOOD)
    with pytest.raises(UserError) as caught:
        prepare_all(profile)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'traffic.jsonl'}:37: ")
    assert what in message
    assert caught.value.remedy
    assert message.isprintable()  # one line, whatever stands in the file
    assert len(message) < 400


def test_a_line_that_is_not_utf_8_is_named(recorded, tmp_path: Path) -> None:
    profile = recorded(GOOD)
    with (tmp_path / "traffic.jsonl").open("ab") as out:
        out.write('{"messages": "é"}'.encode("latin-1"))
    with pytest.raises(UserError, match=r"traffic\.jsonl:2: not UTF-8"):
        count(profile)


def test_an_empty_and_a_missing_file_are_named(recorded, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no request"):
        count(recorded("", " "))
    profile = recorded(GOOD)
    (tmp_path / "traffic.jsonl").unlink()
    with pytest.raises(UserError, match=r"traffic\.jsonl"):
        count(profile)


def test_what_might_never_end_is_not_read(recorded, tmp_path: Path) -> None:
    profile = recorded(GOOD)
    (tmp_path / "traffic.jsonl").unlink()
    os.mkfifo(tmp_path / "traffic.jsonl")
    with pytest.raises(UserError, match=r"traffic\.jsonl: traffic\.replay\.file: is no file"):
        count(profile)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
CONTENT = st.text() | st.lists(st.text().map(text) | st.just(image(data_url())), max_size=4)
MESSAGES = st.lists(
    st.builds(
        lambda c, more: {**more, "role": "user", "content": c}, CONTENT, st.dictionaries(st.text(), JSON)
    ),
    min_size=1,
    max_size=3,
)
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(messages=MESSAGES, more=st.dictionaries(st.text(), JSON, max_size=3), ascii_only=st.booleans())
def test_whatever_was_recorded_only_one_text_changes(
    messages: list, more: dict, ascii_only: bool, recorded
) -> None:
    line = json.dumps({**more, "messages": messages, "stream": True}, ensure_ascii=ascii_only)
    (found,) = read(recorded(line))
    assert joined(prepared(found, nonces=False)) == line.encode()
    sent = json.loads(joined(prepared(found, nonces=True)))
    was = json.loads(line)
    spots = [
        (m, "content") if isinstance(m["content"], str) else (p, "text")
        for m in was["messages"]
        for p in (m["content"] if isinstance(m["content"], list) else [m])
        if isinstance(m["content"], str) or p["type"] == "text"
    ]
    if spots:
        place, key = spots[0]
        place[key] = "N" * 16 + " " + place[key]
    assert sent == was


@QUICK
@given(at=st.integers(0, len(GOOD) - 1), put=st.text(max_size=2) | st.sampled_from(["{", '"', "]", "\\"]))
def test_a_damaged_line_is_read_or_refused_but_never_anything_else(at: int, put: str, recorded) -> None:
    with contextlib.suppress(UserError):
        prepare_all(recorded(GOOD[:at] + put + GOOD[at + 1 :]))
