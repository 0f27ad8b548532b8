"""GPU and engine samples joined to steps: afterwards, by time, and only where there are enough of them.

A step owns the samples of [ready, end), no other's. Utilization and power look back over up to a second, so
theirs begin a second (and the clocks' error bound) later. A figure needs 5 samples and 80 % of its window
covered; else it is missing, with the reason. Nothing is borrowed from a neighbour or filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.analysis.clock import Jump, Offsets, error_bound_ms, find_jumps, offsets_of_table
from harness.analysis.stats import Floats, Ints
from harness.records import PhaseTimes
from harness.results import EngineStats, GpuStats
from harness.rundir import RunData

LEAST_SAMPLES = 5
LEAST_COVERAGE = 0.8
LOOK_BACK_NS = 1_000_000_000  # the longest sample period of a driver


@dataclass(frozen=True, slots=True)
class Cover:
    """How well samples cover a window: their number, the share covered, the longest time without one."""

    n: int
    coverage: float
    gap_s: float

    @property
    def lack(self) -> str | None:
        """Why no figure may be given, or None."""
        if self.n < LEAST_SAMPLES:
            return f"{self.n} samples, {LEAST_SAMPLES} are needed"
        if self.coverage < LEAST_COVERAGE:
            return f"{100 * self.coverage:.0f} % of the step covered, {100 * LEAST_COVERAGE:.0f} % are needed"
        return None


def cover_of(times: Ints, start: int, end: int, interval_ns: float) -> Cover:
    """Return how sorted samples in [start, end) cover it: beyond 1.5 intervals without one is uncovered."""
    if end <= start or not len(times):
        return Cover(len(times), 0.0, max(0, end - start) / 1e9)
    apart = np.diff(times, prepend=start, append=end).astype(np.float64)
    holes = apart[apart > 1.5 * interval_ns]
    covered = 1 - float((holes - interval_ns).sum()) / (end - start)
    return Cover(len(times), max(0.0, covered), float(apart.max()) / 1e9)


def gpu_on_our_clock(run: RunData) -> pd.DataFrame:
    """Return the GPU samples with `wall_ns` moved onto the master's clock; hosts without exchanges stay."""
    gpu = run.gpu
    if not len(gpu) or not len(run.clock):
        return gpu
    moved = gpu["wall_ns"].to_numpy(dtype=np.int64).copy()
    for host in gpu["host"].dropna().unique():
        offsets = offsets_of_host(run, str(host))
        if offsets is None:
            continue
        mine = (gpu["host"] == host).to_numpy()
        mono = gpu["mono_ns"].to_numpy(dtype=np.float64, na_value=np.nan)[mine]
        known = None if np.isnan(mono).any() else gpu["mono_ns"].to_numpy(dtype=np.int64)[mine]
        moved[mine] = offsets.ours(moved[mine], known)
    return gpu.assign(wall_ns=moved)


def offsets_of_host(run: RunData, host: str) -> Offsets | None:
    """Return the offsets of the host that GPU samples name; a log names none and is the one peer's."""
    peers = [str(peer) for peer in run.clock["peer"].dropna().unique()]
    if host in peers:
        return offsets_of_table(run.clock, host)
    return offsets_of_table(run.clock, peers[0]) if host == "" and len(peers) == 1 else None


def clock_bound_ms(run: RunData) -> float | None:
    """Return the worst error of a sidecar's clock against ours; None where all samples are ours."""
    peers = [str(peer) for peer in run.clock["peer"].dropna().unique()]
    bounds = [o.bound_ns.max() / 1e6 for p in peers if (o := offsets_of_table(run.clock, p)) is not None]
    return float(max(bounds)) if bounds else error_bound_ms(run.info.sampler_clock)


def clock_jumps(run: RunData) -> list[Jump]:
    """Return where a wall clock was set during the run: those of GPU hosts, and ours."""
    read = [(str(host), rows) for host, rows in run.gpu.groupby("host", observed=True, sort=False)]
    if run.info.host not in [host for host, _ in read]:
        own = run.engine if len(run.engine) else run.clock.rename(columns={"t0_ns": "wall_ns"})
        read.append((run.info.host, own))
    known = [(host, rows) for host, rows in read if len(rows) and not rows["mono_ns"].isna().any()]
    return [jump for host, rows in known for jump in find_jumps(host, *_clocks(rows))]


def _clocks(rows: pd.DataFrame) -> tuple[Ints, Ints]:
    return rows["wall_ns"].to_numpy(dtype=np.int64), rows["mono_ns"].to_numpy(dtype=np.int64)


def gpu_by_step(run: RunData) -> dict[int, dict[str, GpuStats]]:
    """Return per phase index and GPU what the samples in the phase show; without identity there are none."""
    table, steps = gpu_on_our_clock(run), _windows(run.info.phases)
    bound_ns = int(1e6 * (clock_bound_ms(run) or 0.0))
    found: dict[int, dict[str, GpuStats]] = {index: {} for index, _, _ in steps}
    for gpu, rows in table.groupby("gpu", observed=True, sort=False):
        rows = rows.sort_values("wall_ns", kind="stable")
        samples = _GpuSamples(rows, 1e9 * run.profile.observe.interval_s)
        for index, start, end in steps:
            stats = samples.stats(start, samples.end_of(end), bound_ns)
            if stats is not None:
                found[index][str(gpu)] = stats
    return found


class _GpuSamples:
    """One GPU's samples as arrays ordered by time."""

    def __init__(self, rows: pd.DataFrame, interval_ns: float) -> None:
        self._rows = rows
        self._times = rows["wall_ns"].to_numpy(dtype=np.int64)
        self._interval_ns = _interval(self._times, interval_ns)
        columns = ("util", "power_w", "mem_used_bytes", "mem_total_bytes")
        self._values = {c: rows[c].to_numpy(dtype=np.float64, na_value=np.nan) for c in columns}
        named = rows["name"].dropna()
        self._name = str(named.iloc[-1]) if len(named) else None
        self._simulated = bool((rows["source"] == "sim").any())

    def end_of(self, end: int | None) -> int:
        """Return the end of a phase; that of the samples where the run was cut off inside it."""
        return end if end is not None else int(self._times[-1]) + 1

    def stats(self, start: int, end: int, bound_ns: int) -> GpuStats | None:
        """Return the figures of [start, end); None where no sample lies in it."""
        part = slice(*np.searchsorted(self._times, (start, end)))
        if part.start == part.stop:
            return None
        missing: dict[str, str] = {}
        later = start + LOOK_BACK_NS + bound_ns, end - bound_ns
        util = self._usable("util", *later, part, missing)
        power = self._usable("power_w", *later, part, missing)
        used = self._usable("mem_used_bytes", start, end, part, missing)
        total = self._values["mem_total_bytes"][part]
        known = ~np.isnan(self._values["mem_used_bytes"][part]) | ~np.isnan(self._values["util"][part])
        cover = cover_of(self._times[part][known], start, end, self._interval_ns)
        size = float(np.nanmax(total)) if not np.isnan(total).all() else None
        return GpuStats(
            name=self._name,
            simulated=self._simulated,
            util_mean=None if util is None else float(util.mean()),
            util_p95=None if util is None else float(np.percentile(util, 95)),
            mem_used_peak_bytes=None if used is None else int(used.max()),
            mem_total_bytes=None if size is None else int(size),
            mem_used_ratio_p95=None if used is None or not size else float(np.percentile(used, 95) / size),
            power_mean_w=None if power is None else float(power.mean()),
            n=cover.n,
            coverage=cover.coverage,
            largest_gap_s=cover.gap_s,
            missing=missing,
        )

    def _usable(
        self, column: str, start: int, end: int, part: slice, missing: dict[str, str]
    ) -> Floats | None:
        """Return a column's known values in [start, end), or None and the reason in `missing`."""
        inside = slice(*np.searchsorted(self._times, (start, max(start, end))))
        values = self._values[column][inside]
        known = ~np.isnan(values)
        lack = cover_of(self._times[inside][known], start, end, self._interval_ns).lack
        if lack is None:
            usable: Floats = values[known]
            return usable
        missing[column] = self._reason(column, part) or lack
        return None

    def _reason(self, column: str, part: slice) -> str | None:
        """Return the reason that most samples without the value carry."""
        absent = np.isnan(self._values[column][part])
        given = [row.get(column) for row in self._rows["missing"].to_numpy()[part][absent] if row]
        reasons = [reason for reason in given if reason]
        return max(set(reasons), key=reasons.count) if reasons else None


_GAUGES = ("running", "waiting", "kv_usage")
_COUNTERS = (
    "preemptions_total",
    "prefix_hit_tokens_total",
    "prefix_query_tokens_total",
    "queue_s_sum",
    "queue_count",
    "prefill_s_sum",
    "decode_s_sum",
    "mm_hits_total",
    "mm_queries_total",
)


def engine_by_step(run: RunData) -> dict[int, EngineStats]:
    """Return per phase index what the engine's scrapes in the phase show; none where it was never scraped."""
    good = run.engine[run.engine["error"].isna()].sort_values("wall_ns", kind="stable")
    if not len(good):
        return {}
    times = good["wall_ns"].to_numpy(dtype=np.int64)
    values = {c: good[c].to_numpy(dtype=np.float64, na_value=np.nan) for c in _GAUGES + _COUNTERS}
    interval_ns = _interval(times, 1e9 * run.profile.observe.interval_s)
    return {
        index: _engine_stats(
            times, values, start, end if end is not None else int(times[-1]) + 1, interval_ns
        )
        for index, start, end in _windows(run.info.phases)
    }


def _engine_stats(
    times: Ints, values: dict[str, Floats], start: int, end: int, interval_ns: float
) -> EngineStats:
    part = slice(*np.searchsorted(times, (start, end)))
    inside = times[part]

    def gauge(name: str) -> Floats | None:
        figures = values[name][part]
        known = ~np.isnan(figures)
        return figures[known] if cover_of(inside[known], start, end, interval_ns).lack is None else None

    spanned = len(inside) > 1 and inside[-1] - inside[0] + interval_ns >= LEAST_COVERAGE * (end - start)
    grown = {c: increase(values[c][part]) if spanned else None for c in _COUNTERS}

    def ratio(part_: str, whole: str, factor: float = 1.0) -> float | None:
        a, b = grown[part_], grown[whole]
        return factor * a / b if a is not None and b else None

    running, waiting, kv = gauge("running"), gauge("waiting"), gauge("kv_usage")
    return EngineStats(
        n=len(inside),
        running_mean=None if running is None else float(running.mean()),
        waiting_mean=None if waiting is None else float(waiting.mean()),
        waiting_max=None if waiting is None else float(waiting.max()),
        kv_p95=None if kv is None else float(np.percentile(kv, 95)),
        preemptions=grown["preemptions_total"],
        queue_mean_ms=ratio("queue_s_sum", "queue_count", 1e3),
        prefill_mean_ms=ratio("prefill_s_sum", "queue_count", 1e3),
        decode_mean_ms=ratio("decode_s_sum", "queue_count", 1e3),
        prefix_hit_ratio=ratio("prefix_hit_tokens_total", "prefix_query_tokens_total"),
        mm_hit_ratio=ratio("mm_hits_total", "mm_queries_total"),
    )


def increase(counter: Floats) -> float | None:
    """Return how much a counter grew; one that fell began again at 0 (as in Prometheus's `increase`)."""
    known = counter[~np.isnan(counter)]
    if len(known) < 2:
        return None
    steps = np.diff(known)
    return float(np.where(steps < 0, known[1:], steps).sum())


def _windows(phases: Sequence[PhaseTimes]) -> list[tuple[int, int, int | None]]:
    """Return index, ready and end of the phases that began."""
    return [(p.index, p.ready_ns, p.end_ns) for p in phases if p.ready_ns is not None]


def _interval(times: Ints, asked_ns: float) -> float:
    """Return the time between samples: as asked, or longer where the source is slower throughout."""
    if len(times) < 2:
        return asked_ns
    return max(asked_ns, float(np.median(np.diff(times))))
