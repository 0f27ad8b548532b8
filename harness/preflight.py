"""One request before the load: a target that does not answer it ends the run with its reason.

Its record is kept as the first of the run: it is the only request that meets the service cold. A refusal that
cannot change by itself (a redirect, 400, 401, 403, 404, 413, 422) ends the run at once; any other failure is
tried a few times, since a service that fails now and then is one to measure, not to turn away from.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.errors import UserError
from harness.load.client import Client, Target, target_of
from harness.load.recording import ask_before_load
from harness.payloads.corpus import Body, build
from harness.plan import Plan
from harness.profile import Profile
from harness.records import Request

ATTEMPTS = 5
WORKER = "preflight"
_UNREACHABLE = ("connect_error", "timeout_connect", "timeout_ttft")
_STATUS = {
    400: "look at the request: model, max_tokens, image sizes, generation.extra",
    401: "name the variable that holds the key in target.api_key_env, and set it",
    403: "the key in target.api_key_env may not use this model",
    404: "check target.base_url (it usually ends in /v1) and target.model",
    413: "the payload is over the service's limit: make text or images smaller",
    422: "the service does not know a field: generation.ignore_eos: false, or null it in generation.extra",
    **dict.fromkeys(
        (301, 302, 303, 307, 308), "redirects are not followed: put the last address into target.base_url"
    ),
}
_OUTCOME = {
    "connect_error": ("nothing answers there", "start the service or give --host"),
    "timeout_connect": ("no connection in time", "check address and firewall, or raise timeouts.connect_s"),
    "timeout_ttft": ("no token in time", "see whether the service is stuck, or raise timeouts.ttft_s"),
    "timeout_idle": ("the answer stalled", "see whether the service is stuck, or raise timeouts.idle_s"),
    "timeout_total": ("the answer took too long", "lower max_tokens or raise timeouts.total_s"),
    "malformed": ("the answer is not that of an OpenAI-compatible service", "check target.base_url"),
    "empty": (
        "the answer holds no token",
        "check target.base_url, target.model and generation.max_tokens",
    ),
}
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"  # in the words of OpenSSL


def preflight(profile: Profile, plan: Plan, api_key: str | None) -> list[Request]:
    """Send a plan's first request until it is answered well, at most 5 times; return each try as a record.

    The records name no run yet. Raises UserError with the reason where none was answered.
    """
    with tempfile.TemporaryDirectory(prefix="knee-corpus-") as scratch:
        corpus = build(profile, plan, Path(scratch))
        return _ask(profile, target_of(profile, api_key=api_key), corpus.body(plan.phases[0].schedule[0], 0))


def _ask(profile: Profile, target: Target, body: Body) -> list[Request]:
    records: list[Request] = []
    client = Client(target)
    try:
        for seq in range(ATTEMPTS):
            last = ask_before_load(client, body, WORKER, seq, first=seq == 0)
            records.append(last)
            if last.outcome == "ok":
                return records
            if last.status in _STATUS or last.outcome in _UNREACHABLE:
                break
    finally:
        client.close()
    raise _refusal(profile, records[-1])


def _refusal(profile: Profile, last: Request) -> UserError:
    what, remedy = _OUTCOME.get(last.outcome, (f"the first request failed ({last.outcome})", None))
    if last.status is not None and last.status >= 300:
        what, remedy = f"the target answered {last.error or last.status}", _STATUS.get(last.status)
    elif _UNTRUSTED in (last.error or ""):
        what, remedy = (
            last.error or "",
            "trust its authority on this machine, or set target.verify_tls: false",
        )
    elif last.error:
        what = f"{what}: {last.error}"
    return UserError(what, key=profile.target.base_url, remedy=remedy or "look into the service's log")
