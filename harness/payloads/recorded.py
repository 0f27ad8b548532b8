"""Reading recorded requests: each line checked, and the places in it found that may be changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.payloads.bodies import encode, settings, with_extra
from harness.payloads.json_places import Place, items, members
from harness.profile import Profile


@dataclass(frozen=True, slots=True)
class Line:
    """One recorded request: its JSON text and the places in it that may be changed."""

    file: Path
    number: int  # in the file, from 1
    text: str
    first_text: int | None  # offset of the first character of the first text
    urls: tuple[Place, ...]  # of the images: their JSON strings, quotes included
    text_chars: int

    def fail(self, what: str, remedy: str) -> UserError:
        """Return an error that names this line."""
        return UserError(what, file=self.file, line=self.number, remedy=remedy)


def count(profile: Profile) -> int:
    """Return the number of recorded requests, each validated; 0 without a replay."""
    return sum(1 for _ in read(profile)) if profile.traffic.replay else 0


def read(profile: Profile) -> Iterator[Line]:
    """Yield the recorded requests in order; blank lines are passed over.

    Raises UserError naming file and line.
    """
    if profile.traffic.replay is None:
        return
    path, found = Path(profile.traffic.replay.file), False
    if path.exists() and not path.is_file():  # a device or a pipe might never end, and is read twice
        raise UserError("is no file", file=path, key="traffic.replay.file")
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    found = True
                    yield _line(profile, path, number, raw)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path, key="traffic.replay.file") from None
    if not found:
        raise UserError("holds no request", file=path, remedy="one JSON body per line")


Fail = Callable[[str, str], UserError]


def _line(profile: Profile, path: Path, number: int, raw: bytes) -> Line:
    def fail(what: str, remedy: str) -> UserError:
        return UserError(what, file=path, line=number, remedy=remedy)

    text, body = _body(raw, fail)
    _check_shape(profile, body, fail)
    if profile.traffic.replay and profile.traffic.replay.rewrite:
        text = encode(_rewritten(profile, body)).decode()
    elif bool(body.get("stream")) != profile.target.stream:
        what = "`stream` of the recorded request is not that of target.stream"
        raise fail(what, "set traffic.replay.rewrite: true, or change target.stream")
    texts, urls = _places(text, profile.target.endpoint)
    chars = sum(len(json.loads(text[start:end])) for start, end in texts)
    return Line(path, number, text, texts[0][0] + 1 if texts else None, tuple(urls), chars)


def _body(raw: bytes, fail: Fail) -> tuple[str, dict[str, Any]]:
    """Return a body as it is written and decoded, taken out of `body` where a line wraps it."""
    try:
        text = raw.decode("utf-8-sig").strip(" \t\r\n")
        body = json.loads(text, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise fail("not UTF-8", "save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise fail(f"not JSON: {error.msg} at column {error.colno}", "one whole body per line") from None
    except (RecursionError, ValueError) as error:
        raise fail(f"not JSON: {error}", "one whole body per line") from None
    if isinstance(body, dict) and isinstance(body.get("body"), dict):
        start, end = members(text, 0)["body"]
        text, body = text[start:end], body["body"]
    if not isinstance(body, dict):
        raise fail("not a JSON object", 'as {"messages": [{"role": "user", "content": "..."}]}')
    return text, body


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _check_shape(profile: Profile, body: dict[str, Any], fail: Fail) -> None:
    """Refuse a body that the endpoint would not take."""
    if profile.target.endpoint == "completions":
        if not isinstance(body.get("prompt"), str | list):
            raise fail("no `prompt`", "record completions bodies, or set target.endpoint: chat")
        return
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise fail("no `messages`", "record chat bodies, or set target.endpoint: completions")
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else 0
        if not isinstance(content, str | list | None):
            raise fail("a message is no object with `content`", "each message has a role and a content")
        for part in content if isinstance(content, list) else ():
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise fail("a part of a message's content has no `type`", "text or image_url")
            if part["type"] == "text" and not isinstance(part.get("text"), str):
                raise fail("a text part has no `text`", '{"type": "text", "text": "..."}')
            if part["type"] == "image_url" and not isinstance(_url(part), str):
                remedy = '{"type": "image_url", "image_url": {"url": "..."}}'
                raise fail("an image part has no URL", remedy)


def _url(part: dict[str, Any]) -> Any:
    image = part.get("image_url")
    return image.get("url") if isinstance(image, dict) else image


def _rewritten(profile: Profile, body: dict[str, Any]) -> dict[str, Any]:
    stale = ("stream_options", "max_completion_tokens", "ignore_eos")
    kept = {key: value for key, value in body.items() if key not in stale}
    return with_extra({**kept, **settings(profile)}, profile)


def _places(text: str, endpoint: str) -> tuple[list[Place], list[Place]]:
    """Return where the texts and the image URLs of a checked body stand, as JSON strings, quotes included."""
    texts: list[Place] = []
    urls: list[Place] = []
    top = members(text, 0)
    if endpoint == "completions":
        return ([top["prompt"]] if text[top["prompt"][0]] == '"' else []), urls
    for start, _end in items(text, top["messages"][0]):
        content = members(text, start).get("content")
        if content and text[content[0]] == '"':
            texts.append(content)
        elif content and text[content[0]] == "[":
            _places_of_parts(text, content[0], texts, urls)
    return texts, urls


def _places_of_parts(text: str, at: int, texts: list[Place], urls: list[Place]) -> None:
    for start, _end in items(text, at):
        part = members(text, start)
        kind = json.loads(text[slice(*part["type"])])
        if kind == "text":
            texts.append(part["text"])
        elif kind == "image_url":
            url = part["image_url"]
            urls.append(url if text[url[0]] == '"' else members(text, url[0])["url"])
