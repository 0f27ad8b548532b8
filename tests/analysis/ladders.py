"""Ladders as the knee rule takes them, with a set capacity and calm noise."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.analysis.samples import StepSample

USERS = (1, 2, 4, 6, 8, 12)


def closed(load: float, served: float, n: int = 300, *, seed: int = 0, cv: float = 0.3) -> StepSample:
    """Return a step of so many users of which so many requests a second are served; Little's law holds."""
    rng = np.random.default_rng((seed, int(load * 100), n))
    latency = rng.gamma(1 / cv**2, cv**2 * 1e3 * load / served, n)
    latency *= 1e3 * load / served / latency.mean()
    return StepSample(
        load=load,
        seconds=n / served,
        latency_ms=latency,
        work=np.ones(n),
        done=n,
        done_work=float(n),
        asked=n,
        little=1.0,
        label=f"{load:g} users",
    )


def saturating(
    cap: float, users: Sequence[float] = USERS, n: int = 300, *, seed: int = 0
) -> list[StepSample]:
    """Return a ladder whose throughput follows the users up to `cap` and stays there."""
    return [closed(u, min(u, cap), n, seed=seed) for u in users]


def arrivals(rate: float, served: float, latency_s: float, n: int = 400, *, seed: int = 0) -> StepSample:
    """Return a step of an open loop: of n requests asked the share served / rate is done in the window."""
    rng = np.random.default_rng((seed, int(rate * 100)))
    done = round(n * min(1.0, served / rate))
    latency = rng.gamma(10, 100 * latency_s, n)
    return StepSample(
        load=rate,
        seconds=n / rate,
        latency_ms=latency,
        work=np.ones(n),
        done=done,
        done_work=float(done),
        asked=n,
        open_loop=True,
        sent_due=1.0,
    )


def failing(sample: StepSample, share: float, refused: float = 0.0) -> StepSample:
    """Return the step with a share of its requests failed, and of those a share refused."""
    failed = round(share * sample.asked)
    kept = sample.asked - failed
    return replace(
        sample,
        latency_ms=sample.latency_ms[:kept],
        work=sample.work[:kept],
        done=kept,
        done_work=float(kept),
        failed=failed,
        refused=round(refused * failed),
    )
