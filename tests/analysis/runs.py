"""Runs to analyse: simulated in virtual time, or made by hand."""

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from harness import rundir
from harness.engine.config import EngineConfig
from harness.engine.presets import PRESETS
from harness.engine.virtual import VirtualRun, ladder, save, simulate
from harness.profile import Hold, Load, PayloadSpec, Profile, Target, Traffic
from harness.records import (
    ClientSample,
    ClockRow,
    EngineSample,
    GpuSample,
    PhaseTimes,
    Request,
    RunInfo,
    WorkerInfo,
)
from harness.rundir import RunData

WALL_NS = 1_750_000_000_000_000_000
MS = 1_000_000
SECOND = 1_000_000_000


def read(run: VirtualRun) -> RunData:
    """Write a virtual run as a run directory and read it back, as a report does."""
    with tempfile.TemporaryDirectory() as folder:
        return rundir.read_run(save(run, Path(folder)).path)


def preset(name: str, *, seed: int = 1, **more: Any) -> RunData:
    """Run the ladder of a preset."""
    chosen = PRESETS[name]
    return read(
        simulate(chosen.config, ladder(chosen.traffic, max_tokens=chosen.max_tokens, **more), seed=seed)
    )


def experiment(
    name: str,
    config: EngineConfig,
    mix: Iterable[PayloadSpec] = PRESETS["demo"].traffic,
    *,
    seed: int = 1,
    max_tokens: int = 24,
    profile: Profile | None = None,
) -> RunData:
    """Run one of the measurements beside the ladder."""
    return read(simulate(config, profile or ladder(tuple(mix), max_tokens=max_tokens), name, seed=seed))


def phase(index: int, users: int | None, start_s: float, *, seconds: float = 10, **more: Any) -> PhaseTimes:
    """A phase whose window is [start + 1, start + 1 + seconds), with a second before and after."""
    ready = WALL_NS + round(start_s * SECOND)
    t0 = ready + SECOND
    t1 = t0 + round(seconds * SECOND)
    label = f"{users} user{'' if users == 1 else 's'}" if users is not None else f"{more.get('rate'):g} req/s"
    times = {"ready_ns": ready, "t0_ns": t0, "t1_ns": t1, "end_ns": t1 + SECOND}
    return PhaseTimes(**({"index": index, "label": label, "users": users} | times | more))


def request(seq: int, start_s: float, total_ms: float, **more: Any) -> Request:
    """An ok request of the only worker, `start_s` after the run's beginning."""
    start = round(start_s * SECOND)
    fields = {
        "run": "r", "worker": "w", "user": 0, "seq": seq, "phase": 0, "label": "1 user", "kind": "a",
        "payload": "a",
        "body_bytes": 100, "wall_ns": WALL_NS + start, "start_ns": 10**12 + start, "total_ms": total_ms,
        "outcome": "ok", "req_id": f"r-w-{seq}",
    }  # fmt: skip
    return Request(**(fields | more))


def profile(users: tuple[int, ...] | None = (1, 2, 4), **more: Any) -> Profile:
    """A profile with one kind of payload."""
    load = more.pop("load", None) or Load(
        users=users, hold=Hold(seconds=10, min_requests=20), drift_check=False
    )
    fields: dict[str, Any] = {
        "name": "p",
        "target": Target(base_url="http://127.0.0.1:1/v1"),
        "traffic": Traffic(mix=(PayloadSpec(kind="a"),)),
        "load": load,
    }
    return Profile(**(fields | more))


def run(
    phases: list[PhaseTimes],
    requests: Iterable[Request],
    *,
    settings: Profile | None = None,
    info: dict[str, Any] | None = None,
    **tables: Iterable[Any],
) -> RunData:
    """A run of hand-made rows; tables by name: client, gpu, engine, clock."""
    rows = list(requests)
    head: dict[str, Any] = {
        "run": "r", "profile": "p", "experiment": "steps", "started_ns": WALL_NS,
        "ended_ns": max((p.end_ns or 0 for p in phases), default=WALL_NS), "phases": phases,
        "workers": [WorkerInfo(id="w", host="h", records_made=len(rows))],
    }  # fmt: skip
    types = {"client": ClientSample, "gpu": GpuSample, "engine": EngineSample, "clock": ClockRow}
    return RunData(
        info=RunInfo(**(head | (info or {}))),
        profile=settings or profile(),
        requests=table(Request, rows),
        **{name: table(row, tables.get(name, ())) for name, row in types.items()},
    )


def table(row_type: type[Any], rows: Iterable[Any]) -> pd.DataFrame:
    """Rows as the table that a run directory gives."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        return rundir.read_table(path, row_type)


def without(data: RunData, *names: str) -> RunData:
    """The run with some tables empty."""
    return replace(data, **{name: getattr(data, name).iloc[:0] for name in names})
