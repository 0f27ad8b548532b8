"""Chinese for what the analysis says in English: its sentences as patterns, in `phrases.zh.txt`.

The analysis speaks one language, and machines read its words too; so they are translated where they are
printed. A sentence that no pattern covers stays as it is: it is still true. Tests run the planted bottlenecks
and all measurements and require that nothing stays.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

NUMBER, ANYTHING = r"([-+]?\d[\d.,]*(?:(?:, | and )\d[\d.,]*)*)", r"((?:(?!; ).)+?)"
SENTENCE, CLAUSES = r"(?<=\.) (?=[A-Z0-9])", (("; ", "；"), (", ", "、"))


def translate(text: str, lang: str) -> str:
    """Return what the analysis said in the reader's language, sentence by sentence where it said several."""
    return text if lang == "en" else _chinese(text)


@cache
def _chinese(text: str) -> str:
    sentences = re.split(SENTENCE, text)
    if len(sentences) > 1:
        return re.sub("(?<=。) ", "", " ".join(map(_chinese, sentences)))
    for pattern, words in _patterns():
        found = pattern.fullmatch(text)
        if found:
            return words.format(*map(_chinese, found.groups()))
    for border, joint in CLAUSES:
        clauses = text.split(border)
        known = [_chinese(clause) for clause in clauses] if len(clauses) > 1 else []
        if known and all(word != clause for word, clause in zip(known, clauses, strict=True)):
            return joint.join(known)
    return text


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """Return patterns and their words, those that say most first."""
    lines = (files("harness.report.messages") / "phrases.zh.txt").read_text(encoding="utf-8").splitlines()
    spoken = [line for line in lines if line and not line.startswith("#")]
    pairs = [(english, chinese.strip()) for english, chinese in zip(spoken[::2], spoken[1::2], strict=True)]
    pairs.sort(key=lambda pair: -len(pair[0]))
    return [(re.compile(_regex(english)), chinese) for english, chinese in pairs]


def _regex(english: str) -> str:
    return re.escape(english).replace(r"\{\}", ANYTHING).replace(r"\{\#\}", NUMBER)
