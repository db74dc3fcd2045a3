"""The nodes that may be evicted, ordered by recency or by a policy's rank, without scans.

An order has only the nodes that could be taken right now, so locked and inner nodes never cost an eviction
anything. A tree keeps one order, or two (`Victims`), and each node waits in one at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from reprlib import repr as short_repr
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar

from pymllm.mem_cache.tree.eviction_policy import LRU, EvictionPolicy, is_lru

_BLOCK: Final = 512  # access numbers per block: the bits of one Python integer
_COMPACT_FROM: Final = 64  # entries of what is gone are forgotten once they outnumber the others by this


class Aged(Protocol):
    """A node with a recency, which is its access number and then the depth of its end (law R8)."""

    last_access_time: float
    _depth: int
    _order: VictimOrder[Any] | None  # where it waits: in one order at a time
    _older: Any  # its neighbours there; None for who entered late
    _younger: Any


NodeT = TypeVar("NodeT", bound=Aged)


class _SameAccess(Generic[NodeT]):
    """The members of an order with one access number: nodes of one path, the shallowest first."""

    __slots__ = ("_heap", "by_depth")

    def __init__(self, nodes: Sequence[NodeT]) -> None:
        self.by_depth: dict[int, NodeT] = {node._depth: node for node in nodes}
        self._heap = sorted(self.by_depth)  # a sorted list is a heap

    def add(self, node: NodeT) -> None:
        heappush(self._heap, node._depth)
        self.by_depth[node._depth] = node
        if len(self._heap) > 2 * len(self.by_depth) + _COMPACT_FROM:
            # A node whose hold comes and goes enters anew each time, and its old entries never surface.
            self._heap = sorted(self.by_depth)

    def shallowest(self) -> NodeT:
        heap, by_depth = self._heap, self.by_depth
        while heap[0] not in by_depth:
            heappop(heap)
        return by_depth[heap[0]]


_Held: TypeAlias = NodeT | _SameAccess[NodeT]
"""The entry of one access number, most often a single node without a container."""


class _Latecomers(Generic[NodeT]):
    """Members that joined an order late, by access number: a bitmap with a heap of its blocks.

    Leaves enter with old numbers when a hold is released or a child goes. A heap of the leaves themselves
    costs 3 us a pop at 200,000 of them and fills with stale entries under locks; here adding, removing and
    finding take 0.2-0.4 us each, however many there are.
    """

    __slots__ = ("_blocks", "_heap", "at")

    def __init__(self) -> None:
        self.at: dict[float, _Held[NodeT]] = {}
        self._blocks: dict[int, int] = {}
        self._heap: list[int] = []  # the keys of blocks, and some that are gone

    def add(self, node: NodeT) -> None:
        number = node.last_access_time
        held = self.at.get(number)
        if isinstance(held, _SameAccess):
            held.add(node)
        elif held is not None:
            self.at[number] = _SameAccess((held, node))
        else:
            self._mark(int(number))
            self.at[number] = node

    def discard(self, node: NodeT) -> None:
        number = node.last_access_time
        held = self.at[number]
        if isinstance(held, _SameAccess):
            del held.by_depth[node._depth]
            if held.by_depth:
                return
        del self.at[number]
        self._unmark(int(number))

    def oldest(self) -> NodeT:
        """Return the least recent member, of at least one."""
        heap, blocks = self._heap, self._blocks
        while heap[0] not in blocks:
            heappop(heap)
        bits = blocks[heap[0]]
        held = self.at[heap[0] * _BLOCK + (bits & -bits).bit_length() - 1]
        return held.shallowest() if isinstance(held, _SameAccess) else held

    def __iter__(self) -> Iterator[NodeT]:
        for held in self.at.values():
            if isinstance(held, _SameAccess):
                yield from held.by_depth.values()
            else:
                yield held

    def _mark(self, number: int) -> None:
        block, bit = divmod(number, _BLOCK)
        bits = self._blocks.get(block)
        if bits is None:
            heappush(self._heap, block)
            bits = 0
        self._blocks[block] = bits | (1 << bit)

    def _unmark(self, number: int) -> None:
        block, bit = divmod(number, _BLOCK)
        bits = self._blocks[block] ^ (1 << bit)
        if bits:
            self._blocks[block] = bits
            return
        del self._blocks[block]  # the heap forgets it when the block comes up, or all at once
        if len(self._heap) > 2 * len(self._blocks) + _COMPACT_FROM:
            self._heap = sorted(self._blocks)  # which is a heap


class _End:
    """The sentinel of an order's ring, older than all members and a neighbour of both ends."""

    __slots__ = ("_depth", "_older", "_younger", "last_access_time")

    def __init__(self) -> None:
        self.last_access_time, self._depth = -1.0, 0
        self._older: Any = self
        self._younger: Any = self


class VictimOrder(Generic[NodeT]):
    """A set of nodes ordered by recency; a node is in one order at a time.

    A node's ``last_access_time`` and ``_depth`` must not change while it is a member: `discard` it, stamp it,
    `add` it again; or `move` it, and stamp it then. Cost: every operation is O(1) amortised (the heap of
    blocks grows by one entry per 512 accesses). Laws: R5, R8, S3. Nearly all members enter as the most recent
    one. They are linked in a ring through the nodes themselves, so that nothing is looked up: what was not
    touched for long is in no cache of the processor. With two orders for its leaf and its state, each of
    dictionaries by access number, the match of a path with one state took 7.7 us, and 6.4 so. Whoever enters
    with an older number is filed under it.
    """

    __slots__ = ("_end", "_late", "_size")

    def __init__(self) -> None:
        self._end = _End()
        self._late: _Latecomers[NodeT] = _Latecomers()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, node: NodeT) -> bool:
        return node._order is self

    def __iter__(self) -> Iterator[NodeT]:
        """Yield the members: those in the ring by recency, then late ones."""
        node: Any = self._end._younger
        while node is not self._end:
            yield node
            node = node._younger
        yield from self._late

    def add(self, node: NodeT) -> None:
        """Add a node that is in no order."""
        node._order = self
        self._size += 1
        end = self._end
        youngest = end._older
        number = node.last_access_time
        if number > youngest.last_access_time or (
            number == youngest.last_access_time and node._depth > youngest._depth
        ):
            node._older, node._younger = youngest, end
            youngest._younger = end._older = node
        else:
            try:
                self._late.add(node)
            except MemoryError:
                self._sort_in(node)

    def _sort_in(self, node: NodeT) -> None:
        """Link a node into the ring at the place of its age, without allocating memory.

        Those who add a node have taken back a hold, or a child has gone: there is nobody to tell that it
        could not be filed.
        """
        older: Any = self._end._older
        while (older.last_access_time, older._depth) > (node.last_access_time, node._depth):
            older = older._older
        younger = older._younger
        node._older, node._younger = older, younger
        older._younger = younger._older = node

    def discard(self, node: NodeT) -> None:
        """Remove a member."""
        node._order = None
        self._size -= 1
        older, younger = node._older, node._younger
        if younger is None:
            self._late.discard(node)
        else:
            older._younger, younger._older = younger, older
            node._older = node._younger = None

    def move(self, nodes: Sequence[NodeT]) -> None:
        """Make the members among the nodes of one path the most recent."""
        first, last = nodes[0], nodes[-1]
        number = first.last_access_time
        # On a path nothing is more recent than what is above it: with equal ends, all are of one access. Who
        # else is of it lies deeper, where another path has branched off. So they stand together.
        if number == last.last_access_time and number not in self._late.at:
            older, younger, end = first._older, last._younger, self._end
            if younger is not end:  # else they are the youngest already
                older._younger, younger._older = younger, older
                self._append(first, last)
            return
        members = [node for node in nodes if node._order is self]
        for node in members:
            self.discard(node)
        for node in members:
            node._order = self
            self._append(node, node)
        self._size += len(members)

    def move_one(self, node: NodeT) -> None:
        """Make one member the most recent: `move` for a path that ends in a leaf, in half the time."""
        older, younger, end = node._older, node._younger, self._end
        if younger is end:
            return
        if younger is None:
            self._late.discard(node)
        else:
            older._younger, younger._older = younger, older
        self._append(node, node)

    def oldest(self) -> NodeT | None:
        """Return the least recent member, or ``None``."""
        node: Any = self._end._younger
        oldest: NodeT | None = None if node is self._end else node
        return older_of(self._late.oldest(), oldest) if self._late.at else oldest

    first = oldest
    """The next member to evict as a leaf, or ``None``."""

    def first_of_both(self, other: VictimOrder[NodeT]) -> NodeT | None:
        """Return the next node to evict from two orders of the same kind, or ``None``."""
        return older_of(self.oldest(), other.oldest())

    def changed(self, node: NodeT) -> None:
        """Update a member whose attributes other than recency changed, which has no effect here."""

    def _append(self, first: NodeT, last: NodeT) -> None:
        """Append a stretch of linked nodes as the most recent ones."""
        end = self._end
        youngest = end._older
        youngest._younger, first._older = first, youngest
        end._older, last._younger = last, end


def older_of(one: NodeT | None, other: NodeT | None) -> NodeT | None:
    """Return the less recent of two nodes (R8), either of which may be ``None``."""
    if one is None or other is None:
        return other if one is None else one
    if one.last_access_time == other.last_access_time:
        return one if one._depth < other._depth else other
    return one if one.last_access_time < other.last_access_time else other


_Ranked: TypeAlias = tuple[Any, float, int, NodeT]
"""The rank, recency and depth of a member, by which a heap orders it."""


class RankedOrder(VictimOrder[NodeT]):
    """A set of nodes ordered by rank, the smallest first, and by age among equal ranks.

    The ring stays what it is, and says what is the oldest. Above it is a heap of ranks, to which nothing is
    done before somebody asks for the first member: what was used ten times meanwhile is ranked once. Cost:
    O(log n) for each member that has changed since then, and nothing for those that have not.
    """

    __slots__ = ("_changed", "_heap", "_is_lost", "_policy", "_ranked")

    def __init__(self, policy: EvictionPolicy) -> None:
        super().__init__()
        self._policy: Any = policy
        self._heap: list[_Ranked[NodeT]] = []  # and some that hold no longer
        self._ranked: dict[NodeT, _Ranked[NodeT]] = {}  # those that do
        self._changed: dict[NodeT, None] = {}
        self._is_lost = False  # whether the three are to be made anew from the ring

    def add(self, node: NodeT) -> None:
        """Add a node that is in no order."""
        super().add(node)
        self.changed(node)

    def discard(self, node: NodeT) -> None:
        """Remove a member."""
        super().discard(node)
        self._ranked.pop(node, None)
        self._changed.pop(node, None)

    def move_one(self, node: NodeT) -> None:
        """Make one member the most recent."""
        super().move_one(node)
        self.changed(node)

    def changed(self, node: NodeT) -> None:
        """Mark a member for a new ranking before the next choice."""
        try:
            self._changed[node] = None
        except MemoryError:  # as `VictimOrder.add`: there is nobody to tell
            self._is_lost = True

    def first(self) -> NodeT | None:
        """Return the next member to evict as a leaf, or ``None``."""
        found = self._first()
        return None if found is None else found[-1]

    def first_of_both(self, other: VictimOrder[NodeT]) -> NodeT | None:
        """Return the next node to evict from two orders of the same kind, or ``None``."""
        assert isinstance(other, RankedOrder)
        found = [ranked for ranked in (self._first(), other._first()) if ranked is not None]
        return min(found)[-1] if found else None

    def _first(self) -> _Ranked[NodeT] | None:
        try:
            self._rank()
            heap, ranked = self._heap, self._ranked
            while heap and ranked.get(heap[0][-1]) is not heap[0]:
                heappop(heap)
        except BaseException:  # a rank of a stranger's: the heap may be none any more
            self._is_lost = True
            raise
        return heap[0] if heap else None

    def _rank(self) -> None:
        """Rank the members that have changed."""
        if self._is_lost:
            self._changed = dict.fromkeys(self)
            self._ranked, self._heap, self._is_lost = {}, [], False
        elif len(self._heap) > 2 * len(self._ranked) + _COMPACT_FROM:
            self._heap = list(self._ranked.values())
            heapify(self._heap)
        while self._changed:
            node, _ = self._changed.popitem()
            rank = self._policy.rank(node)
            # A heap asks nothing of equal ranks; NaN is the one number that is not equal to itself.
            try:
                has_order = rank == rank and not rank < rank
            except TypeError:
                has_order = False
            if not has_order:
                policy = type(self._policy).__name__
                raise TypeError(
                    f"{policy} ranks a leaf {short_repr(rank)}: give a number, or several in a tuple"
                )
            ranked = rank, node.last_access_time, node._depth, node
            heappush(self._heap, ranked)
            self._ranked[node] = ranked


def make_order(policy: EvictionPolicy) -> VictimOrder[Any]:
    """Return an empty order of leaves, without ranks if recency alone decides."""
    return VictimOrder() if is_lru(policy) else RankedOrder(policy)


class Victim(Aged, Protocol):
    """The attributes of a node that its eviction needs."""

    lock_ref: int

    children: dict[Any, Self]


VictimT = TypeVar("VictimT", bound=Victim)


class Victims(Generic[VictimT]):
    """The unlocked leaves of a tree, in the order of a policy.

    Where inner nodes have something to lose, too, there are more orders: see `InnerVictims`. A node is in one
    at most, and so touched, chosen and linked in one place only. ``leaves``: nodes without children and
    without a hold.
    """

    def __init__(self, policy: EvictionPolicy | None = None) -> None:
        self.policy: EvictionPolicy = LRU() if policy is None else policy
        self.clear()

    def clear(self) -> None:
        """Start empty; the caller must unlink the nodes in the orders."""
        self.leaves: VictimOrder[VictimT] = make_order(self.policy)

    def become(self, fresh: Victims[VictimT]) -> None:
        """Start with the empty orders of a new object of this class."""
        self.__dict__.update(fresh.__dict__)

    def order_of(self, node: VictimT) -> VictimOrder[VictimT] | None:
        """Return the order that a node belongs to in its present form, or ``None``; roots stay locked."""
        return None if node.children or node.lock_ref else self.leaves

    def leaf_order_of(self, node: VictimT) -> VictimOrder[VictimT]:
        """Return the order to which an unlocked node belongs once it is a leaf."""
        return self.leaves

    def first_leaf(self) -> VictimT | None:
        """Return the next unlocked leaf to evict, or ``None`` (R5)."""
        return self.leaves.first()

    def place(self, node: VictimT) -> None:
        """Move a node to its order after its children, holds or content changed."""
        self._put(node, self.order_of(node))

    def promote(self, node: VictimT) -> None:
        """Add an unlocked node to the leaves, since its last child is about to go."""
        self._put(node, self.leaf_order_of(node))

    def touch(self, path: Sequence[VictimT]) -> None:
        """Make the nodes of a path (at least one) the most recent; the caller then stamps them (R8)."""
        last = path[-1]  # the only one that can be a leaf
        if last._order is not None:
            last._order.move_one(last)

    def _put(self, node: VictimT, order: VictimOrder[VictimT] | None) -> None:
        before = node._order
        if before is order:
            return
        if before is not None:
            before.discard(node)
        if order is not None:
            order.add(node)


class InnerVictims(Victims[VictimT]):
    """The unlocked leaves of a tree, and its inner nodes with a window or state to evict.

    ``inner``: the latter.
    """

    def clear(self) -> None:
        """Start empty; the caller must unlink the nodes in the orders."""
        inner: VictimOrder[VictimT] = VictimOrder()
        super().clear()
        self.inner = inner

    def oldest_of_all(self) -> VictimT | None:
        """Return the least recent node with a window or state to evict, or ``None`` (S3, M5)."""
        leaf, inner = self.leaves.oldest(), self.inner.oldest()
        return leaf if inner is None else older_of(leaf, inner)

    def touch(self, path: Sequence[VictimT]) -> None:
        """Make the nodes of a path (at least one) the most recent; the caller then stamps them (R8)."""
        inner, last = self.inner, path[-1]
        if last._order is not inner:
            if last._order is not None:
                last._order.move_one(last)
            if len(path) == 1:  # a short prompt's: 50 ns less than to cut it down to nothing
                return
            path = path[:-1]
        if not path[0]._order is path[-1]._order is inner:
            path = [node for node in path if node._order is inner]
        if path:
            inner.move(path)
