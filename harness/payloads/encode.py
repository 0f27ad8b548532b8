"""Pictures to bytes with a hole for a pixel nonce, chosen so that every nonce decodes to other pixels.

JPEG: raising an entry q of the luma quantization table by d changes each pixel of a block by up to d/4
times that block's coefficient, so an entry may carry nonce bits only where enough blocks use it, and it
costs d * rms / 8 levels over the picture. Bits go where they cost least. PNG: the last row is a stored
block. WebP, and pictures too flat for the above, come as a pool of variants; that a pool is used again
and again is reported.
"""

from __future__ import annotations

import io
import zlib
from binascii import b2a_base64
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from harness.payloads.nonces import Hole, JpegHole, PngHole

NONCE_BITS = 40  # of a JPEG: 10,000 pictures collide with a probability of 5e-5
USED_BLOCKS = 12  # that must use an entry before it may carry bits
USED_SHARE = (
    0.01  # of all blocks, where enough entries reach it: a change that survives the service's resizing
)
POOL = 8  # variants where there is no hole
MAX_BLOCKS = 16_384  # looked at per picture
_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Encoded:
    """One picture as base64 text, with the hole for its nonce where it has one."""

    text: bytes
    raw_bytes: int
    hole: Hole | None


def encoded(image: Image.Image, kind: str, quality: int) -> list[Encoded]:
    """Return an RGB picture encoded: one with a hole, or a pool of variants that decode differently."""
    if kind == "png":
        return [_png(image)]
    if kind == "jpeg":
        raw = _saved(image, kind, quality)
        hole = jpeg_hole(raw)
        if hole is not None:
            return [plain(raw, hole)]
    return _pool(image, kind, quality)


def plain(raw: bytes, hole: Hole | None = None) -> Encoded:
    """Return an encoded file as base64 text."""
    return Encoded(b2a_base64(raw, newline=False), len(raw), hole)


def _saved(image: Image.Image, kind: str, quality: int) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, quality=quality)
    return out.getvalue()


def _pool(image: Image.Image, kind: str, quality: int) -> list[Encoded]:
    """Return variants that differ by the color of a corner of 16 x 16 pixels."""
    variants = []
    for number in range(POOL):
        variant = image.copy()
        color = (32 * number, 255 - 32 * number, 96)
        variant.paste(color, (max(0, image.width - 16), max(0, image.height - 16), image.width, image.height))
        variants.append(plain(_saved(variant, kind, quality)))
    return variants


def jpeg_hole(raw: bytes) -> JpegHole | None:
    """Return where a JPEG takes a nonce; None: too few coefficients are used, or it is no plain JPEG."""
    table = _luma_table(raw)
    if table is None:
        return None
    try:
        with Image.open(io.BytesIO(raw)) as image:
            if image.mode not in ("L", "RGB") or min(image.size) < 8:  # no whole block
                return None
            coefficients = _coefficients(np.asarray(image.convert("L"), np.float32) - 128)
    except (OSError, SyntaxError):  # a recorded picture that is cut off or damaged
        return None
    steps = np.frombuffer(raw, np.uint8, 64, table).astype(np.float32)
    used = np.rint(coefficients[:, _ZIGZAG] / steps)
    power, count = (used**2).mean(axis=0), (used != 0).sum(axis=0)
    bits = _share_out(power, count, USED_SHARE * len(used)) or _share_out(power, count, USED_BLOCKS)
    if not bits:
        return None
    hole = _hole_of_bits(raw, table, bits)
    return hole if _changes_pixels(raw, hole) else None


def _luma_table(raw: bytes) -> int | None:
    """Return the offset of the 64 entries of the 8-bit quantization table 0 (ITU-T T.81, B.2.4.1).

    Segments are walked, not searched: a thumbnail's own tables lie inside an APP segment and are passed over.
    """
    at = 2
    while raw[:2] == b"\xff\xd8" and at + 4 <= len(raw) and raw[at] == 0xFF and raw[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(raw[at + 2 : at + 4], "big")
        if raw[at + 1] == 0xDB:
            table = at + 4
            while table + 65 <= min(end, len(raw)):
                if raw[table] == 0:
                    return table + 1
                table += 129 if raw[table] >> 4 else 65
        at = end
    return None


def _coefficients(luma: _Floats) -> _Floats:
    """Return the DCT of the picture's whole 8 x 8 blocks, each a row of 64; large pictures are sampled."""
    height, width = (n // 8 * 8 for n in luma.shape)
    blocks = luma[:height, :width].reshape(height // 8, 8, width // 8, 8).swapaxes(1, 2).reshape(-1, 64)
    blocks = blocks[:: max(1, len(blocks) // MAX_BLOCKS)]
    return blocks @ _DCT.T


def _share_out(power: _Floats, used: npt.NDArray[np.int64], floor: float) -> dict[int, int]:
    """Return bits per table entry (zigzag place), at most 3 each, at least change; empty: too few entries.

    `power` is the mean square of the quantized coefficients, `used` the number of blocks that use the entry.
    b bits take 2**b values about the present one, whose mean square distance is (4**b + 2) / 12 steps.
    """
    offers = [
        (power[k] * (4**b - 4 ** (b - 1) + (2 if b == 1 else 0)), b, k)
        for k in range(1, 64)  # 0 is the mean brightness
        if used[k] >= max(floor, USED_BLOCKS)
        for b in (1, 2, 3)
    ]
    if len(offers) < NONCE_BITS:
        return {}
    bits: dict[int, int] = {}
    for _cost, _b, k in sorted(offers)[:NONCE_BITS]:
        bits[int(k)] = bits.get(int(k), 0) + 1
    return bits


def _hole_of_bits(raw: bytes, table: int, bits: dict[int, int]) -> JpegHole:
    start = (table + min(bits)) // 3 * 3
    end = -(-(table + max(bits) + 1) // 3) * 3
    fields, shift = [], 0
    for k, count in sorted(bits.items()):
        values = 2**count
        lowest = min(max(1, raw[table + k] - (values - 1) // 2), 256 - values)
        fields.append((table + k - start, lowest, shift, values - 1))
        shift += count
    return JpegHole(start // 3 * 4, (end - start) // 3 * 4, raw[start:end], tuple(fields))


def _changes_pixels(raw: bytes, hole: JpegHole) -> bool:
    """Return whether the entry that changes least still changes a decoded pixel."""
    start = hole.at // 4 * 3

    def pixels(change: int) -> bytes:
        edited = bytearray(raw)
        place, lowest, _, _ = hole.fields[-1]
        edited[start + place] = lowest + change
        with Image.open(io.BytesIO(edited)) as image:
            return image.tobytes()

    return pixels(0) != pixels(1)


def _png(image: Image.Image) -> Encoded:
    """Write a PNG whose last 8 bytes of pixels stand in a chunk of their own (PNG 3rd edition, 10.1)."""
    pixels = np.asarray(image, np.uint8).reshape(image.height, -1)
    rows = np.empty((image.height, pixels.shape[1] + 1), np.uint8)
    rows[:, 0] = 2  # filter "up": the difference to the row above
    rows[0, 1:] = pixels[0]
    rows[1:, 1:] = pixels[1:] - pixels[:-1]
    last = b"\0" + pixels[-1].tobytes()  # filter "none"
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15, strategy=zlib.Z_FILTERED)
    packed = b"\x78\x9c" + deflate.compress(rows[:-1].tobytes()) + deflate.flush(zlib.Z_SYNC_FLUSH)
    stored = (
        b"\x01" + len(last).to_bytes(2, "little") + (len(last) ^ 0xFFFF).to_bytes(2, "little") + last[:-8]
    )
    adler = zlib.adler32(last[:-8], zlib.adler32(rows[:-1].tobytes()))
    head = image.width.to_bytes(4, "big") + image.height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    before = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", packed + stored)
    tail = last[-8:] + zlib.adler32(last[-8:], adler).to_bytes(4, "big")
    raw = before + _chunk(b"IDAT", tail) + _chunk(b"IEND", b"")
    start = len(before) + 8
    aligned = start // 3 * 3
    text = b2a_base64(raw, newline=False)
    hole = PngHole(aligned // 3 * 4, len(text) - aligned // 3 * 4, raw[aligned:], start - aligned, adler)
    return Encoded(text, len(raw), hole)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def _dct_of_blocks() -> _Floats:
    """Return the 64 x 64 matrix of the orthonormal DCT of a block in row order (T.81, A.3.3)."""
    n = np.arange(8)
    one = (
        np.cos((2 * n[None, :] + 1) * n[:, None] * np.pi / 16)
        * np.where(n == 0, np.sqrt(1 / 8), 0.5)[:, None]
    )
    return np.kron(one, one).astype(np.float32)


_DCT = _dct_of_blocks()
# Place in row order of the k-th entry in zigzag order: along the anti-diagonals, up and down in turn.
_ZIGZAG = np.array(
    sorted(range(64), key=lambda i: (i // 8 + i % 8, i // 8 if (i // 8 + i % 8) % 2 else i % 8))
)
