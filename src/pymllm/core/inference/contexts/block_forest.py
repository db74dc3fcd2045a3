"""The registered blocks as a forest: who is whose parent, what may be evicted, and what goes first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np
from numpy.typing import NDArray

NO_BLOCK: Final = -1


class BlockForest:
    """Keep the registered blocks and find the least recent one that may go, without a scan.

    A block is *active* if it is referenced or a registered block below it is. What is not active may be
    evicted, children first; a block without children is then a *leaf* and can go at once. ``ref_counts``:
    shape ``(blocks,)``, references to each block; the owner changes it and then says so with `activate` and
    `deactivate`. ``timestamps``: shape ``(blocks,)``, last use of each block; the owner says so with
    `restamp` where one was lowered. ``parents``: shape ``(blocks,)``, int32: the parent of each registered
    block, -1 for a first block and for blocks that are not registered. Activity is counted child by child: a
    parent knows how many of its children are active, so a change climbs only while it changes something, and
    taking or giving back a whole path costs O(1) per block. Leaves wait in a heap by (timestamp, id). A stamp
    only ever rises while a leaf waits, so it is read again when the leaf comes up, and raising it costs
    nothing. Laws: C1, X3.
    """

    def __init__(self, ref_counts: NDArray[np.int32], timestamps: NDArray[np.int64]) -> None:
        self._ref_counts = ref_counts
        self._timestamps = timestamps
        self.parents: NDArray[np.int32] = np.empty(ref_counts.size, np.int32)
        self.clear()

    def clear(self) -> None:
        """Forget every block."""
        self.parents[:] = NO_BLOCK
        self._idle: set[int] = set()
        # Only registered blocks have an entry. The children are a dict for its order, the same in every run.
        self._children: dict[int, dict[int, None]] = {}
        self._active_children: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self._queued_at: dict[int, int] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._children

    def add(self, block: int, parent: int) -> None:
        """Register a referenced block below ``parent``, a registered block or -1."""
        self._children[block] = {}
        self._active_children[block] = 0
        self.parents[block] = parent
        if parent >= 0:
            self._children[parent][block] = None
            self._active_children[parent] += 1
            self.activate(parent)

    @property
    def evictable(self) -> int:
        """Count the registered blocks that are not active."""
        return len(self._idle)

    def activate(self, block: int) -> None:
        """Take note that a registered block is referenced."""
        while block in self._idle:
            self._idle.remove(block)
            self._queued_at.pop(block, None)
            block = int(self.parents[block])
            if block < 0:
                return
            self._active_children[block] += 1

    def deactivate(self, block: int) -> None:
        """Take note that a registered block has no reference any more."""
        # Of blocks that lose their references together, the lower may have reached the upper already.
        while not (block in self._idle or self._ref_counts[block] or self._active_children[block]):
            self._idle.add(block)
            self._queue_leaf(block)
            block = int(self.parents[block])
            if block < 0:
                return
            self._active_children[block] -= 1

    def restamp(self, block: int) -> None:
        """Take note that the stamp of a block was lowered."""
        if block in self._queued_at:
            self._queue_leaf(block)

    def pop_oldest(self) -> int:
        """Remove and return the leaf with the oldest stamp, the lowest id among equals.

        Cost: O(log leaves), plus the same for each leaf that was stamped since it began to wait.
        """
        while True:
            stamp, block = heappop(self._heap)
            if self._queued_at.get(block) != stamp:
                continue  # it left, or a lower stamp of it came up before
            if self._timestamps[block] == stamp:
                break
            del self._queued_at[block]
            self._queue_leaf(block)
        self._remove_leaf(block)
        return block

    def _remove_leaf(self, block: int) -> None:
        parent = int(self.parents[block])
        self._forget(block)
        if parent >= 0:
            del self._children[parent][block]
            self._queue_leaf(parent)

    def remove_subtree(self, block: int) -> list[int]:
        """Remove a block with everything below it, referenced or not.

        Cost: O(removed).
        """
        parent = int(self.parents[block])
        if parent >= 0:
            del self._children[parent][block]
            if block not in self._idle:
                self._active_children[parent] -= 1
                self.deactivate(parent)
            else:
                self._queue_leaf(parent)
        removed = [block]
        for each in removed:
            removed.extend(self._children[each])
            self._forget(each)
        return removed

    def _forget(self, block: int) -> None:
        del self._children[block], self._active_children[block]
        self._idle.discard(block)
        self._queued_at.pop(block, None)
        self.parents[block] = NO_BLOCK

    def _queue_leaf(self, block: int) -> None:
        """Let an inactive block wait for eviction if nothing is below it."""
        if self._children[block] or block not in self._idle:
            return
        stamp = int(self._timestamps[block])
        queued = self._queued_at.get(block)
        if queued is not None and queued <= stamp:
            return
        self._queued_at[block] = stamp
        heappush(self._heap, (stamp, block))
        if len(self._heap) > 2 * len(self._queued_at) + 64:
            # Blocks that were taken up again leave their entries behind; forget those once they outnumber.
            self._heap = [(at, leaf) for leaf, at in self._queued_at.items()]
            heapify(self._heap)
