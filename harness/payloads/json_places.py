"""Where values stand in a JSON text, so that one can be changed and every other byte kept.

For text that is known to be valid JSON; offsets are in characters, values half-open [start, end).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

Place = tuple[int, int]
_value = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"[ \t\r\n]*")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def members(text: str, at: int) -> dict[str, Place]:
    """Return where each value of the object at `at` stands; of a key given twice the last, as decoders do."""
    found: dict[str, Place] = {}
    at = _skip(text, at + 1)
    while text[at] != "}":
        key, at = _value(text, at)
        start = _skip(text, _skip(text, at) + 1)
        _, end = _value(text, start)
        found[key] = (start, end)
        at = _after_comma(text, end)
    return found


def items(text: str, at: int) -> Iterator[Place]:
    """Yield where each value of the array at `at` stands."""
    at = _skip(text, at + 1)
    while text[at] != "]":
        _, end = _value(text, at)
        yield at, end
        at = _after_comma(text, end)


def _after_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at
