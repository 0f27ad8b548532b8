"""The verdict in one English sentence, for the command line."""

from __future__ import annotations

from harness.results import Knee

SENTENCES: dict[str, str] = {
    "knee": "The service carries {cap} {unit}; at {knee_step}, latency outruns throughput.",
    "knee.last": "The service carries {cap} {unit}; at {knee_step}, the last step measured, "
    "latency outruns throughput.",
    "none_in_range": "The service carries at least {cap} {unit}: no knee up to the last step measured.",
    "below_first": "The service is saturated at the lowest step measured: test below {most_likely} {unit}.",
    "below_first.any": "The service is saturated at the lowest step measured: test lower.",
    "inconclusive": "The data cannot decide between {low} and {high} {unit}; {most_likely} is most likely.",
    "inconclusive.any": "The data cannot decide where the knee lies.",
    "insufficient": "Too little was measured for a verdict: fewer than three steps can be used.",
    "client_limited": "The load generator was the limit, not the service: no verdict.",
    "load_not_applied": "The load asked for was not applied: no verdict.",
}
MORE = " About {n:,} more good requests at these steps would decide it."


def verdict_sentence(knee: Knee, unit: str = "users") -> str:
    """Return the verdict; `unit` is that of the load, in the plural."""
    key: str = knee.status
    if key == "knee" and knee.votes and knee.votes[-1].users == knee.knee_step:
        key = "knee.last"
    if (key == "inconclusive" and knee.undecided is None) or (
        key == "below_first" and knee.most_likely is None
    ):
        key += ".any"
    low, high = knee.undecided or (None, None)
    figures = {
        "cap": knee.cap,
        "knee_step": knee.knee_step,
        "most_likely": knee.most_likely,
        "low": low,
        "high": high,
    }
    words = {name: "-" if value is None else f"{value:g}" for name, value in figures.items()}
    text = SENTENCES[key].format(unit="user" if unit == "users" and words["cap"] == "1" else unit, **words)
    return text + MORE.format(n=knee.more_requests) if knee.more_requests else text
