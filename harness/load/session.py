"""Ties runs to Locust: arguments, roles, and the events that begin and end a run.

A run begins in the shape's first tick, before any user is there: what cannot be run (a broken profile, a
worker without its key) ends it with one line. `test_start` would be too late, since Locust goes on after it
whatever a listener raises.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
from locust import events
from locust.runners import MasterRunner, WorkerRunner

from harness import bundled
from harness.errors import INTERRUPTED, HarnessError, UserError
from harness.load.calibration import KeyOf
from harness.load.crew import Crew
from harness.load.signals import Interrupts
from harness.load.user import KneeUser
from harness.load.worker import Worker
from harness.profile import Profile
from harness.profile_reader import load_profile

if TYPE_CHECKING:
    from harness.load.conductor import Conductor

LOOK_S = 1.0
log = logging.getLogger(__name__)


class Session:
    """The runs of a master (or of the only process), one after the other."""

    def __init__(self, environment: Any, runner: Any, experiment: str, key_of: KeyOf, *, local: bool) -> None:
        from harness.load.conductor import Conductor, Wish

        self.environment, self.experiment, self._key_of = environment, experiment, key_of
        self.crew = Crew(runner, local=local)
        self.crew.listen()
        self.run: Conductor | None = None
        self.last: Conductor | None = None
        self.error: str | None = None
        self.preparing = False
        self._cutting: gevent.Greenlet | None = None
        self._make, self._wish = Conductor, Wish
        self._run_dir_used = False

    @property
    def headless(self) -> bool:
        """Whether the process ends with its run."""
        return bool(self.environment.parsed_options.headless)

    def profile(self) -> Profile:
        """Read the profile that the options name; raises UserError."""
        options = self.environment.parsed_options
        name = self.environment.profile or options.profile
        if not name:
            raise UserError(
                "no profile is given", key="--profile", remedy="add --profile profiles/steps.yaml"
            )
        return load_profile(bundled.profile(name), host=self.environment.host or None)

    def target(self) -> tuple[int, float] | None:
        """Return users and spawn rate of the moment; begins a run where none is on."""
        if self._cutting is not None:  # started again before the run that was stopped had its report
            self._cutting.join()
            self._cutting = None
        if self.run is None:
            self.error, self.preparing = None, True
            try:
                self.run = self._begin()
            except HarnessError as error:
                self.fail(error)
                return None
            finally:
                self.preparing = False
        run = self.run
        target = run.target()
        if target is None:
            self._ended(run, run.exit_code)
        return target

    def fail(self, error: HarnessError) -> None:
        """Say in one line why no run can be."""
        self.error = str(error)
        print(f"knee: {error}", file=sys.stderr, flush=True)
        self.environment.process_exit_code = error.exit_code

    def on_test_stop(self, **_: Any) -> None:
        """End a run that was stopped from outside: the web UI's button, or an interrupt."""
        if self.run is None:
            return
        if self.headless:
            self._cut("interrupted")
        else:  # the button's answer does not wait for the report
            self._cutting = gevent.spawn(self._cut, "stopped in the web UI")

    def on_quitting(self, **_: Any) -> None:
        """End a run whose process is told to end."""
        if self.run is not None:
            self._cut("interrupted")

    def on_worker_connect(self, client_id: str, **_: Any) -> None:
        """Take in a worker that comes while a run is on."""
        if self.run is not None:
            gevent.spawn(self.run.joined, client_id)

    def _begin(self) -> Any:
        options = self.environment.parsed_options
        run_dir = Path(options.run_dir) if options.run_dir and not self._run_dir_used else None
        wish = self._wish(self.profile(), self.experiment, Path(options.out), run_dir, self._key_of)
        run = self._make(wish, self.crew)
        self._run_dir_used = True
        run.start()
        return run

    def _cut(self, reason: str) -> None:
        run = self.run
        if run is not None:
            run.interrupt(reason)
            self._ended(run, INTERRUPTED)

    def _ended(self, run: Conductor, code: int | None) -> None:
        if self.run is not run:  # ended by another greenlet meanwhile
            return
        self.last, self.run = run, None
        if self.headless:
            self.environment.process_exit_code = code


def register(experiment: str, environ: Mapping[str, str]) -> None:
    """Make a locustfile run an experiment; keys are read from `environ` by the profile's variable name."""

    def key_of(profile: Profile) -> str | None:
        name = profile.target.api_key_env
        if name is None:
            return None
        if not environ.get(name):
            raise UserError(
                f"the variable {name} is not set", key="target.api_key_env", remedy=f"export {name}=..."
            )
        return environ[name]

    def on_init(environment: Any, runner: Any, web_ui: Any, **_: Any) -> None:
        if environment.parsed_options.with_parent:
            gevent.spawn(_end_with_parent, os.getppid())
        master, worker = isinstance(runner, MasterRunner), isinstance(runner, WorkerRunner)
        if not worker:
            _lead(environment, runner, web_ui, experiment, key_of, local=not master)
        if not master:
            KneeUser.worker = _follow(environment, runner, key_of, local=not worker)

    events.init_command_line_parser.add_listener(_add_arguments)  # type: ignore[no-untyped-call]
    events.init.add_listener(on_init)  # type: ignore[no-untyped-call]


def _lead(environment: Any, runner: Any, web_ui: Any, experiment: str, key_of: KeyOf, *, local: bool) -> None:
    session = Session(environment, runner, experiment, key_of, local=local)
    environment.shape_class.session = session
    try:
        if session.headless or environment.parsed_options.profile:
            profile = session.profile()
            for user in environment.user_classes:
                user.host = profile.target.base_url
    except HarnessError as error:
        session.fail(error)
        sys.exit(error.exit_code)
    if web_ui is not None:
        from harness.load.webui import attach

        attach(session, web_ui)
    Interrupts(*(signal.SIGINT, signal.SIGTERM) if session.headless else (signal.SIGINT,))
    environment.events.test_stop.add_listener(session.on_test_stop)
    environment.events.quitting.add_listener(session.on_quitting)
    environment.events.worker_connect.add_listener(session.on_worker_connect)


def _follow(environment: Any, runner: Any, key_of: Any, *, local: bool) -> Worker:
    worker = Worker(environment, runner, key_of, local=local)
    worker.listen()
    if not local:  # an interrupt reaches all processes of a terminal: the master ends the run in order
        Interrupts(signal.SIGINT, may_wait=lambda: worker.in_run)
    environment.events.test_stopping.add_listener(worker.stop_at_once)
    environment.events.quitting.add_listener(worker.flush)
    return worker


def _end_with_parent(parent: int) -> None:
    """End in order when the starting process is no more: nobody is left to end the load."""
    while os.getppid() == parent:
        gevent.sleep(LOOK_S)
    log.error("the process that started this one has ended")
    os.kill(os.getpid(), signal.SIGTERM)


def _add_arguments(parser: Any) -> None:
    # Strings only: Locust sends parsed options to the workers, and a Path would break every message.
    for name, default, what in (
        ("--run-dir", "", "The directory of this run"),
        ("--out", "runs", "The parent of run directories"),
    ):
        parser.add_argument(name, default=default, metavar="DIR", help=what, include_in_web_ui=False)
    what = "End when the starting process has ended"
    parser.add_argument("--with-parent", action="store_true", help=what, include_in_web_ui=False)
