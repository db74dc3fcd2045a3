"""The events of a cache: blocks stored, blocks removed, and the cache cleared.

A cache keeps them only where somebody has asked (``keep_events``), and then until they are taken. A call
notes what it has at hand, so that noting takes no memory that could fail (X2); events are made when taken.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from pymllm.mem_cache.base_prefix_cache import Namespace
from pymllm.mem_cache.tree.token_encoding import BYTES_PER_ID, decode_tokens

BlockHash: TypeAlias = str | int
"""The hash of a block: hex digits for a tree's page (H2), a number for an allocator's block (C3)."""


class Part(enum.StrEnum):
    """The part of a block's memory that an event is about."""

    KV = "kv"
    """The keys and values of layers that see all tokens."""
    WINDOW = "window"
    """The keys and values of layers with a sliding window."""
    STATE = "state"
    """The recurrent state after the block's last token."""


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks that are cached from now on, each the child of the one before.

    Attributes
    ----------
    part : Part
        Which of their memory came.
    hashes : tuple of str or int
        One for each block.
    parent : str or int or None
        The block before the first; ``None`` where that begins a prompt.
    tokens : tuple or None
        Those of all blocks, as they were given; ``None`` where a cache knows hashes alone.
    block_size : int
        Tokens of each.
    namespace : Namespace
        That of the prompt.
    """

    part: Part
    hashes: tuple[BlockHash, ...]
    parent: BlockHash | None
    tokens: tuple[Any, ...] | None
    block_size: int
    namespace: Namespace = None


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks that lost a part of their memory, or all of it."""

    part: Part
    hashes: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class AllCleared:
    """The removal of everything that was cached."""


CacheEvent: TypeAlias = BlocksStored | BlocksRemoved | AllCleared


class EventLog:
    """The events of a cache since they were last taken, in order; the first is always `AllCleared`.

    ``block_size``: tokens of a block. Its user takes the events from time to time; until then all are kept.
    Noting an event is O(1), whatever the size of a node.
    """

    __slots__ = ("_noted", "block_size", "pages")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.pages: dict[int, bytes] = {}
        """The tokens of an allocator's blocks, by block, where they are known."""
        self._noted: list[tuple[Any, ...]] = [()]

    def store(
        self,
        part: Part,
        hashes: Sequence[BlockHash],
        parent: BlockHash | None,
        raw: bytes | None,
        namespace: Namespace = None,
    ) -> None:
        """Record a run of blocks that are now cached, or the last of which now has a state.

        ``raw``: their tokens, encoded.
        """
        self._noted.append((part, hashes, parent, raw, namespace))

    def remove(self, part: Part, hashes: Sequence[BlockHash]) -> None:
        """Record a run of blocks that are no longer cached, or the last of which no longer has a state."""
        self._noted.append((part, hashes))

    def clear(self) -> None:
        """Record that nothing is cached, and drop all earlier events."""
        self._noted.clear()
        self._noted.append(())

    def take(self) -> list[CacheEvent]:
        """Return the events since the last call, oldest first. Cost: O(tokens told)."""
        events = [self._event(noted) for noted in self._noted]
        self._noted.clear()
        return events

    def _event(self, noted: tuple[Any, ...]) -> CacheEvent:
        if not noted:
            return AllCleared()
        part, hashes, *stored = noted
        first = len(hashes) - 1 if part is Part.STATE else 0
        own = tuple(hashes[first:])
        if not stored:
            return BlocksRemoved(part, own)
        parent, raw, namespace = stored
        if first:
            parent = hashes[first - 1]
        size = self.block_size
        tokens = None if raw is None else _tokens(raw, len(hashes) * size)[first * size :]
        return BlocksStored(part, own, parent, tokens, size, namespace)


def _tokens(raw: bytes, count: int) -> tuple[Any, ...]:
    width = len(raw) // (count * BYTES_PER_ID)
    ids: np.ndarray = decode_tokens(raw, width)
    return tuple(ids.tolist()) if width == 1 else tuple(map(tuple, ids.tolist()))
