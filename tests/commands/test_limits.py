import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from harness.commands.limits import limits
from harness.engine.presets import PRESETS
from harness.engine.virtual import ladder, save, simulate
from harness.errors import UserError

QUEUE = PRESETS["queue"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The run directory of a service with 4 places."""
    profile = ladder(QUEUE.traffic, max_tokens=QUEUE.max_tokens)
    return save(simulate(QUEUE.config, profile, seed=1), tmp_path_factory.mktemp("run")).path


def call(*args: object):
    return CliRunner().invoke(limits, [str(arg) for arg in args])


def test_limits_are_written_into_the_run_directory_and_printed_with_their_derivation(folder) -> None:
    result = call(folder)
    assert result.exit_code == 0
    assert "concurrency.cap: 4  (the last step before the knee at 6" in result.output
    written = yaml.safe_load((folder / "limits.yaml").read_text())
    assert (written["concurrency"]["cap"], written["concurrency"]["steady"]) == (4, 2)


def test_they_can_be_written_elsewhere_and_read_as_json(folder, tmp_path) -> None:
    out = tmp_path / "sub" / "limits.yaml"
    result = json.loads(call(folder, "--out", out, "--json").output)
    assert result["file"] == str(out)
    assert out.exists()
    cap = next(limit for limit in result["limits"] if limit["key"] == "cap")
    assert cap["value"] == 4


def test_a_model_s_config_plans_the_kv_cache(folder, tmp_path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "num_hidden_layers": 28,
                "num_attention_heads": 28,
                "num_key_value_heads": 4,
                "hidden_size": 3584,
            }
        )
    )
    result = call(folder, "--model-config", config, "--kv-gib", 8)
    assert "57,344 bytes per token" in result.output
    assert "# KV cache: 57,344 bytes per token" in (folder / "limits.yaml").read_text()


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read"), ("[1]", "not a model's config.json")]
)
def test_a_config_that_is_none_is_the_user_s_mistake(folder, tmp_path, content, words) -> None:
    config = tmp_path / "config.json"
    if content is not None:
        config.write_text(content)
    error = call(folder, "--model-config", config).exception
    assert isinstance(error, UserError)
    assert words in str(error)
