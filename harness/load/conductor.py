"""One run on the master (or in the only process): prepares it, walks the ladder, keeps run.json, ends it.

The ladder moves ten times a second in a greenlet of its own; Locust's shape, which is asked once a second,
only hands on what the ladder wants. The end is the same for every way of ending: no more users, everything
drained from the workers and acknowledged, the sampler ended, run.json closed, the report made.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
import msgspec
from gevent.event import Event
from gevent.lock import RLock

from harness import rundir
from harness.errors import HarnessError, UserError
from harness.load import judge, messages, run_json
from harness.load.calibration import KeyOf, calibrated
from harness.load.crew import Crew
from harness.load.ladder import Ladder, WorkerStatus
from harness.load.messages import Order, Setup, Status, unpack
from harness.load.recorder import MasterRecorder
from harness.load.sidecar import Sampler, fullest, make_report, read_report
from harness.load.spool import spool
from harness.plan import Plan, make_plan
from harness.profile import Profile
from harness.profile_reader import to_yaml
from harness.results import Report

TURN_S = 0.1
LOOK_S = 1.0
CLOCKS_EVERY_S = 30.0
INVALID = 3
replace = msgspec.structs.replace
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a run is asked to be; `run_dir` None: a new one under `out`."""

    profile: Profile
    experiment: str
    out: Path
    run_dir: Path | None = None
    key_of: KeyOf = lambda profile: None


class Conductor:
    """One run from its first message to its report."""

    def __init__(self, wish: Wish, crew: Crew) -> None:
        """Prepare the run; raises UserError before anything is written."""
        from harness.payloads.corpus import build, replay_lines

        self.profile = profile = wish.profile
        self.plan: Plan = make_plan(profile, wish.experiment, replay_lines=replay_lines(profile))
        self.crew = crew
        self.done = Event()
        self.exit_code: int | None = None
        self.analysing = False  # from the end of the load to the report
        self.report: Report | None = None
        workers = crew.muster()
        self._ratios, asked = calibrated(profile, wish.key_of)
        # Encoding takes long and must not stop the heartbeats: in a thread of its own.
        self._corpus = gevent.get_hub().threadpool.apply(
            build, (profile, self.plan, spool()), {"chars_per_token": self._ratios}
        )
        self._notes = run_json.payload_problems(profile, self._ratios, self._corpus.notes)
        self.dir, self._own_dir = _open_run_dir(wish), wish.run_dir is None
        rundir.append_requests(self.dir, [replace(r, run=self.dir.path.name) for r in asked])
        judges = judge.judges_of(profile)
        self.ladder = Ladder(profile, self.plan, workers, judges, now_s=time.monotonic())
        self.sampler = Sampler(profile, self.dir)
        self.statuses: dict[str, Status] = {}
        self.ended = 0  # requests
        self._salt = secrets.randbits(20)
        self._recorder = MasterRecorder(self.dir)
        self._order: Order | None = None
        self._written: object = None
        self._wanted = Event()
        self._given: tuple[int, float] | None = None
        self._told = 0  # steps whose figures are in the log
        self._ending = RLock()
        self._info = run_json.first_info(self.dir, profile.name, wish.experiment)
        crew.on_batch = self._on_batch
        self._main: gevent.Greenlet | None = None

    def start(self) -> None:
        """Get the workers and the sampler ready and begin to climb."""
        try:
            self.crew.set_up(self.crew.ids, self._setup_of)
            self.sampler.wait_ready()
            self.crew.exchange_clocks()
        except BaseException:
            self.sampler.end()
            self._recorder.close()
            self._corpus.path.unlink(missing_ok=True)
            if self._own_dir:
                shutil.rmtree(self.dir.path, ignore_errors=True)
            raise
        self._publish()
        self._main = gevent.spawn(self._climb)

    def target(self) -> tuple[int, float] | None:
        """Return users and spawn rate for Locust, None at the end; waits up to a second for a change."""
        self._wanted.clear()
        if not self.done.is_set() and self._target() == self._given:
            self._wanted.wait(LOOK_S)
        self._given = None if self.done.is_set() else self._target()
        return self._given

    def interrupt(self, reason: str) -> None:
        """End the run now; what was measured is kept and reported."""
        if self.analysing:  # its load is over, and only the report is to come
            self.done.wait()
            return
        if self._main is not None and self._main is not gevent.getcurrent():
            self._main.kill()
        self.ladder.stop(reason)
        self._finish(cancel=True)

    def joined(self, worker: str) -> None:
        """Take in a worker that connected while the run was on."""
        if worker in self.crew.ids or self.ladder.over or self.done.is_set():
            return
        self.crew.add(worker)
        try:
            self.crew.set_up([worker], self._setup_of)
        except HarnessError as error:  # Locust has given it users already
            self.ladder.stop(f"a worker that came late cannot take part: {error}")
            return
        self.ladder.joined(worker, time.monotonic())
        self._order = None  # tells all workers, the new one among them

    # The climb

    def _climb(self) -> None:
        clocks = gevent.spawn(self._keep_clocks)
        looked_s = 0.0
        try:
            while not self.ladder.over:
                gevent.sleep(TURN_S)
                now_s = time.monotonic()
                self._count_workers()
                if now_s - looked_s >= LOOK_S:
                    looked_s = now_s
                    self.ladder.memory(fullest(*self.sampler.latest()))
                self.ladder.advance(time.time_ns(), now_s)
                self._publish()
            self._wind_down()
        except Exception as error:  # a fault of ours must not leave the service under load
            log.exception("the climb broke off")
            self.ladder.stop(f"the climb broke off: {error!r}")
        finally:
            clocks.kill()
        self._finish(cancel=False)

    def _count_workers(self) -> None:
        for worker in self.crew.missing():
            if worker not in self.crew.lost:
                log.error("the worker %s was lost", worker)
                self.crew.lose(worker)
                self.ladder.lost(worker)

    def _wind_down(self) -> None:
        """Wait until the last users have gone, each with its request ended."""
        deadline = time.monotonic() + self.profile.target.timeouts.total_s + 5
        while time.monotonic() < deadline:
            here = [s for w, s in self.statuses.items() if w not in self.crew.lost]
            if all(s.users == 0 and s.in_flight == 0 for s in here):
                return
            gevent.sleep(TURN_S)
            self._count_workers()

    def _keep_clocks(self) -> None:
        while True:
            gevent.sleep(CLOCKS_EVERY_S)
            self.crew.exchange_clocks()

    def _target(self) -> tuple[int, float]:
        rate = max(self.plan.max_users, self.ladder.users, len(self.crew.ids), 1)
        return self.ladder.users, float(rate)

    def _publish(self) -> None:
        """Tell workers and Locust what has changed, and write the timeline."""
        ladder = self.ladder
        running = sum(status.users for status in self.statuses.values())
        order = Order(
            phase=ladder.phase,
            gate=ladder.gate,
            workers=len(self.crew.ids),
            running=running if ladder.step.ready_ns is not None else None,
        )
        if order != self._order:
            self._order = order
            self.crew.order(order)
        state = (ladder.step.stage, len(ladder.steps), len(ladder.problems), ladder.over)
        if state != self._written:
            self._written = state
            self._tell_figures()
            self._write_info()
            self._wanted.set()

    def _tell_figures(self) -> None:
        """Log each step as it ends."""
        done = [times for times in self.ladder.times() if times.figures is not None]
        for times in done[self._told :]:
            log.info("%s: %s", times.label, times.figures)
        self._told = len(done)

    def _on_batch(self, message: dict[str, Any]) -> None:
        worker = message["worker"]
        if worker not in self.crew.ids:
            return
        number, rows = self._recorder.take(message)
        if number is not None:
            self.crew.tell(worker, messages.ACK, number)
        ahead_ns = self.crew.offset_ns(worker)
        self.ended += len(rows)
        for row in rows:
            row.wall_ns -= ahead_ns
        self.ladder.finished(rows)
        if message["status"] is not None:
            status = unpack(message["status"], Status)
            self.statuses[worker] = status
            oldest_ns = status.oldest_ns - ahead_ns if status.oldest_ns is not None else None
            self.ladder.reported(
                worker,
                WorkerStatus(
                    at_ns=status.at_ns - ahead_ns,
                    phase=status.phase,
                    users=status.users,
                    in_flight=status.in_flight,
                    oldest_ns=oldest_ns,
                ),
            )

    # The end

    def _finish(self, *, cancel: bool) -> None:
        with self._ending:
            if self.done.is_set():
                return
            try:
                self._close(cancel=cancel)
                self.analysing = True
                self.exit_code = make_report(self.dir)
                self.report = read_report(self.dir)
                if self.crew.lost:
                    self.exit_code = INVALID
            except Exception:
                log.exception("the run could not be ended in order")
                self.exit_code = INVALID
            finally:
                self.sampler.end()
                self._corpus.path.unlink(missing_ok=True)
                self.done.set()
                self._wanted.set()

    def _close(self, *, cancel: bool) -> None:
        crew, recorder = self.crew, self._recorder
        self._order = None
        for worker in crew.drain(cancel=cancel):
            crew.lose(worker)
        if not cancel:
            crew.exchange_clocks()
        crew.close(lambda worker: not recorder.gaps(worker) and worker not in crew.lost)
        self.sampler.end()
        recorder.close()
        crew.on_batch = lambda message: None
        self._info = replace(
            self._info, ended_ns=time.time_ns(), sampler_clock=run_json.sampler_clock(self.dir)
        )
        self._write_info()

    def _write_info(self) -> None:
        crew, recorder, final = self.crew, self._recorder, self._info.ended_ns is not None
        info = replace(
            self._info,
            phases=self.ladder.times(),
            workers=[
                run_json.worker_info(crew, recorder, worker, lost=worker in crew.lost, final=final)
                for worker in crew.ids
            ],
            stopped_early=self.ladder.stopped_early,
            problems=[*self._notes, *self.ladder.problems, *run_json.write_problems(recorder)],
        )
        rundir.write_info(self.dir, info)

    def _setup_of(self, worker: str) -> Setup:
        return Setup(
            run=self.dir.path.name,
            profile=self.profile,
            plan=self.plan,
            corpus=str(self._corpus.path),
            chars_per_token=self._ratios,
            file=str(self.dir.worker(worker).resolve()),
            index=self.crew.ids.index(worker),
            salt=self._salt,
        )


def _open_run_dir(wish: Wish) -> rundir.RunDir:
    if wish.run_dir is None:
        return rundir.create(wish.out, wish.profile, wish.experiment)
    run = rundir.RunDir(wish.run_dir)
    if run.info.exists():
        raise UserError("a run lies here already", file=wish.run_dir, remedy="give another --run-dir")
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the run directory: {error.strerror}", file=run.path) from None
    rundir.write_atomically(run.profile, to_yaml(wish.profile).encode())
    return run
