import base64
import io
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from harness.errors import UserError
from harness.payloads.corpus import Body, Corpus, build, open_corpus, replay_lines
from harness.plan import Entry, make_plan
from harness.profile import Profile

FRESH = (True, True)
TEXT: dict[str, Any] = {"kind": "text_only", "text": {"chars": 120}}
ONE: dict[str, Any] = {"kind": "one_image", "text": {"chars": 60}, "images": {"side": 64}}
FOUR: dict[str, Any] = {"kind": "multi_image", "text": {"chars": 60}, "images": {"count": 4, "side": 48}}


def built(profile: Profile, folder: Path, experiment: str = "steps", **options: Any) -> Corpus:
    plan = make_plan(profile, experiment, replay_lines=replay_lines(profile))
    return build(profile, plan, folder / "corpora", **options)


def sent(body: Body) -> bytes:
    raw = b"".join(body.segments)
    assert len(raw) == body.length == body.body_bytes
    return raw


def parts(body: Body) -> tuple[str, list[bytes]]:
    """Return the text and the encoded images of a body, as a service reads them."""
    content = json.loads(sent(body))["messages"][0]["content"]
    if isinstance(content, str):
        return content, []
    urls = [part["image_url"]["url"] for part in content[1:]]
    return content[0]["text"], [base64.b64decode(url.partition(",")[2], validate=True) for url in urls]


def pixels(raw: bytes) -> bytes:
    with Image.open(io.BytesIO(raw)) as image:
        image.load()
        return image.tobytes()


def test_bodies_parse_and_say_what_they_hold(make, tmp_path: Path) -> None:
    corpus = built(make(TEXT, ONE, FOUR), tmp_path)
    assert len(corpus) == 3
    for index, (kind, sides, chars) in enumerate(
        [("text_only", [], 120), ("one_image", [64], 60), ("multi_image", [48] * 4, 60)]
    ):
        lengths = set()
        for nonce in range(0, 2**64, 2**64 // 40):
            body = corpus.body(Entry(index, *FRESH), nonce)
            text, images = parts(body)
            lengths.add(body.length)
            assert body.kind == kind
            assert body.payload.startswith(kind + "-")
            assert len(text) == body.text_chars == chars
            assert body.img_wh == tuple((side, side) for side in sides)
            assert [Image.open(io.BytesIO(raw)).size for raw in images] == list(body.img_wh)
            assert body.in_img == len(sides)
            assert body.img_bytes == sum(map(len, images))
        assert len(lengths) == 1  # so that the head of a request never changes
    assert corpus.notes == ()


def test_thousands_of_requests_have_no_text_prefix_and_no_image_in_common(make, tmp_path: Path) -> None:
    corpus = built(make(FOUR), tmp_path)
    nonces = [worker << 48 | seq for worker in range(2) for seq in range(1000)]
    found = [parts(corpus.body(Entry(0, *FRESH), nonce)) for nonce in nonces]
    assert len({text[:16] for text, _ in found}) == 2000
    assert len({image for _, images in found for image in images}) == 8000
    some = [image for _, images in found[::20] for image in images]
    assert len({pixels(image) for image in some}) == len(some) == 400


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_each_format_takes_nonces_in_each_of_its_images(kind: str, make, tmp_path: Path) -> None:
    corpus = built(make(FOUR | {"images": {"count": 2, "side": 32, "format": kind}}), tmp_path)
    found = [pixels(raw) for nonce in range(50) for raw in parts(corpus.body(Entry(0, *FRESH), nonce))[1]]
    assert len(set(found)) == 100
    assert corpus.notes == ()


def test_webp_is_drawn_from_a_pool_and_the_corpus_says_so(make, tmp_path: Path) -> None:
    corpus = built(make(ONE | {"images": {"side": 32, "format": "webp"}}), tmp_path)
    bodies = [corpus.body(Entry(0, *FRESH), nonce) for nonce in range(100)]
    assert len({pixels(parts(body)[1][0]) for body in bodies}) == 8
    assert corpus.notes == (
        "one_image: 1 webp picture in 8 variants each, used again and again: an image cache can hit",
    )


def test_what_is_not_asked_to_be_fresh_is_the_same_bytes_each_time(make, tmp_path: Path) -> None:
    corpus = built(make(FOUR), tmp_path)

    def of(fresh_text: bool, fresh_images: bool) -> list[tuple[str, list[bytes]]]:
        return [parts(corpus.body(Entry(0, fresh_text, fresh_images), nonce)) for nonce in range(20)]

    assert len({sent(corpus.body(Entry(0, False, False), nonce)) for nonce in range(20)}) == 1
    only_text, only_images = of(True, False), of(False, True)
    assert len({text for text, _ in only_text}) == 20
    assert all(images == only_text[0][1] for _, images in only_text)
    assert len({text for text, _ in only_images}) == 1
    assert len({image for _, images in only_images for image in images}) == 80


def test_a_body_follows_from_its_entry_and_nonce_alone(make, tmp_path: Path) -> None:
    one, two = built(make(FOUR), tmp_path / "a"), built(make(FOUR), tmp_path / "b")
    assert sent(one.body(Entry(0, *FRESH), 99)) == sent(two.body(Entry(0, *FRESH), 99))


def folder_of_pictures(folder: Path, number: int = 5, size: tuple[int, int] = (80, 40)) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(1)
    for n in range(number):
        noise = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{n}.png")
    return folder


def own(count: int = 1, **more: Any) -> dict[str, Any]:
    return {"kind": "own", "text": {"chars": 40}, "images": {"count": count, "source": "pictures", **more}}


def test_a_folder_s_pictures_are_shown_in_turn_and_evenly(make, tmp_path: Path) -> None:
    folder_of_pictures(tmp_path / "pictures")
    corpus = built(make(own(2, format="png")), tmp_path)
    top_left = [p.variants[0].offset for p in corpus.template(0).pictures]
    assert len(set(top_left)) == 5
    seen: dict[bytes, int] = {}
    for nonce in range(200):
        images = [pixels(raw)[: 80 * 3] for raw in parts(corpus.body(Entry(0, *FRESH), nonce))[1]]
        assert len(set(images)) == 2  # never the same picture twice in a body
        for image in images:
            seen[image] = seen.get(image, 0) + 1
    assert len(seen) == 5
    assert all(70 <= times <= 90 for times in seen.values())  # 80 each, were it perfect


def test_sizes_follow_the_picture_shown_and_the_fit_is_recorded(make, tmp_path: Path) -> None:
    folder_of_pictures(tmp_path / "pictures", 1)
    Image.effect_noise((40, 80), 60).save(tmp_path / "pictures" / "tall.png")
    corpus = built(make(own(side=64)), tmp_path)
    shown = {corpus.body(Entry(0, *FRESH), nonce).img_wh for nonce in range(50)}
    assert shown == {((64, 32),), ((32, 64),)}
    assert {p.fit for p in corpus.template(0).pictures} == {"resize"}
    crop = built(make(own(side=64, fit="crop")), tmp_path)
    assert {(p.width, p.height, p.fit) for p in crop.template(0).pictures} == {(64, 64, "crop")}


def test_a_sweep_shows_one_picture_at_every_side(make, tmp_path: Path) -> None:
    folder_of_pictures(tmp_path / "pictures")
    sweep = {"experiments": {"image_sweep": {"sides": [32, 64]}}}
    corpus = built(make(own(side=16), **sweep), tmp_path, "image_sweep")
    for nonce in range(20):
        assert corpus.body(Entry(1, *FRESH), nonce).img_wh == ((32, 16),)
        assert corpus.body(Entry(2, *FRESH), nonce).img_wh == ((64, 32),)
    first = {n: pixels(parts(corpus.body(Entry(2, True, False), n))[1][0]) for n in range(5)}
    assert len(set(first.values())) == 1


def test_without_unique_a_folder_s_first_pictures_are_sent_and_the_corpus_says_so(
    make, tmp_path: Path
) -> None:
    folder_of_pictures(tmp_path / "pictures")
    corpus = built(make(own(2), unique=False), tmp_path)
    entry = make_plan(make(own(2), unique=False)).phases[0].schedule[0]
    assert len({sent(corpus.body(entry, nonce)) for nonce in range(10)}) == 1
    assert corpus.notes == ("own: of 5 pictures only the first 2 are sent, since traffic.unique is false",)


def test_a_very_short_text_says_how_often_it_can_differ(make, tmp_path: Path) -> None:
    corpus = built(make(TEXT | {"text": {"chars": 2}}), tmp_path)
    assert len(parts(corpus.body(Entry(0, *FRESH), 1))[0]) == 2
    assert corpus.notes == ("text_only: a text of 2 characters differs only 256 times",)


def test_a_length_in_tokens_follows_the_targets_own_count(make, tmp_path: Path) -> None:
    long = TEXT | {"text": {"tokens": 300}}
    corpus = built(make(long, ONE), tmp_path)
    calibrated = built(make(long, ONE), tmp_path, chars_per_token={"en": 4.0})
    assert calibrated.body(Entry(0, *FRESH), 1).text_chars == 1200
    assert calibrated.path != corpus.path


def test_a_replay_is_sent_by_its_lines(make, tmp_path: Path) -> None:
    lines = [{"messages": [{"role": "user", "content": f"hello {n}"}], "stream": True} for n in range(3)]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)))
    profile = make(replay={"file": "r.jsonl"}, unique=False)
    assert replay_lines(profile) == 3
    corpus = built(profile, tmp_path)
    bodies = [corpus.body(entry, 5) for entry in make_plan(profile, replay_lines=3).phases[0].schedule]
    assert [sent(body) for body in bodies] == [json.dumps(line).encode() for line in lines]
    assert [(body.kind, body.payload) for body in bodies] == [("text_only", f"line-{n}") for n in (1, 2, 3)]
    unique = built(make(replay={"file": "r.jsonl"}), tmp_path)
    texts = {json.loads(sent(unique.body(Entry(2, *FRESH), n)))["messages"][0]["content"] for n in range(30)}
    assert len(texts) == 30
    assert all(text[16:] == " hello 2" for text in texts)


def test_a_replay_says_what_could_not_be_made_unique(make, tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://host/x.jpg"}}
    line = {"messages": [{"role": "user", "content": [image, image]}], "stream": True}
    (tmp_path / "r.jsonl").write_text(json.dumps(line))
    corpus = built(make(replay={"file": "r.jsonl"}), tmp_path)
    assert corpus.notes == (
        "replay: 1 requests without a text to put a nonce in: a prefix cache can hit",
        "replay: 2 images by link, sent unchanged: an image cache can hit",
    )
    body = corpus.body(Entry(0, *FRESH), 1)
    assert (body.in_img, body.img_wh, body.kind) == (2, (), "multi_image")


def test_a_corpus_is_built_once_and_again_when_a_file_changes(make, tmp_path: Path) -> None:
    folder_of_pictures(tmp_path / "pictures", 2)
    done: list[tuple[int, int]] = []

    def again() -> Corpus:
        done.clear()
        return built(make(own()), tmp_path, progress=lambda n, total: done.append((n, total)))

    first = again()
    assert done == [(1, 2), (2, 2)]
    assert again().path == first.path
    assert done == []
    Image.effect_noise((32, 32), 60).save(tmp_path / "pictures" / "1.png")
    assert again().path != first.path
    assert done == [(1, 2), (2, 2)]


def test_payloads_share_the_pictures_that_they_have_in_common(make, tmp_path: Path) -> None:
    same = [ONE | {"kind": f"k{n}", "text": {"chars": 60 + n}} for n in range(5)]
    one, five = built(make(same[0]), tmp_path), built(make(*same), tmp_path)
    assert len({five.template(n).pictures[0].variants[0].offset for n in range(5)}) == 1
    assert five.path.stat().st_size < 2 * one.path.stat().st_size


@pytest.mark.parametrize(
    ("make_wrong", "what"),
    [
        (lambda folder: (folder / "notes.txt").write_text("x"), "notes.txt: not a picture"),
        (lambda folder: [p.unlink() for p in folder.iterdir()], "the folder holds no picture"),
        (
            lambda folder: [p.unlink() for p in folder.iterdir()] and folder.rmdir(),
            "no such picture or folder",
        ),
    ],
)
def test_a_wrong_folder_is_one_clear_line_and_nothing_is_left(
    make_wrong, what: str, make, tmp_path: Path
) -> None:
    make_wrong(folder_of_pictures(tmp_path / "pictures"))
    with pytest.raises(UserError) as caught:
        built(make(own()), tmp_path)
    assert what in str(caught.value)
    assert not list((tmp_path / "corpora").glob("*"))


def test_a_broken_replay_leaves_nothing(make, tmp_path: Path) -> None:
    good = json.dumps({"messages": [{"role": "user", "content": "a"}], "stream": True})
    bad = json.dumps(
        {
            "messages": [
                {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}
            ],
            "stream": True,
        }
    )
    (tmp_path / "r.jsonl").write_text("\n".join([good] * 36 + [bad]))
    with pytest.raises(UserError, match=r"r\.jsonl:37: a data URL is no image"):
        built(make(replay={"file": "r.jsonl"}), tmp_path)
    assert not list((tmp_path / "corpora").glob("*"))


@pytest.fixture
def large(make, tmp_path: Path) -> Corpus:
    """Return a corpus of 4 images of more than 1.5 MB a body, about 9 MB in all."""
    big = {"count": 4, "side": 1024, "source": "noise", "quality": 97}
    return built(make(FOUR | {"images": big}), tmp_path)


def test_large_bodies_are_views_into_the_file_and_not_copies(large: Corpus) -> None:
    entry = Entry(0, *FRESH)
    large.body(entry, 0)
    tracemalloc.start()
    bodies = [large.body(entry, nonce) for nonce in range(12)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(body.length for body in bodies) > 12 * 6_000_000
    assert peak < 200_000
    assert len({id(s.obj) for body in bodies for s in body.segments if isinstance(s, memoryview)}) == 1


READER = """
import sys
from harness.payloads.corpus import open_corpus
from harness.plan import Entry

def own_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

corpus = open_corpus(sys.argv[1])
before = own_kib()
sent = 0
for nonce in range(40):
    for segment in corpus.body(Entry(0, True, True), nonce).segments:
        sent += sum(segment[::4096])  # touch each page
print(own_kib() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")
def test_a_worker_grows_by_less_than_a_twentieth_of_the_corpus(large: Corpus) -> None:
    command = [sys.executable, "-c", READER, str(large.path)]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) * 1024
    assert grown < 0.05 * large.path.stat().st_size


def test_a_corpus_is_opened_by_its_path(make, tmp_path: Path) -> None:
    corpus = built(make(TEXT), tmp_path)
    again = open_corpus(str(corpus.path))
    assert sent(again.body(Entry(0, *FRESH), 3)) == sent(corpus.body(Entry(0, *FRESH), 3))


def test_many_payloads_do_not_fill_a_process(make, tmp_path: Path) -> None:
    """A replay may have a million lines: only some stay ready, and none gets lost."""
    lines = [{"messages": [{"role": "user", "content": f"{n}"}], "stream": True} for n in range(1100)]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)))
    corpus = built(make(replay={"file": "r.jsonl"}, unique=False), tmp_path)
    for n in (*range(1100), 0, 1099):
        assert json.loads(sent(corpus.body(Entry(n, False, False), n)))["messages"][0]["content"] == f"{n}"
