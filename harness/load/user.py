"""The one Locust user of every experiment: what it sends is the plan's, so the mix is equal at every step."""

from __future__ import annotations

import functools
import logging
from typing import Any, ClassVar

import gevent
from locust import User, argument_parser, task
from locust.user.task import LOCUST_STATE_STOPPING

from harness.load.open_loop import OpenLoop
from harness.load.sender import Sender
from harness.load.worker import Worker
from harness.plan import Phase

# Locust builds its argument parser once per option of each spawn message: 0.2-0.4 s in which a worker reads
# nothing, at the edge of every step. The defaults do not change.
argument_parser.default_args_dict = functools.cache(argument_parser.default_args_dict)
log = logging.getLogger(__name__)


class KneeUser(User):
    """A closed-loop user; in an open loop it sends all requests of its worker."""

    worker: ClassVar[Worker]
    _busy = False
    _sender: Sender | None = None  # made when the worker knows what to send to
    _phase, _count = -1, 0

    def on_stop(self) -> None:
        """Close the connection."""
        if self._sender is not None:
            self._sender.close()

    @task
    def serve(self) -> None:
        """Send request after request until the user is told to stop."""
        while self._state != LOCUST_STATE_STOPPING:
            try:
                self._serve_once()
            except gevent.Timeout as stray:
                # A timer that is not ours is a BaseException: uncaught, it would end this user unseen.
                log.error("a timer of something else went off in a user: %s", stray)

    def _serve_once(self) -> None:
        """Send the next request and wait as it asks for, or serve a whole phase of an open loop."""
        order = self.worker.await_order()
        phase = order.phase
        if phase.index != self._phase:
            self._phase, self._count = phase.index, 0
        if phase.requests is not None and self._count >= -(-phase.requests // (phase.users or 1)):
            self.worker.changed.wait()
            return
        self._busy, pause_s = True, 0.0
        try:
            if phase.rate is not None:
                OpenLoop(self.worker).run()
            else:
                pause_s = self._send_next(phase)
        finally:
            self._busy = False
        gevent.sleep(pause_s)

    def _send_next(self, phase: Phase) -> float:
        """Send one request and return how long to wait then."""
        self._sender = self._sender or self.worker.new_sender()
        entry = self.worker.entry(phase, self._count, self._sender.number)
        self._count += 1
        return self._sender.send(phase, entry).backoff_ms / 1000

    def stop(self, force: bool = False) -> Any:
        """Let the request in flight end on a step down; Locust itself would cut it off."""
        if self._busy and self.worker.patient and gevent.getcurrent() is not self.greenlet:
            self._state = LOCUST_STATE_STOPPING
            self.greenlet.join(self.worker.profile.target.timeouts.total_s)
        return super().stop(force=True)
