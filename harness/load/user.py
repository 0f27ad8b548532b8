"""The one Locust user of every experiment: what it sends is the plan's, so the mix is equal at every step."""

from __future__ import annotations

import functools
import logging
from typing import Any, ClassVar

import gevent
from locust import User, argument_parser, task
from locust.user.task import LOCUST_STATE_STOPPING

from harness.load.messages import Order
from harness.load.open_loop import OpenLoop
from harness.load.sender import Sender
from harness.load.worker import Worker

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
        """Send the next request, or a whole phase of an open loop."""
        order = self.worker.await_order()
        self._busy = True
        try:
            if order.phase.rate is not None:
                OpenLoop(self.worker).run()
                pause_s = 0.0
            else:
                pause_s = self._send_next(order)
        except gevent.Timeout as stray:
            # A timer that is not ours is a BaseException: uncaught, it would end this user unseen.
            log.error("a timer of something else went off in a user: %s", stray)
            pause_s = 0.0
        finally:
            self._busy = False
        if pause_s < 0:
            self.worker.changed.wait()
        elif pause_s:
            gevent.sleep(pause_s)

    def _send_next(self, order: Order) -> float:
        """Send one request; return how long to wait then, below 0: until the next phase."""
        phase = order.phase
        if phase.index != self._phase:
            self._phase, self._count = phase.index, 0
        if phase.requests is not None and self._count >= -(-phase.requests // (phase.users or 1)):
            return -1.0
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
