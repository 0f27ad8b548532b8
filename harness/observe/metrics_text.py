"""A fast reader of chosen names in a Prometheus or OpenMetrics text.

`prometheus_client`'s parser renames counters that lack `_total`, and costs too much on an engine's 500 lines
a second; here only the names that are asked for are looked at, as they are written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache

Labels = tuple[tuple[str, str], ...]
Values = dict[str, list[tuple[Labels, float]]]

_LABEL = re.compile(rb'([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


@lru_cache(maxsize=32)
def _pattern(names: frozenset[str]) -> re.Pattern[bytes]:
    alternatives = b"|".join(re.escape(name.encode()) for name in sorted(names, key=len, reverse=True))
    return re.compile(
        rb"^(" + alternatives + rb')[ \t]*(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(\S+)', re.MULTILINE
    )


def read_values(text: bytes, names: Iterable[str]) -> Values:
    """Return, for each of `names` that the text holds, its samples in order; NaN and garbage are left out."""
    found: Values = {}
    for match in _pattern(frozenset(names)).finditer(text):
        name, labels, number = match.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        if not math.isnan(value):
            found.setdefault(name.decode(), []).append((_labels(labels or b""), value))
    return found


@lru_cache(maxsize=4096)
def _labels(text: bytes) -> Labels:
    return tuple((k.decode(), _plain(v.decode(errors="replace"))) for k, v in _LABEL.findall(text))


def _plain(value: str) -> str:
    return _ESCAPE.sub(lambda m: "\n" if m[1] == "n" else m[1], value) if "\\" in value else value
