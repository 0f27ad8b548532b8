"""An nvidia-smi log file as a table of GPU samples, and as a summary.

Without a uuid, bus id or index column a log names no GPU. Where it can only hold one (no stamp, and no tick,
has several rows), its rows are that GPU's; else they are counted and given to none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.errors import UserError
from harness.observe.local_time import to_utc, utc_text, zone_named
from harness.observe.nvidia_smi import BLOCK_BYTES, GpuLog, LogParser
from harness.records import GpuSample, RunInfo

Ints = npt.NDArray[np.int64]
ONLY_GPU = "0"
GAP_INTERVALS = 2.5


@dataclass(frozen=True)
class Samples:
    """A log's samples by GPU and time, duplicates dropped; columns as in GpuLog, `utc_us` in microseconds."""

    utc_us: Ints
    log: GpuLog
    rows: Ints  # which row of the log each sample is
    gpu: npt.NDArray[np.int32]
    gpus: list[str]
    duplicates: int
    identity_known: bool
    skipped: dict[str, int]


def parse_file(path: Path, tick: Callable[[int], object] = lambda _: None) -> GpuLog:
    """Return what a log file holds; `tick` gets the bytes read. UserError for no file, or no rows in it."""
    parser = LogParser()
    try:
        with path.open("rb") as file:
            while data := file.read(BLOCK_BYTES):
                parser.feed(data)
                tick(len(data))
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", file=path) from None
    log = parser.finish()
    if not len(log.local_us):
        seen = ", ".join(f"{n} x {reason}" for reason, n in log.skipped.items()) or "the file is empty"
        raise UserError(
            f"no nvidia-smi samples: {seen}",
            file=path,
            remedy="log with nvidia-smi --query-gpu=timestamp,index,utilization.gpu,memory.used,memory.total "
            "--format=csv -l 1",
        )
    return log


def sort_samples(log: GpuLog, zone: str, key: str) -> Samples:
    """Return the log's samples on UTC, by GPU and time, exact duplicates dropped."""
    utc_us, exists = to_utc(log.local_us, zone_named(zone, key), key)
    gpu, gpus = log.gpu, log.gpus
    nameless = gpu < 0
    single = bool(nameless.all()) and not _holds_several(log)
    if single:
        gpu, gpus = np.zeros_like(gpu), [ONLY_GPU]
    rows = np.flatnonzero(exists)
    rows = rows[np.lexsort((utc_us[rows], gpu[rows]))]
    skipped = dict(log.skipped)
    if not exists.all():
        skipped[f"time does not exist in {zone}"] = int((~exists).sum())
    same = _repeats(log, utc_us, gpu, rows)
    kept = rows[~same] if same.any() else rows
    return Samples(
        utc_us=utc_us[kept],
        log=log,
        rows=kept,
        gpu=gpu[kept],
        gpus=gpus,
        duplicates=int(same.sum()),
        identity_known=single or not nameless.any(),
        skipped=skipped,
    )


def _repeats(log: GpuLog, utc_us: Ints, gpu: npt.NDArray[np.int32], rows: Ints) -> npt.NDArray[np.bool_]:
    """Return which rows say just what the row before says: of one GPU, at one time, with equal values."""
    same = np.zeros(len(rows), dtype=bool)
    one, two = rows[:-1], rows[1:]
    at = np.flatnonzero(utc_us[one] == utc_us[two])
    at = at[(gpu[one[at]] == gpu[two[at]]) & (gpu[one[at]] >= 0)]
    equal = np.ones(len(at), dtype=bool)
    for values in log.values.values():
        a, b = values[one[at]], values[two[at]]
        equal &= (a == b) | (np.isnan(a) & np.isnan(b))
    same[at[equal] + 1] = True
    return same


def _holds_several(log: GpuLog) -> bool:
    """Return whether rows without identity come from several GPUs: differing at one time, or in groups.

    nvidia-smi stamps the rows of one tick within milliseconds: equal groups between longer waits.
    """
    times = log.local_us
    apart = np.diff(times)
    at = np.flatnonzero(apart == 0)
    for values in log.values.values():
        a, b = values[at], values[at + 1]
        if np.any((a != b) & ~(np.isnan(a) & np.isnan(b))):
            return True
    waits = np.maximum(np.abs(apart), 1000)
    if not len(waits) or waits.max() < 4 * waits.min():
        return False
    ticks = np.flatnonzero(waits > np.sqrt(float(waits.max()) * float(waits.min())))
    groups = np.diff(ticks)  # rows between two long waits
    if len(groups) < 3:
        return False
    usual = int(np.bincount(groups).argmax())
    return usual > 1 and float((groups == usual).mean()) >= 0.8


def summarize(samples: Samples) -> dict[str, Any]:
    """Return the object that `knee gpu-log --json` prints."""
    log, gpus, gaps = samples.log, {}, 0
    edges = np.searchsorted(samples.gpu, np.arange(len(samples.gpus) + 1))
    for number, gpu in enumerate(samples.gpus):
        part = slice(edges[number], edges[number + 1])
        if part.start == part.stop:
            continue
        times = samples.utc_us[part]
        gaps += count_gaps(times)
        gpus[gpu] = {
            "n": len(times),
            "util_mean": _known(log, "util", samples.rows[part], np.mean),
            "mem_used_peak_bytes": _whole(_known(log, "mem_used_bytes", samples.rows[part], np.max)),
            "first_utc": utc_text(int(times[0])),
            "last_utc": utc_text(int(times[-1])),
        }
    missing: dict[str, dict[str, int]] = {}
    for name, codes in log.reason.items():
        counts = np.bincount(codes[samples.rows] + 1, minlength=len(log.reasons) + 1)[1:]
        found = {reason: int(n) for reason, n in zip(log.reasons, counts, strict=True) if n}
        if found:
            missing[name] = found
    return {
        "samples": len(samples.rows),
        "gpus": gpus,
        "identity_known": samples.identity_known,
        "gaps": gaps,
        "duplicates": samples.duplicates,
        "skipped": samples.skipped,
        "missing": missing,
    }


def count_gaps(times_us: Ints) -> int:
    """Return how many times one GPU's samples are more than GAP_INTERVALS usual intervals apart."""
    apart = np.diff(times_us)
    return int((apart > GAP_INTERVALS * np.median(apart)).sum()) if len(apart) > 1 else 0


def _known(log: GpuLog, name: str, rows: Ints, what: Callable[..., Any]) -> float | None:
    if name not in log.values:
        return None
    values = log.values[name][rows]
    values = values[~np.isnan(values)]
    return float(what(values)) if len(values) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def read_gpu_log(path: Path, zone: str | None) -> pd.DataFrame:
    """Return a log file's samples with the columns of GpuSample; `zone` is the IANA name of its zone."""
    if zone is None:
        raise UserError(
            "an nvidia-smi log has no time zone in it",
            key="--gpu-log-tz",
            remedy="name it, as in Europe/Berlin",
        )
    samples = sort_samples(parse_file(path), zone, "--gpu-log-tz")
    log, n = samples.log, len(samples.rows)
    columns: dict[str, Any] = {}
    for name in GpuSample.__struct_fields__:
        if name in log.values:
            columns[name] = log.values.pop(name)[samples.rows]
        else:  # half floats: a column of nothing costs little
            columns[name] = np.full(n, np.nan, dtype=np.float16)
    columns["v"], columns["seq"] = np.ones(n, dtype=np.int8), np.arange(n, dtype=np.int32)
    columns["wall_ns"] = samples.utc_us * 1000
    columns["gpu"] = _category(samples.gpu, samples.gpus)
    for name, text in (("host", ""), ("source", "nvidia-smi"), ("mem_api", "nvidia-smi")):
        columns[name] = _category(np.zeros(n, dtype=np.int8), [text])
    names = [log.about.get(gpu, {}).get("name") for gpu in samples.gpus]
    known = list(dict.fromkeys(name for name in names if name))
    codes = np.array([known.index(name) if name else -1 for name in names] + [-1])
    columns["name"] = _category(codes[samples.gpu], known)
    columns["throttle"] = _category(np.full(n, -1, dtype=np.int8), [])
    columns["missing"] = _missing(log, samples.rows)
    return pd.DataFrame(columns, copy=False)


def _category(codes: npt.NDArray[Any], names: list[str]) -> pd.Categorical[str]:
    return pd.Categorical.from_codes(codes.tolist() if not len(codes) else codes, categories=pd.Index(names))


def _missing(log: GpuLog, rows: Ints) -> npt.NDArray[np.object_]:
    """Return per row its missing fields with reasons; rows that miss the same share one map."""
    maps: npt.NDArray[np.object_] = np.empty(len(rows), dtype=object)
    maps[:] = [{}]
    lacking = np.zeros(len(rows), dtype=bool)
    for codes in log.reason.values():
        lacking |= codes[rows] >= 0
    at = np.flatnonzero(lacking)
    combined = np.stack([codes[rows[at]] for codes in log.reason.values()], axis=1)
    kinds, which = np.unique(combined, axis=0, return_inverse=True)
    for number, kind in enumerate(kinds):
        known = zip(log.reason, kind.tolist(), strict=True)
        maps[at[which == number]] = {name: log.reasons[code] for name, code in known if code >= 0}
    return maps


def check_overlap(table: pd.DataFrame, run: RunInfo, path: Path) -> None:
    """Raise UserError where no sample of a log falls into the run: usually the zone is wrong."""
    ends = [end for phase in run.phases if (end := phase.end_ns or phase.t1_ns)]
    begin, end = run.started_ns, run.ended_ns or (max(ends) if ends else None)
    inside = table["wall_ns"] >= begin
    if end is not None:
        inside &= table["wall_ns"] <= end
    if inside.any():
        return
    first, last = (utc_text(int(table["wall_ns"].agg(edge)) // 1000) for edge in ("min", "max"))
    run_end = utc_text(end // 1000) if end is not None else "its end"
    raise UserError(
        f"no overlap: the log covers {first} to {last}, the run {utc_text(begin // 1000)} to {run_end}",
        file=path,
        remedy="check --gpu-log-tz, or take another log",
    )
