"""One window of requests as the step of a report.

Client lag is the wait of arrived bytes inside this client (kernel stamps), or the event loop's lag where
there are none. A step is client-limited where its 99th percentile is above max(10 ms, 5 % of the TTFT
median). In a step of 60 requests that percentile is close to the maximum, and one stall would void an
honest step: so more requests must lie over the limit than the 1 % that it allows, by a binomial test at 5
%.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np
from scipy import special

from harness.analysis.groups import Rows, Window
from harness.analysis.stats import Floats, Mask, p95_interval, quantiles
from harness.profile import Slo
from harness.records import STAGES
from harness.results import ClientStats, EngineStats, GpuStats, KindStats, Quantiles, StageShare, Step
from harness.rundir import Table

LAG_FLOOR_MS, LAG_TTFT_SHARE = 10.0, 0.05
BUSY_CLIENT = 0.6  # of a core: what one load-generating process carries without lag


def step_of(
    window: Window,
    *,
    slo: Slo,
    client: Table,
    gpu: Mapping[str, GpuStats] | None = None,
    engine: EngineStats | None = None,
) -> Step:
    """Return a window's figures; `client` holds the client samples of its phase."""
    phase, good, served, seconds = window.phase, window.good, window.served, window.seconds
    lasted = seconds if seconds > 0 else None
    ttft = quantiles(good.ttft_ms)
    in_tok_s, out_tok_s = (_rate(served.figures[name], lasted) for name in ("in_tokens", "out_tokens"))
    rps = len(served) / lasted if lasted else None
    step = Step(
        label=phase.label,
        phase=phase.index,
        users=phase.users,
        offered_rps=phase.rate,
        seconds=lasted,
        n=len(good),
        failures=window.failures,
        outcomes=window.started.count_outcomes(),
        rps=rps,
        out_tok_s=out_tok_s,
        in_tok_s=in_tok_s,
        rpm=None if rps is None else 60 * rps,
        tpm=None if in_tok_s is None or out_tok_s is None else 60 * (in_tok_s + out_tok_s),
        latency=quantiles(good.latency_ms),
        ttft=ttft,
        itl=itl_of(good),
        p95_ci_ms=p95_interval(good.latency_ms),
        stages=stage_shares(good, engine),
        by_kind=by_kind(good),
        gpu=dict(gpu or {}),
        engine=engine,
        client=client_of(window, client, ttft.p50_ms),
        little=occupancy(window) if phase.users else None,
        sent_due=len(window.started) / window.due if phase.rate is not None and window.due else None,
        goodput=int(np.count_nonzero(within(served, slo))) / lasted if lasted else None,
    )
    return _with_slo(step, slo)


def itl_of(rows: Rows) -> Quantiles:
    """Return inter-token latency in milliseconds.

    p50: the median request's median gap; p95 and p99: of the requests' own p95 gaps; mean: all gaps pooled;
    max: the longest gap of any request. A request of fewer than two deltas has no gap.
    """
    gaps = rows.figures["chunks"] - 1
    some = (gaps > 0) & ~np.isnan(rows.figures["last_token_ms"])
    median, tail = quantiles(rows.figures["itl_p50_ms"]), quantiles(rows.figures["itl_p95_ms"])
    queued = rows.latency_ms - rows.total_ms
    spent = (rows.figures["last_token_ms"] - (rows.ttft_ms - queued))[some]
    return Quantiles(
        p50_ms=median.p50_ms,
        p95_ms=tail.p95_ms,
        p99_ms=tail.p99_ms,
        mean_ms=float(np.nansum(spent) / gaps[some].sum()) if some.any() else None,
        max_ms=quantiles(rows.figures["itl_max_ms"]).max_ms,
    )


def stage_shares(rows: Rows, engine: EngineStats | None) -> dict[str, StageShare]:
    """Return each stage's percentiles and its share of the mean latency, from requests or else the engine.

    The engine's histograms give means only.
    """
    shares = {}
    for stage in STAGES:
        values = rows.stages[stage]
        known = ~np.isnan(values)
        if not known.any():
            continue
        spread, mean = quantiles(values), rows.latency_ms[known].mean()
        shares[stage] = StageShare(
            p50_ms=spread.p50_ms,
            p95_ms=spread.p95_ms,
            share=float(values[known].mean() / mean) if mean > 0 else None,
        )
    if shares or engine is None or not len(rows):
        return shares
    mean = float(rows.latency_ms.mean())
    for stage in ("queue", "prefill", "decode"):
        value = getattr(engine, f"{stage}_mean_ms")
        if value is not None and mean > 0:
            shares[stage] = StageShare(share=value / mean)
    return shares


def by_kind(rows: Rows) -> dict[str, KindStats]:
    """Return the figures of each payload kind that occurs."""
    kinds = {}
    for number, name in enumerate(rows.kinds):
        mine = rows.kind == number
        if mine.any():
            kinds[name] = KindStats(
                n=int(mine.sum()),
                latency=quantiles(rows.latency_ms[mine]),
                ttft=quantiles(rows.ttft_ms[mine]),
            )
    return kinds


def occupancy(window: Window, *, with_waits: bool = False) -> float | None:
    """Return the share of the users' time spent in requests (Little's law); 1 where the load was applied.

    With `with_waits`, the handshake before a request and the wait after a failure count too: time in which a
    user did what it should.
    """
    rows, users = window.ended, window.phase.users
    if not users or window.seconds <= 0 or not len(rows):
        return None
    spent = rows.total_ms
    if with_waits:
        spent = spent + np.nan_to_num(rows.figures["connect_ms"]) + np.nan_to_num(rows.figures["backoff_ms"])
    return float(spent.sum() / 1e3 / window.seconds / users)


def within(rows: Rows, slo: Slo) -> Mask:
    """Return which requests keep to the SLO's bounds on latency; one without TTFT is judged by its total."""
    good = np.ones(len(rows), dtype=bool)
    if slo.total_p95_ms is not None:
        good &= rows.latency_ms <= slo.total_p95_ms
    if slo.ttft_p95_ms is not None:
        good &= np.isnan(rows.ttft_ms) | (rows.ttft_ms <= slo.ttft_p95_ms)
    return good


def client_of(window: Window, client: Table, ttft_p50_ms: float | None) -> ClientStats:
    """Return the load generator's own figures, and whether they void the step."""
    lag = window.started.figures["client_lag_ms"]
    lag = lag[~np.isnan(lag)]
    if not len(lag) and len(client):
        lag = client["lag_p99_ms"].to_numpy(dtype=np.float64, na_value=np.nan)
        lag = lag[~np.isnan(lag)]
    busy = client.groupby("worker", observed=True)["cpu"].mean().dropna() if len(client) else None
    cpu = float(busy.max()) if busy is not None and len(busy) else None
    if not len(lag):
        return ClientStats(cpu=cpu)
    p99 = float(np.percentile(lag, 99))
    limit = max(LAG_FLOOR_MS, LAG_TTFT_SHARE * (ttft_p50_ms or 0.0))
    limited = p99 > limit and more_than_one_in_hundred(int((lag > limit).sum()), len(lag))
    needed = None
    if limited:
        processes = len(busy) if busy is not None and len(busy) else 1
        work = float(busy.sum()) if busy is not None and len(busy) else float(processes)
        needed = max(processes + 1, math.ceil(work / BUSY_CLIENT))
    return ClientStats(lag_p99_ms=p99, cpu=cpu, limited=limited, processes_needed=needed)


def more_than_one_in_hundred(over: int, n: int) -> bool:
    """Return whether `over` of n is more than 1 % by a one-sided binomial test at 5 %."""
    return over > n / 100 and float(special.bdtrc(over - 1, n, 0.01)) < 0.05


def _rate(tokens: Floats, seconds: float | None) -> float | None:
    if seconds is None or (len(tokens) and np.isnan(tokens).all()):
        return None
    return float(np.nansum(tokens) / seconds)


def _with_slo(step: Step, slo: Slo) -> Step:
    return msgspec.structs.replace(step, meets_slo=meets_slo(step, slo))


def meets_slo(step: Step, slo: Slo) -> bool | None:
    """Return whether a step keeps to every bound of the SLO; None where nothing was measured.

    A bound on the time to first token is not judged where the service does not stream.
    """
    asked = step.n + step.failures
    if not asked:
        return None
    checks = [
        (slo.total_p95_ms, step.latency.p95_ms),
        (slo.ttft_p95_ms, step.ttft.p95_ms),
        (slo.error_rate, step.failures / asked),
    ]
    if not step.n:
        return False if slo.error_rate is not None else None
    return all(value <= bound for bound, value in checks if bound is not None and value is not None)
