"""A run directory: the only thing passed between load, observation, analysis and report.

This is the only module that knows the file names inside it. Reading never fails on a run that was cut off:
lines that are cut or broken are dropped and counted.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from harness.errors import UserError
from harness.profile import Profile
from harness.profile_reader import load_profile, to_yaml
from harness.records import ClientSample, EngineSample, GpuSample, Request, RunInfo, decode_lines, encode_line

Table = pd.DataFrame


@dataclass(frozen=True, slots=True)
class RunDir:
    """The paths inside one run directory."""

    path: Path

    profile = property(lambda self: self.path / "profile.yaml")
    info = property(lambda self: self.path / "run.json")
    requests = property(lambda self: self.path / "requests.jsonl")
    client = property(lambda self: self.path / "client.jsonl")
    gpu = property(lambda self: self.path / "gpu.jsonl")
    engine = property(lambda self: self.path / "engine.jsonl")
    clock = property(lambda self: self.path / "clock.jsonl")
    report_html = property(lambda self: self.path / "report.html")
    report_md = property(lambda self: self.path / "report.md")
    report_json = property(lambda self: self.path / "report.json")
    limits = property(lambda self: self.path / "limits.yaml")
    charts = property(lambda self: self.path / "charts")
    locust_log = property(lambda self: self.path / "locust.log")
    sampler_log = property(lambda self: self.path / "sampler.log")

    def worker(self, worker_id: str) -> Path:
        """Return the file that a worker of this host appends its own records to."""
        return self.path / "workers" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', worker_id)}.jsonl"


@dataclass(frozen=True, slots=True)
class RunData:
    """One run as tables; columns are the fields of the row types in `records`, None as NaN or None."""

    info: RunInfo
    profile: Profile
    requests: Table
    client: Table
    gpu: Table
    engine: Table
    broken_lines: dict[str, int] = field(default_factory=dict)  # file name -> lines dropped


def create(parent: Path, profile: Profile, experiment: str) -> RunDir:
    """Make a new run directory with the resolved profile in it (no secrets)."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name = f"{stamp}-{profile.name}-{experiment}"
    for attempt in range(1000):
        path = parent / (f"{name}-{attempt}" if attempt else name)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"cannot make a run directory: {error.strerror}", file=path) from None
        run = RunDir(path)
        run.profile.write_text(to_yaml(profile), encoding="utf-8")
        return run
    raise UserError("too many runs of the same second", file=parent)


def write_info(run: RunDir, info: RunInfo) -> None:
    """Write run.json atomically, so that a reader never sees half of it."""
    write_atomically(run.info, msgspec.json.format(msgspec.json.encode(info), indent=1))


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file through a temporary one in the same folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(data)
    os.replace(scratch, path)


def read_run(path: str | Path) -> RunData:
    """Read a run directory; raises UserError where it is none."""
    run = RunDir(Path(path))
    if not run.path.is_dir():
        raise UserError("no such run directory", file=run.path, remedy="give a folder that a run wrote")
    if not run.info.exists() or not run.profile.exists():
        raise UserError(
            "not a run directory: run.json or profile.yaml is missing",
            file=run.path,
            remedy="give a folder that a run wrote",
        )
    try:
        info = msgspec.json.decode(run.info.read_bytes(), type=RunInfo)
    except msgspec.DecodeError as error:
        raise UserError(f"not readable: {error}", file=run.info) from None
    broken: dict[str, int] = {}
    return RunData(
        info=info,
        profile=load_profile(run.profile),
        requests=_read_requests(run, broken),
        client=read_table(run.client, ClientSample, broken),
        gpu=read_table(run.gpu, GpuSample, broken),
        engine=read_table(run.engine, EngineSample, broken),
        broken_lines=broken,
    )


def _read_requests(run: RunDir, broken: dict[str, int]) -> Table:
    """Read the master's records, completed from the workers' own files where those lie here."""
    table = read_table(run.requests, Request, broken)
    extra = [read_table(p, Request, broken) for p in sorted((run.path / "workers").glob("*.jsonl"))]
    extra = [part for part in extra if len(part)]
    if extra:
        table = (
            pd.concat([table, *extra], ignore_index=True)
            if len(table)
            else pd.concat(extra, ignore_index=True)
        )
        table = table.drop_duplicates(["worker", "seq"], ignore_index=True)
    return table


CHUNK = 50_000


def read_table(path: Path, row_type: type[Any], broken: dict[str, int] | None = None) -> Table:
    """Read a JSON-lines file into a table; a missing file is an empty table with the same columns.

    Numbers become float or int columns (None: NaN), repeated strings categories; lists and maps stay objects.
    """
    names = [f.name for f in msgspec.structs.fields(row_type)]
    chunks: list[Table] = []
    if path.exists():
        with path.open("rb") as lines:
            rows: list[Any] = []
            for row in _count_broken(decode_lines(lines, row_type), path.name, broken):
                rows.append(row)
                if len(rows) >= CHUNK:
                    chunks.append(_columns(rows, names))
                    rows = []
            if rows:
                chunks.append(_columns(rows, names))
    if not chunks:
        return pd.DataFrame({name: np.array([], dtype=object) for name in names})
    table = pd.concat(chunks, ignore_index=True) if len(chunks) > 1 else chunks[0]
    for name in table.columns:
        if table[name].dtype == object and name not in _OBJECTS:
            table[name] = _tighten(table[name])
    return table


_OBJECTS = {"img_wh", "missing", "throttle", "req_id", "error"}


def _count_broken(rows: Iterator[Any], name: str, broken: dict[str, int] | None) -> Iterator[Any]:
    for row in rows:
        if row is not None:
            yield row
        elif broken is not None:
            broken[name] = broken.get(name, 0) + 1


def _columns(rows: list[Any], names: list[str]) -> Table:
    columns: dict[str, Any] = {}
    for name in names:
        values = [getattr(row, name) for row in rows]
        if name in _OBJECTS:
            columns[name] = pd.Series(values, dtype=object)
        else:
            columns[name] = _tighten(pd.Series(values, dtype=object))
    return pd.DataFrame(columns)


def _tighten(values: pd.Series[Any]) -> pd.Series[Any]:
    """Give a column its natural type: int, float with NaN, bool or category."""
    known = values.dropna()
    if not len(known):
        return values.astype(float)
    first = known.iloc[0]
    if isinstance(first, bool):
        return values.astype(bool) if len(known) == len(values) else values
    if isinstance(first, int) and len(known) == len(values) and all(isinstance(v, int) for v in known):
        return values.astype(np.int64)
    if isinstance(first, int | float):
        return values.astype(float)
    return values.astype(str).where(values.notna(), None) if isinstance(first, str) else values


def append_requests(run: RunDir, records: Sequence[Request]) -> None:
    """Append records to requests.jsonl, as the preflight does before the load begins."""
    with run.requests.open("ab") as out:
        out.writelines(encode_line(record) for record in records)
