"""The command line: help for all, one clear line and exit code 2 for each mistake of the user."""

import re
import socket
import threading

import pytest

from harness.cli import COMMANDS

PROFILE = """\
name: mistakes
target: {{base_url: "http://127.0.0.1:{port}/v1", model: sim-vlm, timeouts: {{connect_s: 1, ttft_s: 1}}}}
generation: {{max_tokens: 4}}
traffic: {{mix: [{{kind: text_only, text: {{chars: 40}}}}]}}
load: {{users: [1, 2], hold: {{seconds: 1, min_requests: 1, max_seconds: 2, settle_s: 0}}}}
observe: {{gpu: none, engine: none}}
"""


def one_clear_line(result, *named: str) -> None:
    """Assert exit code 2 and a single line on stderr that names what is asked for."""
    assert result.returncode == 2, result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    for name in named:
        assert name in lines[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(knee, command) -> None:
    shown = knee(command, "--help")
    assert shown.returncode == 0
    assert re.search(rf"^\s+knee {re.escape(command)}\b", shown.stdout, re.M), "no example in the help"


def test_no_command_shows_the_help(knee) -> None:
    shown = knee()
    assert shown.returncode == 2
    assert shown.stderr == knee("--help").stdout


def test_an_unknown_command_and_option_are_the_users_mistake(knee) -> None:
    one_clear_line(knee("demoo"), "demoo")
    one_clear_line(knee("run", "--nonsense"), "--nonsense")
    one_clear_line(knee("report", "no/such/run"), "no/such/run")
    one_clear_line(knee("sample", "--interval-s", "nan"), "--interval-s", "nan is no finite number")


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("load:", "laod:", "laod"),  # a wrong key at the top
        ("chars: 40", "charz: 40", "traffic.mix[0].text.charz"),  # deep inside, with its path
        ("users: [1, 2]", "users: [one]", "load.users[0]"),  # a wrong type
        ("users: [1, 2]", "users: [0]", "load.users[0]"),  # out of range
        ("name: mistakes", "name: [", "profile.yaml:"),  # not YAML
        ("http://", "ftp://", "target.base_url"),
    ],
)
def test_a_wrong_profile_names_file_line_and_key(knee, tmp_path, old, new, named) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text(PROFILE.format(port=9).replace(old, new))
    one_clear_line(knee("run", str(file), "--out", str(tmp_path / "runs")), str(file), named)
    assert not (tmp_path / "runs").exists()


def run(knee, tmp_path, port: int, text: str = PROFILE, **more):
    file = tmp_path / "profile.yaml"
    file.write_text(text.format(port=port))
    return knee("run", str(file), "--out", str(tmp_path / "runs"), **more)


def test_a_target_that_is_not_there(knee, tmp_path, free_port) -> None:
    one_clear_line(run(knee, tmp_path, free_port()), "nothing answers there", "start the service")
    assert not (tmp_path / "runs").exists()


def test_a_target_that_wants_a_key(knee, tmp_path, start_engine, monkeypatch) -> None:
    monkeypatch.setenv("SIM_KEY", "s3cret-key")
    port = int(start_engine("", "--api-key-env", "SIM_KEY").rpartition(":")[2])
    one_clear_line(run(knee, tmp_path, port), "401", "api_key_env")
    named = PROFILE.replace("model: sim-vlm", "model: sim-vlm, api_key_env: NO_SUCH_KEY")
    one_clear_line(run(knee, tmp_path, port, named), "NO_SUCH_KEY", "not set")
    assert not (tmp_path / "runs").exists()


def test_a_target_with_another_model(knee, tmp_path, start_engine) -> None:
    port = int(start_engine().rpartition(":")[2])
    said = run(knee, tmp_path, port, PROFILE.replace("sim-vlm", "other"))
    one_clear_line(said, "target.model: `other`", "the server has: sim-vlm")


def test_a_target_that_hangs(knee, tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = []
        threading.Thread(target=lambda: taken.append(server.accept()), daemon=True).start()
        one_clear_line(run(knee, tmp_path, server.getsockname()[1]), "no token in time", "ttft_s")
        for connection, _ in taken:
            connection.close()


def test_an_image_that_is_no_image(knee, tmp_path, free_port) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "cat.jpg").write_text("not a picture")
    images = "text: {{chars: 40}}, images: {{source: pictures}}"
    text = PROFILE.replace("text: {{chars: 40}}", images)
    one_clear_line(run(knee, tmp_path, free_port(), text), "cat.jpg")


def test_a_replay_file_with_a_broken_line_37(knee, tmp_path, free_port) -> None:
    good = '{"messages": [{"role": "user", "content": "hello"}], "stream": true}\n'
    (tmp_path / "traffic.jsonl").write_text(good * 36 + '{"messages": [\n' + good)
    text = re.sub(r"traffic: .*", "traffic: {{replay: {{file: traffic.jsonl}}}}", PROFILE)
    one_clear_line(run(knee, tmp_path, free_port(), text), "traffic.jsonl:37")


def test_a_dry_run_prints_the_plan_and_sends_nothing(knee, tmp_path, free_port) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text(PROFILE.format(port=free_port()))
    shown = knee("run", str(file), "--dry-run", "--out", str(tmp_path / "runs"))
    assert shown.returncode == 0, shown.stderr
    assert "Nothing was sent" in shown.stdout
    head, *rows = [re.split(r"\s{2,}", line.strip()) for line in shown.stdout.splitlines()[1:4]]
    assert head == ["step", "seconds", "requests at least", "output tokens at least"]
    assert [row[0] for row in rows] == ["1 user", "2 users"]
    assert not (tmp_path / "runs").exists()


def test_what_cannot_be_read_is_named_without_a_traceback(knee, tmp_path) -> None:
    run = tmp_path / "run"
    (run / "run.json").mkdir(parents=True)
    (run / "profile.yaml").touch()
    one_clear_line(knee("report", str(run)), "run.json", "Is a directory")
    one_clear_line(knee("report", "x" * 5000), "File name too long")
