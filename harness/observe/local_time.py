"""Local stamps without a zone to UTC, through the autumn hour that a clock shows twice.

Inside that hour the step back by an hour in the file tells its first pass from its second. Where there is
none (the log begins or ends inside), the side on which the log goes on without a hole tells; where neither
does, the log is refused rather than moved by an hour.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from harness.errors import UserError

Ints = npt.NDArray[np.int64]
QUARTER_US = 15 * 60 * 1_000_000  # zones change at quarter hours
_EPOCH = datetime(1970, 1, 1)


def zone_named(name: str, key: str) -> ZoneInfo:
    """Return the zone of an IANA name; UserError for another one."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise UserError(f"unknown time zone {name!r}", key=key, remedy="as in Europe/Berlin or UTC") from None


def to_utc(local_us: Ints, zone: ZoneInfo, key: str) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return UTC microseconds of local ones in file order, and which exist (the spring hour does not)."""
    quarter = (local_us // QUARTER_US).astype(np.int32)
    known = np.unique(quarter)
    offsets = np.array([_offsets_s(int(q), zone) for q in known], dtype=np.int32).reshape(-1, 2)
    where = np.searchsorted(known, quarter)
    first, second = offsets[where, 0], offsets[where, 1]
    del where, quarter  # a log may have millions of rows
    late = np.zeros(len(local_us), dtype=bool)
    twice = first > second
    edges = np.flatnonzero(np.diff(twice.astype(np.int8), prepend=0, append=0))
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        late[start:end] = _second_pass(
            local_us, int(start), int(end), 1_000_000 * int(first[start] - second[start]), zone, key
        )
    return local_us - 1_000_000 * np.where(late, second, first).astype(np.int64), first >= second


def _offsets_s(quarter: int, zone: ZoneInfo) -> list[int]:
    """Return the zone's offsets in a quarter hour of local time, for its first and second pass."""
    moment = (_EPOCH + timedelta(microseconds=quarter * QUARTER_US)).replace(tzinfo=zone)
    passes = (moment.utcoffset(), moment.replace(fold=1).utcoffset())
    return [int((offset or timedelta()).total_seconds()) for offset in passes]


def _second_pass(
    local_us: Ints, start: int, end: int, shift_us: int, zone: ZoneInfo, key: str
) -> npt.NDArray[np.bool_]:
    """Return which rows of [start, end), all inside a repeated hour, belong to its second pass."""
    inside = local_us[start:end]
    back = np.flatnonzero(np.diff(inside) < -shift_us // 2) + 1
    if len(back) == 1:
        late: npt.NDArray[np.bool_] = np.arange(len(inside)) >= back[0]
        return late
    goes_in = start > 0 and abs(local_us[start] - local_us[start - 1]) < shift_us // 2
    goes_out = end < len(local_us) and abs(local_us[end] - local_us[end - 1]) < shift_us // 2
    if len(back) or goes_in == goes_out:
        moment = _EPOCH + timedelta(microseconds=int(inside[0]))
        raise UserError(
            f"the hour of {moment:%Y-%m-%d %H:%M} came twice in {zone.key}; the log does not tell which",
            key=key,
            remedy="give a log that runs through the change, or one whose clock is UTC",
        )
    return np.full(len(inside), goes_out)


def utc_text(us: int) -> str:
    """Return UTC microseconds as ISO 8601 with milliseconds and Z."""
    moment = datetime.fromtimestamp(us / 1e6, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
