"""The verdict in one English sentence, for the command line."""

from __future__ import annotations

from collections.abc import Sequence

from harness.results import Knee, Load, Step

SENTENCES: dict[str, str] = {
    "knee": "The service carries {cap}; at {knee_step}, latency outruns throughput.",
    "knee.last": "The service carries {cap}; at {knee_step}, the last step measured, "
    "latency outruns throughput.",
    "none_in_range": "The service carries at least {cap}: no knee up to the last step measured.",
    "below_first": "The service is saturated at the lowest step measured: test below {most_likely}.",
    "below_first.any": "The service is saturated at the lowest step measured: test lower.",
    "inconclusive": "The data cannot decide between {low} and {high}; {likely} is most likely.",
    "inconclusive.any": "The data cannot decide where the knee lies.",
    "insufficient": "Too little was measured for a verdict: fewer than three steps can be used.",
    "client_limited": "The load generator was the limit, not the service: it carries at least {safe_cap}, "
    "its cap is not known.",
    "client_limited.any": "The load generator was the limit, not the service: no verdict.",
    "load_not_applied": "The load asked for was not applied: the service carries at least {safe_cap}, "
    "its cap is not known.",
    "load_not_applied.any": "The load asked for was not applied: no verdict.",
}
MORE = " About {n:,} more good requests at these steps would decide it."


def load_unit(steps: Sequence[Step]) -> str:
    """Return the unit of the steps' load, in the plural: users, or rates where none has users."""
    return "users" if any(step.users is not None for step in steps) else "req/s"


def verdict_sentence(knee: Knee, unit: str = "users") -> str:
    """Return the verdict; `unit` is that of the load, in the plural."""
    key: str = knee.status
    if key == "knee" and knee.votes and knee.votes[-1].users == knee.knee_step:
        key = "knee.last"
    low, high = knee.undecided or (None, None)
    needed = {
        "inconclusive": high if high != low else None,
        "below_first": knee.most_likely,
        "client_limited": knee.safe_cap,
        "load_not_applied": knee.safe_cap,
    }
    if key in needed and needed[key] is None:
        key += ".any"
    text = SENTENCES[key].format(
        cap=_loads(knee.cap, unit),
        safe_cap=_loads(knee.safe_cap, unit),
        most_likely=_loads(knee.most_likely, unit),
        high=_loads(high, unit),
        low=_plain(low),
        likely=_plain(knee.most_likely),
        knee_step=_plain(knee.knee_step),
    )
    return text + MORE.format(n=knee.more_requests) if knee.more_requests else text


def _loads(load: Load | None, unit: str) -> str:
    return f"{_plain(load)} {'user' if unit == 'users' and load == 1 else unit}"


def _plain(load: Load | None) -> str:
    return "-" if load is None else f"{load:g}"
