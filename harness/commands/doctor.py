"""`knee doctor`: everything that can be checked before a run, and what to do about it."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import click
import msgspec
from rich.markup import escape

from harness import bundled
from harness.commands.keys import read_key
from harness.commands.tables import console
from harness.errors import HarnessError, ThresholdError, UserError
from harness.plan import make_plan
from harness.profile import Profile
from harness.profile_reader import load_profile

Level = Literal["good", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: how it is, and what to do where it is not good."""

    name: str
    level: Level
    text: str
    remedy: str | None = None


@click.command()
@click.argument("profile", type=str, required=False)
@click.option("--host", metavar="URL", help="Overrides scheme, host and port of the profile's target.")
@click.option("--json", "as_json", is_flag=True)
def doctor(profile: str | None, host: str | None, as_json: bool) -> None:
    """Check PROFILE, its target, key, GPU source, clocks, engine metrics and ports; says what to mend.

    \b
    knee doctor
    knee doctor profiles/steps.yaml --host http://127.0.0.1:8000
    """
    checks = [_clock(), _cores(), _ports(), _locust()]
    if profile is not None:
        checks += _profile_checks(bundled.profile(profile), host)
    else:
        checks.append(_gpu("auto"))
    if as_json:
        click.echo(msgspec.json.encode([asdict(check) for check in checks]).decode())
    else:
        _print(checks)
    if any(check.level == "bad" for check in checks):
        raise ThresholdError("something must be mended before a run")


def _print(checks: list[Check]) -> None:
    out = console()
    marks = {"good": "[green]✓[/green]", "warning": "[yellow]![/yellow]", "bad": "[red]✗[/red]"}
    for check in checks:
        out.print(f"{marks[check.level]} {check.name:<10} {escape(check.text)}")
        if check.remedy:
            out.print(f"  {'':<10} → {escape(check.remedy)}")


def _clock() -> Check:
    resolution = time.get_clock_info("monotonic").resolution
    ticks = [time.monotonic_ns() for _ in range(1000)]
    if any(b < a for a, b in itertools.pairwise(ticks)):
        return Check("clock", "bad", "the monotonic clock runs backwards", "use another machine for the load")
    level: Level = "good" if resolution <= 1e-5 else "warning"
    return Check("clock", level, f"monotonic, resolution {resolution * 1e9:.0f} ns")


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0]
    if load > 0.7 * cores:
        return Check(
            "cores",
            "warning",
            f"{cores} cores, load {load:.1f}",
            "stop other work: it shows up as client lag",
        )
    return Check("cores", "good", f"{cores} cores, load {load:.1f}")


def _ports() -> Check:
    """Look whether Locust's own ports are free: 8089 for the web UI, 5557 for workers."""
    taken = []
    for port in (8089, 5557):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                taken.append(str(port))
    if taken:
        remedy = "end what listens there, or give --web-port / --master-bind-port"
        return Check("ports", "warning", f"in use: {', '.join(taken)}", remedy)
    return Check("ports", "good", "8089 (web UI) and 5557 (workers) are free")


def _locust() -> Check:
    from importlib.metadata import version

    found = shutil.which("locust")
    text = f"Locust {version('locust')}, gevent {version('gevent')}"
    return Check("locust", "good", text if found else f"{text} (the `locust` script is not on PATH)")


def _profile_checks(path: Path, host: str | None) -> list[Check]:
    try:
        profile = load_profile(path, host=host)
        plan = make_plan(profile) if profile.traffic.mix else None
    except UserError as error:
        return [Check("profile", "bad", str(error), error.remedy)]
    phases = f", {len(plan.phases)} phases" if plan else ", a replay"
    checks = [Check("profile", "good", f"{profile.name}{phases}"), _key(profile)]
    if checks[-1].level != "bad":
        checks.append(_target(profile))
    checks.append(_gpu(profile.observe.gpu, profile.engine_url))
    checks.append(_engine(profile))
    return checks


def _key(profile: Profile) -> Check:
    name = profile.target.api_key_env
    if name is None:
        return Check("key", "good", "none asked for by the profile")
    if not os.environ.get(name):
        return Check(
            "key", "bad", f"{name} is not set", f"export {name}=... in this shell and on every worker"
        )
    return Check("key", "good", f"{name} is set")


def _target(profile: Profile) -> Check:
    from harness.payloads.corpus import replay_lines
    from harness.preflight import preflight

    try:
        plan = make_plan(profile, replay_lines=replay_lines(profile))
        key = read_key(profile.target.api_key_env, "target.api_key_env")
        answered = preflight(profile, plan, key)[-1]
    except HarnessError as error:
        return Check("target", "bad", str(error))
    ttft = f", first token after {answered.ttft_ms:.0f} ms" if answered.ttft_ms is not None else ""
    text = f"{profile.target.base_url} answered in {answered.total_ms:.0f} ms{ttft}"
    if answered.token_source != "usage":
        return Check(
            "target", "warning", f"{text}, without usage", "token counts will be those of text deltas"
        )
    return Check("target", "good", f"{text}, {answered.out_tokens} tokens by its own count")


def _gpu(source: str, engine: str | None = None) -> Check:
    from harness.observe.sources import describe

    found, text = describe(source, engine)
    remedy = "run `knee sample` on the GPU host and name it in observe.gpu; else the memory vote has no data"
    return Check("gpu", "good" if found else "warning", text, None if found else remedy)


def _engine(profile: Profile) -> Check:
    from harness.observe.engine_metrics import describe

    url = profile.engine_url
    if url is None:
        return Check("engine", "warning", "observe.engine is none", "queue and KV figures will be missing")
    found, text = describe(url)
    remedy = "vLLM: on by default; SGLang: --enable-metrics; llama.cpp: --metrics"
    return Check("engine", "good" if found else "warning", text, None if found else remedy)
