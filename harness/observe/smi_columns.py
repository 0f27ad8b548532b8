"""The columns of an nvidia-smi log: those a header names or a log without one must hold; what a cell says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

MIB = 2.0**20
# nvidia-smi's name -> our field and the unit of a bare number
FIELDS = {
    "utilization.gpu": ("util", "%"),
    "memory.used": ("mem_used_bytes", "MiB"),
    "memory.reserved": ("mem_reserved_bytes", "MiB"),
    "memory.total": ("mem_total_bytes", "MiB"),
    "power.draw": ("power_w", "W"),
    "power.draw.average": ("power_w", "W"),
    "power.draw.instant": ("power_w", "W"),
    "clocks.sm": ("sm_mhz", "MHz"),
    "clocks.current.sm": ("sm_mhz", "MHz"),
    "temperature.gpu": ("temp_c", "C"),
}
IDENTITY = {  # the best known one names a GPU
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "pci.bus_id": "bus",
    "gpu_bus_id": "bus",
    "index": "index",
    "name": "name",
    "gpu_name": "name",
}
UNITS = {
    "%": 0.01,
    "B": 1.0,
    "KiB": 1024.0,
    "MiB": MIB,
    "MB": MIB,  # as old drivers print MiB
    "GiB": 1024 * MIB,
    "W": 1.0,
    "mW": 0.001,
    "MHz": 1.0,
    "C": 1.0,
}
DEFAULT_QUERY = ("timestamp", "utilization.gpu", "memory.used", "memory.total")

_STAMP = rb"[ \t]*\d{4}[/-]\d\d[/-]\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?[ \t]*"
_CELL = rb"[^,\r\n\x00]*+"
_STAMPED = re.compile(_STAMP)
_NUMBER = re.compile(r"\(?([+-]?\d+(?:\.\d+)?)\s*([A-Za-z%]*)\)?")


@dataclass(frozen=True)
class Schema:
    """The columns of one stretch of a log."""

    width: int
    stamp: int  # position of the timestamp
    fields: dict[int, tuple[str, str]]  # position -> our field, unit of a bare number
    identity: dict[str, int]  # uuid | bus | index | name -> position
    lines: re.Pattern[bytes] = field(compare=False)  # as many good lines as follow each other

    @staticmethod
    def of(names: list[str]) -> Schema | None:
        """Return the schema of a header (units in brackets or parentheses); None without a timestamp."""
        bare = [re.sub(r"[\[(].*", "", name).strip().lower() for name in names]
        if "timestamp" not in bare:
            return None
        fields: dict[int, tuple[str, str]] = {}
        for at, name in enumerate(bare):
            ours, unit = FIELDS.get(name, ("", ""))
            if ours and ours not in [f for f, _ in fields.values()]:
                given = re.search(r"[\[(]\s*([A-Za-z%]+)\s*[\])]", names[at])
                fields[at] = (ours, given[1] if given and given[1] in UNITS else unit)
        stamp = bare.index("timestamp")
        cells = [_STAMP if at == stamp else _CELL for at in range(len(names))]
        return Schema(
            width=len(names),
            stamp=stamp,
            fields=fields,
            identity={IDENTITY[name]: at for at, name in enumerate(bare) if name in IDENTITY},
            lines=re.compile(rb"(?:" + b",".join(cells) + rb"\r?\n)*+"),
        )

    def fits(self, block: bytes) -> bool:
        """Return whether each line of a block (whole lines) has these columns."""
        match = self.lines.match(block)
        return match is not None and match.end() == len(block)


def is_stamp(cell: str) -> bool:
    """Return whether a cell is a timestamp as nvidia-smi writes it."""
    return _STAMPED.fullmatch(cell.encode()) is not None


def guess(cells: list[str]) -> Schema | None:
    """Return the schema of a first line without a header: the usual query, or what units and UUIDs tell."""
    if len(cells) == len(DEFAULT_QUERY):
        return Schema.of(list(DEFAULT_QUERY))
    left = {"%": ["utilization.gpu"], "MiB": ["memory.used", "memory.total"], "W": ["power.draw"]}
    names = []
    for cell in cells:
        unit = cell.rpartition(" ")[2]
        if is_stamp(cell):
            names.append("timestamp")
        elif re.match(r"(GPU|MIG)-", cell):
            names.append("uuid")
        else:
            names.append(left[unit].pop(0) if left.get(unit) else "unknown")
    return Schema.of(names) if "utilization.gpu" in names or "memory.used" in names else None


def read_value(text: str, unit: str) -> tuple[float, str]:
    """Return a cell's value in our unit, or NaN and the reason why it is missing."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or (match[2] and match[2] not in UNITS):
        return np.nan, text.strip().strip("[]() ") or "empty"
    value, unit = float(match[1]), match[2] or unit
    if (value < 0 and unit != "C") or (value > 100 and unit == "%"):
        return np.nan, "out of range"
    return value * UNITS[unit], ""
