"""GPUs as dcgm-exporter publishes them.

The exporter refreshes every 30 s unless told otherwise (`--collect-interval`): reading faster repeats values.
Its blank sentinels (near 9.2e18, for 32-bit fields near 2^31) are missing values that leak through.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.observe.clocks import Clocks
from harness.observe.fetch import FetchError, Getter
from harness.observe.metrics_text import read_values
from harness.records import GpuSample

MIB = 2**20
# field -> (name, factor to our unit); the first name that is exported for a GPU is taken
FIELDS: dict[str, tuple[tuple[str, float], ...]] = {
    "util": (("DCGM_FI_DEV_GPU_UTIL", 0.01), ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0)),
    "used": (("DCGM_FI_DEV_FB_USED", MIB),),
    "free": (("DCGM_FI_DEV_FB_FREE", MIB),),
    "reserved": (("DCGM_FI_DEV_FB_RESERVED", MIB),),
    "total": (("DCGM_FI_DEV_FB_TOTAL", MIB),),
    "power_w": (("DCGM_FI_DEV_POWER_USAGE", 1.0),),
    "energy_j": (("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 0.001),),
    "sm_mhz": (("DCGM_FI_DEV_SM_CLOCK", 1.0),),
    "temp_c": (("DCGM_FI_DEV_GPU_TEMP", 1.0),),
}
_NAMES = frozenset(name for choices in FIELDS.values() for name, _ in choices)
_MEMORY = ("mem_used_bytes", "mem_reserved_bytes", "mem_total_bytes")
_BLANK_INT64 = 9.2e18  # and above: blank, not found, not supported, no permission
_BLANK_INT32 = 0x7FFFFFF0


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU, or MIG instance, of an exporter's text; `values` holds only what is known, in our units."""

    gpu: str | None
    index: int | None
    name: str | None
    values: dict[str, float] = field(default_factory=dict)


def parse(text: bytes) -> list[Reading]:
    """Return the GPUs of an exporter's text, blank values left out."""
    gpus: dict[str, Reading] = {}
    found = read_values(text, _NAMES)
    for name, choices in FIELDS.items():
        for metric, factor in reversed(choices):  # the first choice is written last
            for labels, value in found.get(metric, []):
                reading = _reading(gpus, dict(labels))
                if not (value >= _BLANK_INT64 or _BLANK_INT32 <= value < _BLANK_INT32 + 16):
                    reading.values[name] = value * factor
    return list(gpus.values())


def _reading(gpus: dict[str, Reading], tags: dict[str, str]) -> Reading:
    uuid, instance, index = tags.get("UUID") or tags.get("uuid"), tags.get("GPU_I_ID"), tags.get("gpu", "")
    gpu = f"{uuid}/{instance}" if uuid and instance else uuid
    key = gpu or f"{index}/{instance}"
    if key not in gpus:
        gpus[key] = Reading(gpu, int(index) if index.isdigit() else None, tags.get("modelName"))
    return gpus[key]


class DcgmSource:
    """Rows of a dcgm-exporter at the getter's address."""

    def __init__(self, getter: Getter, host: str, clocks: Clocks) -> None:
        self._getter, self._host, self._clocks = getter, host, clocks
        self._path = getter.path if getter.path.endswith("/metrics") else f"{getter.path}/metrics"
        self.words = f"dcgm-exporter at {getter.url}"

    def read(self) -> list[GpuSample]:
        """Return one row per GPU; none while the exporter does not answer."""
        before, wall = self._clocks.mono_ns(), self._clocks.wall_ns()
        try:
            gpus = parse(self._getter.get(self._path))
        except FetchError:
            return []
        after = self._clocks.mono_ns()
        return [_sample(gpu, self._host, before, after, wall) for gpu in gpus]

    def close(self) -> None:
        """Close the connection."""
        self._getter.close()


def _sample(reading: Reading, host: str, before: int, after: int, wall: int) -> GpuSample:
    known = reading.values
    used, total = known.get("used"), known.get("total")
    if total is None and used is not None and "free" in known:
        total = used + known["free"] + known.get("reserved", 0.0)
    memory = (used, known.get("reserved"), total) if total else (None, None, None)  # 0: unified memory
    values: dict[str, Any] = {
        **{name: known.get(name) for name in ("util", "power_w", "energy_j", "sm_mhz", "temp_c")},
        **{name: None if value is None else int(value) for name, value in zip(_MEMORY, memory, strict=True)},
    }
    return GpuSample(
        seq=0,
        host=host,
        gpu=reading.gpu,
        index=reading.index,
        name=reading.name,
        mono_ns=before,
        mono_end_ns=after,
        wall_ns=wall,
        mem_api="dcgm",
        source="dcgm",
        missing={"throttle": "not exported"} | {n: "not exported" for n, v in values.items() if v is None},
        **values,
    )
