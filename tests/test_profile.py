import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UserError
from harness.profile import DEFAULT_USERS, Profile
from harness.profile_reader import load_profile, parse_profile, parse_struct, to_yaml

SHIPPED = sorted((Path(__file__).parent.parent / "profiles").glob("*.yaml"))
FILE = Path("/somewhere/p.yaml")
LEAST = """\
name: p
target:
  base_url: http://127.0.0.1:8000/v1
traffic:
  mix:
    - {kind: a, text: {chars: 60}}
"""


def parsed(text: str = LEAST, **more: Any) -> Profile:
    return parse_profile(text, file=FILE, **more)


def with_key(path: str, value: Any) -> str:
    """Return the least profile with one key set, as YAML text."""
    raw = yaml.safe_load(LEAST)
    at = raw
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    for key in parents:
        at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
    at[last] = value
    return yaml.safe_dump(raw)


def refusal(text: str) -> UserError:
    with pytest.raises(UserError) as caught:
        parsed(text)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(FILE))
    return caught.value


def test_name_address_and_traffic_are_enough() -> None:
    profile = parsed()
    assert profile.users == DEFAULT_USERS == (1, 2, 4, 6, 8, 12)
    assert profile.traffic.unique
    assert profile.generation.max_tokens == 256
    assert profile.load.hold.min_requests == 50
    assert profile.slo.error_rate == 0.01


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_profiles_are_valid_and_survive_being_written(path: Path, tmp_path: Path) -> None:
    profile = load_profile(path)
    (tmp_path / "again.yaml").write_text(to_yaml(profile), encoding="utf-8")
    assert load_profile(tmp_path / "again.yaml") == profile


def test_the_template_shows_every_key() -> None:
    """A key that the template does not name is one that nobody finds."""
    text = next(path for path in SHIPPED if path.stem == "steps").read_text(encoding="utf-8")
    keys: set[str] = set()

    def collect(raw: Any) -> None:
        for key, value in raw.items():
            keys.add(key)
            if isinstance(value, dict) and key != "extra":
                collect(value)

    collect(yaml.safe_load(to_yaml(parsed())))
    assert sorted(key for key in keys if f"{key}:" not in text) == []


@pytest.mark.parametrize(
    ("text", "line", "key", "what", "remedy"),
    [
        (LEAST + "loda: {}\n", 7, "loda", "unknown key", "did you mean `load`?"),
        (
            LEAST + "load:\n  hold: {secnds: 1}\n",
            8,
            "load.hold.secnds",
            "unknown key",
            "did you mean `seconds`?",
        ),
        (
            LEAST.replace("chars: 60", "chars: 60, color: red"),
            6,
            "traffic.mix[0].text.color",
            "unknown key",
            "valid keys: tokens, chars, lang",
        ),
        (LEAST + "load: {users: [1, two]}\n", 7, "load.users[1]", "Expected `int`, got `str`", None),
        (LEAST + "load: {users: [1, true]}\n", 7, "load.users[1]", "Expected `int`, got `bool`", None),
        (
            LEAST.replace("chars: 60", "lang: de, chars: 60"),
            6,
            "traffic.mix[0].text.lang",
            "Invalid enum value 'de'",
            None,
        ),
        (LEAST.replace("name: p", "nmae: p"), 1, "nmae", "unknown key", "did you mean `name`?"),
        (LEAST.replace("name: p\n", ""), 1, None, "required key `name` is missing", None),
        (LEAST.replace("kind: a, ", ""), 6, "traffic.mix[0]", "required key `kind` is missing", None),
        (LEAST + "name: q\n", 7, "name", "stands twice", "keep one; the other is on line 1"),
        (
            LEAST + "stop: {memory: 0.5, memory: 0.6}\n",
            7,
            "memory",
            "stands twice",
            "keep one; the other is on line 7",
        ),
        (LEAST + "  bad indent: [\n", 8, None, "not valid YAML", None),
        ("a: b: c\n", 1, None, "not valid YAML", None),
        ("- a\n", None, None, "not a mapping of keys", "start with `name:`"),
        ("", None, None, "not a mapping of keys", "start with `name:`"),
        (
            "generation: {extra: &a {x: *a}}\n" + LEAST,
            None,
            None,
            "an anchor holds itself",
            "write the value out",
        ),
        (
            "a: &a [1]\n"
            + "".join(
                f"{b}: &{b} [{', '.join(9 * ['*' + a])}]\n"
                for a, b in zip("abcdefgh", "bcdefghi", strict=True)
            ),
            None,
            None,
            "anchors stand for more than 1000000 values",
            "write the value out",
        ),
        ("a: !!python/object:os.system {}\n", 1, None, "not valid YAML", None),
    ],
)
def test_an_error_names_file_line_key_and_remedy(
    text: str, line: int | None, key: str | None, what: str, remedy: str | None
) -> None:
    error = refusal(text)
    assert (error.line, error.key) == (line, key)
    assert what in error.what
    assert error.remedy == remedy


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        ("name", "a/b", "must be 1-80 letters"),  # it names a folder
        ("name", "", "must be 1-80 letters"),
        ("target.base_url", "127.0.0.1:8000", "must be an http or https URL"),
        ("target.base_url", "http://host:99999/v1", "not a URL"),
        ("target.base_url", "http://user:pw@host/v1", "must not carry a password"),
        ("target.api_key_env", "sk-abc", "must be the name of a variable"),
        ("target.headers", {"a b": "x"}, "not a valid header"),
        ("target.headers", {"a": "x\r\ny: z"}, "not a valid header"),
        ("target.timeouts.ttft_s", 0, "must be above 0"),
        ("safety.allowed_hosts", ["elsewhere"], "is not in safety.allowed_hosts"),
        ("generation.max_tokens", 0, "must be at least 1"),
        ("generation.temperature", -1, "must not be negative"),
        ("generation.extra", {"day": yaml.safe_load("2024-01-01")}, "cannot be sent as JSON"),
        ("traffic.replay", {"file": "x"}, "give either `mix` or `replay`"),
        ("traffic.mix", [], "give either `mix` or `replay`"),
        ("traffic.mix.0.weight", 0, "must lie in 1-100"),
        ("traffic.mix.0.text", {}, "give either `tokens` or `chars`"),
        ("traffic.mix.0.text", {"tokens": 1, "chars": 1}, "give either `tokens` or `chars`"),
        ("traffic.mix.0.text.chars", 0, "must lie in 1-2000000"),
        ("traffic.mix.0.images", {"count": 0}, "must lie in 1-64"),
        ("traffic.mix.0.images", {"side": 9000}, "must lie in 16-8192"),
        ("traffic.mix.0.images", {"side": 64, "width": 64, "height": 64}, "give either `side` or"),
        ("traffic.mix.0.images", {"width": 64}, "go together"),
        ("traffic.mix.0.images", {"quality": 101}, "must lie in 1-100"),
        ("load.users", [], "needs at least one step"),
        ("load.users", [1, 2, 2], "steps must rise"),
        ("load.users", [1, 2000], "must lie in 1-1000 (safety.max_users)"),
        ("load", {"users": [1], "rates": [1]}, "give either `users` or `rates`"),
        ("load.rates", [2, 1], "steps must rise"),
        ("load.rates", [0], "must lie in 0.001-100000"),
        ("load.max_in_flight", 2**63, "at most 64 bits"),
        ("generation.extra", {"a": ["\ud800"]}, "half a character"),
        ("safety.max_seconds", 0, "must be above 0"),
        ("traffic.mix.0.kind", "a\nb", "must be 1-80 printable characters"),
        ("traffic.mix.0.kind", "", "must be 1-80 printable characters"),
        ("load.hold", {"seconds": 60, "max_seconds": 30}, "must not be below hold.seconds"),
        ("load.hold.seconds", float("nan"), "must be a finite number"),  # no comparison would refuse it
        ("target.timeouts.total_s", float("inf"), "must be a finite number"),
        ("load.repeats", 0, "must lie in 1-20"),
        ("observe.interval_s", 0, "must be at least 0.1"),
        ("slo.error_rate", 2, "must lie in 0-1"),
        ("slo.ttft_p95_ms", -1, "must not be negative"),
        ("stop.memory", 98, "must lie in 0-1"),  # per cent, perhaps
        ("experiments.image_sweep.sides", [], "at least two different sides"),
        ("experiments.image_sweep.sides", [512, 512], "at least two different sides"),
        ("experiments.image_sweep.sides", [512, 4], "must lie in 16-8192"),
        ("experiments.repeat.rounds", 1, "must be at least 2"),
        ("experiments.repeat.kind", "b", "no kind `b` in traffic.mix"),
        ("experiments.isolation.short", "b", "no kind `b` in traffic.mix"),
    ],
)
def test_values_that_types_let_pass_are_refused(path: str, value: Any, what: str) -> None:
    error = refusal(with_key(path, value))
    assert what in error.what
    assert error.key is not None
    assert error.line is not None


def test_two_entries_of_a_mix_need_kinds_of_their_own() -> None:
    text = LEAST + "    - {kind: a, text: {chars: 9}}\n"
    error = refusal(text)
    assert (error.line, error.key, error.what) == (7, "traffic.mix[1].kind", "`a` stands twice")


def test_completions_take_no_images() -> None:
    text = with_key("traffic.mix.0.images", {"side": 64}).replace(
        "target:", "target:\n  endpoint: completions"
    )
    assert "takes no images" in refusal(text).what


def test_relative_paths_start_at_the_profile_s_folder() -> None:
    source = parsed(with_key("traffic.mix.0.images", {"source": "../pics"})).traffic.mix[0].images
    assert source is not None
    assert source.source == "/pics"
    assert (
        parsed(with_key("traffic", {"replay": {"file": "r.jsonl"}})).traffic.replay.file
        == "/somewhere/r.jsonl"
    )  # type: ignore[union-attr]
    drawn = parsed(with_key("traffic.mix.0.images", {"source": "noise"})).traffic.mix[0].images
    assert drawn is not None
    assert drawn.source == "noise"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("http://10.0.0.1:9000", "http://10.0.0.1:9000/v1"),
        ("10.0.0.1:9000", "http://10.0.0.1:9000/v1"),
        ("https://gpu/", "https://gpu/v1"),
        ("https://gpu/api/v2", "https://gpu/api/v2"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_host_overrides_scheme_host_and_port(host: str, url: str) -> None:
    assert parsed(host=host).target.base_url == url


def test_what_is_written_has_no_secrets() -> None:
    profile = parsed(with_key("target.headers", {"x-token": "hunter2"}))
    written = to_yaml(profile)
    assert "hunter2" not in written
    assert yaml.safe_load(written)["target"]["headers"] == {"x-token": "(hidden)"}


def test_a_host_that_is_no_url_is_refused() -> None:
    with pytest.raises(UserError, match=r"--host or target\.base_url: not a URL: Invalid IPv6"):
        parsed(host="http://[::1")


def test_a_missing_and_an_unreadable_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such profile"):
        load_profile(tmp_path / "gone.yaml")
    (tmp_path / "latin.yaml").write_bytes("name: é".encode("latin-1"))
    with pytest.raises(UserError, match="cannot be read"):
        load_profile(tmp_path / "latin.yaml")
    with pytest.raises(UserError, match="is no file"):
        load_profile(tmp_path)


@given(st.text(max_size=60))
def test_any_text_is_a_profile_or_a_clear_refusal(text: str) -> None:
    with contextlib.suppress(UserError):
        parsed(text)


@given(st.integers(0, len(LEAST)), st.integers(0, 8), st.text(max_size=6))
def test_a_damaged_profile_is_read_or_refused(at: int, cut: int, put: str) -> None:
    text = LEAST[:at] + put + LEAST[at + cut :]
    with contextlib.suppress(UserError):
        profile = parsed(text)
        assert parse_struct(to_yaml(profile), Profile, file=FILE)[0].traffic == profile.traffic
