import base64
import io
import random

import numpy as np
import pytest
from PIL import Image

from harness.payloads.encode import NONCE_BITS, POOL, Encoded, encoded, jpeg_hole
from harness.payloads.nonces import JpegHole
from harness.payloads.pictures import Source, picture
from harness.profile import ImageSpec

STYLES = ["photo", "noise", "document"]


def drawn(style: str, side: int = 128) -> Image.Image:
    return picture(Source(style, 0), ImageSpec(side=side), 1)[0]


def decode(made: Encoded, code: int | None = None) -> np.ndarray:
    text, hole = made.text, made.hole
    if code is not None:
        assert hole is not None
        text = text[: hole.at] + hole.fill(code) + text[hole.at + hole.length :]
        assert len(text) == len(made.text)
    with Image.open(io.BytesIO(base64.b64decode(text, validate=True))) as image:
        return np.asarray(image.convert("RGB")).astype(int)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("side", [64, 128, 250])
def test_every_nonce_gives_a_jpeg_other_pixels_and_hardly_changes_it(style: str, side: int) -> None:
    made = encoded(drawn(style, side), "jpeg", 85)[0]
    base = decode(made)
    rng = random.Random(1)
    pictures = [decode(made, rng.getrandbits(64)) for _ in range(60)]
    assert len({p.tobytes() for p in pictures} | {base.tobytes()}) == 61
    assert max(np.abs(p - base).mean() for p in pictures) < 1.5
    assert np.mean([np.abs(p - base).mean() for p in pictures]) < 1.0


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("quality", [30, 85, 100])
def test_every_single_bit_of_a_jpeg_nonce_changes_pixels(style: str, quality: int) -> None:
    """So that no two of its 2**40 values can decode alike by a bit that no coefficient uses."""
    made = encoded(drawn(style), "jpeg", quality)[0]
    assert isinstance(made.hole, JpegHole)
    bits = [shift + b for _, _, shift, mask in made.hole.fields for b in range(mask.bit_length())]
    assert sorted(bits) == list(range(NONCE_BITS))
    zero = decode(made, 0).tobytes()
    assert all(decode(made, 1 << bit).tobytes() != zero for bit in bits)


def test_a_change_of_a_large_picture_is_wide_enough_to_survive_resizing() -> None:
    made = encoded(drawn("photo", 512), "jpeg", 85)[0]

    def halved(code: int) -> bytes:
        image = Image.fromarray(decode(made, code).astype(np.uint8))
        return image.resize((256, 256), Image.Resampling.BICUBIC).tobytes()

    rng = random.Random(2)
    assert len({halved(rng.getrandbits(64)) for _ in range(40)}) == 40


def test_the_hole_of_base64_stands_at_multiples_of_three_bytes() -> None:
    made = encoded(drawn("photo"), "jpeg", 85)[0]
    assert made.hole is not None
    assert made.hole.at % 4 == 0
    assert made.hole.length % 4 == 0
    assert base64.b64encode(made.hole.raw) == made.text[made.hole.at : made.hole.at + made.hole.length]


@pytest.mark.parametrize("size", [(64, 64), (65, 33), (17, 16), (200, 1), (16, 70)])
def test_a_png_is_lossless_and_its_nonce_changes_three_pixels_with_right_checksums(
    size: tuple[int, int],
) -> None:
    rng = np.random.default_rng(1)
    image = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    made = encoded(image, "png", 85)[0]
    base = decode(made)  # Pillow verifies each chunk's CRC, and zlib the Adler-32
    assert (base == np.asarray(image)).all()
    found = [decode(made, code) for code in (1, 2**64 - 1, 0x0123456789ABCDEF)]
    assert len({p.tobytes() for p in found}) == 3
    for p in found:
        assert (p != base).any(axis=2).sum() <= 3
    assert (found[0].reshape(-1)[-8:] == [0, 0, 0, 0, 0, 0, 0, 1]).all()


def test_webp_comes_as_a_pool_of_different_variants() -> None:
    made = encoded(drawn("photo"), "webp", 85)
    assert len(made) == POOL
    assert all(variant.hole is None for variant in made)
    assert len({decode(variant).tobytes() for variant in made}) == POOL


def test_a_picture_too_flat_for_a_jpeg_nonce_comes_as_a_pool() -> None:
    made = encoded(Image.new("RGB", (64, 64), "navy"), "jpeg", 85)
    assert len(made) == POOL
    assert len({decode(variant).tobytes() for variant in made}) == POOL


@pytest.mark.parametrize(
    ("options", "takes"),
    [
        ({"progressive": True}, True),
        ({"subsampling": 0, "optimize": True}, True),
        ({"qtables": [[16] * 64]}, True),  # one table for luma and chroma
        ({"quality": 5}, False),  # hardly a coefficient is left
    ],
)
def test_jpegs_from_elsewhere(options: dict, takes: bool) -> None:
    out = io.BytesIO()
    drawn("photo").save(out, "jpeg", **options)
    raw = out.getvalue()
    hole = jpeg_hole(raw)
    assert (hole is not None) == takes
    if hole is not None:
        made = Encoded(base64.b64encode(raw), len(raw), hole)
        rng = random.Random(3)
        assert len({decode(made, rng.getrandbits(64)).tobytes() for _ in range(30)}) == 30


def test_a_thumbnail_s_table_inside_an_app_segment_is_passed_over() -> None:
    out = io.BytesIO()
    drawn("photo").save(out, "jpeg")
    raw = out.getvalue()
    thumbnail = b"\xff\xdb\x00\x43\x00" + bytes([9] * 64)
    app = b"\xff\xe1" + (2 + len(thumbnail)).to_bytes(2, "big") + thumbnail
    hole = jpeg_hole(raw[:2] + app + raw[2:])
    assert hole is not None
    assert hole.at // 4 * 3 >= 2 + len(app)


@pytest.mark.parametrize(
    "raw", [b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xdb\xff\xff", b"\xff\xd8\xff"]
)
def test_what_is_no_jpeg_has_no_hole(raw: bytes) -> None:
    assert jpeg_hole(raw) is None


def test_a_cmyk_jpeg_has_no_hole() -> None:
    out = io.BytesIO()
    drawn("photo").convert("CMYK").save(out, "jpeg")
    assert jpeg_hole(out.getvalue()) is None


@pytest.mark.parametrize("size", [(64, 4), (4, 64), (1, 1)])
def test_a_jpeg_without_a_whole_block_has_no_hole(size: tuple[int, int]) -> None:
    out = io.BytesIO()
    drawn("photo").resize(size).save(out, "jpeg")
    assert jpeg_hole(out.getvalue()) is None
