"""A profile: what is loaded, with what traffic, how hard, what is observed, and what counts as good.

YAML in, one frozen `Profile` out, validated once. An unknown key is refused with its path and the nearest
valid name; a wrong value with its file, line and key. Relative paths start at the profile's folder.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec
import yaml

from harness.errors import UserError


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every section refuses keys it does not know."""


class Timeouts(_Part):
    """When a request is given up, each from its own start, in seconds."""

    connect_s: float = 5
    ttft_s: float = 60
    idle_s: float = 30
    total_s: float = 300


class Target(_Part):
    """The service under test."""

    base_url: str
    model: str = "default"
    endpoint: Literal["chat", "completions"] = "chat"
    stream: bool = True
    api_key_env: str | None = None  # the variable's name, never the key
    headers: dict[str, str] = {}
    verify_tls: bool = True
    timeouts: Timeouts = Timeouts()


class Generation(_Part):
    """What is asked of the model, equal for every request so that lengths can be compared."""

    max_tokens: int = 256
    temperature: float = 0
    ignore_eos: bool = True
    extra: dict[str, Any] = {}  # merged into each body


class TextSpec(_Part):
    """A prompt text of a set length; tokens or chars, not both."""

    tokens: int | None = None
    chars: int | None = None
    lang: Literal["en", "zh"] = "en"


class ImageSpec(_Part):
    """The images of a payload: synthetic, or pictures of a folder."""

    count: int = 1
    side: int | None = None  # longest side in pixels
    width: int | None = None
    height: int | None = None
    format: Literal["jpeg", "png", "webp"] = "jpeg"
    quality: int = 85
    source: str = "photo"  # photo | noise | document | a folder or file of pictures
    fit: Literal["resize", "crop"] = "resize"  # resize keeps the ratio; crop fills width x height


SYNTHETIC_SOURCES = ("photo", "noise", "document")


class PayloadSpec(_Part):
    """One kind of request in the mix."""

    kind: str
    weight: int = 1
    text: TextSpec = TextSpec(chars=60)
    images: ImageSpec | None = None
    max_tokens: int | None = None  # overrides generation.max_tokens


class Replay(_Part):
    """Recorded requests, one OpenAI body per JSON line."""

    file: str
    order: Literal["file", "shuffle"] = "file"
    rewrite: bool = False  # true: model, max_tokens, stream and sampling are set from the profile


class Traffic(_Part):
    """What is sent: a weighted mix, or a replay."""

    mix: tuple[PayloadSpec, ...] = ()
    replay: Replay | None = None
    unique: bool = True  # nonces, so that no cache is hit
    seed: int = 1


class Hold(_Part):
    """How long a step is measured."""

    seconds: float = 60
    min_requests: int = 50
    max_seconds: float = 300
    settle_s: float = 5
    adaptive: bool = False  # hold on until each vote is decided, at most max_seconds


class Load(_Part):
    """How hard: users (closed loop) or arrival rates (open loop)."""

    users: tuple[int, ...] | None = None  # default 1, 2, 4, 6, 8, 12 where no rates are given
    rates: tuple[float, ...] | None = None  # requests/s
    arrivals: Literal["poisson", "constant"] = "poisson"
    hold: Hold = Hold()
    refine: bool = False
    repeats: int = 1
    drift_check: bool = True  # measure the first step again at the end
    max_in_flight: int = 1000  # open loop only


DEFAULT_USERS = (1, 2, 4, 6, 8, 12)


class Observe(_Part):
    """Where GPU and engine figures come from."""

    gpu: str = "auto"  # auto | none | nvml | http://host:9877 | dcgm:URL | sim:URL
    engine: str = "auto"  # auto | none | URL
    interval_s: float = 1
    token_env: str | None = None  # names the variable that holds a remote sidecar's token
    gpus: tuple[str, ...] = ()  # UUIDs or indices the target uses; empty: all


class Slo(_Part):
    """What counts as good service; a missing bound is not judged."""

    ttft_p95_ms: float | None = None
    total_p95_ms: float | None = None
    error_rate: float | None = 0.01


class Stop(_Part):
    """When the climb ends early, to protect the service; a missing bound never stops it."""

    error_rate: float | None = 0.5
    total_p95_ms: float | None = None
    memory: float | None = None  # share of GPU memory or KV cache


class Safety(_Part):
    """Bounds that no run passes."""

    allowed_hosts: tuple[str, ...] = ()  # empty: the target's own host only
    max_users: int = 1000
    max_seconds: float = 7200
    store_text: bool = False


class Modality(_Part):
    """Text only against one image against several."""

    rounds: int = 5


class ImageSweep(_Part):
    """The same picture at several sides."""

    sides: tuple[int, ...] = (512, 768, 1024, 1280)
    rounds: int = 5


class Repeat(_Part):
    """One fixed input again and again."""

    rounds: int = 20
    kind: str | None = None  # default: the first kind with an image, else the first


class Isolation(_Part):
    """Short requests alone, then beside long ones."""

    users: int = 4
    short: str | None = None  # a kind of the mix; default: the first
    long: str | None = None  # default: the last


class Cache(_Part):
    """Unique input against repeated input."""

    rounds: int = 10


class Experiments(_Part):
    """Settings of the measurements beside the ladder."""

    modality: Modality = Modality()
    image_sweep: ImageSweep = ImageSweep()
    repeat: Repeat = Repeat()
    isolation: Isolation = Isolation()
    cache: Cache = Cache()


class Profile(_Part):
    """A whole profile, defaults filled in."""

    name: str
    target: Target
    traffic: Traffic
    generation: Generation = Generation()
    load: Load = Load()
    observe: Observe = Observe()
    slo: Slo = Slo()
    stop: Stop = Stop()
    safety: Safety = Safety()
    experiments: Experiments = Experiments()

    @property
    def users(self) -> tuple[int, ...]:
        """Users of the closed-loop ladder; empty in an open loop."""
        if self.load.rates is not None:
            return ()
        return self.load.users if self.load.users is not None else DEFAULT_USERS


def load_profile(path: str | Path, *, host: str | None = None) -> Profile:
    """Read and validate a profile; `host` overrides scheme, host and port of its target.

    Raises UserError (exit code 2) naming file, line and key.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError("no such profile", file=file, remedy="give the path of a YAML profile") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", file=file) from None
    return parse_profile(text, file=file, host=host)


def parse_profile(text: str, *, file: Path, host: str | None = None) -> Profile:
    """Validate a profile's YAML text; `file` gives the folder for relative paths and is named in errors."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or "not YAML"
        raise UserError(f"not valid YAML: {what}", file=file, line=mark.line + 1 if mark else None) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid YAML: {error}", file=file) from None
    if not isinstance(raw, dict):
        raise UserError("a profile is a mapping of keys", file=file, remedy="start with `name:`")
    fail = _Failure(file, root)
    _refuse_unknown_keys(raw, Profile, (), fail)
    try:
        profile = msgspec.convert(raw, Profile, strict=True)
    except msgspec.ValidationError as error:
        what, path = _split_path(str(error))
        raise fail(path, what) from None
    profile = _resolve(profile, file.parent, host)
    _check_ranges(profile, fail)
    return profile


def to_yaml(profile: Profile) -> str:
    """Return the resolved profile as YAML, with headers that may carry secrets blanked."""
    raw = msgspec.to_builtins(profile)
    raw["target"]["headers"] = {name: "(hidden)" for name in profile.target.headers}
    return yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)


def profile_hash(profile: Profile) -> str:
    """Return a short hash of everything that decides the request bodies."""
    parts = (profile.traffic, profile.generation, profile.target, profile.experiments)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


class _Failure:
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


def _refuse_unknown_keys(raw: Any, kind: Any, path: tuple[str | int, ...], fail: _Failure) -> None:
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
    elif isinstance(raw, list):
        item = getattr(kind, "__args__", (None,))[0]
        for number, value in enumerate(raw):
            _refuse_unknown_keys(value, item, (*path, number), fail)


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
        url, own = urlsplit(host if "//" in host else f"http://{host}"), urlsplit(target.base_url)
        target = replace(
            target,
            base_url=urlunsplit((url.scheme, url.netloc, url.path.rstrip("/") or own.path, "", "")),
        )
    return replace(profile, traffic=replace(traffic, mix=mix, replay=replay), target=target)


def _check_ranges(profile: Profile, fail: _Failure) -> None:
    """Refuse values that a type cannot: ranges, choices that exclude each other, hosts."""
    _check_target(profile, fail)
    _check_traffic(profile, fail)
    _check_load(profile, fail)
    if profile.observe.interval_s < 0.1:
        raise fail(("observe", "interval_s"), "must be at least 0.1")
    for name in ("error_rate", "memory"):
        value = getattr(profile.stop, name)
        if value is not None and not 0 < value <= 1:
            raise fail(("stop", name), "must lie in 0-1")
    for name, part in (("slo", profile.slo), ("stop", profile.stop)):
        for key, value in msgspec.structs.asdict(part).items():
            if value is not None and value < 0:
                raise fail((name, key), "must not be negative")


def _check_target(profile: Profile, fail: _Failure) -> None:
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
    if not profile.name or not re.fullmatch(r"[A-Za-z0-9._-]{1,80}", profile.name):
        raise fail(("name",), "must be 1-80 letters, digits, '.', '_' or '-'")
    if target.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", target.api_key_env):
        raise fail(("target", "api_key_env"), "must be the name of a variable, never the key itself")
    for name, value in target.headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or re.search(r"[\r\n\0]", value):
            raise fail(("target", "headers", name), "not a valid header")
    for name, value in msgspec.structs.asdict(target.timeouts).items():
        if value <= 0:
            raise fail(("target", "timeouts", name), "must be above 0")
    if profile.generation.max_tokens < 1:
        raise fail(("generation", "max_tokens"), "must be at least 1")


def _check_traffic(profile: Profile, fail: _Failure) -> None:
    traffic = profile.traffic
    if bool(traffic.mix) == (traffic.replay is not None):
        raise fail(("traffic",), "give either `mix` or `replay`")
    kinds: set[str] = set()
    for number, spec in enumerate(traffic.mix):
        at = ("traffic", "mix", number)
        if spec.kind in kinds:
            raise fail((*at, "kind"), f"`{spec.kind}` stands twice", "give each entry its own kind")
        kinds.add(spec.kind)
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


def _check_images(images: ImageSpec, endpoint: str, at: tuple[str | int, ...], fail: _Failure) -> None:
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


def _check_load(profile: Profile, fail: _Failure) -> None:
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
        if not 0 < rate <= 100_000:
            raise fail(("load", "rates", number), "must lie above 0 and at most 100000 requests/s")
    ladder: tuple[float, ...] = profile.users or load.rates or ()
    if any(b <= a for a, b in zip(ladder, ladder[1:], strict=False)):
        raise fail(("load", "users" if profile.users else "rates"), "steps must rise", "as in [1, 2, 4]")
    hold = load.hold
    if not 0.5 <= hold.seconds:
        raise fail(("load", "hold", "seconds"), "must be at least 0.5")
    if hold.max_seconds < hold.seconds:
        raise fail(("load", "hold", "max_seconds"), "must not be below hold.seconds")
    if hold.min_requests < 1 or hold.settle_s < 0:
        raise fail(("load", "hold"), "min_requests must be at least 1 and settle_s not negative")
    if not 1 <= load.repeats <= 20:
        raise fail(("load", "repeats"), "must lie in 1-20")
    if load.max_in_flight < 1:
        raise fail(("load", "max_in_flight"), "must be at least 1")
    if profile.experiments.isolation.users < 1:
        raise fail(("experiments", "isolation", "users"), "must be at least 1")
    for key in ("modality", "image_sweep", "repeat", "cache"):
        if getattr(profile.experiments, key).rounds < 2:
            raise fail(("experiments", key, "rounds"), "must be at least 2")
