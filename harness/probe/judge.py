"""What a reply at a limit, and one over it, says about the service: a value from a closed list.

Only a refusal with a status of its kind, and with `error_code`, `limit` and `actual` in its body, is right.
All else has a name of its own, since each needs another remedy: an answer given as if nothing were wrong,
though text was cut, images were made smaller or the output ended early, is worse than an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from harness.probe.ask import Reply

Verdict = Literal[
    "right",
    "unclear_error",
    "refused_below",
    "not_enforced",
    "truncated",
    "downscaled",
    "server_error",
    "hang",
    "no_answer",
    "not_reached",
    "skipped",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
FAILED = frozenset(VERDICTS) - {"right", "not_reached", "skipped"}
REFUSALS = (400, 413, 422, 429, 503, 504)


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one limit."""

    key: str
    limit: float | None
    verdict: Verdict
    text: str
    at_status: int | None = None
    over_status: int | None = None


def broken(key: str, limit: float, reply: Reply, where: str) -> Finding | None:
    """Return a finding where a reply is no answer at all: a hang, a reset, a server error."""
    if reply.hung:
        return Finding(key, limit, "hang", f"no answer within {reply.seconds:.0f} s {where}")
    if reply.status is None:
        return Finding(key, limit, "no_answer", f"the connection failed {where}: {reply.failure}")
    if reply.status >= 500 and reply.status not in REFUSALS:
        text = f"answered {reply.status} {where}: a limit must be refused with 400 or 413, not fail"
        return Finding(key, limit, "server_error", text, over_status=reply.status)
    return None


def refusal(key: str, limit: float, at: Reply | None, over: Reply) -> Finding:
    """Judge a refusal over the limit: right only with error_code, limit and actual."""
    at_status = at.status if at else None
    error = over.error
    missing = [name for name in ("error_code", "limit", "actual") if error.get(name) is None]
    if over.status not in REFUSALS:
        text = f"refused with {over.status}, which tells a client nothing about a limit"
        return Finding(key, limit, "unclear_error", text, at_status, over.status)
    if missing:
        text = f"refused with {over.status}, but the body lacks {', '.join(missing)}"
        return Finding(key, limit, "unclear_error", text, at_status, over.status)
    code, stated, actual = error["error_code"], error["limit"], error["actual"]
    text = f"refused with {over.status} {code}: limit {stated}, actual {actual}"
    if isinstance(stated, int | float) and stated != limit:
        text += f" (the service's own limit is {stated}, not {limit:g})"
    return Finding(key, limit, "right", text, at_status, over.status)


def judged(key: str, limit: float, at: Reply, over: Reply) -> Finding | None:
    """Return a finding where both replies settle it; None where the request over the limit was served."""
    if found := at_limit(key, limit, at) or broken(key, limit, over, "over the limit"):
        return found
    return None if over.good else refusal(key, limit, at, over)


def at_limit(key: str, limit: float, at: Reply) -> Finding | None:
    """Return a finding where the service does not serve what stands exactly at its limit."""
    failed = broken(key, limit, at, "at the limit")
    if failed or at.good:
        return failed
    message = at.error.get("message") or at.error.get("error_code") or ""
    text = f"refused at the limit itself with {at.status}: {str(message)[:120]}"
    return Finding(key, limit, "refused_below", text, at.status)
