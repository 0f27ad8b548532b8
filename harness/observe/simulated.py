"""The GPU of the simulated engine, read from its `/sim/gpu`; every row says that it is simulated."""

from __future__ import annotations

import msgspec

from harness.observe.clocks import Clocks
from harness.observe.fetch import FetchError, Getter
from harness.records import GpuSample


class _Reading(msgspec.Struct):
    """What the simulated engine answers for one GPU."""

    uuid: str
    index: int | None = None
    name: str | None = None
    util: float | None = None
    mem_used_bytes: int | None = None
    mem_total_bytes: int | None = None
    power_w: float | None = None
    energy_j: float | None = None


_FIELDS = (
    "util",
    "mem_used_bytes",
    "mem_reserved_bytes",
    "mem_total_bytes",
    "power_w",
    "energy_j",
    "sm_mhz",
    "temp_c",
    "throttle",
)
_decoder = msgspec.json.Decoder(_Reading | list[_Reading])


class SimulatedSource:
    """Rows of a simulated engine at the getter's address."""

    def __init__(self, getter: Getter, host: str, clocks: Clocks) -> None:
        self._getter, self._host, self._clocks = getter, host, clocks
        self.words = f"simulated GPU of {getter.url}"

    def read(self) -> list[GpuSample]:
        """Return one row per simulated GPU; none while the engine does not answer."""
        before, wall = self._clocks.mono_ns(), self._clocks.wall_ns()
        try:
            answer = _decoder.decode(self._getter.get("/sim/gpu"))
        except (FetchError, msgspec.DecodeError):
            return []
        after = self._clocks.mono_ns()
        return [
            GpuSample(
                seq=0,
                host=self._host,
                gpu=r.uuid,
                index=r.index,
                name=r.name,
                mono_ns=before,
                mono_end_ns=after,
                wall_ns=wall,
                util=r.util,
                mem_used_bytes=r.mem_used_bytes,
                mem_total_bytes=r.mem_total_bytes,
                mem_api="sim",
                power_w=r.power_w,
                energy_j=r.energy_j,
                source="sim",
                missing={name: "not simulated" for name in _FIELDS if getattr(r, name, None) is None},
            )
            for r in (answer if isinstance(answer, list) else [answer])
        ]

    def close(self) -> None:
        """Close the connection."""
        self._getter.close()
