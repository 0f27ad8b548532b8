from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness.errors import UserError
from harness.payloads.pictures import Source, fitted, opened, picture, sources
from harness.profile import ImageSpec

STYLES = ["photo", "noise", "document"]


def small(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("L").resize((32, 32), Image.Resampling.BOX), float)


@pytest.mark.parametrize("style", STYLES)
def test_drawn_pictures_follow_from_seed_and_number(style: str) -> None:
    spec = ImageSpec(side=128)
    once, fit = picture(Source(style, 0), spec, 1)
    assert (once.size, once.mode, fit) == ((128, 128), "RGB", "drawn")
    assert picture(Source(style, 0), spec, 1)[0].tobytes() == once.tobytes()
    assert picture(Source(style, 1), spec, 1)[0].tobytes() != once.tobytes()
    assert picture(Source(style, 0), spec, 2)[0].tobytes() != once.tobytes()


@pytest.mark.parametrize("style", ["photo", "document"])
@pytest.mark.parametrize("side", [512, 768, 1024])
def test_a_sweep_over_sides_shows_the_same_picture(style: str, side: int) -> None:
    """Otherwise a jump between sides could be the picture's doing."""
    base, _ = picture(Source(style, 0), ImageSpec(side=512), 1)
    same, _ = picture(Source(style, 0), ImageSpec(side=side), 1)
    other, _ = picture(Source(style, 1), ImageSpec(side=side), 1)
    assert np.corrcoef(small(base).ravel(), small(same).ravel())[0, 1] > 0.9
    assert np.abs(small(base) - small(same)).mean() < 0.5 * np.abs(small(base) - small(other)).mean()


def test_a_photo_compresses_like_a_photograph_and_noise_does_not(tmp_path: Path) -> None:
    bits = {}
    for style in STYLES:
        picture(Source(style, 0), ImageSpec(side=512), 1)[0].save(tmp_path / "x.jpg", quality=85)
        bits[style] = 8 * (tmp_path / "x.jpg").stat().st_size / 512**2
    assert 0.8 < bits["photo"] < 3.0  # bits a pixel; photographs at quality 85 have 1 to 2.5
    assert bits["noise"] > 5


@pytest.mark.parametrize(
    ("spec", "size", "fit"),
    [
        (ImageSpec(), (300, 200), "as_is"),
        (ImageSpec(side=150), (150, 100), "resize"),
        (ImageSpec(side=600), (600, 400), "resize"),  # a sweep needs its sides, so small ones are enlarged
        (ImageSpec(width=90, height=90), (90, 60), "resize"),
        (ImageSpec(width=90, height=90, fit="crop"), (90, 90), "crop"),
        (ImageSpec(side=64, fit="crop"), (64, 64), "crop"),
    ],
)
def test_fit_keeps_the_ratio_or_crops_and_says_which(
    spec: ImageSpec, size: tuple[int, int], fit: str
) -> None:
    image, how = fitted(Image.new("RGB", (300, 200)), spec)
    assert (image.size, how) == (size, fit)


def test_drawn_pictures_take_width_and_height() -> None:
    assert picture(Source("photo", 0), ImageSpec(width=96, height=48), 1)[0].size == (96, 48)
    assert picture(Source("document", 0), ImageSpec(width=48, height=96), 1)[0].size == (48, 96)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
def test_any_mode_becomes_rgb(mode: str, tmp_path: Path) -> None:
    gray = Image.fromarray(np.tile(np.linspace(0, 255, 64, dtype=np.uint8), (64, 1)))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
    else:
        image = gray.convert("RGB").convert(mode) if mode in ("CMYK", "P") else gray.convert(mode)
    path = tmp_path / "x.tiff"
    image.save(path)
    found = np.asarray(opened(path))
    assert found.shape == (64, 64, 3)
    assert abs(found[0, 0].mean() - 0) < 12
    assert abs(found[0, 63].mean() - 255) < 12
    if mode not in ("1", "P"):
        assert abs(found[0, 32].mean() - 129) < 16  # 16 bits are scaled, not clipped


def test_transparency_becomes_white(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "x.png")
    assert opened(tmp_path / "x.png").getpixel((0, 0)) == (255, 255, 255)


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    Image.new("RGB", (40, 20)).save(tmp_path / "x.jpg", exif=exif)
    assert opened(tmp_path / "x.jpg").size == (20, 40)


def test_a_folder_is_read_in_name_order_without_hidden_files_and_subfolders(tmp_path: Path) -> None:
    for name in ("b.jpg", "a.png", ".hidden"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "more").mkdir()
    found = sources(ImageSpec(source=str(tmp_path)))
    assert [source.path.name for source in found if source.path] == ["a.png", "b.jpg"]
    assert sources(ImageSpec(source=str(tmp_path / "a.png")))[0].path == tmp_path / "a.png"


def test_drawn_sources_are_one_per_image_of_a_body() -> None:
    assert sources(ImageSpec(count=3)) == [Source("photo", 0), Source("photo", 1), Source("photo", 2)]


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("notes.txt", b"no image at all", "not a picture"),
        ("empty.jpg", b"", "not a picture"),
        ("cut.png", None, "not a readable picture"),  # a picture whose end is missing
    ],
)
def test_a_file_that_is_no_picture_is_named(
    name: str, content: bytes | None, what: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is None:
        Image.effect_noise((64, 64), 50).save(path)
        content = path.read_bytes()[:500]
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        opened(path)
    assert str(caught.value).startswith(f"{path}: {what}")
    assert caught.value.remedy


def test_a_folder_without_pictures_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / ".only-hidden").write_bytes(b"x")
    with pytest.raises(UserError, match="holds no picture"):
        sources(ImageSpec(source=str(tmp_path)))
    with pytest.raises(UserError, match="no such picture or folder"):
        sources(ImageSpec(source=str(tmp_path / "gone")))
