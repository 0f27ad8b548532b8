"""The simulated GPU: busy while a step runs, memory of weights and KV cache. Always named as simulated."""

from __future__ import annotations

from collections import deque

import msgspec

from harness.engine.config import EngineConfig

GPU_NAME = "Simulated GPU"


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated GPU at one moment; util is the busy share of the last second, 0-1."""

    uuid: str
    index: int = 0
    name: str = GPU_NAME
    simulated: bool = True
    util: float
    mem_used_bytes: int
    mem_total_bytes: int
    power_w: float
    energy_j: float


class SimulatedGpu:
    """Remembers when steps ran."""

    def __init__(self, config: EngineConfig) -> None:
        self._config, self._busy = config.gpu, deque[tuple[float, float]]()
        self._kv_bytes = config.kv.tokens * config.gpu.kv_token_bytes
        self._begun: float | None = None
        self._busy_s = 0.0  # in all, steps under way included

    def ran(self, start: float, end: float) -> None:
        """Note that a step runs from `start` to `end`; steps come in order and do not overlap."""
        self._begun = start if self._begun is None else self._begun
        self._busy_s += end - start
        while self._busy and self._busy[0][1] < start - 1:
            self._busy.popleft()
        if self._busy and start <= self._busy[-1][1]:
            self._busy[-1] = (self._busy[-1][0], end)
        else:
            self._busy.append((start, end))

    def read(self, now: float, kv_usage: float) -> GpuReading:
        """Return what a reading at `now` shows."""
        gpu = self._config
        util = sum(max(0.0, min(end, now) - max(start, now - 1)) for start, end in self._busy)
        idle_s = now - self._begun if self._begun is not None else 0.0
        used = self._kv_bytes * (1.0 if gpu.preallocate else kv_usage)
        return GpuReading(
            uuid=gpu.uuid,
            util=round(min(util, 1.0), 4),
            mem_used_bytes=min(gpu.weights_bytes + int(used), gpu.memory_bytes),
            mem_total_bytes=gpu.memory_bytes,
            power_w=round(gpu.idle_w + (gpu.busy_w - gpu.idle_w) * min(util, 1.0), 1),
            energy_j=round(gpu.idle_w * idle_s + (gpu.busy_w - gpu.idle_w) * self._busy_s, 1),
        )
