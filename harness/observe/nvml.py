"""GPUs through NVML, the driver's own library.

What can go wrong belongs to one field, one GPU or the whole driver, and costs no more than that: a field that
the GPU or our rights do not allow is switched off with its reason; an unknown error is tried again later; a
GPU that is lost, and a driver that is reloaded, are looked for again after some seconds by a fresh start of
the library. Meanwhile each known GPU keeps its row per tick, with every field missing and the reason, so that
the gap is declared. Utilization is the mean of the driver's own samples since the last reading (a single
reading covers only the last 1/6-1 s); where the driver keeps none, it is that single reading.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.observe.clocks import Clocks
from harness.records import GpuSample

REASONS = {
    2: "not supported here",
    3: "not supported",
    4: "no permission",
    9: "NVIDIA driver not loaded",
    12: "libnvidia-ml.so.1 not found: no NVIDIA driver on this host",
    13: "this driver lacks the function",
    15: "GPU is lost",
    16: "GPU requires reset",
    18: "driver and NVML library versions differ: reboot or reload the driver",
    25: "this driver lacks the function",
    999: "unknown NVML error",
}
FIELD_OFF = frozenset({2, 3, 4})
NEXT_WAY = frozenset({13, 25})  # the function is missing, or its structure is of another version
GPU_GONE = frozenset({15, 16})
DRIVER_GONE = frozenset({1, 9, 12, 18})
THROTTLE = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}
Way = Callable[[Any, "_Device"], dict[str, Any]]


@dataclass(slots=True)
class _Device:
    """One GPU or MIG instance and what was learnt about its fields."""

    handle: Any
    uuid: str
    index: int
    name: str
    way: dict[str, int] = field(default_factory=dict)  # group -> which of its functions works
    off: dict[str, tuple[str, float]] = field(default_factory=dict)  # group -> reason, until (mono s)
    fails: dict[str, int] = field(default_factory=dict)
    util_seen_us: int = 0
    gone: str | None = None


def _util_samples(nvml: Any, device: _Device) -> dict[str, Any]:
    try:
        _, samples = nvml.nvmlDeviceGetSamples(
            device.handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, device.util_seen_us
        )
    except nvml.NVMLError as error:
        if error.value != 6:  # NOT_FOUND: an idle GPU's buffer
            raise
        samples = []
    fresh = [s for s in samples if s.timeStamp > device.util_seen_us]
    first = device.util_seen_us == 0
    device.util_seen_us = max((s.timeStamp for s in fresh), default=device.util_seen_us)
    if first or not fresh:  # the first buffer reaches back beyond this reading
        return _util_rates(nvml, device)
    return {"util": sum(s.sampleValue.uiVal for s in fresh) / len(fresh) / 100}


def _util_rates(nvml: Any, device: _Device) -> dict[str, Any]:
    return {"util": nvml.nvmlDeviceGetUtilizationRates(device.handle).gpu / 100}


def _memory_v2(nvml: Any, device: _Device) -> dict[str, Any]:
    memory = nvml.nvmlDeviceGetMemoryInfo(device.handle, version=nvml.nvmlMemory_v2)
    return {
        "mem_used_bytes": memory.used,
        "mem_reserved_bytes": memory.reserved,
        "mem_total_bytes": memory.total,
        "mem_api": "v2",
    }


def _memory_v1(nvml: Any, device: _Device) -> dict[str, Any]:
    memory = nvml.nvmlDeviceGetMemoryInfo(device.handle)
    return {"mem_used_bytes": memory.used, "mem_total_bytes": memory.total, "mem_api": "v1"}


def _throttle(name: str) -> Way:
    def read(nvml: Any, device: _Device) -> dict[str, Any]:
        mask = getattr(nvml, name)(device.handle)
        return {"throttle": [word for bit, word in THROTTLE.items() if mask & bit]}

    return read


# fields that one call gives -> the ways to ask for them, newest first
GROUPS: dict[tuple[str, ...], tuple[Way, ...]] = {
    ("util",): (_util_samples, _util_rates),
    ("mem_used_bytes", "mem_reserved_bytes", "mem_total_bytes"): (_memory_v2, _memory_v1),
    ("power_w",): (lambda n, d: {"power_w": n.nvmlDeviceGetPowerUsage(d.handle) / 1000},),
    ("energy_j",): (lambda n, d: {"energy_j": n.nvmlDeviceGetTotalEnergyConsumption(d.handle) / 1000},),
    ("sm_mhz",): (lambda n, d: {"sm_mhz": n.nvmlDeviceGetClockInfo(d.handle, n.NVML_CLOCK_SM)},),
    ("temp_c",): (
        lambda n, d: {"temp_c": n.nvmlDeviceGetTemperatureV(d.handle, n.NVML_TEMPERATURE_GPU)},
        lambda n, d: {"temp_c": n.nvmlDeviceGetTemperature(d.handle, n.NVML_TEMPERATURE_GPU)},
    ),
    ("throttle",): (
        _throttle("nvmlDeviceGetCurrentClocksEventReasons"),
        _throttle("nvmlDeviceGetCurrentClocksThrottleReasons"),
    ),
}
ALL_FIELDS = tuple(name for names in GROUPS for name in names)


class _GoneError(Exception):
    """A GPU, or with `driver` all of them, stopped answering."""

    def __init__(self, reason: str, *, driver: bool) -> None:
        super().__init__(reason)
        self.driver = driver


class NvmlSource:
    """Rows of this host's GPUs; `ready` tells whether the library answers."""

    def __init__(self, host: str, clocks: Clocks, retry_s: float = 5.0) -> None:
        self._host, self._clocks, self._retry_s = host, clocks, retry_s
        self._nvml: Any = None
        self._devices: dict[str, _Device] = {}  # by UUID, in NVML's order; kept while a GPU is gone
        self._retry_at, self._wait_s = 0.0, retry_s
        self.ready, self.words = False, ""
        self._open()

    def read(self) -> list[GpuSample]:
        """Return one row per GPU ever seen; a GPU that is gone has a row that says so."""
        if self._clocks.mono_ns() / 1e9 >= self._retry_at and (
            not self.ready or any(d.gone for d in self._devices.values())
        ):
            self._open()
        return [self._row(device) for device in self._devices.values()]

    def close(self) -> None:
        """Shut the library down; only after the last read has returned (a race here ends the process)."""
        if self._nvml is not None and self.ready:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
        self.ready = False

    def _open(self) -> None:
        """Start the library and look for GPUs; what fails is in `words` and tried again later."""
        self.close()
        self._retry_at = self._clocks.mono_ns() / 1e9 + self._wait_s
        self._wait_s = min(2 * self._wait_s, 60.0)  # a start may take a second: rarer while it does not help
        for device in self._devices.values():
            device.gone = device.gone or "GPU is lost"
        try:
            import pynvml
        except ImportError:
            self.words = "none: the package nvidia-ml-py is not installed"
            return
        if not hasattr(pynvml, "nvmlMemory_v2"):
            self.words = "none: an old package `pynvml` hides nvidia-ml-py; uninstall it"
            return
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self.ready = True
            found = [d for i in range(pynvml.nvmlDeviceGetCount()) for d in self._look(i)]
        except pynvml.NVMLError as error:
            self._lost_driver(_reason(error))
            return
        self._devices.update((d.uuid, d) for d in found)
        if not any(d.gone for d in self._devices.values()):
            self._wait_s = self._retry_s
        parts = len(found) - len({d.index for d in found})
        mig = f", {parts} MIG instances" if parts else ""
        self.words = f"NVML: {len(found) - parts} GPU(s){mig}" if found else "none: NVML sees no GPU"

    def _look(self, index: int) -> list[_Device]:
        """Return the GPU at an index and its MIG instances; nothing where it does not answer."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            devices = [_Device(handle, nvml.nvmlDeviceGetUUID(handle), index, nvml.nvmlDeviceGetName(handle))]
        except nvml.NVMLError:
            return []
        try:
            if nvml.nvmlDeviceGetMigMode(handle)[0]:
                for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                    mig = self._mig(handle, slot)
                    if mig is not None:
                        devices.append(
                            _Device(mig, nvml.nvmlDeviceGetUUID(mig), index, nvml.nvmlDeviceGetName(mig))
                        )
        except nvml.NVMLError:
            pass  # no MIG on this GPU or driver
        return devices

    def _mig(self, handle: Any, slot: int) -> Any:
        try:
            return self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except self._nvml.NVMLError:
            return None  # an empty slot

    def _row(self, device: _Device) -> GpuSample:
        before, wall = self._clocks.mono_ns(), self._clocks.wall_ns()
        values: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for group, ways in GROUPS.items():
            if device.gone:
                break
            try:
                values |= self._ask(device, group, ways, before / 1e9)
            except _GoneError as gone:
                values, device.gone = {}, str(gone)
                if gone.driver:
                    self._lost_driver(str(gone))
        for name in ALL_FIELDS:
            if values.get(name) is None:
                group = next(g for g in GROUPS if name in g)
                missing[name] = device.gone or device.off.get(group[0], ("not given by this driver", 0.0))[0]
        return GpuSample(
            seq=0,
            host=self._host,
            gpu=device.uuid,
            index=device.index,
            name=device.name,
            mono_ns=before,
            mono_end_ns=self._clocks.mono_ns(),
            wall_ns=wall,
            source="nvml",
            missing=missing,
            **values,
        )

    def _ask(
        self, device: _Device, group: tuple[str, ...], ways: tuple[Way, ...], now: float
    ) -> dict[str, Any]:
        """Return what one group of fields reads; {} where it is off, and then `device.off` has the reason."""
        key = group[0]
        if now < device.off.get(key, ("", 0.0))[1]:
            return {}
        nvml = self._nvml
        for number in range(device.way.get(key, 0), len(ways)):
            try:
                values = ways[number](nvml, device)
            except nvml.NVMLError as error:
                code = error.value
                if code in DRIVER_GONE or code in GPU_GONE:
                    raise _GoneError(_reason(error), driver=code in DRIVER_GONE) from None
                if number + 1 < len(ways) and (code in NEXT_WAY or code in FIELD_OFF):
                    device.way[key] = number + 1
                    continue
                device.fails[key] = device.fails.get(key, 0) + 1
                rest = float("inf") if code in FIELD_OFF | NEXT_WAY else min(2 ** device.fails[key], 60)
                device.off[key] = (_reason(error), now + rest)
                return {}
            device.way[key] = number
            device.off.pop(key, None)
            device.fails.pop(key, None)
            return _checked(values, device, key)
        return {}

    def _lost_driver(self, reason: str) -> None:
        self.words = f"none: {reason}"
        for device in self._devices.values():
            device.gone = device.gone or reason
        self.close()


def _checked(values: dict[str, Any], device: _Device, key: str) -> dict[str, Any]:
    """Turn readings that stand for "unknown" into missing ones: a total of 0 is unified memory."""
    if key == "mem_used_bytes" and not values["mem_total_bytes"]:
        device.off[key] = ("unified memory: the GPU has none of its own", 0.0)
        return {}
    if key == "util" and not 0 <= values["util"] <= 1:
        device.off[key] = ("reading out of range", 0.0)
        return {}
    return values


def _reason(error: Any) -> str:
    return REASONS.get(error.value, str(error))
