"""Models of a service whose saturation is known, each from the literature of queueing.

Time is in units of the mean time of a lone request: R(1) = 1 and X(1) = 1. Two kinds of model:

- stations: requests pass a delay (network, anything that never queues), then c servers, first come first
  served: M/M/c machine repairman (Gross & Harris 1998, ch. 2), M/G/c with mixtures of short and long
  requests, slots of near-constant service, a serial service, KV memory for c requests with preemption beyond
  it (Kwon et al. 2023), a service that refuses what it cannot start at once.
- curves: R(N) = N / X(N) for every request, spread by a gamma variate: the universal scalability law (Gunther
  1993), thrashing (Denning 1968: beyond c the throughput falls), linear and near-linear services.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Service:
    """A model of a service: its noise-free curve, and how one request's time comes about."""

    family: str
    throughput: Callable[[float], float]  # X(N), noise-free, X(1) = 1
    most: float  # X_max, its supremum
    servers: int | None = None  # None: a curve, no queue
    delay: float = 0.0  # share of R(1) that never queues
    slower: Callable[[float], float] = lambda users: 1.0  # service time with so many users, against one
    spread: float = 0.5  # coefficient of variation of a service time
    long_share: float = 0.0  # mixture: share of long requests,
    long_factor: float = 1.0  # and how much longer they are
    in_tokens: bool = False  # throughput counted in work, which long requests have more of
    preempted: float = 0.0  # share of requests served twice by half where memory is short
    refuses: bool = False


# Each family takes a random generator and the load at which it is to saturate.


def _repairman(rng: np.random.Generator, target: float) -> Service:
    servers, delay = _split(target, least_delay=float(rng.choice([0.0, 0.0, 0.15, 0.3])))
    return _station("mmc", servers, delay, spread=1.0)


def _mixture(rng: np.random.Generator, target: float) -> Service:
    servers, delay = _split(target)
    return _station(
        "mixture",
        servers,
        delay,
        spread=float(rng.uniform(0.15, 0.4)),
        long_share=float(rng.uniform(0.1, 0.4)),
        long_factor=float(rng.uniform(2.5, 6)),
        in_tokens=bool(rng.random() < 0.5),
    )


def _slots(rng: np.random.Generator, target: float) -> Service:
    servers, delay = _split(target)
    return _station("slots", servers, delay, spread=float(rng.uniform(0.1, 0.3)))


def _serial(rng: np.random.Generator, target: float) -> Service:
    return _station("serial", 1, 0.0, spread=float(rng.uniform(0.2, 0.8)))


def _refusing(rng: np.random.Generator, target: float) -> Service:
    return _station("refusing", max(1, round(target)), 0.0, spread=float(rng.uniform(0.2, 0.6)), refuses=True)


def _kv(rng: np.random.Generator, target: float) -> Service:
    servers, again = max(1, round(target)), float(rng.uniform(0.05, 0.2))
    batch = float(rng.uniform(0, 0.03))

    def slower(users: float) -> float:
        return 1 + batch * (min(users, servers) - 1)

    def throughput(users: float) -> float:
        wasted = 1 + 0.5 * again if users > servers else 1.0
        return min(users, servers) / slower(users) / wasted

    most = throughput(servers)
    return Service("kv", throughput, most, servers, slower=slower, preempted=again, spread=0.4)


def _usl(rng: np.random.Generator, target: float) -> Service:
    contention = float(rng.uniform(0, 0.8 / max(target, 1.01)))

    def curve(users: float, coherency: float) -> float:
        return users / (1 + contention * (users - 1) + coherency * users * (users - 1))

    def peak(coherency: float) -> float:
        return curve(math.sqrt((1 - contention) / coherency), coherency)

    low, high = 1e-9, 1.0 - contention
    for _ in range(80):  # bisect: the peak falls as coherency grows
        middle = math.sqrt(low * high)
        low, high = (middle, high) if peak(middle) > target else (low, middle)
    return _curve("usl", lambda users: curve(users, low), peak(low), rng)


def _thrashing(rng: np.random.Generator, target: float) -> Service:
    loss = float(rng.uniform(0.05, 0.4))

    def throughput(users: float) -> float:
        return users if users <= target else target * (users / target) ** -loss

    return _curve("thrashing", throughput, target, rng)


def _linear(rng: np.random.Generator, target: float) -> Service:
    return _curve("linear", lambda users: users, math.inf, rng)


def _near_linear(rng: np.random.Generator, target: float) -> Service:
    growth = float(rng.uniform(0.8, 0.97))
    return _curve("near-linear", lambda users: users**growth, math.inf, rng)


FAMILIES: dict[str, Callable[[np.random.Generator, float], Service]] = {
    "mmc": _repairman,
    "mixture": _mixture,
    "slots": _slots,
    "serial": _serial,
    "refusing": _refusing,
    "kv": _kv,
    "usl": _usl,
    "thrashing": _thrashing,
    "linear": _linear,
    "near-linear": _near_linear,
}


def _split(target: float, least_delay: float = 0.0) -> tuple[int, float]:
    """Return servers and delay of which N* = servers / (1 - delay) is the target."""
    servers = max(1, math.floor(target * (1 - least_delay) + 1e-9))
    return servers, max(0.0, 1 - servers / target)


def _station(family: str, servers: int, delay: float, **parts: object) -> Service:
    most = servers / (1 - delay)
    curve = _machine_repairman(servers, delay)
    return Service(family, curve, most, servers, delay, **parts)  # type: ignore[arg-type]


def _machine_repairman(servers: int, delay: float) -> Callable[[float], float]:
    """X(N) of N users, exponential service at c servers and a delay before it (product form)."""
    if delay == 0:
        return lambda users: min(users, servers)
    service = 1 - delay

    def throughput(users: float) -> float:
        n = round(users)
        state = np.arange(n + 1)  # requests at the servers
        ratio = np.minimum(state[1:], servers) / service / ((n - state[:-1]) / delay)
        log_weight = -np.concatenate(([0.0], np.cumsum(np.log(ratio))))
        weight = np.exp(log_weight - log_weight.max())
        busy = np.minimum(state, servers)
        return float((weight * busy).sum() / weight.sum() / service)

    return throughput


def _curve(
    family: str, throughput: Callable[[float], float], most: float, rng: np.random.Generator
) -> Service:
    def slower(users: float) -> float:
        return users / throughput(users)

    return Service(family, throughput, most, slower=slower, spread=float(rng.uniform(0.2, 0.7)))
