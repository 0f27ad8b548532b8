"""A whole run against the engine in virtual time: the same scheduler, no sockets, no sleep, no Locust.

It stands in for load, engine and sidecar at once, so that analysis and verdicts are tested on hundreds of
runs whose truth is planted. Steps begin and end by the same rules as in a real run (settle, window, and load
going on until every request of the window has ended), and the rows have the same types.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness import rundir
from harness.engine.config import EngineConfig
from harness.engine.gpu import SimulatedGpu
from harness.engine.preprocess import Preprocessor, encoder_tokens
from harness.engine.scheduler import Job, Scheduler, Step
from harness.engine.virtual_rows import Flight, engine_row, gpu_row, ns, prepare, request_row
from harness.engine.virtual_window import Window
from harness.plan import Entry, Plan, make_plan
from harness.profile import Hold, Load, PayloadSpec, Profile, Target, Traffic
from harness.records import EngineSample, GpuSample, PhaseTimes, Request, RunInfo, WorkerInfo, encode_line

replace = msgspec.structs.replace


@dataclass(frozen=True, slots=True)
class VirtualRun:
    """What a run directory would hold."""

    info: RunInfo
    profile: Profile
    requests: list[Request]
    engine: list[EngineSample]
    gpu: list[GpuSample]

    @property
    def phases(self) -> list[PhaseTimes]:
        """When each phase happened."""
        return self.info.phases


def simulate(
    config: EngineConfig,
    profile: Profile,
    experiment: str = "steps",
    *,
    seed: int = 1,
    network_ms: float = 0.3,
) -> VirtualRun:
    """Run an experiment of a profile (closed or open loop) against an engine; same seed, same rows.

    `network_ms` is the round trip, added to every request. Images of a `side` are taken as squares.
    """
    plan = make_plan(profile, experiment)
    return _Simulation(replace(config, seed=seed), profile, plan, seed, network_ms / 1e3).run()


def ladder(
    payloads: Sequence[PayloadSpec],
    *,
    users: Sequence[int] | None = None,
    rates: Sequence[float] | None = None,
    max_tokens: int = 24,
    hold: Hold | None = None,
    unique: bool = True,
    repeats: int = 1,
) -> Profile:
    """Return a profile for `simulate`: steps of users (default 1, 2, 4, 6, 8, 12) or of requests/s."""
    profile = Profile(
        name="virtual",
        target=Target(base_url="http://127.0.0.1:1/v1", model="sim-vlm"),
        traffic=Traffic(mix=tuple(payloads), unique=unique),
        load=Load(
            users=tuple(users) if users else None,
            rates=tuple(rates) if rates else None,
            hold=hold or Hold(seconds=10, min_requests=60, max_seconds=120, settle_s=2),
            repeats=repeats,
            drift_check=False,
        ),
    )
    return replace(profile, generation=replace(profile.generation, max_tokens=max_tokens))


def save(run: VirtualRun, parent: Path) -> rundir.RunDir:
    """Write a run directory that every later stage can read."""
    folder = rundir.create(parent, run.profile, run.info.experiment)
    rundir.write_info(folder, run.info)
    rows: list[tuple[Path, Sequence[msgspec.Struct]]] = [
        (folder.requests, run.requests),
        (folder.engine, run.engine),
        (folder.gpu, run.gpu),
    ]
    for path, lines in rows:
        path.write_bytes(b"".join(map(encode_line, lines)))
    return folder


@dataclass(slots=True, eq=False)
class _User:
    number: int
    sent: int = 0  # in this phase
    ever: bool = False
    failures: int = 0  # in a row
    idle: bool = True  # sends nothing until a phase starts it


class _Simulation:
    """An event loop over virtual time: users, preprocessing, engine steps, samples."""

    def __init__(
        self, config: EngineConfig, profile: Profile, plan: Plan, seed: int, network_s: float
    ) -> None:
        self.config, self.profile, self.plan, self.network_s = config, profile, plan, network_s
        self.payloads = [prepare(s, config, profile.generation.max_tokens) for s in plan.payloads]
        self.scheduler, self.pre, self.gpu = Scheduler(config), Preprocessor(config), SimulatedGpu(config)
        self.random = random.Random(seed)
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = itertools.count()
        self.users: list[_User] = []
        self.active = 0  # users that go on after their request
        self.seq = itertools.count()
        self.engine_busy = False
        self.over = False
        self.window = Window(plan.phases[0], 0.0)
        self.phases: list[PhaseTimes] = []
        self.requests: list[Request] = []
        self.engine_rows: list[EngineSample] = []
        self.gpu_rows: list[GpuSample] = []

    def run(self) -> VirtualRun:
        self._enter(0, 0.0)
        self.at(0.0, self._sample)
        now = 0.0
        while self.events and not self.over:
            now, _, act = heapq.heappop(self.events)
            act(now)
        worker = WorkerInfo(
            id="virtual", host="virtual", records_made=len(self.requests), records_received=len(self.requests)
        )
        info = RunInfo(
            run="virtual",
            profile=self.profile.name,
            experiment=self.plan.experiment,
            started_ns=ns(0.0),
            ended_ns=ns(now),
            host="virtual",
            phases=self.phases,
            workers=[worker],
        )
        return VirtualRun(info, self.profile, self.requests, self.engine_rows, self.gpu_rows)

    def at(self, when: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (when, next(self.order), act))

    # Phases: the rules of a step's window.

    def _enter(self, index: int, now: float) -> None:
        phase = self.plan.phases[index]
        self.window = Window(phase, now)
        self.active = phase.users or 0
        while len(self.users) < max(self.active, 1):
            self.users.append(_User(len(self.users)))
        for user in self.users:
            user.sent = 0
        for user in self.users[: self.active]:
            if user.idle:
                user.idle = False
                self.at(now + self.random.random() * 0.05, self._sender(user))
        if phase.rate is not None:
            self._next_arrival(phase.rate, self.window, now)
        self.at(now + phase.hold.settle_s, self._check)

    def _check(self, now: float) -> None:
        if self.over:
            return  # the last window ended with another request of the same step
        window = self.window
        opened = window.t0 is None
        ended = window.ended(now)
        if opened and window.t0 is not None:
            self.at(window.t0 + window.phase.hold.seconds, self._check)
            self.at(window.t0 + window.phase.hold.max_seconds, self._check)
        if not ended:
            return
        self.phases.append(window.times(now))
        if len(self.phases) == len(self.plan.phases):
            self.over = True
        else:
            self._enter(len(self.phases), now)

    # Users.

    def _next_arrival(self, rate: float, window: Window, now: float) -> None:
        poisson = self.profile.load.arrivals == "poisson"

        def arrive(when: float) -> None:
            if self.window is window:
                self._send(self.users[0], when)
                self._next_arrival(rate, window, when)

        self.at(now + (self.random.expovariate(rate) if poisson else 1 / rate), arrive)

    def _sender(self, user: _User) -> Callable[[float], None]:
        return lambda now: self._send(user, now)

    def _send(self, user: _User, now: float) -> None:
        window = self.window
        phase = window.phase
        closed = phase.rate is None
        if (closed and user.number >= self.active) or not window.takes_more:
            user.idle = True
            return
        entry = phase.schedule[(user.sent + user.number) % len(phase.schedule)]
        flight = Flight(
            user=user.number,
            seq=next(self.seq),
            phase=phase,
            payload=self.payloads[entry.payload],
            start=now,
            first_of_user=not user.ever,
            in_window=window.count_sent(),
        )
        user.sent, user.ever = user.sent + 1, True
        self._preprocess(flight, entry, now + self.network_s / 2)

    def _preprocess(self, flight: Flight, entry: Entry, now: float) -> None:
        payload, block = flight.payload, self.config.kv.block_tokens
        new, vision = [], 0
        for number, size in enumerate(payload.sizes):
            key = (entry.payload, number, flight.seq if entry.fresh_images else -1)
            if self.pre.lookup(key) is None:
                new.append((key, size))
                vision += encoder_tokens(size, self.config)
        flight.ready = self.pre.ready_at(now, new)
        prompt = payload.text_tokens + sum(payload.image_tokens)
        same = 0 if entry.fresh_text else payload.text_tokens if entry.fresh_images else prompt
        job = Job(
            prompt,
            payload.out_tokens,
            tuple(hash((entry.payload, number)) for number in range(same // block)),
            vision,
            flight,
        )
        self.at(flight.ready, lambda t: self._queue(job, t))

    def _ended(self, flight: Flight, job: Job, now: float, status: int) -> None:
        """Record a request that was answered or refused, and let its user go on."""
        closed, user = flight.phase.rate is None, self.users[flight.user]
        user.failures = 0 if status == 200 else user.failures + 1
        backoff_s = min(0.1 * 2 ** (user.failures - 1), 2.0) if closed and user.failures else 0.0
        end = now + self.network_s / 2
        self.requests.append(request_row(flight, job, end, status, backoff_s, self.network_s / 2))
        if closed:
            self.at(end + backoff_s, self._sender(user))
        if flight.phase is self.window.phase:
            self.window.count_ended(flight.in_window, ok=status == 200)
        self._check(now)

    # The engine.

    def _queue(self, job: Job, now: float) -> None:
        refused = self.scheduler.submit(job, now)
        if refused is not None:
            self._ended(job.owner, job, now, 503 if refused == "queue_full" else 400)
        elif not self.engine_busy:
            self.engine_busy = True
            self.at(now, self._step)

    def _step(self, now: float) -> None:
        step = self.scheduler.step(now)
        self.engine_busy = step is not None
        if step is not None:
            self.gpu.ran(now, now + step.duration_s)
            self.at(now + step.duration_s, self._stepper(step))

    def _stepper(self, step: Step) -> Callable[[float], None]:
        return lambda now: self._stepped(step, now)

    def _stepped(self, step: Step, now: float) -> None:
        for job in step.tokens:
            job.owner.tokens.append(now)
        for job in step.finished:
            self._ended(job.owner, job, now, 200)
        for job in step.expired:
            self._ended(job.owner, job, now, 504)
        self._step(now)

    def _sample(self, now: float) -> None:
        self.engine_rows.append(engine_row(self.scheduler, self.pre, now))
        self.gpu_rows.append(gpu_row(self.gpu.read(now, self.scheduler.kv_usage), len(self.gpu_rows), now))
        self.at(now + 1.0, self._sample)
