"""Nonces: what makes a request unlike every other, put into bytes that were encoded before.

A prefix cache matches from the first token, so the text nonce stands at the very start of the prompt. An
image cache keys on decoded pixels (or on the bytes), so a pixel nonce must change what a decoder gives:
in a JPEG some entries of a quantization table by a step or two, in a PNG three pixels of the last row,
which lies uncompressed in a chunk of its own. Base64 maps three bytes to four characters, so a hole
starts and ends at multiples of three bytes (or at the end of the file) and only its own few characters
are made anew. All holes have a fixed length.
"""

from __future__ import annotations

import zlib
from binascii import b2a_base64

import msgspec

TEXT_WIDTH = 16  # hexadecimal digits: 64 bits
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def scramble(number: int) -> int:
    """Map 64 bits to 64 bits one to one, so that successive numbers differ from their first digit on.

    The finalizer of splitmix64 (Steele, Lea, Flood 2014).
    """
    number = (number + _GOLDEN) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


def turn(nonce: int, among: int) -> int:
    """Return a number in 0..among-1 that visits all evenly as the nonce counts up, at any stride."""
    return (nonce * _GOLDEN & _MASK) * among >> 64


def text_nonce(code: int, width: int) -> bytes:
    """Return the first `width` hexadecimal digits of a scrambled nonce."""
    return b"%016x" % code if width == TEXT_WIDTH else (b"%016x" % code)[:width]


class JpegHole(msgspec.Struct, frozen=True, array_like=True, tag="jpeg"):
    """Entries of a JPEG's quantization table, each of which takes a few values."""

    at: int  # offset in the base64 text, in characters
    length: int  # in characters
    raw: bytes  # what the hole decodes to as encoded
    fields: tuple[tuple[int, int, int, int], ...]  # offset in raw, lowest value, shift and mask of the code

    def fill(self, code: int) -> bytes:
        """Return the hole's base64 text for 64 bits."""
        raw = bytearray(self.raw)
        for place, lowest, shift, mask in self.fields:
            raw[place] = lowest + (code >> shift & mask)
        return b2a_base64(raw, newline=False)


class PngHole(msgspec.Struct, frozen=True, array_like=True, tag="png"):
    """The last pixels of a PNG, in a stored block, with the checksums that follow from them."""

    at: int
    length: int
    raw: bytes  # from just before the pixels to the end of the file
    start: int  # offset of the pixels in raw
    adler: int  # Adler-32 of all image data before the pixels

    def fill(self, code: int) -> bytes:
        """Return the hole's base64 text for 64 bits."""
        pixels = code.to_bytes(8, "big")
        data = pixels + zlib.adler32(pixels, self.adler).to_bytes(4, "big")
        crc = zlib.crc32(b"IDAT" + data).to_bytes(4, "big")
        raw = self.raw[: self.start] + data + crc + self.raw[self.start + 16 :]
        return b2a_base64(raw, newline=False)


Hole = JpegHole | PngHole
