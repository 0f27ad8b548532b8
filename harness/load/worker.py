"""A worker's side of a run: what to send, what is in flight, and the way of its records to the master."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
from gevent.event import Event

from harness.errors import UserError
from harness.load import messages
from harness.load.calibration import KeyOf
from harness.load.client import Client, target_of
from harness.load.messages import Hello, Order, Setup, Status, pack, unpack
from harness.load.recorder import WorkerRecorder
from harness.load.saturation import Saturation
from harness.load.sender import Sender
from harness.load.spool import spool
from harness.plan import Entry, Phase
from harness.profile import Profile
from harness.records import BEFORE_LOAD, Request

if TYPE_CHECKING:
    from harness.payloads.corpus import Corpus

BEAT_S = 0.25
SAMPLE_S = 1.0
log = logging.getLogger(__name__)


class RequestError(Exception):
    """What Locust's web UI shows of a failed request."""


class Worker:
    """Serves the users of one process; `local` where the master is the same process."""

    def __init__(self, environment: Any, runner: Any, key_of: KeyOf, *, local: bool) -> None:
        self.run = ""
        self.id: str = runner.client_id
        self.index = 0
        self.running: int | None = None
        self.in_flight: dict[str, int] = {}
        self.changed = Event()  # set when the phase that it was made for is over
        self.patient = True  # whether stopped users may finish their request
        self.profile: Profile
        self.corpus: Corpus
        self._order: Order | None = None
        self._gate = Event()
        self._environment, self._runner, self._key_of, self._local = environment, runner, key_of, local
        self._recorder: WorkerRecorder | None = None
        self._saturation: Saturation | None = None
        self._beats: list[gevent.Greenlet] = []
        self._idle: list[Sender] = []
        self._senders = self._ids = self._salt = 0

    @property
    def in_run(self) -> bool:
        """Whether a run is on."""
        return self._recorder is not None

    # What users ask

    @property
    def order(self) -> Order:
        """The order of the moment."""
        assert self._order is not None
        return self._order

    def await_order(self) -> Order:
        """Wait until requests may be sent and return the order of the moment."""
        self._gate.wait()
        return self.order

    def entry(self, phase: Phase, count: int, user: int) -> Entry:
        """Return the place of the schedule for a user's request number `count` in the phase.

        Users begin at different places, except where the phase ends by its count and the order matters.
        """
        offset = 0 if phase.requests is not None else user * self.order.workers + self.index
        return phase.schedule[(count + offset) % len(phase.schedule)]

    def new_sender(self) -> Sender:
        """Return a sender with a number and a connection of its own."""
        assert self._saturation is not None
        sender = Sender(self, self._senders, Client(self._target, loop_lag=self._saturation.worst_ms))
        self._senders += 1
        return sender

    @contextlib.contextmanager
    def sender(self) -> Iterator[Sender]:
        """Lend an idle sender, or a new one."""
        sender = self._idle.pop() if self._idle else self.new_sender()
        try:
            yield sender
        finally:
            self._idle.append(sender)

    def next_id(self) -> tuple[str, int]:
        """Return an id and a nonce, each unique in the run and unlikely in any other."""
        self._ids += 1
        nonce = (self._salt << 44) | (self.index << 32) | self._ids
        return f"{nonce:016x}", nonce

    def keep(self, make: Callable[[int], Request]) -> Request:
        """Give a record its number, keep it, and tell Locust of it once."""
        assert self._recorder is not None
        record = make(self._recorder.made)
        self._recorder.add(record)
        error = None
        if record.outcome != "ok":
            error = RequestError(f"{record.outcome} {record.status or ''}".strip())
        self._environment.events.request.fire(
            request_type=self.profile.target.endpoint,
            name=record.kind,
            response_time=record.total_ms,
            response_length=record.out_tokens or 0,
            exception=error,
            context={},
        )
        return record

    # What the master tells

    def listen(self) -> None:
        """Register for the master's messages."""
        register = self._runner.register_message
        register(messages.SETUP, self._on_setup, concurrent=True)
        register(messages.ORDER, self._on_order)
        register(messages.ACK, self._on_ack)
        register(messages.CLOCK, self._on_clock)
        register(messages.DRAIN, self._on_drain, concurrent=True)
        register(messages.CLOSE, self._on_close)

    def _on_setup(self, environment: Any, msg: Any) -> None:
        error = file = None
        setup = unpack(msg.data, Setup)
        if setup.run == self.run:  # asked again while it gets ready
            return
        self.run = setup.run
        try:
            file = self._begin(setup)
        except Exception as problem:
            log.debug("setup failed", exc_info=True)
            error = str(problem) or type(problem).__name__
        hello = Hello(
            worker=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            file=str(file) if file else None,
            error=error,
        )
        self._tell(messages.HELLO, pack(hello))

    def _begin(self, setup: Setup) -> Path | None:
        self._end(complete=False)
        self.profile = setup.profile
        self.index, self._salt = setup.index, setup.salt
        self._target = target_of(setup.profile, api_key=self._key_of(setup.profile))
        self.corpus = self._open_corpus(setup)
        self._senders = self._ids = 0
        self._order, self.running, self.patient, self.changed = None, None, True, Event()
        self._gate.clear()
        self.in_flight.clear()
        path = None if self._local else Path(setup.file)
        if path is not None and not path.parent.parent.is_dir():  # the master is on another host
            path = spool() / setup.run / path.name
        self._recorder = WorkerRecorder(self.id, path, lambda message: self._tell(messages.BATCH, message))
        gc.collect()
        gc.freeze()  # a full collection of what Locust and the tables are made of holds the loop for 70 ms
        self._saturation = Saturation()
        self._beats = [
            gevent.spawn(self._report),
            gevent.spawn(self._watch, self._saturation, self._recorder),
        ]
        return path

    def _open_corpus(self, setup: Setup) -> Corpus:
        from harness.payloads.corpus import build, open_corpus

        with contextlib.suppress(
            UserError
        ):  # on another host, or after the end of a run with the same bodies
            return open_corpus(Path(setup.corpus))
        # Encoding must not stop the heartbeats: in a thread of its own.
        built: Corpus = gevent.get_hub().threadpool.apply(
            build,
            (setup.profile, setup.plan, spool()),
            {"chars_per_token": setup.chars_per_token},
        )
        return built

    def _on_order(self, environment: Any, msg: Any) -> None:
        if not self.in_run:  # it will be told again once it is set up
            return
        order = unpack(msg.data, Order)
        if self._order is not None and (order.phase.index != self.order.phase.index or not order.gate):
            self.changed.set()
            self.changed = Event()
        self._order, self.running = order, order.running
        if order.gate:
            self._gate.set()
        else:
            self._gate.clear()

    def _on_ack(self, environment: Any, msg: Any) -> None:
        if self._recorder is not None:
            self._recorder.acknowledged(msg.data)

    def _on_clock(self, environment: Any, msg: Any) -> None:
        arrived_ns = time.time_ns()
        answer = {"worker": self.id, "question": msg.data, "t1": arrived_ns}
        self._tell(messages.TIME, answer | {"t2": time.time_ns()})

    def _on_drain(self, environment: Any, msg: Any) -> None:
        """Send everything that is left; where the run is cut off, what is in flight is cancelled first."""
        self._gate.clear()
        self.changed.set()
        if msg.data["cancel"]:
            self.stop_at_once()
            self._runner.stop_users(self._runner.user_classes_count)
        if self._recorder is not None:
            self._recorder.resend()
        self.flush()
        made = self._recorder.made if self._recorder is not None else 0
        self._tell(messages.DRAINED, {"worker": self.id, "made": made})

    def _on_close(self, environment: Any, msg: Any) -> None:
        self._end(complete=msg.data["complete"])
        self._tell(messages.CLOSED, {"worker": self.id})

    def stop_at_once(self, **_: Any) -> None:
        """From now on a user that is stopped is killed, its request recorded as cancelled."""
        self.patient = False

    def flush(self, **_: Any) -> None:
        """Send what has come up and how things stand."""
        if self._recorder is None:
            return
        status = Status(
            at_ns=time.time_ns(),
            phase=self._phase,
            users=self._runner.user_count,
            in_flight=len(self.in_flight),
            oldest_ns=min(self.in_flight.values(), default=None),
        )
        self._recorder.flush(pack(status))

    @property
    def _phase(self) -> int:
        return self._order.phase.index if self._order is not None else BEFORE_LOAD

    def _watch(self, saturation: Saturation, recorder: WorkerRecorder) -> None:
        while True:
            gevent.sleep(SAMPLE_S)
            sample = saturation.sample(
                worker=self.id,
                phase=self._phase,
                users=self._runner.user_count,
                in_flight=len(self.in_flight),
            )
            recorder.add_sample(sample)

    def _report(self) -> None:
        while True:
            gevent.sleep(BEAT_S)
            self.flush()

    def _end(self, *, complete: bool) -> None:
        gevent.killall(self._beats)
        self._beats = []
        if self._saturation is not None:
            self._saturation.close()
            self._saturation = None
        for sender in self._idle:
            sender.close()
        self._idle.clear()
        if self._recorder is not None:
            self._recorder.close(complete=complete)
            self._recorder = None
            self.corpus.path.unlink(missing_ok=True)

    def _tell(self, name: str, data: Any) -> None:
        self._runner.send_message(name, data)
