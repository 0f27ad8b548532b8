import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.commands.find import find
from harness.errors import UserError

TABLE = "users,rps,p95_ms\n1,10,100\n2,19.9,101\n4,39,103\n6,58,104\n8,60,133\n12,60,200\n"


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "ladder.csv"
    path.write_text(TABLE)
    return str(path)


def test_json_is_the_knee_object(table: str) -> None:
    result = CliRunner().invoke(find, [table, "--json"], catch_exceptions=False)
    knee = json.loads(result.output)
    assert result.exit_code == 0
    assert (knee["status"], knee["cap"], knee["knee_step"], knee["steady"]) == ("knee", 6, 8, 4)
    assert [v["users"] for v in knee["votes"]] == [2, 4, 6, 8, 12]
    assert set(knee["cross_checks"]) == {"usl", "kneedle", "power"}


def test_words_for_people(table: str) -> None:
    output = CliRunner().invoke(find, [table], catch_exceptions=False).output
    assert output.startswith("The service carries 6 users; at 8, latency outruns throughput.\n")
    assert "cap 6, steady 4" in output
    assert "latency rose 28 %" in output
    assert "The table holds no requests" in output


def test_other_columns_and_an_open_loop(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("ms,offered,served\n100,1,1\n110,2,2\n130,4,4\n9000,8,4.4\n30000,16,4.4\n")
    args = [str(path), "--load", "offered", "--throughput", "3", "--latency", "ms", "--open-loop"]
    output = CliRunner().invoke(find, args, catch_exceptions=False).output
    assert output.startswith("The service carries 4 req/s; at 8,")


def test_too_few_rows_are_not_valid(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("users,rps,ms\n1,1,1\n2,2,1\n")
    result = CliRunner().invoke(find, [str(path)], catch_exceptions=False)
    assert result.exit_code == 3
    assert "Too little was measured" in result.output


def test_a_wrong_table_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        CliRunner().invoke(find, [str(tmp_path / "none.csv")], catch_exceptions=False)
