"""What weakens a step's figures: its load, its client, its traffic, and what it shows over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from harness.analysis.groups import Rows, Window
from harness.analysis.samples import LITTLE_RANGE, SENT_LEAST
from harness.analysis.stats import Floats
from harness.analysis.steps import occupancy
from harness.profile import MIN_GOOD, Profile
from harness.records import Problem
from harness.results import ClientStats, Step

HIT_LEAST = 0.01
IDLE_CLIENT = 0.2  # of a core: a load generator below this did not lack one
MIX_SHIFT = 0.1  # of all good requests
RISE = 1.25  # of the median latency, from the first to the last third of a window
DRIFT = 0.1  # of the mean latency
REPEATING = ("repeat", "cache")  # these experiments send the same input again on purpose


def load_problems(profile: Profile, ladder: Sequence[tuple[Window, Step]]) -> Iterator[Problem]:
    """Yield where a step was too short, its load was not the one intended, or its queue had not settled."""
    hold = profile.load.hold
    for window, step in ladder:
        wanted = hold.wanted(step.users)
        if window.complete and step.n < wanted:
            text = (
                f"{step.n} good requests, {wanted} asked for: raise load.hold.max_seconds "
                f"({hold.max_seconds:g} s)."
            )
            yield Problem(code="hold_too_short", step=step.label, text=text)
        busy = occupancy(window, with_waits=True)
        if busy is not None and not LITTLE_RANGE[0] <= busy <= LITTLE_RANGE[1]:
            text = (
                f"Requests in flight came to {100 * busy:.0f} % of the users, so this is not the load it "
                "says. Look for waits in the load generator, or hold the step longer."
            )
            yield Problem(code="load_not_applied", step=step.label, text=text)
        elif step.sent_due is not None and step.sent_due < SENT_LEAST:
            text = (
                f"{100 * step.sent_due:.0f} % of the requests due were sent: give the load generator more "
                "processes, or raise load.max_in_flight."
            )
            yield Problem(code="load_not_applied", step=step.label, text=text)
        rise = latency_rise(window.good.latency_ms)
        if rise is not None and rise > RISE:
            text = (
                f"Latency still rose by {100 * (rise - 1):.0f} % inside the step: its queue had not settled, "
                "and its figures are too good. Hold longer, or raise load.hold.settle_s."
            )
            yield Problem(code="not_stationary", step=step.label, text=text)


def latency_rise(latency: Floats) -> float | None:
    """Return the median of the last third over the first's, of latencies by start; None where it is no trend.

    A trend is a rank correlation of start and latency that chance gives in 1 of 1,000 windows.
    """
    n = len(latency)
    if n < 30:
        return None
    ranks = np.empty(n)
    ranks[np.argsort(latency, kind="stable")] = np.arange(n)
    rho = float(np.corrcoef(np.arange(n), ranks)[0, 1])
    if rho * np.sqrt(n - 1) < 3.3:
        return None
    third = n // 3
    first, last = np.median(latency[:third]), np.median(latency[-third:])
    return float(last / first) if first > 0 else None


def drift_problems(pairs: Sequence[tuple[Window, Step]]) -> Iterator[Problem]:
    """Yield where a load measured again at the end of the run took another time than before."""
    for again, _ in pairs:
        if again.phase.experiment != "drift":
            continue
        for before, step in pairs:
            same = (before.phase.users, before.phase.rate) == (again.phase.users, again.phase.rate)
            if before is again or not same or not len(before.good) or not len(again.good):
                continue
            change, error = log_change(before.good.latency_ms, again.good.latency_ms)
            if abs(change) > max(DRIFT, 3 * error):
                text = (
                    f"Measured again at the end, it took {100 * np.expm1(change):+.0f} % time: the service "
                    "or its host changed during the run, so its steps are not fully comparable."
                )
                yield Problem(code="not_stationary", step=step.label, text=text)
            break


def log_change(before: Floats, after: Floats) -> tuple[float, float]:
    """Return the log of the ratio of two means, and its standard error."""
    means = before.mean(), after.mean()
    error = np.hypot(*(v.std() / np.sqrt(len(v)) / m for v, m in zip((before, after), means, strict=True)))
    return float(np.log(means[1] / means[0])), float(error)


def client_problems(steps: Sequence[Step]) -> Iterator[Problem]:
    """Yield where the load generator was the limit, or may have been for all that is known."""
    for step in steps:
        if step.client.limited:
            text = (
                f"Arrived bytes waited {step.client.lag_p99_ms:.0f} ms (p99) in the load generator: the step "
                f"measures the client and leaves the verdict. {_client_remedy(step.client)}"
            )
            yield Problem(code="client_limited", step=step.label, text=text)
    measured = [step for step in steps if step.n + step.failures]
    if measured and all(step.client.lag_p99_ms is None for step in measured):
        text = (
            "How long arrived bytes waited in the load generator is not known: that it was fast enough is "
            "not proved."
        )
        yield Problem(code="client_lag_unknown", text=text)


def _client_remedy(client: ClientStats) -> str:
    if client.cpu is not None and client.cpu < IDLE_CLIENT:
        return (
            f"On average it used only {100 * client.cpu:.0f} % of a core: other programs held it up, or very "
            "many answers at one moment, against which more processes help."
        )
    return f"{client.processes_needed} processes would have carried it."


def traffic_problems(profile: Profile, pairs: Sequence[tuple[Window, Step]], rows: Rows) -> Iterator[Problem]:
    """Yield failures, a changed mix, cache hits where there should be none, tokens not reported."""
    ladder = [step for window, step in pairs if window.phase.experiment == "steps"]
    for step in ladder:
        if step.failures:
            asked = step.n + step.failures
            bad = {name: n for name, n in step.outcomes.items() if name not in ("ok", "cancelled")}
            most = max(bad, key=lambda name: bad[name])
            text = (
                f"{step.failures} of {asked} requests failed ({100 * step.failures / asked:.1f} %), most as "
                f"{most} ({bad[most]}): they count neither as throughput nor in latency."
            )
            yield Problem(code="failures", step=step.label, text=text)
    yield from _of_mix(ladder)
    if profile.traffic.unique:
        for window, step in pairs:
            if window.phase.experiment not in REPEATING:
                yield from _of_hits(step)
    if rows.ok.any() and np.isnan(rows.figures["in_tokens"][rows.ok]).all():
        text = "The service reports no usage: output tokens are counted deltas, input tokens are not known."
        yield Problem(code="tokens_estimated", text=text)


def _of_mix(steps: Sequence[Step]) -> Iterator[Problem]:
    shares: dict[str, Mapping[str, float]] = {
        step.label: {kind: stats.n / step.n for kind, stats in step.by_kind.items()}
        for step in steps
        if step.n >= MIN_GOOD
    }
    for kind in sorted({kind for share in shares.values() for kind in share}):
        usual = float(np.median([share.get(kind, 0.0) for share in shares.values()]))
        for label, share in shares.items():
            here = share.get(kind, 0.0)
            if abs(here - usual) > MIX_SHIFT:
                text = (
                    f"{100 * here:.0f} % of its good requests are {kind}, {100 * usual:.0f} % elsewhere: the "
                    "step is not comparable with the others. See the figures by kind."
                )
                yield Problem(code="mix_changed", step=label, text=text)


def _of_hits(step: Step) -> Iterator[Problem]:
    engine = step.engine
    if engine is None:
        return
    for name, ratio in (("prefix", engine.prefix_hit_ratio), ("image", engine.mm_hit_ratio)):
        if ratio is not None and ratio >= HIT_LEAST:
            text = (
                f"{100 * ratio:.1f} % hits in the engine's {name} cache although the traffic is meant to be "
                "unique: real traffic may be slower. Check what the requests share, such as a system prompt "
                "or a template."
            )
            yield Problem(code="cache_hits", step=step.label, text=text)
