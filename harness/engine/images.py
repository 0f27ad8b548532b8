"""Images of a request, read from data URLs and decoded for real; both run in a thread."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from dataclasses import dataclass

from PIL import Image

from harness.engine.preprocess import Size
from harness.engine.wire import RefusedError


@dataclass(frozen=True, slots=True)
class Picture:
    """One image as sent: its size from the header, not decoded yet."""

    digest: bytes  # of the encoded bytes: what the image cache goes by
    data: bytes
    size: Size


def load_readers() -> None:
    """Load the code that reads images, so that an engine's first image costs what every other does."""
    Image.init()


def read_picture(url: str) -> Picture:
    """Read a data URL. Raises RefusedError (400) for anything that is no image."""
    head, _, payload = url.partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise RefusedError(400, "invalid_image_url", "an image must be a base64 data URL")
    try:
        data = base64.b64decode(payload, validate=True)
        with Image.open(io.BytesIO(data)) as image:
            size = image.size
    except (binascii.Error, OSError, ValueError, Image.DecompressionBombError) as error:
        raise _no_image(error) from None
    return Picture(hashlib.blake2b(data, digest_size=16).digest(), data, size)


def decode_picture(picture: Picture, size: Size) -> None:
    """Decode an image and bring it to a size, as a preprocessor would. Raises RefusedError (400)."""
    try:
        with Image.open(io.BytesIO(picture.data)) as image:
            pixels = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _no_image(error) from None
    if size != pixels.size:
        pixels.resize(size)


def _no_image(error: Exception) -> RefusedError:
    return RefusedError(400, "invalid_image", f"not an image: {str(error)[:200]}")
