import zlib
from base64 import b64decode
from itertools import pairwise

import pytest

from harness.payloads.nonces import PngHole, scramble, text_nonce, turn


def test_scrambling_loses_no_nonce() -> None:
    worker = 3 << 48
    assert (
        len({scramble(n) for n in range(50_000)} | {scramble(worker + n) for n in range(50_000)}) == 100_000
    )


def test_successive_nonces_differ_from_the_first_digit_on() -> None:
    """A prefix cache compares from the left: common leading digits would be a hit on a part."""
    nonces = [text_nonce(scramble(n), 16) for n in range(1000)]
    assert sum(a[0] == b[0] for a, b in pairwise(nonces)) < 120  # by chance 1 in 16


def test_a_nonce_has_the_width_that_its_text_allows() -> None:
    assert text_nonce(0xAB << 56, 16) == b"ab00000000000000"
    assert text_nonce(0xAB << 56, 2) == b"ab"
    assert text_nonce(5, 16) == b"0000000000000005"


@pytest.mark.parametrize("stride", [1, 2, 3, 6])
@pytest.mark.parametrize("among", [2, 3, 4, 10])
def test_turns_visit_all_evenly_whatever_other_payloads_stand_between(stride: int, among: int) -> None:
    """A plain remainder would show only half of 4 pictures to a payload that comes every second time."""
    times = [0] * among
    for nonce in range(0, 600 * stride, stride):
        times[turn(nonce, among)] += 1
    assert sum(times) == 600
    assert max(times) - min(times) <= 0.1 * 600 / among + 8


def test_a_png_hole_carries_the_checksums_of_what_it_is_filled_with() -> None:
    before = b"image data"
    hole = PngHole(0, 0, b"x" + bytes(16) + b"rest", 1, zlib.adler32(before))
    raw = b64decode(hole.fill(0x0102030405060708))
    pixels, adler, crc = raw[1:9], raw[9:13], raw[13:17]
    assert pixels == bytes([1, 2, 3, 4, 5, 6, 7, 8])
    assert int.from_bytes(adler, "big") == zlib.adler32(before + pixels)
    assert int.from_bytes(crc, "big") == zlib.crc32(b"IDAT" + pixels + adler)
    assert raw[:1] == b"x"
    assert raw[17:] == b"rest"
