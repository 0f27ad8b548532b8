"""The step ladder on a client that is starved on purpose, in its step of 8 users only.

STARVE=burn: a greenlet holds the loop for 30 ms at a time. STARVE=nice: the process gives way to one that
burns for each core. Anything else: nothing is done.
"""

import contextlib
import os
import subprocess
import sys
import time

import gevent
from locust import events

from harness.load.session import register
from harness.load.shape import KneeShape
from harness.load.user import KneeUser

__all__ = ["KneeShape", "KneeUser"]
STARVED_USERS = 8

register("steps", os.environ)


def starved() -> bool:
    """Return whether the step to be spoilt is on."""
    worker = KneeUser.worker
    return worker.in_run and worker._order is not None and worker.order.phase.users == STARVED_USERS


def burn() -> None:
    """Hold the loop half of the time."""
    while True:
        if starved():
            until = time.monotonic() + 0.03
            while time.monotonic() < until:
                pass
        gevent.sleep(0.03)


def give_way() -> None:
    """Leave the cores to others while the step is on."""
    while not starved():
        gevent.sleep(0.05)
    endless = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(endless) for _ in os.sched_getaffinity(0)]
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    try:
        while starved():
            gevent.sleep(0.05)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
        with contextlib.suppress(PermissionError):  # only root may take it back
            os.setpriority(os.PRIO_PROCESS, 0, 0)


@events.init.add_listener
def start(**_: object) -> None:
    """Start what spoils the step."""
    spoil = {"burn": burn, "nice": give_way}.get(os.environ.get("STARVE", ""))
    if spoil is not None:
        gevent.spawn(spoil)
