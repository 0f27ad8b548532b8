"""One request before the load: a target that does not answer it ends the run with its reason.

Its record is kept as the first of the run: it is the only request that meets the service cold. A refusal that
cannot change by itself (a redirect, 400, 401, 403, 404, 413, 422) ends the run at once; any other failure is
tried a few times, since a service that fails now and then is one to measure, not to turn away from.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from harness.errors import UserError
from harness.load.answer import error_text
from harness.load.client import Client, Target, target_of
from harness.load.recording import ask_before_load
from harness.load.target import PATHS
from harness.observe.fetch import FetchError, Getter
from harness.payloads.corpus import Body, build
from harness.plan import Plan
from harness.profile import Profile
from harness.records import Request

ATTEMPTS = 5
NOT_FOUND = 404
MODELS_WITHIN_S = 5.0
MOST_NAMES = 8
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
    unserved = _unserved_model(profile, target) if records[-1].status == NOT_FOUND else None
    raise unserved or _refusal(profile, records[-1])


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _unserved_model(profile: Profile, target: Target) -> UserError | None:
    """Return the names of the models that the target lists instead; None where its list does not say so."""
    headers = {name.decode(): value.decode("latin-1") for name, value in target.headers}
    headers["accept"] = "application/json"
    path, mark, query = target.path.partition("?")
    path = path.removesuffix(PATHS[target.endpoint]) + "/models" + mark + query
    getter = Getter(profile.target.base_url, timeout_s=MODELS_WITHIN_S, headers=headers)
    try:
        names = [model.id for model in msgspec.json.decode(getter.get(path), type=_Models).data]
    except (FetchError, msgspec.DecodeError):
        return None
    finally:
        getter.close()
    if not names or profile.target.model in names:
        return None
    more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    listed = ", ".join([*(target.redacted(error_text(name)) for name in names[:MOST_NAMES]), *more])
    what = f"`{profile.target.model}` is not served; the server has: {listed}"
    return UserError(what, key="target.model")


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
