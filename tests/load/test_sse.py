"""The reader: what counts as text, however the bytes are cut, and that its short cut is never wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load import sse
from harness.load.sse import Reader


def event(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "c-1", "choices": list(choices), **more}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}


def wire(*events: dict[str, Any] | str, end: str = "\n", ascii_only: bool = False) -> bytes:
    lines = [
        each if isinstance(each, str) else f"data: {json.dumps(each, ensure_ascii=ascii_only)}"
        for each in events
    ]
    return "".join(line + end + end for line in lines).encode()


def read(*pieces: bytes) -> Reader:
    """Feed the pieces at moments 1, 2, ..., and end."""
    reader = Reader()
    for moment, piece in enumerate(pieces, 1):
        reader.at_ns = moment
        reader.feed(bytearray(piece))
    reader.end()
    return reader


def facts(reader: Reader) -> tuple[Any, ...]:
    return (
        len(reader.stamps),
        reader.done,
        reader.finish_reason,
        reader.usage,
        reader.timings,
        reader.error,
        reader.malformed,
    )


TEXT = [
    ("content", event(delta(content="a"))),
    ("white space is text", event(delta(content=" "))),
    ("with the role", event(delta(role="assistant", content="a"))),
    ("with the finish", event(delta("stop", content="a"))),
    ("reasoning_content", event(delta(content=None, reasoning_content="hm"))),
    ("reasoning", event(delta(reasoning="hm"))),
    ("tool call", event(delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]))),
    ("content in parts", event(delta(content=[{"type": "text", "text": "a"}]))),
    ("completions", event({"index": 0, "text": "a", "finish_reason": None})),
    ("second choice", event(delta(content=""), delta(content="b"))),
]
NO_TEXT = [
    ("role only", event(delta(role="assistant"))),
    ("role and empty", event(delta(role="assistant", content=""))),
    ("null content", event(delta(role="assistant", content=None))),
    ("empty delta", event(delta())),
    ("null delta", event({"index": 0, "delta": None, "finish_reason": None})),
    ("finish only", event(delta("stop"))),
    ("no tool calls", event(delta(tool_calls=[]))),
    ("usage only", event(usage={"completion_tokens": 3})),
    ("null choices", {"choices": None}),
    ("empty completions", event({"index": 0, "text": "", "finish_reason": "length"})),
    ("a key inside a text of another kind", event(delta(), note='"content":"x"')),
    ("nothing we know", {"type": "ping"}),
]


@pytest.mark.parametrize(("sent", "texts"), [(e, 1) for _, e in TEXT] + [(e, 0) for _, e in NO_TEXT])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_what_counts_as_text(sent: dict[str, Any], texts: int, end: str) -> None:
    reader = read(wire(sent, end=end))
    assert len(reader.stamps) == texts
    assert reader.malformed is None


@pytest.mark.parametrize(
    "line",
    [
        ": ping",
        "event: message",
        "id: 7",
        "retry: 1000",
        "data:",
        "data: ",
        "nonsense",
        ": data: {",
        "\ufeff",
    ],
)
def test_lines_that_are_no_data_say_nothing(line: str) -> None:
    assert facts(read(wire(line))) == facts(Reader())


def test_spaces_and_order_of_keys_do_not_matter() -> None:
    pieces = [
        b'data:{ "choices" : [ { "finish_reason" : null , "delta" : { "content" : "a" } } ] }\n\n',
        b'data:   {"choices":[{"delta":{"content":"b","role":"assistant"}}]}   \n\n',
        b'event: x\ndata: {"choices":\ndata: [{"delta":{"content":"c"}}]}\n\n',  # data of two lines
    ]
    assert read(*pieces).stamps == [1, 2, 3]


def test_the_end_is_known_by_done_or_finish_reason() -> None:
    reader = read(wire(event(delta("length", content="a")), "data: [DONE]"))
    assert (reader.done, reader.finish_reason) == (True, "length")
    assert not read(wire(event(delta(content="[DONE]")))).done
    assert read(b"data: [DONE]\n").done  # without its blank line
    assert read(b"data: [DONE]").done


def test_usage_and_timings_of_the_last_event_stay() -> None:
    reader = read(
        wire(
            event(delta(content="a"), usage={"completion_tokens": 1}),
            event(delta(content="b"), usage={"completion_tokens": 2}, timings={"queue_ms": 1.5}),
        )
    )
    assert (reader.usage, reader.timings) == ({"completion_tokens": 2}, {"queue_ms": 1.5})


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ({"error": {"message": "full", "code": 503}}, {"message": "full", "code": 503}),
        ({"error": "boom"}, "boom"),
        ({"object": "error", "message": "old", "code": 400}, {"message": "old", "code": 400}),
        ({"error": None, "choices": []}, None),
    ],
)
def test_error_events(sent: dict[str, Any], error: Any) -> None:
    assert read(wire(event(delta(content="a")), sent)).error == error


@pytest.mark.parametrize(
    "line", ["data: {", "data: nonsense", "data: [1]", 'data: {"choices": 3}', "data: 7"]
)
def test_broken_events_are_malformed(line: str) -> None:
    reader = read(wire(event(delta(content="a")), line, event(delta(content="b"))))
    assert reader.malformed
    assert len(reader.stamps) == 2  # what came before and after still counts


def test_an_event_cut_by_the_end_is_dropped() -> None:
    reader = read(wire(event(delta(content="a"))), b'data: {"choices":[{"delta":{"content":"b')
    assert (len(reader.stamps), reader.malformed) == (1, None)


def test_an_event_without_end_does_not_eat_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    reader = read(b"data: {", *[b"x" * 100] * 20)
    assert reader.malformed == "an event of more than 1000 bytes"


def test_an_answer_that_is_not_streamed() -> None:
    message = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    reader = Reader()
    reader.at_ns = 5
    reader.whole(json.dumps(event(message, usage={"completion_tokens": 1})).encode())
    assert (reader.stamps, reader.done, reader.finish_reason) == ([5], True, "stop")


STREAM = (
    event(delta(role="assistant", content="")),
    ": ping",
    event(delta(content="你好")),
    event(delta(content="😀")),
    event(delta(content='he said "content":"x"')),
    event(delta(content="back\\")),
    event(delta(content="\n\n")),
    event(delta(content=None, reasoning_content="hm")),
    event(delta("stop", content="")),
    event(usage={"prompt_tokens": 1, "completion_tokens": 6}),
    "data: [DONE]",
)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_stream_cut_at_every_byte_reads_the_same(end: str, ascii_only: bool) -> None:
    raw = wire(*STREAM, end=end, ascii_only=ascii_only)
    want = facts(read(raw))
    assert want[:3] == (6, True, "stop")
    assert want[-1] is None
    for cut in range(1, len(raw)):
        assert facts(read(raw[:cut], raw[cut:])) == want, cut
    assert facts(read(*(raw[place : place + 1] for place in range(len(raw))))) == want


def test_an_event_is_stamped_when_its_last_byte_came() -> None:
    raw = wire(event(delta(content="a")))
    assert read(raw[:-1], raw[-1:]).stamps == [2]
    assert read(raw[:5], raw[5:], raw).stamps == [2, 3]
    assert read(raw + raw).stamps == [1, 1]


def test_events_like_the_one_before_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    decode = sse._decode
    monkeypatch.setattr(sse, "_decode", lambda data: decoded.append(bytes(data)) or decode(data))
    words = [wire(event(delta(content=word))) for word in ("a", "b", "c d", "你好", "\t")]
    reader = read(*words)
    assert reader.stamps == [1, 2, 3, 4, 5]
    assert len(decoded) == 3  # the first, and twice to make sure of the template


def test_a_template_is_not_made_again_and_again_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    decode = sse._decode
    monkeypatch.setattr(sse, "_decode", lambda data: decoded.append(bytes(data)) or decode(data))
    read(*(wire(event(delta(content="a"), serial=number)) for number in range(100)))
    assert len(decoded) < 115


# Texts that try to look like structure, and frames in which text may stand in other places too.
tricky = st.lists(
    st.sampled_from(['"', "\\", '"content":"', "\n", "\r", "}", "data: ", "a", "好", "\ud83d"]), max_size=6
)
texts = st.one_of(st.text(), tricky.map("".join)).map(lambda text: text.encode("utf-8", "ignore").decode())
frames = st.sampled_from(
    [
        lambda text, other: event(delta(content=text)),
        lambda text, other: event(delta(role="assistant", content=text), note=other),
        lambda text, other: {"note": other, **event(delta(content=text))},
        lambda text, other: event(delta(content=text, reasoning_content=other)),
        lambda text, other: event({"index": 0, "delta": {"reasoning": other, "content": text}}),
        lambda text, other: event({"index": 0, "text": text, "finish_reason": None}),
        lambda text, other: event(delta("stop", content=text)),
        lambda text, other: {"content": other, **event(delta(content=text))},
        lambda text, other: event(delta(content=text), delta(content=other)),
        lambda text, other: event(delta(content=text), usage={"completion_tokens": len(other)}),
    ]
)


@given(st.lists(st.tuples(frames, texts, texts), max_size=8), st.data())
def test_the_short_cut_agrees_with_plain_decoding(stream: list[Any], data: st.DataObject) -> None:
    """Each frame comes twice, so templates are made and met with texts that must not fool them."""
    repeated = [one for one in stream for _ in range(2)]
    events = [frame(text, other) for frame, text, other in repeated]
    raw = wire(*events)
    carrying = 0
    for each in events:
        parts = [choice.get("delta", choice) for choice in each["choices"]]
        carrying += any(
            part.get(key) for part in parts for key in ("content", "reasoning_content", "reasoning", "text")
        )
    pieces = [wire(each) for each in events]
    whole = read(*pieces)
    assert (len(whole.stamps), whole.malformed) == (carrying, None)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    cut = read(*(raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if b > a))
    assert facts(cut) == facts(whole)


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_no_bytes_make_it_raise(pieces: list[bytes]) -> None:
    read(*pieces)
    read(*(b"data: " + piece + b"\n\n" for piece in pieces))
