"""The order of a turn: all that came is read before a user is woken, and a busy loop waits only if it may."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import gevent
import pytest
from gevent.hub import Waiter, get_hub

from harness.load import turns as module
from harness.load.turns import Turns, turns

USERS = 20


@pytest.fixture
def fresh() -> Iterator[Turns]:
    made = Turns(get_hub().loop)
    yield made
    made.close()


def test_one_for_each_loop() -> None:
    assert turns() is turns()


def test_users_are_woken_in_the_order_of_their_ends(fresh: Turns) -> None:
    seen: list[int] = []
    users = [Waiter() for _ in range(USERS)]

    def user(number: int) -> None:
        users[number].get()
        seen.append(number)

    started = [gevent.spawn(user, number) for number in range(USERS)]
    gevent.sleep(0)
    for waiter in users:
        fresh.wake(waiter)
    gevent.joinall(started, timeout=10, raise_error=True)
    assert seen == list(range(USERS))


def test_what_comes_while_users_are_woken_is_read_before_the_last_of_them(
    fresh: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each user works for longer than the loop may go without reading."""
    monkeypatch.setattr(module, "WAKE_NS", 0)
    ours, theirs = socket.socketpair()
    seen: list[str] = []
    watcher = get_hub().loop.io(ours.fileno(), 1)

    def read() -> None:
        ours.recv(100)
        seen.append("read")

    watcher.start(read)
    users = [Waiter() for _ in range(USERS)]

    def user(number: int) -> None:
        users[number].get()
        seen.append(f"user {number}")
        if number == 0:
            theirs.send(b"x")

    started = [gevent.spawn(user, number) for number in range(USERS)]
    gevent.sleep(0)
    for waiter in users:
        fresh.wake(waiter)
    gevent.joinall(started, timeout=10, raise_error=True)
    watcher.stop()
    watcher.close()
    ours.close()
    theirs.close()
    assert seen[:3] == ["user 0", "read", "user 1"]
    assert len(seen) == USERS + 1


def test_a_user_that_was_killed_meanwhile_is_left_alone(fresh: Turns) -> None:
    waiter = Waiter()
    killed = gevent.spawn(waiter.get)
    gevent.sleep(0)
    fresh.wake(waiter)
    killed.kill()
    gevent.sleep(0.01)
    assert killed.ready()


@pytest.mark.parametrize(
    ("paced", "sending", "waited"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_only_a_busy_loop_that_may_wait_does(
    fresh: Turns, monkeypatch: pytest.MonkeyPatch, paced: bool, sending: bool, waited: bool
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(module, "_block", waits.append)
    monkeypatch.setattr(module, "PACE_S", 30.0)  # however slow the machine is
    fresh.paced = paced
    if sending:
        fresh.sending.add("a request")
    until_s = time.monotonic() + 10
    turned = 0
    while turned < 5 and time.monotonic() < until_s:
        gevent.sleep(0.001)
        turned += 1
    assert (len(waits) > 0) == waited
    assert all(0 < wait_s <= 30.0 for wait_s in waits)
