"""Work before the queue: what an image costs, how many tokens it becomes, and whose turn it is on the CPU."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence

from harness.engine.caches import Lru
from harness.engine.config import EngineConfig, Preprocess

Size = tuple[int, int]  # width, height in pixels


def visual_tokens(size: Size, patch_px: int) -> int:
    """Return the tokens an image becomes: one per patch begun (Qwen2-VL's merged patches are 28 px)."""
    return -(-size[0] // patch_px) * -(-size[1] // patch_px)


def encoder_tokens(size: Size, config: EngineConfig) -> int:
    """Return the encoder's work on one image, in visual tokens: more than it has where it is tiled."""
    tokens, cost = visual_tokens(size, config.patch_px), config.prefill
    if cost.large_side is None or max(size) <= cost.large_side:
        return tokens
    return round(cost.large_factor * tokens)


def image_cost_ms(size: Size, cost: Preprocess) -> float:
    """Return the CPU time of decoding and resizing one image."""
    return cost.image_ms + cost.mpixel_ms * size[0] * size[1] / 1e6


class CpuPool:
    """A few CPU workers that take images in order of arrival."""

    def __init__(self, workers: int) -> None:
        self._free_at = [0.0] * workers

    def reserve(self, now: float, seconds: float) -> float:
        """Take the next free worker for so long; returns when the work will be done."""
        end = max(now, self._free_at[0]) + seconds
        heapq.heapreplace(self._free_at, end)
        return end


class Preprocessor:
    """CPU workers and the cache of images already preprocessed."""

    def __init__(self, config: EngineConfig) -> None:
        self._config, self._pool = config, CpuPool(config.preprocess.workers)
        self._seen = Lru[Hashable, Size](max(config.caches.image_items, 1))
        self.queries = self.hits = 0

    def lookup(self, key: Hashable) -> Size | None:
        """Return the size of an image that is in the cache, and count the question."""
        if not self._config.caches.images:
            return None
        self.queries += 1
        size = self._seen.get(key)
        self.hits += size is not None
        return size

    def ready_at(self, now: float, new_images: Sequence[tuple[Hashable, Size]]) -> float:
        """Return when a request that arrives now is ready for the queue; its new images enter the cache."""
        cost = self._config.preprocess
        arrived = now + cost.request_ms / 1e3
        if not new_images:
            return arrived
        for key, size in new_images:
            self._seen.put(key, size)
        return self._pool.reserve(arrived, sum(image_cost_ms(size, cost) for _, size in new_images) / 1e3)
