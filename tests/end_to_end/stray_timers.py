"""The step ladder, while timers that are not ours go off in its users."""

import os

import gevent
from locust import events

from harness.load.session import register
from harness.load.shape import KneeShape
from harness.load.user import KneeUser

__all__ = ["KneeShape", "KneeUser"]

register("steps", os.environ)


@events.init.add_listener
def throw_timers(environment, runner, **_):
    """Throw a timer into a user four times a second."""

    def throw():
        while True:
            gevent.sleep(0.25)
            for user in list(runner.user_greenlets)[:1]:
                gevent.get_hub().loop.run_callback(user.throw, gevent.Timeout(1))

    gevent.spawn(throw)
