"""The master's view of its workers: who takes part, what they were told, how far their clocks are off."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent

from harness.errors import InvalidRunError, UserError
from harness.load import messages
from harness.load.messages import Hello, Order, Setup, pack, unpack
from harness.records import ClockExchange

BURST = 16
SETUP_WITHIN_S = 600.0  # a worker on another host encodes the corpus itself
ASK_AGAIN_S = 1.0
ANSWER_WITHIN_S = 2.0
DRAIN_WITHIN_S = 15.0
POLL_S = 0.01


class Crew:
    """The workers of a process's runs, one run after the other."""

    def __init__(self, runner: Any, *, local: bool) -> None:
        self._runner, self._local = runner, local
        self.on_batch: Callable[[dict[str, Any]], None] = lambda message: None
        self._reset()

    def _reset(self) -> None:
        self.ids: list[str] = []
        self.lost: set[str] = set()
        self.hellos: dict[str, Hello] = {}
        self.clocks: dict[str, list[ClockExchange]] = {}
        self._offsets: dict[str, int] = {}
        self._drained: set[str] = set()
        self._closed: set[str] = set()
        self._answers: dict[int, ClockExchange] = {}

    def listen(self) -> None:
        """Register for the workers' messages."""
        register = self._runner.register_message
        register(messages.HELLO, self._on_hello)
        register(messages.BATCH, lambda environment, msg: self.on_batch(msg.data))
        register(messages.DRAINED, lambda environment, msg: self._drained.add(msg.data["worker"]))
        register(messages.CLOSED, lambda environment, msg: self._closed.add(msg.data["worker"]))
        register(messages.TIME, self._on_time)

    def muster(self) -> list[str]:
        """Begin a run with the workers that are connected; raises InvalidRunError where there are none."""
        self._reset()
        if self._local:
            self.ids = [self._runner.client_id]
        else:
            self.ids = sorted(c.id for c in self._runner.clients.all if c.state != "missing")
        if not self.ids:
            raise InvalidRunError("no worker is connected: start one with `locust --worker`")
        return self.ids

    def set_up(self, workers: list[str], setup_of: Callable[[str], Setup]) -> None:
        """Tell workers everything of the run and wait until each is ready; UserError where one is not."""
        deadline = time.monotonic() + SETUP_WITHIN_S
        while time.monotonic() < deadline and not set(workers) & set(self.missing()):
            waiting = [worker for worker in workers if worker not in self.hellos]
            if not waiting:
                break
            for worker in waiting:  # again and again: one that has just connected may not listen yet
                self.tell(worker, messages.SETUP, pack(setup_of(worker)))
            self._wait(lambda: all(w in self.hellos for w in workers), ASK_AGAIN_S)
        for worker in workers:
            hello = self.hellos.get(worker)
            if hello is None:
                raise InvalidRunError(f"the worker {worker} did not get ready")
            if hello.error is not None:
                raise UserError(f"the worker on {hello.host} cannot take part: {hello.error}")

    def add(self, worker: str) -> None:
        """Take in a worker that came late."""
        self.ids.append(worker)

    def order(self, order: Order) -> None:
        """Tell all workers what is on."""
        body = pack(order)
        for worker in self.ids:
            self.tell(worker, messages.ORDER, body)

    def tell(self, worker: str, name: str, data: Any) -> None:
        """Send one worker a message."""
        self._runner.send_message(name, data, client_id=worker)

    def missing(self) -> list[str]:
        """Return the workers of the run that are not (or no longer) connected."""
        if self._local:
            return []
        clients = self._runner.clients
        return [w for w in self.ids if w not in clients or clients[w].state == "missing"]

    def lose(self, worker: str) -> None:
        """Expect nothing more of a worker."""
        self.lost.add(worker)

    # Clocks

    def exchange_clocks(self) -> None:
        """Ask each worker 16 times for its clock; the exchange with the shortest way is the truest."""
        for worker in [] if self._local else list(self.ids):
            answers = [answer for answer in (self._ask(worker) for _ in range(BURST)) if answer is not None]
            self.clocks.setdefault(worker, []).extend(answers)
            if answers:
                best = min(answers, key=lambda e: (e.t3_ns - e.t0_ns) - (e.t2_ns - e.t1_ns))
                self._offsets[worker] = (best.t1_ns - best.t0_ns + best.t2_ns - best.t3_ns) // 2

    def offset_ns(self, worker: str) -> int:
        """Return how far a worker's clock is ahead of ours."""
        return self._offsets.get(worker, 0)

    def _ask(self, worker: str) -> ClockExchange | None:
        question = time.time_ns()
        self.tell(worker, messages.CLOCK, question)
        self._wait(lambda: question in self._answers or worker in self.missing(), ANSWER_WITHIN_S, 0.001)
        return self._answers.pop(question, None)

    def _on_time(self, environment: Any, msg: Any) -> None:
        t3_ns, data = time.time_ns(), msg.data
        self._answers[data["question"]] = ClockExchange(
            t0_ns=data["question"], t1_ns=data["t1"], t2_ns=data["t2"], t3_ns=t3_ns
        )

    # The end

    def drain(self, *, cancel: bool) -> list[str]:
        """Have every worker send all it has; returns those that did not answer."""
        for worker in self.ids:
            self.tell(worker, messages.DRAIN, {"cancel": cancel})
        return self._wait_for(self._drained)

    def close(self, complete: Callable[[str], bool]) -> None:
        """Have every worker end its file, which is removed where the master has everything."""
        for worker in self.ids:
            self.tell(worker, messages.CLOSE, {"complete": complete(worker)})
        self._wait_for(self._closed)

    def _wait_for(self, answered: set[str]) -> list[str]:
        self._wait(lambda: answered | self.lost >= set(self.ids), DRAIN_WITHIN_S)
        return [worker for worker in self.ids if worker not in answered]

    def _on_hello(self, environment: Any, msg: Any) -> None:
        hello = unpack(msg.data, Hello)
        self.hellos[hello.worker] = hello

    @staticmethod
    def _wait(done: Callable[[], bool], within_s: float, poll_s: float = POLL_S) -> None:
        deadline = time.monotonic() + within_s
        while not done() and time.monotonic() < deadline:
            gevent.sleep(poll_s)
