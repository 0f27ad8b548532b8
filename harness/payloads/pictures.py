"""Pictures to send: drawn ones, and the user's own, brought to size.

A drawn picture depends on the seed and its number only, not on its size: its coordinates are shares of
the sides and its texture is a sum of octaves, of which a larger picture shows more. So a sweep over sides
shows the same picture at every side. (`noise` is the exception: each pixel is drawn by itself.)
"""

from __future__ import annotations

import hashlib
import random
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError

from harness.errors import UserError
from harness.payloads.text import prose
from harness.profile import SYNTHETIC_SOURCES, ImageSpec

DEFAULT_SIDE = 512  # of drawn pictures where the profile names none
Fit = Literal["drawn", "as_is", "resize", "crop"]
Floats = npt.NDArray[np.float32]
BICUBIC = Image.Resampling.BICUBIC


@dataclass(frozen=True, slots=True)
class Source:
    """Where one picture comes from: drawn by number, or a file."""

    style: str  # photo | noise | document | file
    number: int = 0
    path: Path | None = None


def sources(spec: ImageSpec) -> list[Source]:
    """Return the pictures that a spec draws from: as many as a body holds, or all of a folder in name order.

    Raises UserError for a missing or empty folder; hidden files and subfolders are passed over.
    """
    if spec.source in SYNTHETIC_SOURCES:
        return [Source(spec.source, number) for number in range(spec.count)]
    place = Path(spec.source)
    if place.is_file():
        return [Source("file", 0, place)]
    remedy = "give photo, noise, document, a picture or a folder of pictures"
    if not place.is_dir():
        raise UserError("no such picture or folder", file=place, remedy=remedy)
    files = sorted(p for p in place.iterdir() if p.is_file() and not p.name.startswith("."))
    if not files:
        raise UserError("the folder holds no picture", file=place, remedy=remedy)
    return [Source("file", number, path) for number, path in enumerate(files)]


def picture(source: Source, spec: ImageSpec, seed: int) -> tuple[Image.Image, Fit]:
    """Return a picture in RGB at the size of the spec, and how it came to that size."""
    if source.path is not None:
        return fitted(opened(source.path), spec)
    width = spec.width or spec.side or DEFAULT_SIDE
    height = spec.height or spec.side or DEFAULT_SIDE
    draw = {"photo": _photo, "noise": _noise, "document": _document}[source.style]
    return draw(width, height, f"{seed}/{source.style}/{source.number}"), "drawn"


def opened(path: Path) -> Image.Image:
    """Return a picture file as RGB, turned upright by its EXIF orientation, transparency on white.

    Raises UserError naming the file where it is no picture.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # large pictures are the user's own choice
            with Image.open(path) as image:
                return _rgb(ImageOps.exif_transpose(image))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        known = isinstance(error, UnidentifiedImageError)
        what = "not a picture" if known else f"not a readable picture: {error}"
        raise UserError(
            what, file=path, remedy="remove the file or replace it by a JPEG, PNG or WebP"
        ) from None


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F" or image.mode.startswith("I"):  # 16 bits or more a pixel: Pillow would clip to 255
        values = np.asarray(image).astype(np.float32)
        image = Image.fromarray((values * (255 / max(values.max(), 255))).clip(0, 255).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def fitted(image: Image.Image, spec: ImageSpec) -> tuple[Image.Image, Fit]:
    """Bring a picture to size: `resize` keeps its ratio inside the box, `crop` fills it from the middle."""
    width, height = spec.width or spec.side, spec.height or spec.side
    if width is None or height is None:
        return image, "as_is"
    if spec.fit == "crop":
        return ImageOps.fit(image, (width, height), BICUBIC), "crop"
    scale = min(width / image.width, height / image.height)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, BICUBIC, reducing_gap=3.0), "resize"


def _rng(*key: object) -> np.random.Generator:
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def _field(width: int, height: int, cells: int, rng: np.random.Generator) -> Floats:
    """Return a smooth random field in about -1..1, `cells` random values along each side."""
    grid = Image.fromarray(rng.uniform(-1, 1, (cells, cells)).astype(np.float32))
    return np.asarray(grid.resize((width, height), BICUBIC))


def _photo(width: int, height: int, key: str) -> Image.Image:
    """Draw gradients, shapes and texture; as a JPEG it is about as large as a photograph of its size."""
    light = [128 + 90 * _field(width, height, 4, _rng(key, "light", channel)) for channel in range(3)]
    canvas = Image.fromarray(np.stack(light, axis=-1).clip(0, 255).astype(np.uint8))
    _draw_shapes(ImageDraw.Draw(canvas, "RGBA"), width, height, random.Random(key))
    texture = np.zeros((height, width), np.float32)
    for octave in range(3, 14):
        if 2**octave > max(width, height):
            break
        texture += 30 * 0.78 ** (octave - 3) * _field(width, height, 2**octave, _rng(key, octave))
    pixels = np.asarray(canvas) + texture[:, :, None]
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _draw_shapes(pen: ImageDraw.ImageDraw, width: int, height: int, rng: random.Random) -> None:
    for _ in range(14):
        color = (rng.randrange(256), rng.randrange(256), rng.randrange(256), rng.randrange(120, 230))
        x, y, size = rng.random(), rng.random(), rng.uniform(0.05, 0.25)
        box = [(x - size) * width, (y - size) * height, (x + size) * width, (y + size) * height]
        match rng.randrange(3):
            case 0:
                pen.ellipse(box, fill=color)
            case 1:
                pen.rectangle(box, fill=color)
            case _:
                pen.polygon([box[0], box[3], box[2], box[3], x * width, box[1]], fill=color)


def _noise(width: int, height: int, key: str) -> Image.Image:
    pixels = _rng(key).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


LINES = 40  # of a page as high as it is wide
LINE_CHARS = 84
DRAWN_WIDTH = 1536


def _document(width: int, height: int, key: str) -> Image.Image:
    """Draw a page of dark text lines on off-white paper; large and then reduced, as hinting moves letters."""
    scale = -(-DRAWN_WIDTH // width)
    page = Image.new("RGB", (scale * width, scale * height), (250, 249, 245))
    pen = ImageDraw.Draw(page)
    step = page.width / LINES
    font = ImageFont.load_default(step * 0.72)
    rows = int((page.height - step) // step) - 1
    lines = textwrap.wrap(prose(max(rows, 1) * LINE_CHARS, "en", random.Random(key)), LINE_CHARS)
    for row, line in zip(range(rows), lines, strict=False):
        if row % 9 != 8:  # a blank line ends a paragraph
            pen.text((1.5 * step, (row + 1.5) * step), line, fill=(35, 35, 45), font=font)
    return page.reduce(scale) if scale > 1 else page
