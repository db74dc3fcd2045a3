"""Find the least recently used of the nodes that may be evicted, without a scan.

A tree keeps one `VictimOrder` per kind of victim (leaves, window KV, states). Members are only
the nodes that could be taken right now, so locked and inner nodes never cost an eviction anything.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, Generic, Protocol, TypeVar

__all__ = ["Aged", "VictimOrder"]

_BLOCK_BITS: Final = 9  # access numbers per block = 2**9: one Python integer of 512 bits
_BLOCK_MASK: Final = (1 << _BLOCK_BITS) - 1
_COMPACT_FROM: Final = 64  # entries of what is gone are forgotten once they outnumber the others by this


class Aged(Protocol):
    """A node with a recency: the access number, then the depth of its end (law R8)."""

    last_access_time: float
    _depth: int


NodeT = TypeVar("NodeT", bound=Aged)


class _SameAccess(Generic[NodeT]):
    """Members of one access, which lie on one path: shallowest first."""

    __slots__ = ("_heap", "by_depth")

    def __init__(self, nodes: Sequence[NodeT]) -> None:
        self.by_depth: dict[int, NodeT] = {node._depth: node for node in nodes}
        self._heap = sorted(self.by_depth)  # a sorted list is a heap

    def add(self, node: NodeT) -> None:
        self.by_depth[node._depth] = node
        heappush(self._heap, node._depth)
        if len(self._heap) > 2 * len(self.by_depth) + _COMPACT_FROM:
            # A node whose hold comes and goes enters anew each time, and its old entries never surface.
            self._heap = sorted(self.by_depth)

    def shallowest(self) -> NodeT:
        heap, by_depth = self._heap, self.by_depth
        while heap[0] not in by_depth:
            heappop(heap)
        return by_depth[heap[0]]


class _OldNumbers:
    """Access numbers in any order, as a bitmap in blocks with a heap of the blocks.

    Leaves enter with old numbers when a hold is released or a child goes. A heap of the leaves themselves
    costs 3 us a pop at 200,000 of them and fills with stale entries under locks; here adding, removing and
    finding take 0.2-0.4 us each, however many there are.
    """

    __slots__ = ("_heap", "blocks")

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}
        self._heap: list[int] = []  # the keys of blocks, and some that are gone

    def add(self, number: int) -> None:
        block = number >> _BLOCK_BITS
        bits = self.blocks.get(block)
        if bits is None:
            heappush(self._heap, block)
            bits = 0
        self.blocks[block] = bits | (1 << (number & _BLOCK_MASK))

    def discard(self, number: int) -> None:
        block = number >> _BLOCK_BITS
        bits = self.blocks[block] ^ (1 << (number & _BLOCK_MASK))
        if bits:
            self.blocks[block] = bits
            return
        del self.blocks[block]  # the heap forgets it when the block comes up, or all at once
        if len(self._heap) > 2 * len(self.blocks) + _COMPACT_FROM:
            self._heap = list(self.blocks)
            heapify(self._heap)

    def least(self) -> int:
        """Return the smallest of the numbers, of which there is at least one."""
        heap, blocks = self._heap, self.blocks
        while heap[0] not in blocks:
            heappop(heap)
        bits = blocks[heap[0]]
        return (heap[0] << _BLOCK_BITS) + (bits & -bits).bit_length() - 1


class VictimOrder(Generic[NodeT]):
    """A set of nodes ordered by recency, smaller is older.

    Notes
    -----
    A node's ``last_access_time`` and ``_depth`` must not change while it is a member: `discard` it,
    stamp it, `add` it again; or `move` it. Cost: every operation is O(1) amortised (the heap of blocks grows
    by one entry per 512 accesses). Laws: R5, R8, S3.

    Most accesses leave one member behind (their leaf), so a lone member is stored bare and only several
    of one access get a container of their own.

    Nearly all members enter with a number that is the highest so far, and queue up: that takes 0.1 us, and
    the match of a path with one state 7.7 us instead of 9.4. Whoever has an older one goes into a bitmap.
    """

    __slots__ = ("_at", "_newest", "_old", "_queue", "_size")

    def __init__(self) -> None:
        self._at: dict[float, NodeT | _SameAccess[NodeT]] = {}
        self._queue: OrderedDict[float, None] = OrderedDict()  # numbers in _at that came in ascending order
        self._newest = 0.0  # the highest that has ever been there
        self._old = _OldNumbers()  # the rest of the numbers in _at
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, node: NodeT) -> bool:
        held = self._at.get(node.last_access_time)
        return held.by_depth.get(node._depth) is node if isinstance(held, _SameAccess) else held is node

    def add(self, node: NodeT) -> None:
        """Add a node that is not a member."""
        number = node.last_access_time
        held = self._at.get(number)
        self._size += 1
        if held is None:
            self._at[number] = node
            self._enter(number)
        elif isinstance(held, _SameAccess):
            held.add(node)
        else:
            self._at[number] = _SameAccess((held, node))

    def move(self, nodes: Sequence[NodeT], now: float) -> None:
        """File members of one path, shallowest first, under the newest access, which no other member has.

        Their ``last_access_time`` is the caller's to set, before anything else is asked of the order.
        Together, since of a path that was used as a whole before only the number changes: 0.4 us a node less.
        """
        if not nodes:
            return
        number = nodes[0].last_access_time
        held = self._at[number]
        # On a path nothing is more recent than what is above it: with equal ends, all are of one access.
        if number == nodes[-1].last_access_time and len(nodes) == _count(held):
            del self._at[number]
            self._leave(number)
        else:
            for node in nodes:
                self.discard(node)
            held = nodes[0] if len(nodes) == 1 else _SameAccess(nodes)
            self._size += len(nodes)
        self._at[now] = held
        self._queue[now] = None
        self._newest = now

    def discard(self, node: NodeT) -> None:
        """Remove a member."""
        number = node.last_access_time
        held = self._at[number]
        self._size -= 1
        if isinstance(held, _SameAccess):
            del held.by_depth[node._depth]
            if held.by_depth:
                return
        del self._at[number]
        self._leave(number)

    def oldest(self) -> NodeT | None:
        """Return the least recent member, or ``None``."""
        if not self._at:
            return None
        number = next(iter(self._queue), inf)
        if self._old.blocks:
            number = min(number, self._old.least())
        held = self._at[number]
        return held.shallowest() if isinstance(held, _SameAccess) else held

    def _enter(self, number: float) -> None:
        if number >= self._newest:
            self._newest = number
            self._queue[number] = None
        else:
            self._old.add(int(number))

    def _leave(self, number: float) -> None:
        try:
            del self._queue[number]
        except KeyError:
            self._old.discard(int(number))


def _count(held: object) -> int:
    return len(held.by_depth) if isinstance(held, _SameAccess) else 1
