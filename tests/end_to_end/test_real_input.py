"""Ladders on real photographs, from a folder and from a replay file, through real processes."""

import json
import shutil
from pathlib import Path

import pytest
import skimage

pytestmark = pytest.mark.end_to_end
PICTURES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "hubble_deep_field.jpg")
ENGINE = "decode: {step_ms: 3.0}"
LOAD = """
load:
  users: [1, 2, 3]
  drift_check: false
  hold: {seconds: 2, min_requests: 20, max_seconds: 10, settle_s: 0}
observe: {gpu: none}
"""


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of photographs that scikit-image ships."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in PICTURES:
        shutil.copy(Path(skimage.__file__).parent / "data" / name, folder)
    return folder


def requests_of(knee, tmp_path: Path, profile: str) -> list[dict]:
    """Run the profile; return its records of the load, all of which must be good."""
    file = tmp_path / "profile.yaml"
    file.write_text(profile)
    done = knee("run", str(file), "--out", str(tmp_path / "runs"), "--json")
    assert done.returncode in (0, 3), done.stderr  # a busy machine may withhold the verdict
    run_dir = Path(json.loads(done.stdout)["run_dir"])
    assert (run_dir / "report.html").exists()
    rows = [json.loads(line) for line in (run_dir / "requests.jsonl").read_text().splitlines()]
    assert {row["outcome"] for row in rows} <= {"ok", "cancelled"}
    return [row for row in rows if row["phase"] >= 0 and row["outcome"] == "ok"]


def test_photographs_of_a_folder_are_sent_in_turn_and_hit_no_cache(
    knee, start_engine, pictures, tmp_path
) -> None:
    rows = requests_of(
        knee,
        tmp_path,
        f"name: photos\ntarget: {{base_url: '{start_engine(ENGINE)}/v1', model: sim-vlm}}\n"
        "generation: {max_tokens: 8}\n"
        "traffic: {mix: [{kind: text_only, text: {chars: 80}}, "
        "{kind: photo, images: {side: 256, source: ./pictures}}]}\n" + LOAD,
    )
    photos = [row for row in rows if row["kind"] == "photo"]
    assert len(photos) == pytest.approx(len(rows) / 2, abs=4)
    sizes = {tuple(row["img_wh"][0]) for row in photos}
    assert len(sizes) >= 3  # the pictures have different ratios, which resizing keeps
    assert all(max(size) == 256 for size in sizes)
    engine = [json.loads(x) for x in next((tmp_path / "runs").rglob("engine.jsonl")).read_text().splitlines()]
    assert engine[-1]["mm_queries_total"] >= len(photos) - 4
    assert engine[-1]["mm_hits_total"] <= 0.01 * engine[-1]["mm_queries_total"]


def test_a_replay_file_with_photographs_is_sent_in_its_order(knee, start_engine, pictures, tmp_path) -> None:
    lines = []
    for number, name in enumerate(PICTURES):
        content = [{"type": "text", "text": f"What is on picture {number}?"}]
        if number % 2 == 0:
            content.append({"type": "image_url", "image_url": {"url": f"pictures/{name}"}})
        message = {"role": "user", "content": content}
        lines.append(json.dumps({"model": "sim-vlm", "max_tokens": 8, "stream": True, "messages": [message]}))
    (tmp_path / "traffic.jsonl").write_text("\n".join(lines) + "\n")
    rows = requests_of(
        knee,
        tmp_path,
        f"name: replay\ntarget: {{base_url: '{start_engine(ENGINE)}/v1', model: sim-vlm}}\n"
        "traffic: {unique: true, replay: {file: traffic.jsonl}}\n" + LOAD,
    )
    first = [row for row in sorted(rows, key=lambda row: row["seq"]) if row["phase"] == 0]
    assert [row["in_img"] for row in first[:10]] == [1, 0, 1, 0, 1] * 2
    assert {row["kind"] for row in rows} == {"text_only", "one_image"}
