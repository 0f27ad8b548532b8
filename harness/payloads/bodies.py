"""The JSON of a request, in pieces: literal bytes, and the places of the text nonce and of each picture."""

from __future__ import annotations

import json
import re
from typing import Any

from harness.errors import UserError
from harness.payloads.layout import Slot, TextHole
from harness.profile import PayloadSpec, Profile

Piece = bytes | TextHole | Slot
MIME = {"jpeg": "image/jpeg", "png": "image/png", "webp": "image/webp"}
# NUL cannot stand in a prompt, so these marks are found again in the JSON text without doubt.
_TEXT_MARK, _IMAGE_MARK = "\0text\0", "\0image{}\0"
_MARKS = re.compile(rb"(?<!\\)\\u0000(text|image)(\d*)\\u0000")


def settings(profile: Profile, max_tokens: int | None = None) -> dict[str, Any]:
    """Return what the profile fixes in every body: model, length, sampling, streaming."""
    generation, target = profile.generation, profile.target
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": max_tokens or generation.max_tokens,
        "temperature": generation.temperature,
        "stream": target.stream,
    }
    if target.stream:
        body["stream_options"] = {"include_usage": True}
    if generation.ignore_eos:
        body["ignore_eos"] = True
    return body


def with_extra(body: dict[str, Any], profile: Profile) -> dict[str, Any]:
    """Return the body with `generation.extra` merged in last; a null removes its key.

    Raises UserError where it would replace the prompt.
    """
    for key in ("messages", "prompt"):
        if key in profile.generation.extra:
            raise UserError(
                "would replace what is sent",
                key=f"generation.extra.{key}",
                remedy="use traffic.replay instead",
            )
    merged = {**body, **profile.generation.extra}
    return {key: value for key, value in merged.items() if value is not None}


def pieces(profile: Profile, spec: PayloadSpec, width: int, words: str) -> list[Piece]:
    """Return the body of a payload whose text is a nonce of `width` characters followed by `words`.

    The text stands first, since a prefix cache matches from there.
    """
    text = _TEXT_MARK + words
    fixed = settings(profile, spec.max_tokens)
    if profile.target.endpoint == "completions":
        body = {"model": fixed.pop("model"), "prompt": text, **fixed}
    else:
        content: Any = text
        if spec.images is not None:
            before = f"data:{MIME[spec.images.format]};base64,"
            urls = [before + _IMAGE_MARK.format(number) for number in range(spec.images.count)]
            images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
            content = [{"type": "text", "text": text}, *images]
        body = {"model": fixed.pop("model"), "messages": [{"role": "user", "content": content}], **fixed}
    return _split(encode(with_extra(body, profile)), width)


def encode(body: dict[str, Any]) -> bytes:
    """Return a body as compact UTF-8 JSON; half of a surrogate pair stays the escape that it can only be."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _split(raw: bytes, width: int) -> list[Piece]:
    found: list[Piece] = []
    at = 0
    for mark in _MARKS.finditer(raw):
        found.append(raw[at : mark.start()])
        found.append(TextHole(width) if mark[1] == b"text" else Slot(int(mark[2])))
        at = mark.end()
    found.append(raw[at:])
    return found
