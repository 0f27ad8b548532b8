import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from harness.commands.compare import compare
from harness.engine.presets import PRESETS
from harness.engine.virtual import ladder, save, simulate

DEMO = PRESETS["demo"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    """Run directories: a baseline, the same again, and one a quarter slower."""
    decode = msgspec.structs.replace(DEMO.config.decode, step_ms=DEMO.config.decode.step_ms * 1.25)
    slower = msgspec.structs.replace(DEMO.config, decode=decode)
    profile = ladder(DEMO.traffic, max_tokens=24, users=(1, 2, 4))
    runs = {
        "base": simulate(DEMO.config, profile, seed=1),
        "again": simulate(DEMO.config, profile, seed=2),
        "slower": simulate(slower, profile, seed=3),
        "repeat": simulate(DEMO.config, profile, "repeat"),
    }
    return {name: str(save(run, tmp_path_factory.mktemp(name)).path) for name, run in runs.items()}


def call(*args: str):
    return CliRunner().invoke(compare, args)


@pytest.mark.parametrize(
    ("pair", "options", "code"),
    [
        (("base", "again"), (), 0),
        (("base", "slower"), (), 1),
        (("base", "slower"), ("--max-regression", "40%"), 0),
        (("base", "slower"), ("--max-regression", "0.4"), 0),
        (("slower", "base"), (), 0),
        (("base", "repeat"), (), 3),  # nothing in common
    ],
)
def test_a_regression_beyond_the_threshold_is_exit_code_1(folders, pair, options, code) -> None:
    result = call(*(folders[name] for name in pair), *options)
    assert result.exit_code == code, result.output
    assert ("Regression" in result.output) == (code == 1)


def test_json_holds_every_figure(folders) -> None:
    result = json.loads(call(folders["base"], folders["slower"], "--json").output)
    assert result["regressed"] is True
    assert result["max_regression"] == 0.05
    assert {change["step"] for change in result["changes"]} >= {"all steps", "1 user", "2 users", "4 users"}


def test_files_for_a_pipeline_are_written(folders, tmp_path: Path) -> None:
    junit, markdown = tmp_path / "out" / "j.xml", tmp_path / "c.md"
    call(folders["base"], folders["slower"], "--junit", str(junit), "--markdown", str(markdown))
    assert b"<failure" in junit.read_bytes()
    assert markdown.read_text().startswith("# Regression: ")


@pytest.mark.parametrize("share", ["abc", "-5%", "5%%", ""])
def test_a_threshold_that_is_no_share_is_the_user_s_mistake(folders, share) -> None:
    result = call(folders["base"], folders["again"], "--max-regression", share)
    assert result.exit_code == 2
    assert "give it as in 5% or 0.05" in result.output
