"""What a profile must keep to beyond its types: ranges, choices that exclude each other, hosts."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from harness.errors import UserError
from harness.profile import ImageSpec, Profile


class Failure:
    """Builds a UserError for a key path, with the line it stands on."""

    def __init__(self, file: Path, root: yaml.Node | None) -> None:
        self.file, self.root = file, root

    def __call__(self, path: tuple[str | int, ...], what: str, remedy: str | None = None) -> UserError:
        key = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")
        return UserError(what, file=self.file, line=self._line(path), key=key or None, remedy=remedy)

    def _line(self, path: tuple[str | int, ...]) -> int | None:
        node, line = self.root, 1
        for part in path:
            if isinstance(node, yaml.MappingNode):
                pair = next((kv for kv in node.value if kv[0].value == str(part)), None)
                if pair is None:
                    break
                line, node = pair[0].start_mark.line + 1, pair[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
            else:
                break
        return line


def check_ranges(profile: Profile, fail: Failure) -> None:
    """Refuse values that a type cannot: ranges, choices that exclude each other, hosts."""
    _check_values(msgspec.to_builtins(profile), (), fail)
    _check_name(profile.name, fail)
    _check_target(profile, fail)
    _check_generation(profile, fail)
    _check_traffic(profile, fail)
    _check_load(profile, fail)
    _check_experiments(profile, fail)
    if profile.observe.interval_s < 0.1:
        raise fail(("observe", "interval_s"), "must be at least 0.1")
    for name in ("error_rate", "memory"):
        value = getattr(profile.stop, name)
        if value is not None and not 0 < value <= 1:
            raise fail(("stop", name), "must lie in 0-1")
    if profile.slo.error_rate is not None and profile.slo.error_rate > 1:
        raise fail(("slo", "error_rate"), "must lie in 0-1")
    for name, part in (("slo", profile.slo), ("stop", profile.stop)):
        for key, value in msgspec.structs.asdict(part).items():
            if value is not None and value < 0:
                raise fail((name, key), "must not be negative")


def _check_values(raw: Any, path: tuple[str | int, ...], fail: Failure) -> None:
    """Refuse what cannot be compared (.nan, .inf), counted in 64 bits or sent as UTF-8, anywhere."""
    if isinstance(raw, float) and not math.isfinite(raw):
        raise fail(path, "must be a finite number")
    if isinstance(raw, int) and not -(2**63) <= raw < 2**63:
        raise fail(path, "must be a number of at most 64 bits")
    if isinstance(raw, str) and any("\ud800" <= char <= "\udfff" for char in raw):
        raise fail(path, "holds half a character (a lone surrogate)")
    if isinstance(raw, dict | list | tuple):
        for key, value in raw.items() if isinstance(raw, dict) else enumerate(raw):
            _check_values(key, path, fail)
            _check_values(value, (*path, key), fail)


def _check_name(name: str, fail: Failure) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,80}", name):
        raise fail(("name",), "must be 1-80 letters, digits, '.', '_' or '-'")


def _check_target(profile: Profile, fail: Failure) -> None:
    target = profile.target
    try:
        url = urlsplit(target.base_url)
        host, _port = url.hostname, url.port
    except ValueError as error:
        raise fail(("target", "base_url"), f"not a URL: {error}") from None
    if url.scheme not in ("http", "https") or not host:
        raise fail(("target", "base_url"), "must be an http or https URL", "as in http://127.0.0.1:8000/v1")
    if url.username or url.password:
        raise fail(("target", "base_url"), "must not carry a password", "name the variable in api_key_env")
    allowed = profile.safety.allowed_hosts
    if allowed and host not in allowed:
        raise fail(("target", "base_url"), f"host {host} is not in safety.allowed_hosts", "add it there")
    if target.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", target.api_key_env):
        raise fail(("target", "api_key_env"), "must be the name of a variable, never the key itself")
    for name, value in target.headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or re.search(r"[\r\n\0]", value):
            raise fail(("target", "headers", name), "not a valid header")
    for name, value in msgspec.structs.asdict(target.timeouts).items():
        if value <= 0:
            raise fail(("target", "timeouts", name), "must be above 0")


def _check_generation(profile: Profile, fail: Failure) -> None:
    if profile.generation.max_tokens < 1:
        raise fail(("generation", "max_tokens"), "must be at least 1")
    try:
        json.dumps(profile.generation.extra)
    except TypeError as error:
        raise fail(("generation", "extra"), f"cannot be sent as JSON: {error}", "put it in quotes") from None
    if profile.generation.temperature < 0:
        raise fail(("generation", "temperature"), "must not be negative")


def _check_traffic(profile: Profile, fail: Failure) -> None:
    traffic = profile.traffic
    if bool(traffic.mix) == (traffic.replay is not None):
        raise fail(("traffic",), "give either `mix` or `replay`")
    kinds: set[str] = set()
    for number, spec in enumerate(traffic.mix):
        at = ("traffic", "mix", number)
        if spec.kind in kinds:
            raise fail((*at, "kind"), f"`{spec.kind}` stands twice", "give each entry its own kind")
        kinds.add(spec.kind)
        if not spec.kind.isprintable() or not 1 <= len(spec.kind) <= 80:
            raise fail((*at, "kind"), "must be 1-80 printable characters")
        if not 1 <= spec.weight <= 100:
            raise fail((*at, "weight"), "must lie in 1-100")
        text = spec.text
        if (text.tokens is None) == (text.chars is None):
            raise fail((*at, "text"), "give either `tokens` or `chars`")
        if not 1 <= (text.tokens or text.chars or 0) <= 2_000_000:
            raise fail(
                (*at, "text", "tokens" if text.tokens is not None else "chars"), "must lie in 1-2000000"
            )
        if spec.max_tokens is not None and spec.max_tokens < 1:
            raise fail((*at, "max_tokens"), "must be at least 1")
        if spec.images is not None:
            _check_images(spec.images, profile.target.endpoint, (*at, "images"), fail)
    isolation = profile.experiments.isolation
    for key in ("short", "long"):
        name = getattr(isolation, key)
        if name is not None and traffic.mix and name not in kinds:
            raise fail(("experiments", "isolation", key), f"no kind `{name}` in traffic.mix")
    repeat = profile.experiments.repeat.kind
    if repeat is not None and traffic.mix and repeat not in kinds:
        raise fail(("experiments", "repeat", "kind"), f"no kind `{repeat}` in traffic.mix")


def _check_images(images: ImageSpec, endpoint: str, at: tuple[str | int, ...], fail: Failure) -> None:
    if endpoint == "completions":
        raise fail(at, "the completions endpoint takes no images", "use endpoint: chat")
    if not 1 <= images.count <= 64:
        raise fail((*at, "count"), "must lie in 1-64")
    if images.side is not None and (images.width is not None or images.height is not None):
        raise fail((*at, "side"), "give either `side` or `width` and `height`")
    if (images.width is None) != (images.height is None):
        raise fail(at, "`width` and `height` go together")
    for key in ("side", "width", "height"):
        value = getattr(images, key)
        if value is not None and not 16 <= value <= 8192:
            raise fail((*at, key), "must lie in 16-8192 pixels")
    if not 1 <= images.quality <= 100:
        raise fail((*at, "quality"), "must lie in 1-100")


def _check_load(profile: Profile, fail: Failure) -> None:
    load, safety = profile.load, profile.safety
    if load.users is not None and load.rates is not None:
        raise fail(("load",), "give either `users` or `rates`")
    if load.users is not None and not load.users:
        raise fail(("load", "users"), "needs at least one step")
    if load.rates is not None and not load.rates:
        raise fail(("load", "rates"), "needs at least one rate")
    for number, users in enumerate(profile.users):
        if not 1 <= users <= safety.max_users:
            raise fail(("load", "users", number), f"must lie in 1-{safety.max_users} (safety.max_users)")
    for number, rate in enumerate(load.rates or ()):
        if not 0.001 <= rate <= 100_000:
            raise fail(("load", "rates", number), "must lie in 0.001-100000 requests/s")
    ladder: tuple[float, ...] = profile.users or load.rates or ()
    if any(b <= a for a, b in itertools.pairwise(ladder)):
        raise fail(("load", "users" if profile.users else "rates"), "steps must rise", "as in [1, 2, 4]")
    if safety.store_text:
        raise fail(("safety", "store_text"), "this version never stores texts", "leave it false")
    if safety.max_seconds <= 0:
        raise fail(("safety", "max_seconds"), "must be above 0")
    hold = load.hold
    if hold.seconds < 0.5:
        raise fail(("load", "hold", "seconds"), "must be at least 0.5")
    if hold.max_seconds < hold.seconds:
        raise fail(("load", "hold", "max_seconds"), "must not be below hold.seconds")
    if hold.min_requests < 1 or hold.settle_s < 0:
        raise fail(("load", "hold"), "min_requests must be at least 1 and settle_s not negative")
    if not 1 <= load.repeats <= 20:
        raise fail(("load", "repeats"), "must lie in 1-20")
    if load.max_in_flight < 1:
        raise fail(("load", "max_in_flight"), "must be at least 1")


def _check_experiments(profile: Profile, fail: Failure) -> None:
    if profile.experiments.isolation.users < 1:
        raise fail(("experiments", "isolation", "users"), "must be at least 1")
    sides = profile.experiments.image_sweep.sides
    at = ("experiments", "image_sweep", "sides")
    if len(sides) < 2 or len(set(sides)) < len(sides):
        raise fail(at, "needs at least two different sides", "as in [512, 768, 1024]")
    for number, side in enumerate(sides):
        if not 16 <= side <= 8192:
            raise fail((*at, number), "must lie in 16-8192 pixels")
    for key in ("modality", "image_sweep", "repeat", "cache"):
        if getattr(profile.experiments, key).rounds < 2:
            raise fail(("experiments", key, "rounds"), "must be at least 2")
