"""Load ladders whose knee is known beforehand: a model of a service (`services`), measured with noise.

Users of a closed loop without think time are simulated request by request. The measurement adds noise between
steps, a slow common drift, stragglers and a warm-up.

The truth is that of operational analysis (Denning & Buzen 1978): with X_max the highest throughput of the
model and R(1) its time unloaded, the asymptotes cross at N* = X_max R(1): below it the service has room,
above it requests wait. A soft curve reaches X_max only later; the knee then lies anywhere from N* to the
load with nine tenths of X_max. A step is a right cap where that interval meets its part of the axis; the
parts of neighbours overlap in the middle half (on the log scale) of what lies between them, since a
capacity there can be called either. Where one step is right, the ladder has one right answer. Nothing of
the rule under test enters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np
from services import FAMILIES, Service

from harness.analysis.samples import MIN_GOOD, MIN_ROUNDS, StepSample

LADDERS = ((1, 2, 4, 6, 8, 12), (1, 2, 4, 8, 16, 32), (1, 2, 3, 4, 6, 8, 12))
LADDER_SHARES = (0.6, 0.2, 0.2)
OWN = 0.25  # of the log distance to the next step that belongs to one step alone
NEARLY_ALL = 0.9  # of X_max
CHUNK = 512
Row = tuple[float, float, float, bool]  # start, end, work, ok
REFUSED_AFTER, BACKOFF, BACKOFF_MOST = 0.005, 0.1, 2.0  # in R(1), as a user of the harness backs off


@dataclass(frozen=True)
class Noise:
    """What a measurement adds."""

    between: float  # relative, of one measure of a step
    drift: float  # standard deviation of the slow common factor
    drift_time: float  # its correlation time
    stragglers: float  # share of requests
    straggler_factor: float
    warm_up: float  # the first requests of a step are slower by this share,
    warm_up_time: float  # decaying with this time


@dataclass(frozen=True)
class Truth:
    """What the model says of a ladder."""

    saturation: float  # N*
    caps: tuple[int, ...]  # the right caps; the last step stands for "no knee in range" too
    flat: bool  # linear or near-linear: no knee to be found


@dataclass(frozen=True)
class Ladder:
    """One ladder to be measured."""

    seed: int
    users: tuple[int, ...]
    service: Service
    noise: Noise
    hold: float  # seconds of a step
    truth: Truth
    slowed: tuple[int, float] | None = None  # (step, factor) in its first measure, by a neighbour

    def measure(self, step: int, repeat: int = 0) -> Measurement:
        """Begin the measurement of a step."""
        rng = np.random.default_rng((self.seed, step, repeat))
        factor = math.exp(rng.normal(0, self.noise.between))
        if self.slowed is not None and repeat == 0 and self.slowed[0] == step:
            factor *= self.slowed[1]
        return Measurement(self.service, self.noise, self.users[step], factor, rng)


class Measurement:
    """One step under load; `sample` lets time pass and returns what was seen in the window so far."""

    def __init__(
        self, service: Service, noise: Noise, users: int, factor: float, rng: np.random.Generator
    ) -> None:
        self.service, self.noise, self.users, self.factor, self.rng = service, noise, users, factor, rng
        self.now = 0.0
        self.rows: list[Row] = []
        queue = service.servers if service.servers is not None else users
        self._free = [0.0] * queue
        self._coming = [
            (float(t), float(t), 0) for t in rng.uniform(0, 0.2, users)
        ]  # at queue, begun, failures
        heapify(self._coming)
        self._times: list[float] = []
        self._works: list[float] = []
        self._delays: list[float] = []
        self._drift = [0.0]
        self._settled = 2.5 * users / service.throughput(users)
        self.preemptions = 0

    def sample(self, hold: float) -> StepSample:
        """Return a window of so many seconds after the settle time, or longer where too few are good."""
        t0 = self._settled
        good: list[Row] = []
        while True:
            t1 = t0 + hold
            self._advance(t1 + 3 * self.users / self.service.throughput(self.users))
            started = [row for row in self.rows if t0 <= row[0] < t1]
            good = sorted((row for row in started if row[3]), key=lambda row: row[1])
            if len(good) >= max(MIN_GOOD, MIN_ROUNDS * self.users):
                break
            hold *= 1.2
        served = [row for row in self.rows if t0 <= row[1] < t1 and row[3]]
        failed = len(started) - len(good)
        memory = self.service.family == "kv"
        servers = self.service.servers or 1
        return StepSample(
            load=float(self.users),
            seconds=hold,
            latency_ms=np.array([1e3 * (row[1] - row[0]) for row in good]),
            work=np.array([row[2] for row in good]),
            done=len(served),
            done_work=float(sum(row[2] for row in served)),
            asked=len(started),
            failed=failed,
            refused=failed,
            kv_p95=min(0.99, 0.96 * self.users / servers) if memory else None,
            preemptions=float(self.preemptions) if memory else None,
            little=None,
            label=f"{self.users} users",
        )

    def _advance(self, until: float) -> None:
        """Let users send until the time is up; first come, first served."""
        if until <= self.now:
            return
        self.now = until
        service, noise, coming, free = self.service, self.noise, self._coming, self._free
        while coming[0][0] < until:
            at_queue, begun, failures = coming[0]
            if service.refuses and free[0] > at_queue:
                self.rows.append((begun, at_queue + REFUSED_AFTER, 0.0, False))
                again = at_queue + REFUSED_AFTER + min(BACKOFF * 2 ** min(failures, 9), BACKOFF_MOST)
                heapreplace(coming, (again, again, failures + 1))
                continue
            if not self._times:
                self._draw()
            time, work = self._times.pop(), self._works.pop()
            time *= self.factor * math.exp(self._drift_at(at_queue))
            if noise.warm_up:
                time *= 1 + noise.warm_up * math.exp(-at_queue / noise.warm_up_time)
            start = max(at_queue, free[0])
            end = start + time
            heapreplace(free, end)
            self.rows.append((begun, end, work, True))
            delay = self._delays.pop()
            heapreplace(coming, (end + delay, end, 0))

    def _draw(self) -> None:
        service, noise, rng = self.service, self.noise, self.rng
        shape = 1 / service.spread**2
        times = rng.gamma(shape, 1 / shape, CHUNK)
        works = np.ones(CHUNK)
        if service.long_share:
            long = rng.random(CHUNK) < service.long_share
            mean = 1 + service.long_share * (service.long_factor - 1)
            times *= np.where(long, service.long_factor, 1.0) / mean
            if service.in_tokens:
                works = np.where(long, service.long_factor, 1.0) / mean
        times *= (1 - service.delay) * service.slower(self.users)
        if service.preempted and self.users > len(self._free):
            twice = rng.random(CHUNK) < service.preempted
            times *= np.where(twice, 1.5, 1.0)
            self.preemptions += int(twice.sum())
        times *= np.where(rng.random(CHUNK) < noise.stragglers, noise.straggler_factor, 1.0)
        delays = service.delay * rng.gamma(4.0, 0.25, CHUNK)
        self._times, self._works, self._delays = times.tolist(), works.tolist(), delays.tolist()

    def _drift_at(self, time: float) -> float:
        """The slow common factor, an Ornstein-Uhlenbeck process on a grid."""
        tick = int(time / self.noise.drift_time * 4)
        while len(self._drift) <= tick:
            keep = math.exp(-0.25)
            step = self.rng.normal(0, self.noise.drift * math.sqrt(1 - keep**2))
            self._drift.append(self._drift[-1] * keep + step)
        return self._drift[tick]


def draw(seed: int, number: int, *, slowed: bool = False) -> Ladder:
    """Return ladder `number` of a series; families take turns."""
    rng = np.random.default_rng((seed, number))
    users = LADDERS[rng.choice(len(LADDERS), p=LADDER_SHARES)]
    family = list(FAMILIES)[number % len(FAMILIES)]
    service = FAMILIES[family](rng, _target(rng, users))
    warm = rng.random() < 1 / 3
    noise = Noise(
        between=rng.uniform(0.003, 0.025),
        drift=rng.uniform(0, 0.06),
        drift_time=rng.uniform(3, 30),
        stragglers=rng.choice([0.0, 0.005, 0.015]),
        straggler_factor=rng.uniform(3, 8),
        warm_up=rng.uniform(0.2, 1.0) if warm else 0.0,
        warm_up_time=rng.uniform(1, 6),
    )
    hold = math.exp(rng.uniform(math.log(60), math.log(600)))
    neighbour = (int(rng.integers(len(users))), float(rng.uniform(1.2, 1.5))) if slowed else None
    return Ladder(int(rng.integers(2**31)), users, service, noise, hold, truth_of(service, users), neighbour)


def truth_of(service: Service, users: tuple[int, ...]) -> Truth:
    """Return the right caps of a ladder, from X_max and R(1) = 1 alone and the noise-free curve."""
    saturation = service.most
    if saturation > users[-1]:
        grid = np.arange(1, users[-1] + 1)
    else:
        grid = np.arange(1, 8 * users[-1] + 1)
    nearly = NEARLY_ALL * service.most
    curve = np.array([service.throughput(float(n)) for n in grid])
    reached = int(np.argmax(curve >= nearly)) if (curve >= nearly).any() else len(grid) - 1
    if reached > 0 and curve[reached] >= nearly:
        part = (nearly - curve[reached - 1]) / (curve[reached] - curve[reached - 1])
        soft_end = float(grid[reached - 1] + part)
    else:
        soft_end = float(grid[reached])
    low, high = saturation, max(saturation, soft_end)
    first, last = _steps_near(low, users)[0], _steps_near(high, users)[-1]
    return Truth(saturation, users[first : last + 1], math.isinf(service.most))


def _steps_near(load: float, users: tuple[int, ...]) -> tuple[int, ...]:
    """Return the indices of the steps to which a load belongs: one, or two in the middle between them."""
    above = int(np.searchsorted(users, load, side="right"))
    if above == 0:
        return (0,)
    if above == len(users):
        return (above - 1,)
    position = math.log(load / users[above - 1]) / math.log(users[above] / users[above - 1])
    if position <= OWN:
        return (above - 1,)
    return (above,) if position >= 1 - OWN else (above - 1, above)


def _target(rng: np.random.Generator, users: tuple[int, ...]) -> float:
    """Return where a service should saturate: on a step, for a quarter between two, at times beyond."""
    if rng.random() < 0.08:
        return users[-1] * float(rng.uniform(1.3, 3))
    step = int(rng.integers(len(users) - 1))
    if rng.random() < 0.25:
        return float(users[step] * (users[step + 1] / users[step]) ** rng.uniform(0.02, 0.98))
    return float(users[step])
