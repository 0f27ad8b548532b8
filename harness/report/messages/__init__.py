"""The words of a report, by language; figures and names are filled in with str.format.

Words inside charts, and what a service, an engine or the analysis says in its own words, stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from harness.report.messages.en import EN
from harness.report.messages.zh import ZH

Lang = Literal["en", "zh"]
Say = Callable[..., str]

LANGUAGES: dict[str, dict[str, str]] = {"en": EN, "zh": ZH}


def messages(lang: str) -> Say:
    """Return the function that words a message in a language: `say("verdict.knee", cap=6)`."""
    words = LANGUAGES[lang]

    def say(key: str, **figures: object) -> str:
        return words[key].format(**figures)

    return say


def has(lang: str, key: str) -> bool:
    """Return whether there are words for a key, such as a code that another part made."""
    return key in LANGUAGES[lang]
