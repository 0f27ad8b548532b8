"""What a corpus file holds: bytes to send as they are, and per payload how they go together with nonces.

File: MAGIC, the bytes, one JSON record (`Template`) per payload, a JSON head (`Head`), and the head's
offset in the last 8 bytes. A record is decoded only when its payload is first sent, so that a replay of a
million lines costs a worker nothing.

Format history
- 1: first version.
- 2: no estimate of tokens.
"""

from __future__ import annotations

import msgspec

from harness.payloads.nonces import Hole

# Raised with any change of what payloads hold, or a corpus of before would be taken for one of now.
MAGIC = b"KNEE-C2\n"


class Span(msgspec.Struct, frozen=True, array_like=True, tag="span"):
    """Bytes of the file."""

    offset: int
    length: int


class TextHole(msgspec.Struct, frozen=True, array_like=True, tag="text"):
    """The place of the text nonce."""

    width: int


class Slot(msgspec.Struct, frozen=True, array_like=True, tag="slot"):
    """The place of one picture's base64 text."""

    number: int


Part = Span | TextHole | Slot


class Variant(msgspec.Struct, frozen=True, array_like=True):
    """One encoding of a picture."""

    offset: int
    length: int  # of the base64 text
    raw_bytes: int
    hole: Hole | None


class Picture(msgspec.Struct, frozen=True, array_like=True):
    """One picture at one size; several variants stand in for a hole."""

    width: int
    height: int
    fit: str  # drawn | as_is | resize | crop | recorded
    variants: tuple[Variant, ...]


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """One payload: slot j shows pictures[j], or where they take turns pictures[(turn + j) % len]."""

    kind: str
    name: str
    parts: tuple[Part, ...]
    pictures: tuple[Picture, ...] = ()
    takes_turns: bool = False
    slots: int = 0
    other_images: int = 0  # that the body holds beside its slots: links, or data URLs written unusually
    text_chars: int = 0


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The table of a corpus file."""

    records: bytes  # offset and length of each template as little-endian 64-bit numbers
    notes: tuple[str, ...]  # where payloads cannot be unique, in words
