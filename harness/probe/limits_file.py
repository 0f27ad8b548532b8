"""limits.yaml as the probe reads it: a number that is left out is not probed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from harness.errors import UserError
from harness.profile_reader import parse_struct


class InputLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one request may hold."""

    max_image_side: int | None = None  # pixels
    max_image_pixels: int | None = None
    max_images_per_request: int | None = None
    max_input_tokens: int | None = None
    max_new_tokens: int | None = None


class Concurrency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many requests are served, and how many may wait."""

    cap: int | None = None
    steady: int | None = None
    queue_max: int | None = None


class WaitLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a request may take."""

    queue_wait_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    on_exceed: Literal["reject"] = "reject"


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole limits.yaml."""

    input_limits: InputLimits = InputLimits()
    concurrency: Concurrency = Concurrency()
    timeouts: WaitLimits = WaitLimits()


SENDABLE = {"max_images_per_request": 1_000, "max_input_tokens": 10_000_000}


def load_limits(path: Path) -> Limits:
    """Read a limits file; raises UserError naming file, line and key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot be read: {error}", file=path, remedy="`knee limits RUN_DIR` writes one"
        ) from None
    limits, fail = parse_struct(text, Limits, file=path)
    for section in ("input_limits", "concurrency", "timeouts"):
        for key, value in msgspec.structs.asdict(getattr(limits, section)).items():
            if isinstance(value, int | float) and not value > 0 and key != "queue_max":
                raise fail((section, key), "must be above 0")
            if key in SENDABLE and value is not None and value > SENDABLE[key]:
                raise fail((section, key), f"a probe sends at most {SENDABLE[key]}", "leave it out")
    return limits
