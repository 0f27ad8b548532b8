"""The probe against engines that are right, and against engines each wrong in one way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.probe.ask import Reply
from harness.probe.limits_file import load_limits

LIMITS = """
input_limits: {max_image_side: 896, max_image_pixels: 401408, max_images_per_request: 4,
               max_input_tokens: 1200, max_new_tokens: 24}
concurrency: {cap: 2, steady: 1, queue_max: 2}
"""
ENGINE = """
limits: {max_image_side: 896, max_image_pixels: 401408, max_images_per_request: 4,
         max_input_tokens: 1200, max_new_tokens: 24, queue_max: 2}
batch: {max_num_seqs: 2}
on_exceed: {%s}
"""
INPUT_KEYS = {
    "max_image_side",
    "max_image_pixels",
    "max_images_per_request",
    "max_input_tokens",
    "max_new_tokens",
    "queue_max",
}


def probe(url: str, limits: str, folder: Path, *more: str) -> tuple[int, dict[str, str], str]:
    file = folder / "limits.yaml"
    file.write_text(limits)
    command = [
        sys.executable,
        "-m",
        "harness",
        "probe",
        str(file),
        "--host",
        url,
        "--model",
        "sim-vlm",
        "--json",
    ]
    out = subprocess.run([*command, *more], capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(out.stdout) if out.stdout.strip() else []
    return out.returncode, {f["key"]: f["verdict"] for f in found}, out.stderr


def test_an_engine_that_keeps_its_limits_passes(start_engine, tmp_path) -> None:
    code, verdicts, _ = probe(start_engine(ENGINE % ""), LIMITS, tmp_path)
    assert verdicts == dict.fromkeys(INPUT_KEYS, "right")
    assert code == 0


@pytest.mark.parametrize(
    ("key", "behaviour", "verdict"),
    [
        ("max_input_tokens", "truncate", "truncated"),  # the end of a long prompt is lost, with 200
        ("max_images_per_request", "truncate", "truncated"),  # one image is dropped, with 200
        ("max_new_tokens", "truncate", "truncated"),  # fewer tokens than asked for, with 200
        ("max_image_side", "downscale", "downscaled"),  # made smaller, with 200
        ("max_image_pixels", "downscale", "downscaled"),
        ("max_input_tokens", "error500", "server_error"),
        ("max_image_side", "error500", "server_error"),
        ("max_image_side", "ignore", "not_enforced"),
        ("max_new_tokens", "ignore", "not_enforced"),
        ("queue_max", "ignore", "not_enforced"),
    ],
)
def test_an_engine_wrong_in_one_way_is_caught(start_engine, tmp_path, key, behaviour, verdict) -> None:
    code, verdicts, said = probe(start_engine(ENGINE % f"{key}: {behaviour}"), LIMITS, tmp_path)
    assert verdicts == dict.fromkeys(INPUT_KEYS, "right") | {key: verdict}
    assert code == 1
    assert key in said


def test_an_engine_that_hangs_over_its_limit_is_caught(start_engine, tmp_path) -> None:
    url = start_engine(ENGINE % "max_new_tokens: hang")
    limits = "input_limits: {max_new_tokens: 24}"
    code, verdicts, _ = probe(url, limits, tmp_path, "--timeout-s", "2")
    assert (code, verdicts) == (1, {"max_new_tokens": "hang"})


def test_a_service_that_is_not_there_is_the_users_mistake(free_port, tmp_path) -> None:
    code, verdicts, said = probe(f"http://127.0.0.1:{free_port()}", LIMITS, tmp_path)
    assert (code, verdicts) == (2, {})
    assert "does not answer" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("url", ["nonsense", "http://[::1", "file:///etc/hosts"])
def test_what_is_no_address_is_named(tmp_path, url) -> None:
    code, _, said = probe(url, LIMITS, tmp_path)
    assert code == 2
    assert said.startswith("knee: --host: cannot use the address")


def test_a_page_is_no_answer() -> None:
    assert not Reply(200, 0.1).good
    assert Reply(200, 0.1, {"choices": []}).good
    assert not Reply(200, 0.1, {"choices": [], "error": {}}).good


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("input_limits: {max_image_sid: 3}", "max_image_side"),  # the nearest valid name
        ("input_limits: {max_image_side: x}", "max_image_side"),
        ("timeouts: {total_ms: -1}", "above 0"),
        ("timeouts: {total_ms: .nan}", "above 0"),
        ("input_limits: {max_input_tokens: 999999999999}", "a probe sends at most 10000000"),
        ("[1, 2]", "limits.yaml"),
    ],
)
def test_a_broken_limits_file_names_file_and_key(tmp_path, text, named) -> None:
    file = tmp_path / "limits.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=named):
        load_limits(file)
