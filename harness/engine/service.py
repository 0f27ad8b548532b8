"""The engine in real time: one task steps the scheduler, one mailbox per request hands its tokens over.

Steps are paced on absolute deadlines: where the host is late (a busy core, image decoding), the next step
begins when the last one should have ended, for the GPU that is simulated here would have worked on meanwhile.
So the engine's capacity does not depend on the machine that simulates it.
"""

from __future__ import annotations

import asyncio

from harness.engine.config import EngineConfig
from harness.engine.gpu import GpuReading, SimulatedGpu
from harness.engine.preprocess import Preprocessor
from harness.engine.scheduler import Job, Refusal, Scheduler, Step

_CATCH_UP_S = 0.25  # a host that was away for longer than this has lost the time


class Mailbox:
    """What has become of one request, and the alarm for whoever waits for it."""

    __slots__ = ("_news", "expired", "finished", "gone", "tokens")

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self.tokens = 0
        self.finished = self.expired = False
        self.gone = False  # the client has left

    def ring(self) -> None:
        """Wake the reader."""
        self._news.set()

    async def news(self) -> None:
        """Wait until something has happened since the last call."""
        await self._news.wait()
        self._news.clear()


class EngineService:
    """Scheduler, CPU workers and GPU of one engine; `run` must be running while it serves."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.preprocessor = Preprocessor(config)
        self._gpu = SimulatedGpu(config)
        self._work = asyncio.Event()

    def submit(self, job: Job) -> Refusal | None:
        """Queue a job whose owner is a Mailbox; returns why it is refused."""
        refused = self.scheduler.submit(job, asyncio.get_running_loop().time())
        self._work.set()
        return refused

    def cancel(self, job: Job) -> None:
        """Drop a job whose client has gone."""
        self.scheduler.cancel(job)

    def read_gpu(self) -> GpuReading:
        """Return what the simulated GPU shows now."""
        return self._gpu.read(asyncio.get_running_loop().time(), self.scheduler.kv_usage)

    async def run(self) -> None:
        """Step the scheduler for ever."""
        clock = asyncio.get_running_loop().time
        now = clock()
        while True:
            self._work.clear()
            step = self.scheduler.step(now)
            if step is None and now < clock() - 1e-4:
                now = clock()  # idle at a moment that is past: what came since is to be seen
                continue
            if step is None:
                await self._work.wait()
                now = clock()
                continue
            end = now + step.duration_s
            if step.duration_s:
                self._gpu.ran(now, end)
            await asyncio.sleep(max(end - clock(), 0.0))
            _deliver(step)
            now = max(end, clock() - _CATCH_UP_S)


def _deliver(step: Step) -> None:
    for job in step.tokens:
        job.owner.tokens += 1
    for job in step.finished:
        job.owner.finished = True
    for job in step.expired:
        job.owner.expired = True
    for job in (*step.tokens, *step.expired):
        job.owner.ring()
