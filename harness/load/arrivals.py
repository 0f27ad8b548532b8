"""When the requests of an open loop are due: an absolute schedule, so that lateness never adds up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal


def arrivals(
    rate: float, kind: Literal["poisson", "constant"], *, share: int, shares: int, seed: str
) -> Iterator[float]:
    """Yield the due times of one worker, in seconds from the start of the phase, without end.

    `rate` is that of all workers together. Constant arrivals are dealt out in turn, so that they are evenly
    spaced over all workers; independent Poisson streams add up to one of the sum of their rates.
    """
    if kind == "constant":
        number = share
        while True:
            yield number / rate
            number += shares
    source = random.Random(seed)
    due = 0.0
    while True:
        due += source.expovariate(rate / shares)
        yield due
