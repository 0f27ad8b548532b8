import json
import re
from collections import Counter
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
    named = [
        msgspec.structs.replace(spec, kind=f"repeated_{spec.kind}_of_a_long_name") for spec in DEMO.traffic
    ]
    renamed = ladder(named, max_tokens=24, users=(1, 2))
    larger = ladder(DEMO.traffic, max_tokens=48, users=(1, 2, 4))
    runs = {
        "base": simulate(DEMO.config, profile, seed=1),
        "again": simulate(DEMO.config, profile, seed=2),
        "slower": simulate(slower, profile, seed=3),
        "long": simulate(DEMO.config, renamed, seed=1),
        "long_slower": simulate(slower, renamed, seed=2),
        "larger": simulate(DEMO.config, larger, seed=2),
        "repeat": simulate(DEMO.config, profile, "repeat"),
    }
    return {name: str(save(run, tmp_path_factory.mktemp(name)).path) for name, run in runs.items()}


def call(*args: str):
    return CliRunner().invoke(compare, args)


def on_terminal(columns: int, *args: str) -> str:
    """Return what a terminal of so many columns shows, without its colours."""
    said = CliRunner(env={"COLUMNS": str(columns), "TTY_COMPATIBLE": "1"}).invoke(compare, args).output
    return re.sub(r"\x1b\[[0-9;]*m", "", said)


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


def test_a_run_beside_itself_takes_a_few_lines(folders) -> None:
    said = call(folders["base"], folders["base"]).output
    assert said.startswith("No figure differs beyond its noise: ")
    assert "A and B are the same run." in said
    assert "cannot be told" in said  # as a count
    assert "95 %" not in said.replace("95 %:", "")  # no table of figures
    assert len(said.splitlines()) < 25


def test_all_shows_what_is_folded_otherwise(folders) -> None:
    said, short = (call(folders["base"], folders["again"], *more).output for more in (("--all",), ()))
    assert "Not slower by more than 5 % (times in ms)" in said
    assert "Not shown: " in short
    assert "Not shown: " not in said
    assert len(said.splitlines()) > len(short.splitlines()) + 40


def test_verdicts_come_before_differences_and_these_before_figures(folders) -> None:
    said = call(folders["base"], folders["larger"]).output
    order = ["Regression: ", "\ncap ", "Traffic differs: figures are not comparable.", "Worse in B"]
    places = [said.index(words) for words in order]
    assert places == sorted(places)
    assert re.search(r"generation\.max_tokens +24 -> 48", said)


def test_json_lists_what_differs(folders) -> None:
    result = json.loads(call(folders["base"], folders["larger"], "--json").output)
    assert result["differs"] == [
        {"key": "generation.max_tokens", "before": 24, "after": 48, "grade": "traffic"}
    ]
    assert {pair["key"] for pair in result["conclusions"]} >= {"status", "limits.timeouts.ttft_ms"}
    assert json.loads(call(folders["base"], folders["again"], "--json").output)["differs"] == []


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_nothing_is_cut_where_columns_are_few(folders, columns) -> None:
    pair = folders["long"], folders["long_slower"]
    narrow, wide = (on_terminal(n, *pair, "--all") for n in (columns, 300))
    assert wide.count("repeated_one_image_of_a_long_name") >= 4
    assert max(map(len, narrow.splitlines())) <= columns
    assert Counter("".join(narrow.split())) == Counter("".join(wide.split()))


def test_short_names_keep_a_row_on_a_line_of_80_columns(folders) -> None:
    said = on_terminal(80, folders["base"], folders["slower"], "--all")
    table = said[said.index("Worse in B") :]
    rows = [line for line in table.splitlines() if re.search(r"(mean|p95|failed) ", line)]
    assert len(rows) == len(json.loads(call(folders["base"], folders["slower"], "--json").output)["changes"])
    assert all(re.match(r"(all steps|\d users?) +\w+ +(TTFT|total|failed) ", row) for row in rows)
