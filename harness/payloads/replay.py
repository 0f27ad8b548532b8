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
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from PIL import Image

from harness.payloads.bodies import Piece
from harness.payloads.encode import Encoded, jpeg_hole, plain
from harness.payloads.json_places import Place
from harness.payloads.layout import Slot, TextHole
from harness.payloads.nonces import TEXT_WIDTH
from harness.payloads.recorded import Line, read
from harness.profile import Profile

NO_TEXT = "requests without a text to put a nonce in: a prefix cache can hit"
LINKED = "images by link, sent unchanged: an image cache can hit"
NOT_JPEG = "images that take no nonce (not a plain JPEG), sent unchanged: an image cache can hit"
LIMITS = (NO_TEXT, LINKED, NOT_JPEG)
_DATA_URL = re.compile(r"data:image/[\w.+-]+(?:;[\w=.+-]+)*;base64,")


Cut = tuple[int, int, list[Piece]]  # what [start, end) of a text is replaced by


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
    limits: tuple[str, ...]  # why it is not wholly unique: of LIMITS, one per case; empty without nonces


def picture_files(profile: Profile) -> list[Path]:
    """Return the files that recorded requests name as pictures."""
    return [path for line in read(profile) for url in line.urls if (path := _file_of(line, url))]


def _file_of(line: Line, place: Place) -> Path | None:
    """Return the file that an image URL names; None for a link or a data URL."""
    url = json.loads(line.text[slice(*place)])
    if url.startswith(("data:", "http://", "https://")):
        return None
    try:
        path = line.file.parent / (unquote(urlsplit(url).path) if url.startswith("file:") else url)
        if path.is_file():
            return path
    except (OSError, ValueError):  # far too long (base64 without its `data:`), or no path at all
        pass
    remedy = "give a path from the replay file's folder, a data URL or a link"
    raise line.fail(f"no such picture: {url[:100]!r}", remedy)


def prepared(line: Line, *, nonces: bool) -> Prepared:
    """Cut a recorded body into pieces: its images, and with `nonces` the place of the text nonce.

    Raises UserError naming the line where an image is none.
    """
    cuts: list[Cut] = []
    images: list[RecordedImage] = []
    limits: list[str] = []
    if line.first_text is None:
        limits.append(NO_TEXT)
    elif nonces:
        cuts.append((line.first_text, line.first_text, [TextHole(TEXT_WIDTH), b" "]))
    for place in line.urls:
        found = _image(line, place, nonces=nonces)
        if found is None:
            limits.append(LINKED)
            continue
        image, before = found
        cuts.append((*place, [before, Slot(len(images)), b'"']))
        images.append(image)
        if image.encoded.hole is None:
            limits.append(NOT_JPEG)
    total = len(line.urls)
    return Prepared(
        pieces=_cut(line.text, cuts),
        images=tuple(images),
        other_images=total - len(images),
        kind="multi_image" if total > 1 else "one_image" if total else "text_only",
        text_chars=line.text_chars + (TEXT_WIDTH + 1 if nonces and line.first_text is not None else 0),
        limits=tuple(limits) if nonces else (),
    )


def _cut(text: str, cuts: list[Cut]) -> list[Piece]:
    """Return the text with each [start, end) replaced by pieces."""
    found: list[Piece] = []
    at = 0
    for start, end, new in sorted(cuts, key=lambda cut: cut[0]):
        found += [text[at:start].encode(), *new]
        at = end
    return [*found, text[at:].encode()]


def _image(line: Line, place: Place, *, nonces: bool) -> tuple[RecordedImage, bytes] | None:
    """Return an image and the JSON text that stands before its base64; None for a link, which stays."""
    written = line.text[slice(*place)]
    url = json.loads(written)
    if url.startswith(("http://", "https://")):
        return None
    path = _file_of(line, place)
    if path is not None:
        raw = path.read_bytes()
        size, mime = _size(line, raw, path.name)
        found = plain(raw, jpeg_hole(raw) if nonces else None)
        return RecordedImage(size, found), f'"data:{mime};base64,'.encode()
    if not _DATA_URL.match(url):
        raise line.fail("a data URL that is no base64 image", "as data:image/jpeg;base64,...")
    try:
        raw = binascii.a2b_base64(url.partition(",")[2], strict_mode=True)
    except ValueError as error:
        raise line.fail(f"a data URL that is not base64: {error}", "record the image anew") from None
    size, _mime = _size(line, raw, "a data URL")
    start = written.index(",") + 1
    as_it_is = written == f'"{url}"'  # with escapes in it, it is kept byte for byte and takes no nonce
    found = Encoded(written[start:-1].encode(), len(raw), jpeg_hole(raw) if nonces and as_it_is else None)
    return RecordedImage(size, found), written[:start].encode()


def _size(line: Line, raw: bytes, name: str) -> tuple[tuple[int, int], str]:
    """Return width and height and the MIME type of an encoded image."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(raw)) as image:
                return image.size, Image.MIME.get(image.format or "", "image/jpeg")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise line.fail(f"{name} is no image", "replace it by a JPEG, PNG or WebP") from None
