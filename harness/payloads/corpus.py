"""All request bodies of a run: encoded once into a file, mapped by every process, sent without a copy.

A body is a list of segments: views into the mapped file, and between them the few bytes that a nonce
makes new. What a body holds follows from its entry and its nonce alone.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.errors import UserError
from harness.payloads.assemble import Progress, identity, write_payloads
from harness.payloads.layout import MAGIC, Picture, Slot, Span, Template, TextHole, Variant
from harness.payloads.nonces import scramble, text_nonce, turn
from harness.payloads.recorded import count
from harness.payloads.store import Writer, map_file, write_once
from harness.plan import Entry, Plan
from harness.profile import Profile

MAX_READY = 512  # templates a process keeps ready


@dataclass(frozen=True, slots=True)
class Body:
    """One request body and what its record says about it."""

    segments: tuple[bytes | memoryview, ...]
    length: int  # bytes, for Content-Length
    kind: str
    payload: str
    in_img: int
    img_wh: tuple[tuple[int, int], ...]  # of the images whose size is known
    img_bytes: int  # encoded, before base64
    body_bytes: int
    text_chars: int


def build(
    profile: Profile,
    plan: Plan,
    folder: Path,
    *,
    chars_per_token: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Make the corpus of a plan in `folder`, or open the one that is there.

    `chars_per_token`: by language, characters of a text that was sent / prompt tokens that the target counted
    for it; without it lengths in tokens are estimates. Raises UserError (picture, folder, replay line) before
    anything stands in `folder`.
    """
    key = hashlib.sha256(MAGIC + identity(profile, plan, chars_per_token)).hexdigest()[:16]
    path = folder / f"{key}.corpus"

    def write(out: Writer) -> None:
        out.finish(tuple(write_payloads(profile, plan, out, chars_per_token, progress)))

    while True:
        write_once(path, write)
        try:
            return open_corpus(path)
        except UserError:
            if path.exists():
                raise  # not just removed, at the end of another's run


def open_corpus(path: str | Path) -> Corpus:
    """Map a corpus file; raises UserError where it is none."""
    return Corpus(Path(path))


def replay_lines(profile: Profile) -> int:
    """Return the number of requests of the replay file, each validated; 0 without a replay.

    Raises UserError naming file and line.
    """
    return count(profile)


class Corpus:
    """The bodies of a run, read-only; one per process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data, head = map_file(path)
        self._records = head.records
        self._decode = msgspec.json.Decoder(Template).decode
        self._ready: dict[int, _Ready] = {}
        self.notes = head.notes  # where payloads cannot be unique, in words

    def __len__(self) -> int:
        return len(self._records) // 16

    def template(self, payload: int) -> Template:
        """Return how a payload is made: its kind, its pictures with size and fit, its text."""
        offset, length = struct.unpack_from("<QQ", self._records, 16 * payload)
        return self._decode(self._data[offset : offset + length])

    def body(self, entry: Entry, nonce: int) -> Body:
        """Return the body of a schedule's entry; `nonce` is of 64 bits and used once in the run.

        Parts that the entry does not ask to be fresh are the same bytes each time.
        """
        ready = self._ready.get(entry.payload) or self._make_ready(entry.payload)
        code = scramble(nonce)
        segments: list[bytes | memoryview] = []
        add = segments.append
        length, img_bytes, sizes = ready.fixed_length, 0, []
        first = turn(nonce, len(ready.pictures)) if ready.takes_turns and entry.fresh_images else 0
        for part in ready.parts:
            if isinstance(part, memoryview):
                add(part)
            elif isinstance(part, TextHole):
                add(text_nonce(code, part.width) if entry.fresh_text else b"0" * part.width)
            else:
                shown = ready.pictures[(first + part.number) % len(ready.pictures)]
                own = scramble(code ^ part.number + 1)
                views = shown.variants[own % len(shown.variants) if entry.fresh_images else 0]
                if entry.fresh_images and views.fill is not None:
                    segments += (views.before, views.fill(own), views.after)
                else:
                    add(views.whole)
                length += len(views.whole)
                img_bytes += views.raw_bytes
                sizes.append(shown.wh)
        template = ready.template
        return Body(
            segments=tuple(segments),
            length=length,
            kind=template.kind,
            payload=template.name,
            in_img=template.slots + template.other_images,
            img_wh=tuple(sizes),
            img_bytes=img_bytes,
            body_bytes=length,
            text_chars=template.text_chars,
        )

    def _make_ready(self, payload: int) -> _Ready:
        if len(self._ready) >= MAX_READY:
            self._ready.clear()
        template = self.template(payload)
        views = tuple(
            self._data[part.offset : part.offset + part.length] if isinstance(part, Span) else part
            for part in template.parts
        )
        holes = sum(part.width for part in template.parts if isinstance(part, TextHole))
        ready = _Ready(
            template,
            views,
            holes + sum(len(view) for view in views if isinstance(view, memoryview)),
            tuple(self._shown(picture) for picture in template.pictures),
            template.takes_turns,
        )
        self._ready[payload] = ready
        return ready

    def _shown(self, picture: Picture) -> _Shown:
        return _Shown(
            (picture.width, picture.height), tuple(self._views(variant) for variant in picture.variants)
        )

    def _views(self, variant: Variant) -> _Views:
        whole, hole = self._data[variant.offset : variant.offset + variant.length], variant.hole
        if hole is None:
            return _Views(whole, whole, None, whole, variant.raw_bytes)
        before, after = whole[: hole.at], whole[hole.at + hole.length :]
        return _Views(whole, before, hole.fill, after, variant.raw_bytes)


@dataclass(frozen=True, slots=True)
class _Views:
    """One encoding of a picture as views into the file; without a hole it is only sent whole."""

    whole: memoryview
    before: memoryview
    fill: Callable[[int], bytes] | None
    after: memoryview
    raw_bytes: int


@dataclass(frozen=True, slots=True)
class _Shown:
    wh: tuple[int, int]
    variants: tuple[_Views, ...]


@dataclass(frozen=True, slots=True)
class _Ready:
    """A template with its spans as views."""

    template: Template
    parts: tuple[memoryview | TextHole | Slot, ...]
    fixed_length: int  # bytes of everything but pictures
    pictures: tuple[_Shown, ...]
    takes_turns: bool
