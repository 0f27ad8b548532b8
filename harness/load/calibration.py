"""How many characters of a text make a token for this target: one question per language before the load.

A length asked for in tokens is met by the target's own count of a text that was sent, not by an average of
other models. Where the target counts none, the estimate stands and is called one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from harness.errors import UserError
from harness.load.client import Client, target_of
from harness.load.recording import ask_before_load
from harness.payloads.corpus import build
from harness.plan import make_plan
from harness.profile import Hold, Language, Load, PayloadSpec, Profile, TextSpec, Traffic
from harness.records import Request

KeyOf = Callable[[Profile], str | None]
WORKER = "calibration"
CHARS = 4000  # so that the few tokens of a chat template do not matter
replace = msgspec.structs.replace


def languages(profile: Profile) -> list[Language]:
    """Return the languages in which the profile asks for lengths in tokens."""
    return sorted({spec.text.lang for spec in profile.traffic.mix if spec.text.tokens is not None})


def calibrated(profile: Profile, key_of: KeyOf) -> tuple[dict[str, float], list[Request]]:
    """Ask the target once per language; return the ratios it gave, and the requests sent as records.

    A master whose environment lacks the key cannot ask: only its workers need one.
    """
    asked = languages(profile)
    try:
        key = key_of(profile)
    except UserError:
        return {}, []
    if not asked:
        return {}, []
    texts = tuple(
        PayloadSpec(kind=f"calibrate_{lang}", text=TextSpec(chars=CHARS, lang=lang), max_tokens=1)
        for lang in asked
    )
    alone = replace(profile, traffic=Traffic(mix=texts), load=Load(users=(1,), hold=Hold()))
    ratios: dict[str, float] = {}
    records: list[Request] = []
    client = Client(target_of(profile, api_key=key))
    with tempfile.TemporaryDirectory(prefix="knee-calibration-") as scratch:
        plan = make_plan(alone)
        corpus = build(alone, plan, Path(scratch))
        for seq, (lang, entry) in enumerate(zip(asked, plan.phases[0].schedule, strict=True)):
            body = corpus.body(entry, seq)
            record = ask_before_load(client, body, WORKER, seq)
            records.append(record)
            if record.outcome == "ok" and record.in_tokens:
                ratios[lang] = body.text_chars / record.in_tokens
    client.close()
    return ratios, records
