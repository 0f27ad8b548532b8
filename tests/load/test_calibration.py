"""Lengths in tokens are met by the target's own count."""

import json
import socket
from pathlib import Path

import gevent
import gevent.socket
import pytest

from harness.profile_reader import parse_profile

PROFILE = """\
name: tokens
target: {base_url: "URL/v1", model: sim-vlm}
generation: {max_tokens: 2}
traffic: {mix: [{kind: short, text: {tokens: 90}}, {kind: long, text: {tokens: 700}}]}
load: {users: [1], hold: {seconds: 1, min_requests: 1, max_seconds: 3, settle_s: 0}}
observe: {gpu: none, engine: none}
"""


def test_only_languages_with_lengths_in_tokens_are_asked() -> None:
    from harness.load.calibration import languages

    text = PROFILE.replace("text: {tokens: 700}", "text: {tokens: 700, lang: zh}")
    assert languages(parse_profile(PROFILE.replace("URL", "http://h"), file=Path("p.yaml"))) == ["en"]
    assert languages(parse_profile(text.replace("URL", "http://h"), file=Path("p.yaml"))) == ["en", "zh"]
    chars = PROFILE.replace("tokens: 90", "chars: 90").replace("tokens: 700", "chars: 700")
    assert languages(parse_profile(chars.replace("URL", "http://h"), file=Path("p.yaml"))) == []


def test_the_service_gets_as_many_tokens_as_asked_for(knee, start_engine, tmp_path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text(PROFILE.replace("URL", start_engine("decode: {step_ms: 1.0}")))
    done = knee("run", str(file), "--out", str(tmp_path / "runs"), "--json")
    assert done.returncode in (0, 3), done.stderr
    run_dir = Path(json.loads(done.stdout)["run_dir"])
    rows = [json.loads(line) for line in (run_dir / "requests.jsonl").read_text().splitlines()]
    asked = [row for row in rows if row["worker"] == "calibration"]
    assert [(row["kind"], row["outcome"], row["phase"]) for row in asked] == [("calibrate_en", "ok", -1)]
    counted = {row["kind"]: row["in_tokens"] for row in rows if row["phase"] == 0}
    assert counted["short"] == pytest.approx(90, rel=0.05)
    assert counted["long"] == pytest.approx(700, rel=0.02)
    problems = json.loads((run_dir / "run.json").read_text())["problems"]
    assert "tokens_estimated" not in {problem["code"] for problem in problems}


def test_a_stop_while_the_target_is_asked_is_not_taken_for_a_failed_request() -> None:
    from harness.load.calibration import calibrated

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        asking = gevent.spawn(
            calibrated, parse_profile(PROFILE.replace("URL", url), file=Path("p.yaml")), lambda _: None
        )
        gevent.socket.wait_read(silent.fileno(), timeout=20)
        asking.kill(timeout=20)
    assert isinstance(asking.value, gevent.GreenletExit)
