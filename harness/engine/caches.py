"""What the engine does not compute twice: leading blocks of prompts, and images already seen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """A dict of bounded size that forgets what was used longest ago."""

    def __init__(self, size: int) -> None:
        self._size, self._items = size, dict[K, V]()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: K) -> V | None:
        """Return the value and mark it as just used; None where it is unknown."""
        value = self._items.pop(key, None)
        if value is not None:
            self._items[key] = value
        return value

    def put(self, key: K, value: V) -> None:
        """Keep a value as the one just used."""
        self._items.pop(key, None)
        self._items[key] = value
        if len(self._items) > self._size:
            del self._items[next(iter(self._items))]


class PrefixCache:
    """Blocks of prompts by a hash that covers all tokens before them, so that only a prefix can match."""

    def __init__(self, tokens: int, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._blocks = Lru[int, bool](tokens // block_tokens)

    def cached_tokens(self, blocks: Sequence[int], prompt_tokens: int) -> int:
        """Return how many leading tokens are cached; at least the last one is always computed."""
        most = (prompt_tokens - 1) // self._block_tokens
        for hits, block in enumerate(blocks[:most]):
            if self._blocks.get(block) is None:
                return hits * self._block_tokens
        return min(most, len(blocks)) * self._block_tokens

    def add(self, blocks: Sequence[int]) -> None:
        """Keep the blocks of a prompt that was computed, the first of them longest."""
        for block in reversed(blocks):
            self._blocks.put(block, True)


def hash_blocks(tokens: Sequence[Hashable], block_tokens: int) -> tuple[int, ...]:
    """Return one hash per full block of tokens, each covering everything before it."""
    chain, hashes = 0, []
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        chain = hash((chain, *tokens[start : start + block_tokens]))
        hashes.append(chain)
    return tuple(hashes)
