"""What run.json says of a run beside its timeline: where and by what it was made, and of each worker."""

from __future__ import annotations

import importlib.metadata
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

from harness.load.calibration import languages
from harness.load.crew import Crew
from harness.load.recorder import MasterRecorder
from harness.profile import Profile
from harness.records import ClockExchange, ClockRow, Problem, RunInfo, WorkerInfo, decode_lines
from harness.rundir import RunDir

PACKAGES = ("locust-knee", "locust", "gevent", "msgspec")


def first_info(run: RunDir, profile: str, experiment: str) -> RunInfo:
    """Return what is known when a run begins."""
    return RunInfo(
        run=run.path.name,
        profile=profile,
        experiment=experiment,
        command=["locust", *sys.argv[1:]],
        started_ns=time.time_ns(),
        host=socket.gethostname(),
        versions={"python": sys.version.split()[0]} | dict(_versions()),
    )


def worker_info(crew: Crew, recorder: MasterRecorder, worker: str, *, lost: bool, final: bool) -> WorkerInfo:
    """Return what is known of a worker; its gaps are known at the end."""
    hello = crew.hellos.get(worker)
    gaps = recorder.gaps(worker) if final else []
    return WorkerInfo(
        id=worker,
        host=hello.host if hello else "",
        pid=hello.pid if hello else None,
        records_made=None if lost else recorder.made(worker),
        records_received=recorder.received(worker),
        gaps=gaps,
        file=hello.file if hello and (gaps or lost) else None,
        lost=lost,
        clock=crew.clocks.get(worker, []),
    )


def write_problems(recorder: MasterRecorder) -> list[Problem]:
    """Return what kept records from being written."""
    if recorder.failed is None:
        return []
    return [Problem(code="records_lost", text=f"requests.jsonl could not be written: {recorder.failed}")]


def payload_problems(profile: Profile, ratios: Mapping[str, float], notes: Sequence[str]) -> list[Problem]:
    """Return where payloads are not what was asked for: lengths that are estimates, images sent again."""
    problems = [Problem(code="cache_hits", text=note) for note in notes]
    unknown = [lang for lang in languages(profile) if lang not in ratios]
    if unknown:
        text = (
            f"Lengths asked for in tokens are estimates ({', '.join(unknown)}): the target did not count the "
            "tokens of a text sent before the load."
        )
        problems.append(Problem(code="tokens_estimated", text=text))
    return problems


def sampler_clock(run: RunDir) -> list[ClockExchange]:
    """Return the sampler's exchanges with the sidecar of another host."""
    if not run.clock.exists():
        return []
    with run.clock.open("rb") as lines:
        rows = [row for row in decode_lines(lines, ClockRow) if row is not None]
    return [ClockExchange(t0_ns=r.t0_ns, t1_ns=r.t1_ns, t2_ns=r.t2_ns, t3_ns=r.t3_ns) for r in rows]


def _versions() -> Iterable[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
