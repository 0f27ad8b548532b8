"""YAML in, one frozen `Profile` out, validated once at the edge.

An unknown key is refused with its path and the nearest valid name; a wrong value with its file, line and key.
Relative paths start at the profile's folder.
"""

from __future__ import annotations

import difflib
import itertools
import re
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec
import yaml

from harness.errors import UserError
from harness.profile import SYNTHETIC_SOURCES, Profile
from harness.profile_rules import Failure, check_ranges

S = TypeVar("S", bound=msgspec.Struct)
MAX_VALUES = 1_000_000  # with anchors written out: a few lines of them can stand for more than fits in memory


def load_profile(path: str | Path, *, host: str | None = None) -> Profile:
    """Read and validate a profile; `host` overrides scheme, host and port of its target.

    Raises UserError (exit code 2) naming file, line and key.
    """
    file = Path(path)
    try:
        if not file.is_file():  # a device or a pipe might never end
            what = "is no file" if file.exists() else "no such profile"
            raise UserError(what, file=file, remedy="give the path of a YAML profile")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", file=file) from None
    return parse_profile(text, file=file, host=host)


def parse_profile(text: str, *, file: Path, host: str | None = None) -> Profile:
    """Validate a profile's YAML text; `file` gives the folder for relative paths and is named in errors."""
    profile, fail = parse_struct(text, Profile, file=file)
    profile = _resolve(profile, file.parent, host)
    check_ranges(profile, fail)
    return profile


def parse_struct(text: str, kind: type[S], *, file: Path) -> tuple[S, Failure]:
    """Return YAML text as a struct, and what builds an error for one of its keys.

    Raises UserError for broken YAML, an unknown key and a wrong type.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _count_values(root, {}, file)
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or "not YAML"
        raise UserError(f"not valid YAML: {what}", file=file, line=mark.line + 1 if mark else None) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid YAML: {error}", file=file) from None
    if not isinstance(raw, dict):
        first = msgspec.structs.fields(kind)[0].encode_name
        raise UserError("not a mapping of keys", file=file, remedy=f"start with `{first}:`")
    fail = Failure(file, root)
    _refuse_double_keys(root, file)
    _refuse_unknown_keys(raw, kind, (), fail)
    try:
        return msgspec.convert(raw, kind, strict=True), fail
    except msgspec.ValidationError as error:
        what, path = _split_path(str(error))
        raise fail(path, what) from None


def to_yaml(profile: Profile) -> str:
    """Return the resolved profile as YAML, with headers that may carry secrets blanked."""
    raw = msgspec.to_builtins(profile)
    raw["target"]["headers"] = dict.fromkeys(profile.target.headers, "(hidden)")
    return yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)


def _count_values(node: yaml.Node | None, known: dict[int, int], file: Path) -> int:
    """Return how many values a node stands for, anchors written out; refuses endless and huge ones."""
    count = known.get(id(node))
    if count is None:
        known[id(node)] = 0  # met again below itself
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = itertools.chain.from_iterable(inner) if isinstance(node, yaml.MappingNode) else inner
        count = known[id(node)] = 1 + sum(_count_values(part, known, file) for part in parts)
    if not 0 < count <= MAX_VALUES:
        what = "an anchor holds itself" if not count else f"anchors stand for more than {MAX_VALUES} values"
        raise UserError(what, file=file, remedy="write the value out")
    return count


def _refuse_double_keys(root: yaml.Node | None, file: Path) -> None:
    """Refuse a key that stands twice in one mapping: YAML would silently take the last."""
    seen: set[int] = set()  # an anchor may be met again, even inside itself
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen or not isinstance(node, yaml.MappingNode | yaml.SequenceNode):
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
            continue
        lines: dict[str, int] = {}
        for key, value in node.value:  # keys are scalars: YAML's loader has refused others
            line = key.start_mark.line + 1
            if key.value in lines:
                remedy = f"keep one; the other is on line {lines[key.value]}"
                raise UserError("stands twice", file=file, line=line, key=key.value, remedy=remedy)
            lines[key.value] = line
            waiting.append(value)


def _refuse_unknown_keys(raw: Any, kind: Any, path: tuple[str | int, ...], fail: Failure) -> None:
    """Walk raw data beside its type, so that an unknown key is named with the nearest valid one."""
    struct = _struct_of(kind)
    if struct is not None and isinstance(raw, dict):
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
        for key, value in raw.items():
            if key not in fields:
                near = difflib.get_close_matches(str(key), fields, n=1)
                remedy = f"did you mean `{near[0]}`?" if near else "valid keys: " + ", ".join(fields)
                raise fail((*path, str(key)), "unknown key", remedy)
            _refuse_unknown_keys(value, fields[key], (*path, key), fail)
    elif isinstance(raw, list) and struct is not None and struct is not kind:
        for number, value in enumerate(raw):
            _refuse_unknown_keys(value, struct, (*path, number), fail)


def _struct_of(kind: Any) -> type[msgspec.Struct] | None:
    candidates = (kind, *getattr(kind, "__args__", ()))
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, msgspec.Struct)), None)


def _split_path(message: str) -> tuple[str, tuple[str | int, ...]]:
    """Split msgspec's "Expected `int`, got `str` - at `$.load.users[0]`" into words and key path."""
    what, _, where = message.partition(" - at `")
    parts = re.findall(r"\.([A-Za-z0-9_]+)|\[(\d+)\]", where)
    path = tuple(name if name else int(number) for name, number in parts)
    missing = re.match(r"Object missing required field `(\w+)`", what)
    return (f"required key `{missing[1]}` is missing" if missing else what), path


def _resolve(profile: Profile, folder: Path, host: str | None) -> Profile:
    """Make paths absolute and apply the host override."""
    replace = msgspec.structs.replace
    traffic = profile.traffic
    mix = tuple(
        replace(p, images=replace(p.images, source=str((folder / p.images.source).resolve())))
        if p.images and p.images.source not in SYNTHETIC_SOURCES
        else p
        for p in traffic.mix
    )
    replay = traffic.replay and replace(traffic.replay, file=str((folder / traffic.replay.file).resolve()))
    target = profile.target
    if host:
        try:
            url, own = urlsplit(host if "//" in host else f"http://{host}"), urlsplit(target.base_url)
        except ValueError as error:
            raise UserError(f"not a URL: {error}", key="--host or target.base_url") from None
        target = replace(
            target,
            base_url=urlunsplit((url.scheme, url.netloc, url.path.rstrip("/") or own.path, "", "")),
        )
    return replace(profile, traffic=replace(traffic, mix=mix, replay=replay), target=target)
