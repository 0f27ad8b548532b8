"""Locust's shape: it only hands on what the ladder wants.

`tick` waits inside for the next change, up to a second, so that a phase begins when the ladder says so and
not at the next full second. One instance serves every run of the process.
"""

from __future__ import annotations

from typing import ClassVar

from locust import LoadTestShape

from harness.load.session import Session


class KneeShape(LoadTestShape):
    """The ladder's wishes, as users and spawn rate."""

    session: ClassVar[Session]

    def tick(self) -> tuple[int, float] | None:
        """Return users and spawn rate, or None when the run is over."""
        return self.session.target()
