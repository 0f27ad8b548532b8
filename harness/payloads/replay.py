"""Recorded requests: one OpenAI body per JSON line (or under the key `body`), sent as they were written.

Every byte of a body is kept but these: a picture named as a file becomes a data URL of that file's bytes,
since the service cannot read our disk; with `rewrite` the profile's model, lengths, sampling and
streaming replace the recorded ones; with `traffic.unique` a nonce is put in front of the first text, and
into the quantization table of each JPEG. Links, and pictures of other formats, are sent unchanged, and
how many is reported. With neither `rewrite` nor `unique`, and without files, a body is the recorded
bytes.
"""

from __future__ import annotations

import binascii
import io
import json
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from PIL import Image

from harness.errors import UserError
from harness.payloads.bodies import Piece, encode, settings, with_extra
from harness.payloads.encode import Encoded, jpeg_hole, plain
from harness.payloads.json_places import items, members
from harness.payloads.layout import Slot, TextHole
from harness.payloads.nonces import TEXT_WIDTH
from harness.profile import Profile

NO_TEXT = "requests without a text to put a nonce in: a prefix cache can hit"
LINKED = "images by link, sent unchanged: an image cache can hit"
NOT_JPEG = "images that take no nonce (not a plain JPEG), sent unchanged: an image cache can hit"
LIMITS = (NO_TEXT, LINKED, NOT_JPEG)
_DATA_URL = re.compile(r"data:image/[\w.+-]+(?:;[\w=.+-]+)*;base64,")


@dataclass(frozen=True, slots=True)
class Line:
    """One recorded request: its JSON text and the places in it that may be changed."""

    file: Path
    number: int  # in the file, from 1
    text: str
    first_text: int | None  # offset of the first character of the first text
    urls: tuple[tuple[int, int], ...]  # of the images: where their JSON strings stand, quotes included
    text_chars: int

    def fail(self, what: str, remedy: str) -> UserError:
        """Return an error that names this line."""
        return UserError(what, file=self.file, line=self.number, remedy=remedy)


@dataclass(frozen=True, slots=True)
class RecordedImage:
    """An image of a recorded body whose base64 text is a piece of its own."""

    size: tuple[int, int]
    encoded: Encoded


@dataclass(frozen=True, slots=True)
class Prepared:
    """A recorded body in pieces."""

    pieces: list[Piece]
    images: tuple[RecordedImage, ...]
    other_images: int
    kind: str
    text_chars: int
    limits: tuple[str, ...]  # of LIMITS, one per case


def count(profile: Profile) -> int:
    """Return the number of recorded requests, each validated; 0 without a replay."""
    return sum(1 for _ in read(profile)) if profile.traffic.replay else 0


def picture_files(profile: Profile) -> list[Path]:
    """Return the files that recorded requests name as pictures."""
    return [path for line in read(profile) for url in line.urls if (path := _file_of(line, url))]


def read(profile: Profile) -> Iterator[Line]:
    """Yield the recorded requests in order; blank lines are passed over.

    Raises UserError naming file and line.
    """
    if profile.traffic.replay is None:
        return
    path, found = Path(profile.traffic.replay.file), False
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
    return _with_places(path, number, text, body)


def _body(raw: bytes, fail: Fail) -> tuple[str, dict[str, Any]]:
    """Return a body as it is written and decoded, taken out of `body` where a line wraps it."""
    try:
        text = raw.decode("utf-8-sig").strip(" \t\r\n")
        body = json.loads(text)
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


def _with_places(path: Path, number: int, text: str, body: dict[str, Any]) -> Line:
    """Find the first text and the image URLs in the JSON text of a body known to be well formed."""
    texts: list[tuple[int, int]] = []
    urls: list[tuple[int, int]] = []
    top = members(text, 0)
    if "messages" in top:
        for start, _end in items(text, top["messages"][0]):
            content = members(text, start).get("content")
            if content and text[content[0]] == '"':
                texts.append(content)
            elif content and text[content[0]] == "[":
                _places_of_parts(text, content[0], texts, urls)
    elif text[top["prompt"][0]] == '"':
        texts.append(top["prompt"])
    chars = sum(len(json.loads(text[start:end])) for start, end in texts)
    return Line(path, number, text, texts[0][0] + 1 if texts else None, tuple(urls), chars)


def _places_of_parts(text: str, at: int, texts: list[tuple[int, int]], urls: list[tuple[int, int]]) -> None:
    for start, _end in items(text, at):
        part = members(text, start)
        kind = json.loads(text[slice(*part["type"])])
        if kind == "text":
            texts.append(part["text"])
        elif kind == "image_url":
            url = part["image_url"]
            urls.append(url if text[url[0]] == '"' else members(text, url[0])["url"])


def _file_of(line: Line, place: tuple[int, int]) -> Path | None:
    """Return the file that an image URL names; None for a link or a data URL."""
    url = json.loads(line.text[slice(*place)])
    if url.startswith(("data:", "http://", "https://")):
        return None
    path = line.file.parent / (unquote(urlsplit(url).path) if url.startswith("file:") else url)
    try:
        found = path.is_file()
    except OSError:  # far too long: base64 without its `data:` for one
        found = False
    if not found:
        remedy = "give a path from the replay file's folder, a data URL or a link"
        raise line.fail(f"no such picture: {str(path)[:120]}", remedy)
    return path


def prepared(line: Line, *, nonces: bool) -> Prepared:
    """Cut a recorded body into pieces: its images, and with `nonces` the place of the text nonce.

    Raises UserError naming the line where an image is none.
    """
    cuts: list[tuple[int, int, list[Piece]]] = []
    images: list[RecordedImage] = []
    limits: list[str] = []
    if nonces and line.first_text is None:
        limits.append(NO_TEXT)
    elif nonces and line.first_text is not None:
        cuts.append((line.first_text, line.first_text, [TextHole(TEXT_WIDTH), b" "]))
    other = 0
    for place in line.urls:
        image, prefix = _image(line, place, nonces=nonces)
        if image is not None:
            cuts.append((*place, [prefix, Slot(len(images)), b'"']))
            images.append(image)
            if nonces and image.encoded.hole is None:
                limits.append(NOT_JPEG)
        else:
            other += 1
            if nonces:
                limits.append(LINKED)
    total = len(line.urls)
    return Prepared(
        pieces=_cut(line.text, cuts),
        images=tuple(images),
        other_images=other,
        kind="multi_image" if total > 1 else "one_image" if total else "text_only",
        text_chars=line.text_chars + (TEXT_WIDTH + 1 if nonces and line.first_text is not None else 0),
        limits=tuple(limits),
    )


def _cut(text: str, cuts: list[tuple[int, int, list[Piece]]]) -> list[Piece]:
    """Return the text with each [start, end) replaced by pieces."""
    found: list[Piece] = []
    at = 0
    for start, end, new in sorted(cuts, key=lambda cut: cut[0]):
        found += [text[at:start].encode(), *new]
        at = end
    return [*found, text[at:].encode()]


def _image(line: Line, place: tuple[int, int], *, nonces: bool) -> tuple[RecordedImage | None, bytes]:
    """Return an image and the JSON text before its base64; None for a link, which stays as it is."""
    written = line.text[slice(*place)]
    url = json.loads(written)
    if url.startswith(("http://", "https://")):
        return None, b""
    path = _file_of(line, place)
    if path is not None:
        raw = path.read_bytes()
        size, mime = _size(line, raw, path.name)
        return RecordedImage(
            size, plain(raw, jpeg_hole(raw) if nonces else None)
        ), f'"data:{mime};base64,'.encode()
    head = _DATA_URL.match(url)
    if head is None:
        raise line.fail("a data URL that is no base64 image", "as data:image/jpeg;base64,...")
    base64_text = url[head.end() :]
    try:
        raw = binascii.a2b_base64(base64_text, strict_mode=True)
    except ValueError as error:
        raise line.fail(f"a data URL that is not base64: {error}", "record the image anew") from None
    size, _mime = _size(line, raw, "a data URL")
    start = written.rfind(base64_text) if written.endswith(base64_text + '"') else None
    if start is None:  # written with escapes: kept byte for byte, and too unusual for a nonce
        start = written.index(",") + 1
        kept = written[start:-1].encode()
        return RecordedImage(size, Encoded(kept, len(raw), None)), written[:start].encode()
    hole = jpeg_hole(raw) if nonces else None
    return RecordedImage(size, Encoded(base64_text.encode(), len(raw), hole)), written[:start].encode()


def _size(line: Line, raw: bytes, name: str) -> tuple[tuple[int, int], str]:
    """Return width and height and the MIME type of an encoded image."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(raw)) as image:
                return image.size, Image.MIME.get(image.format or "", "image/jpeg")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise line.fail(f"{name} is no image", "replace it by a JPEG, PNG or WebP") from None
