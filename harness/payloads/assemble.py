"""From a profile and a plan to the templates of a corpus: every text and every picture is made here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from harness.payloads import recorded, replay, text
from harness.payloads.bodies import Piece, pieces
from harness.payloads.encode import POOL, Encoded, encoded
from harness.payloads.layout import Part, Picture, Template, Variant
from harness.payloads.pictures import Source, picture, sources
from harness.payloads.store import Writer
from harness.plan import Plan
from harness.profile import ImageSpec, PayloadSpec, Profile

Progress = Callable[[int, int], None]  # pictures or requests done, of how many
FEW_NONCES = 6  # hexadecimal digits: below, a run of a few thousand requests meets one twice


def identity(profile: Profile, plan: Plan, chars_per_token: Mapping[str, float] | None) -> bytes:
    """Return bytes that differ wherever two corpora would: settings, size and time of the user's files."""
    target = profile.target
    fixed = (target.model, target.endpoint, target.stream, profile.generation, profile.traffic)
    if profile.traffic.replay is not None:
        files = [Path(profile.traffic.replay.file), *replay.picture_files(profile)]
    else:
        own = [source.path for spec in plan.payloads if spec.images for source in sources(spec.images)]
        files = [path for path in own if path is not None]
    stamps = [(str(path), stat.st_size, stat.st_mtime_ns) for path in files for stat in (path.stat(),)]
    return msgspec.json.encode((fixed, plan.payloads, dict(chars_per_token or {}), stamps))


def write_payloads(
    profile: Profile,
    plan: Plan,
    out: Writer,
    chars_per_token: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> Iterator[str]:
    """Write the templates of a plan in order of their index, and yield a note where one cannot be unique."""
    if profile.traffic.replay is not None:
        yield from _write_replay(profile, out, progress)
        return
    album = _Album(profile.traffic.seed, out, plan.payloads, progress)
    for index, spec in enumerate(plan.payloads):
        in_mix = index < len(profile.traffic.mix)
        shown = album.pictures(spec.images) if spec.images else ()
        # Experiments compare like with like, so there each request shows the first pictures of a folder.
        takes_turns = in_mix and spec.images is not None and len(shown) > spec.images.count
        out.add(_template(profile, spec, out, shown, takes_turns, chars_per_token))
        if profile.traffic.unique:
            yield from _limits(spec, shown, chars_per_token)
        elif takes_turns and spec.images:
            what = f"of {len(shown)} pictures only the first {spec.images.count} are sent"
            yield f"{spec.kind}: {what}, since traffic.unique is false"


def _template(
    profile: Profile,
    spec: PayloadSpec,
    out: Writer,
    shown: tuple[Picture, ...],
    takes_turns: bool,
    chars_per_token: Mapping[str, float] | None,
) -> Template:
    chars = text.length_in_chars(spec.text, chars_per_token)
    images = spec.images.count if spec.images else 0
    seed = f"{profile.traffic.seed}/{spec.text.lang}/{chars}/{images}"
    words = text.words_after_nonce(chars, spec.text.lang, images, seed)
    name = hashlib.sha256(msgspec.json.encode((spec, profile.traffic.seed))).hexdigest()[:8]
    return Template(
        kind=spec.kind,
        name=f"{spec.kind}-{name}",
        parts=_written(pieces(profile, spec, text.nonce_width(chars), words), out),
        pictures=shown,
        takes_turns=takes_turns,
        slots=images,
        text_chars=chars,
    )


def _limits(
    spec: PayloadSpec, shown: tuple[Picture, ...], chars_per_token: Mapping[str, float] | None
) -> Iterator[str]:
    """Yield where nonces run out."""
    width = text.nonce_width(text.length_in_chars(spec.text, chars_per_token))
    if width < FEW_NONCES:
        yield f"{spec.kind}: a text of {width} characters differs only {16**width} times"
    pooled = sum(len(picture.variants) > 1 for picture in shown)
    if pooled and spec.images:
        what = f"{pooled} {spec.images.format} picture{'s' if pooled > 1 else ''}"
        yield f"{spec.kind}: {what} in {POOL} variants each, used again and again: an image cache can hit"


class _Album:
    """Encodes each picture once per size, whichever payloads show it."""

    def __init__(
        self, seed: int, out: Writer, payloads: tuple[PayloadSpec, ...], progress: Progress | None
    ) -> None:
        self._seed, self._out, self._progress = seed, out, progress
        self._total = sum(len(sources(spec.images)) for spec in payloads if spec.images)
        self._done = 0
        self._known: dict[tuple[Source, ImageSpec], Picture] = {}

    def pictures(self, spec: ImageSpec) -> tuple[Picture, ...]:
        """Return the pictures of a spec; raises UserError for a file that is none."""
        return tuple(self._one(source, spec) for source in sources(spec))

    def _one(self, source: Source, spec: ImageSpec) -> Picture:
        key = (source, msgspec.structs.replace(spec, count=1))
        if key not in self._known:
            image, fit = picture(source, spec, self._seed)
            variants = encoded(image, spec.format, spec.quality)
            self._known[key] = stored(image.size, fit, variants, self._out)
        self._done += 1
        if self._progress:
            self._progress(self._done, self._total)
        return self._known[key]


def stored(size: tuple[int, int], fit: str, variants: list[Encoded], out: Writer) -> Picture:
    """Write the encodings of a picture and return where they lie."""
    spans = [(out.append(variant.text), variant) for variant in variants]
    return Picture(*size, fit, tuple(Variant(s.offset, s.length, v.raw_bytes, v.hole) for s, v in spans))


def _written(found: list[Piece], out: Writer) -> tuple[Part, ...]:
    """Write the literal pieces of a body and return its parts."""
    return tuple(out.append(piece) if isinstance(piece, bytes) else piece for piece in found if piece != b"")


def _write_replay(profile: Profile, out: Writer, progress: Progress | None) -> Iterator[str]:
    limits = dict.fromkeys(replay.LIMITS, 0)
    total = recorded.count(profile) if progress else 0
    for number, line in enumerate(recorded.read(profile)):
        body = replay.prepared(line, nonces=profile.traffic.unique)
        shown = tuple(stored(image.size, "recorded", [image.encoded], out) for image in body.images)
        out.add(
            Template(
                kind=body.kind,
                name=f"line-{line.number}",
                parts=_written(body.pieces, out),
                pictures=shown,
                slots=len(shown),
                other_images=body.other_images,
                text_chars=body.text_chars,
            )
        )
        for limit in body.limits:
            limits[limit] += 1
        if progress:
            progress(number + 1, total)
    for limit, times in limits.items():
        if times:
            yield f"replay: {times} {limit}"
