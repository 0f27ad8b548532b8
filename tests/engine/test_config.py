"""A config's mistakes are named with file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.engine.config import LIMIT_NAMES, EngineConfig, parse_config
from harness.engine.presets import PRESETS, named_config
from harness.errors import UserError

FILE = Path("engine.yaml")


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("batch: {max_num_seq: 4}", 1, "batch.max_num_seq", "did you mean `max_num_seqs`?"),
        ("model: x\nkv:\n  tokens: many", 3, "kv.tokens", "Expected `int`, got `str`"),
        ("batch: {max_num_seqs: 0}", 1, "batch.max_num_seqs", "must be at least 1"),
        ("decode: {step_ms: 0}", 1, "decode.step_ms", "must be at least 0.01"),
        ("on_exceed: {max_pixels: reject}", 1, "on_exceed.max_pixels", "no such limit"),
        ("on_exceed:\n  queue_max: truncate", 2, "on_exceed.queue_max", "has no meaning"),
        ("on_exceed: {max_input_tokens: downscale}", 1, "on_exceed.max_input_tokens", "has no meaning"),
        ("on_exceed: {queue_max: explode}", 1, "on_exceed", "Invalid enum value"),
        ("- 1", None, None, "not a mapping"),
        ("a: [", 1, None, "not valid YAML"),
    ],
)
def test_mistakes_are_named(text: str, line: int | None, key: str | None, words: str) -> None:
    with pytest.raises(UserError, match=r"engine\.yaml") as caught:
        parse_config(text, file=FILE)
    assert words in str(caught.value)
    assert caught.value.line == line
    if key:
        assert key in str(caught.value)


def test_what_is_given_changes_and_the_rest_stays() -> None:
    config = parse_config("batch: {max_num_seqs: 3}\nlimits: {queue_max: null}", file=FILE)
    assert config.batch.max_num_seqs == 3
    assert config.limits.queue_max is None
    assert config.decode == EngineConfig().decode
    assert parse_config("", file=FILE) == EngineConfig()


def test_an_ignored_limit_is_none() -> None:
    config = parse_config("limits: {queue_max: 5}\non_exceed: {queue_max: ignore}", file=FILE)
    assert config.limits.queue_max == 5
    assert config.limit("queue_max") is None
    assert all(EngineConfig().limit(name) == getattr(EngineConfig().limits, name) for name in LIMIT_NAMES)


def test_a_name_is_a_preset_or_a_file(tmp_path: Path) -> None:
    assert named_config("kv") is PRESETS["kv"].config
    file = tmp_path / "mine.yaml"
    file.write_text("model: mine", encoding="utf-8")
    assert named_config(str(file)).model == "mine"
    with pytest.raises(UserError, match="preset"):
        named_config(str(tmp_path / "none.yaml"))
