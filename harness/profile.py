"""A profile: what is loaded, with what traffic, how hard, what is observed, and what counts as good.

One frozen `Profile`; `profile_reader` makes it from YAML and `profile_rules` refuses what types cannot.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every section refuses keys it does not know."""


class Timeouts(_Part, frozen=True):
    """When a request is given up, each from its own start, in seconds."""

    connect_s: float = 5
    ttft_s: float = 60
    idle_s: float = 30
    total_s: float = 300


class Target(_Part, frozen=True):
    """The service under test."""

    base_url: str
    model: str = "default"
    endpoint: Literal["chat", "completions"] = "chat"
    stream: bool = True
    api_key_env: str | None = None  # the variable's name, never the key
    headers: dict[str, str] = {}
    verify_tls: bool = True
    timeouts: Timeouts = Timeouts()


class Generation(_Part, frozen=True):
    """What is asked of the model, equal for every request so that lengths can be compared."""

    max_tokens: int = 256
    temperature: float = 0
    ignore_eos: bool = True
    extra: dict[str, Any] = {}  # merged into each body


Language = Literal["en", "zh"]


class TextSpec(_Part, frozen=True):
    """A prompt text of a set length; tokens or chars, not both."""

    tokens: int | None = None
    chars: int | None = None
    lang: Language = "en"


class ImageSpec(_Part, frozen=True):
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


class PayloadSpec(_Part, frozen=True):
    """One kind of request in the mix."""

    kind: str
    weight: int = 1
    text: TextSpec = TextSpec(chars=60)
    images: ImageSpec | None = None
    max_tokens: int | None = None  # overrides generation.max_tokens


class Replay(_Part, frozen=True):
    """Recorded requests, one OpenAI body per JSON line."""

    file: str
    order: Literal["file", "shuffle"] = "file"
    rewrite: bool = False  # true: model, max_tokens, stream and sampling are set from the profile


class Traffic(_Part, frozen=True):
    """What is sent: a weighted mix, or a replay."""

    mix: tuple[PayloadSpec, ...] = ()
    replay: Replay | None = None
    unique: bool = True  # nonces, so that no cache is hit
    seed: int = 1


MIN_GOOD = 20  # good requests below which a step is not judged
MIN_ROUNDS = 4  # the same, per user


class Hold(_Part, frozen=True):
    """How long a step is measured."""

    seconds: float = 60
    min_requests: int = 50
    max_seconds: float = 300
    settle_s: float = 5
    adaptive: bool = False  # hold on until each vote is decided, at most max_seconds

    def wanted(self, users: int | None) -> int:
        """Return how many good requests a window needs; `users` is None in an open loop."""
        return max(self.min_requests, MIN_GOOD, MIN_ROUNDS * (users or 0))


class Load(_Part, frozen=True):
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


class Observe(_Part, frozen=True):
    """Where GPU and engine figures come from."""

    gpu: str = "auto"  # auto | none | nvml | http://host:9877 | dcgm:URL | sim:URL
    engine: str = "auto"  # auto | none | URL
    interval_s: float = 1
    token_env: str | None = None  # names the variable that holds a remote sidecar's token
    gpus: tuple[str, ...] = ()  # UUIDs or indices the target uses; empty: all


class Slo(_Part, frozen=True):
    """What counts as good service; a missing bound is not judged."""

    ttft_p95_ms: float | None = None
    total_p95_ms: float | None = None
    error_rate: float | None = 0.01


class Stop(_Part, frozen=True):
    """When the climb ends early, to protect the service; a missing bound never stops it."""

    error_rate: float | None = 0.5
    total_p95_ms: float | None = None
    memory: float | None = None  # share of GPU memory or KV cache


class Safety(_Part, frozen=True):
    """Bounds that no run passes."""

    allowed_hosts: tuple[str, ...] = ()  # empty: any
    max_users: int = 1000
    max_seconds: float = 7200
    store_text: bool = False  # texts are never stored: true is refused


class Modality(_Part, frozen=True):
    """Text only against one image against several."""

    rounds: int = 5


class ImageSweep(_Part, frozen=True):
    """The same picture at several sides."""

    sides: tuple[int, ...] = (512, 768, 1024, 1280)
    rounds: int = 5


class Repeat(_Part, frozen=True):
    """One fixed input again and again."""

    rounds: int = 20
    kind: str | None = None  # default: the first kind with an image, else the first


class Isolation(_Part, frozen=True):
    """Short requests alone, then beside long ones."""

    users: int = 4
    short: str | None = None  # a kind of the mix; default: the first
    long: str | None = None  # default: the last


class Cache(_Part, frozen=True):
    """Unique input against repeated input."""

    rounds: int = 10


class Experiments(_Part, frozen=True):
    """Settings of the measurements beside the ladder."""

    modality: Modality = Modality()
    image_sweep: ImageSweep = ImageSweep()
    repeat: Repeat = Repeat()
    isolation: Isolation = Isolation()
    cache: Cache = Cache()


class Profile(_Part, frozen=True):
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

    @property
    def engine_url(self) -> str | None:
        """Where the engine's metrics are looked for; None: nowhere."""
        engine = self.observe.engine
        return None if engine == "none" else self.target.base_url if engine == "auto" else engine
