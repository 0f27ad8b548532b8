"""The measures that the knee rule takes, and which of them count.

A measure leaves the verdict where the client or the load was at fault, or where too little was measured. A
step of which more than half of the requests failed stays whatever was measured: it is over the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from harness.analysis.stats import Floats
from harness.profile import MIN_GOOD, MIN_ROUNDS

LITTLE_RANGE = (0.9, 1.1)
SENT_LEAST = 0.95
CLOSEST = 1.25  # two steps nearer to each other than this are not compared

Fault = Literal["client_limited", "load_not_applied", "too_few"]


@dataclass(frozen=True, slots=True)
class StepSample:
    """One measure of one load step.

    `latency_ms` and `work` belong to the good requests started in the window, in completion order; a
    request's work is 1, or its tokens where payloads differ. `done` and `done_work` count the good requests
    ended in it.
    """

    load: float  # users, or offered requests/s
    seconds: float
    latency_ms: Floats
    work: Floats
    done: int
    done_work: float
    asked: int  # requests started in the window, whatever became of them
    failed: int = 0
    refused: int = 0  # of the failed ones
    kv_p95: float | None = None
    nvml_p95: float | None = None  # used/total
    preemptions: float | None = None
    open_loop: bool = False
    client_limited: bool = False
    little: float | None = None  # closed loop: requests/s x mean time / users
    sent_due: float | None = None  # open loop
    label: str = ""

    @property
    def good(self) -> int:
        """Good requests started in the window."""
        return len(self.latency_ms)

    @property
    def over_the_limit(self) -> bool:
        """Whether more than half of its requests failed."""
        return self.asked >= MIN_GOOD and 2 * self.failed > self.asked

    @property
    def throughput(self) -> float:
        """Work served per second; in an open loop the offered rate times the share that was served.

        The count of Poisson arrivals is noise of the test, not of the service: the share does not hold it.
        Where nothing was served half a request stands in, so that a logarithm exists.
        """
        if self.open_loop:
            return self.load * min(1.0, max(self.done, 0.5) / max(self.asked, 1))
        each = float(self.work.mean()) if len(self.work) else 1.0
        return max(self.done_work, 0.5 * each) / self.seconds

    @property
    def fault(self) -> Fault | None:
        """Why it cannot stand in the verdict."""
        if self.client_limited:
            return "client_limited"
        if self.open_loop and self.sent_due is not None and self.sent_due < SENT_LEAST:
            return "load_not_applied"
        low, high = LITTLE_RANGE
        if not self.open_loop and self.little is not None and not low <= self.little <= high:
            return "load_not_applied"
        if self.over_the_limit:
            return None
        needed = MIN_GOOD if self.open_loop else max(MIN_GOOD, MIN_ROUNDS * self.load)
        return "too_few" if self.good < needed or self.seconds <= 0 else None


Group = tuple[StepSample, ...]
"""The measures of one load, which is measured several times where the ladder is repeated."""


def grouped(samples: Iterable[StepSample]) -> list[Group]:
    """Return the samples by load, lowest first."""
    by_load: dict[float, list[StepSample]] = {}
    for sample in samples:
        by_load.setdefault(sample.load, []).append(sample)
    return [tuple(by_load[load]) for load in sorted(by_load)]


def thinned(loads: Iterable[float]) -> list[float]:
    """Return the loads that are far enough apart to be compared, lowest first; the highest one stays."""
    ordered = sorted(loads)
    kept: list[float] = []
    for load in ordered:
        if not kept or load >= CLOSEST * kept[-1] * (1 - 1e-9):
            kept.append(load)
    if len(kept) > 1:
        kept[-1] = ordered[-1]
    return kept


def plain(values: Iterable[float]) -> str:
    """Return loads as words: "1, 2 and 4"."""
    words = [f"{value:g}" for value in values]
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""
