"""What master and workers tell each other, beside batches of records: types, names and their encoding.

The messages travel inside Locust's own connection, as bytes of JSON. A worker learns everything of a run from
`Setup`, after the fork and after a profile has been changed in the web UI; only the key it reads from its own
environment, so that no secret is sent.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from harness.plan import Phase, Plan
from harness.profile import Profile

# master -> worker
SETUP, ORDER, ACK, DRAIN, CLOSE, CLOCK = (
    "knee_setup",
    "knee_order",
    "knee_ack",
    "knee_drain",
    "knee_close",
    "knee_clock",
)
# worker -> master
HELLO, BATCH, DRAINED, CLOSED, TIME = "knee_hello", "knee_batch", "knee_drained", "knee_closed", "knee_time"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker needs to know of a run."""

    run: str
    profile: Profile
    plan: Plan
    corpus: str  # path on the master's host
    chars_per_token: dict[str, float]  # by language, as the target counted
    file: str  # for the worker's own records, in the run directory on the master's host
    index: int  # of this worker, 0..
    salt: int  # of the run's nonces


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """A worker is ready, or says why it is not."""

    worker: str
    host: str
    pid: int
    file: str | None = None
    error: str | None = None


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Which phase is on, whether requests may be sent, how many workers share it, how many users run."""

    phase: Phase
    gate: bool
    workers: int
    running: int | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself with each batch; stamps are its own wall clock."""

    at_ns: int
    phase: int
    users: int
    in_flight: int
    oldest_ns: int | None = None


Body = TypeVar("Body", bound=msgspec.Struct)


def pack(body: msgspec.Struct) -> bytes:
    """Return a message's body as bytes."""
    return msgspec.json.encode(body)


def unpack(data: Any, kind: type[Body]) -> Body:
    """Return the body of a message."""
    return msgspec.json.decode(data, type=kind)
