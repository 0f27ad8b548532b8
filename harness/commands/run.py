"""`knee run`: check, ask once, load by Locust, and print the verdict.

Locust patches its process and cannot share it, so it runs as a subprocess; it starts the sidecar and, at the
end, `knee report`. This command only prepares, watches and passes the exit code on.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from harness import bundled, rundir
from harness.commands.keys import read_key
from harness.commands.processes import end, free_port, harness_command, own_modules
from harness.errors import INTERRUPTED, InvalidRunError
from harness.plan import EXPERIMENTS, Plan, make_plan
from harness.profile import Profile
from harness.profile_reader import load_profile
from harness.results import Report

FLUSH_WITHIN_S = 60.0  # for Locust to write its records and the report after an interrupt


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of one run."""

    profile: Path
    host: str | None = None
    experiment: str = "steps"
    out: Path = Path("runs")
    processes: int | None = None
    dry_run: bool = False
    as_json: bool = False


@click.command()
@click.argument("profile", type=str)
@click.option("--experiment", type=click.Choice(EXPERIMENTS), default="steps", show_default=True)
@click.option("--host", metavar="URL", help="Overrides scheme, host and port of the profile's target.")
@click.option(
    "--processes", type=click.IntRange(1, 64), help="Locust worker processes (default: one, no workers)."
)
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs"), show_default=True)
@click.option("--dry-run", is_flag=True, help="Print the plan and send nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print run directory and verdict as JSON.")
def run(
    profile: str,
    experiment: str,
    host: str | None,
    processes: int | None,
    out: Path,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Load a service as PROFILE says, find its knee and write the report.

    PROFILE is a file, or the name of one that ships with the package.

    \b
    knee run profiles/steps.yaml --host http://127.0.0.1:8000
    knee run profiles/steps.yaml --experiment image_sweep
    knee run profiles/steps.yaml --dry-run
    """
    options = Options(bundled.profile(profile), host, experiment, out, processes, dry_run, as_json)
    click.get_current_context().exit(run_profile(options))


def run_profile(options: Options) -> int:
    """Run one profile and return the exit code."""
    from harness.payloads.corpus import replay_lines
    from harness.preflight import preflight

    profile = load_profile(options.profile, host=options.host)
    plan = make_plan(profile, options.experiment, replay_lines=replay_lines(profile))
    if options.dry_run:
        from harness.commands.plan_view import print_plan

        print_plan(profile, plan, as_json=options.as_json)
        return 0
    answered = preflight(profile, plan, read_key(profile.target.api_key_env, "target.api_key_env"))
    run_dir = rundir.create(options.out, profile, options.experiment)
    run_name = run_dir.path.name
    rundir.append_requests(run_dir, [msgspec.structs.replace(r, run=run_name) for r in answered])
    code = _locust(options, profile, plan, run_dir)
    if not run_dir.report_json.exists():  # Locust was ended from outside: what it left can still be analysed
        command = harness_command("report", str(run_dir.path))
        analysed = subprocess.run(
            command, check=False, stdout=subprocess.DEVNULL, env=own_modules()
        ).returncode
        code = code if code == INTERRUPTED else analysed
    _print(options, run_dir)
    return code


def _print(options: Options, run_dir: rundir.RunDir) -> None:
    from harness.commands.outputs import print_verdict, summary

    if not run_dir.report_json.exists():
        raise InvalidRunError(f"the run left no report: see {run_dir.locust_log}")
    report = msgspec.json.decode(run_dir.report_json.read_bytes(), type=Report)
    if options.as_json:
        click.echo(msgspec.json.encode(summary(run_dir.path, report)).decode())
    else:
        print_verdict(run_dir.path, report)


def _locust(options: Options, profile: Profile, plan: Plan, run_dir: rundir.RunDir) -> int:
    """Run Locust headless until it ends and return its exit code; an interrupt ends it in order."""
    from harness.commands.progress import watch

    command = [sys.executable, "-m", "locust", "--headless"]
    command += ["-f", str(bundled.locustfile(options.experiment))]
    command += ["--profile", str(options.profile), "--run-dir", str(run_dir.path), "--with-parent"]
    if options.host:
        command += ["--host", options.host]
    if options.processes:  # on a port of its own, so that workers of another run cannot join this one
        port = str(free_port())
        command += ["--processes", str(options.processes)]
        command += ["--master-bind-port", port, "--master-port", port]
    with run_dir.locust_log.open("wb") as log:
        locust = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=own_modules()
        )
        try:
            watch(locust, run_dir, plan, quiet=options.as_json)
        except KeyboardInterrupt:
            click.echo("knee: interrupted, writing what was measured (again: give it up)", err=True)
            end(locust, FLUSH_WITHIN_S, signal.SIGINT)
            return INTERRUPTED
    return locust.returncode
