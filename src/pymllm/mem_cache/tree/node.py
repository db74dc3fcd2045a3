"""The nodes of radix trees, with edge, slots, position, age, and uses."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.mem_cache.base_prefix_cache import Namespace, RadixKey
from pymllm.mem_cache.ownership import OneOwner
from pymllm.mem_cache.tree.token_encoding import BYTES_PER_ID, decode_tokens
from pymllm.mem_cache.tree.victims import VictimOrder

PageStarts: TypeAlias = "NDArray[np.int64]"
"""The first slot of each page, in order; the other slots of a page are consecutive."""

# Up to here NumPy is quicker: 2.4 us for 32 pages of 16 slots, where torch takes 3.2; for 8,192, 114 and 51.
_FEW_PAGES = 64


class BaseTreeNode(OneOwner):
    """The base class of nodes in a radix tree: an edge, its slots, a position in the tree, and an age.

    ``parent``: ``None`` for a root and once evicted. ``key``: the tokens of the edge, read-only: ``uint32``,
    or a tuple of tuples. ``value``: their KV slots, ``int64``, shape ``(len(key),)``, on the allocator's
    device; ``None`` once evicted. Subclasses fill all fields themselves: an insert makes a node in 0.4 us,
    and a call to an ``__init__`` of this class would add 0.1 by its name and 0.3 through ``super``.

    Trees compare the bytes of edges. So a node has no `RadixKey` and no array of its own until its key is
    looked at: an insert is 0.8 us shorter and a node 170 bytes smaller. And a page of a key is one page of
    the pool (R1), so where the pool's pages are numbers that follow one another, the first says all. With
    pages of 16, an insert then copies, and an eviction reads, a sixteenth of the slots: a request of T3 in
    ``benchmarks`` took 89 us, now 75; a token takes 4.5 bytes and not 12.
    """

    _INSTEAD: ClassVar[str] = "keep its id, or match its prompt again"

    __slots__ = (  # noqa: RUF023 - the documented order, then what is private
        "children",
        "parent",
        "last_access_time",
        "hit_count",
        "hash_values",
        "id",
        "_filed_under",
        "_depth",
        "_holds",
        "_owner",
        "_only_child",
        "_order",
        "_older",
        "_younger",
        "_key",
        "_length",
        "_namespace",
        "_raw",
        "_starts",
        "_value",
    )

    # Child nodes, filed under the bytes of their first page (below the root with namespace and token
    # width, where there is a namespace or a width)
    children: dict[Any, Any]
    parent: Any
    last_access_time: float  # Number of the last match or insert that used it, a logical clock (R8, X3)
    hit_count: int  # Matches whose returned path has the node
    # One chained SHA-256 per page, once the cache's ``compute_node_hash`` was asked
    hash_values: list[str] | None
    id: int  # Counts up per cache, never reused
    lock_ref: int  # Holds at or below the node (R6)
    _filed_under: Any  # Its key in parent.children
    _depth: int  # Tokens from the root to its end
    _holds: int  # Holds taken at exactly this node
    _owner: object | None  # The tree's epoch while in it; its mark of roots for a root; None once removed
    _only_child: Any  # Its one child, where that never had a sibling; else None
    _order: VictimOrder[Any] | None  # Where it waits for its eviction, and its neighbours there
    _older: Any
    _younger: Any
    _key: RadixKey | None  # What `key` returns, where somebody has asked
    _namespace: Namespace
    _raw: bytes  # The encoded tokens of the edge into this node
    _length: int  # Tokens of the edge
    _starts: PageStarts | None  # The first slot of each of its pages; or all slots
    _value: torch.Tensor | None

    @property
    def key(self) -> RadixKey | None:
        """The tokens of the edge, read-only; ``None`` before the node has an edge.

        An array, ``uint32``; a tuple of tuples where tokens have several integers: a key for any call.
        """
        if self._key is None and self._length:
            width = len(self._raw) // (self._length * BYTES_PER_ID)
            ids = decode_tokens(self._raw, width)
            self._key = RadixKey(ids if width == 1 else tuple(map(tuple, ids.tolist())), self._namespace)
        return self._key

    @key.setter
    def key(self, key: RadixKey | None) -> None:
        self._key = key

    @property
    def value(self) -> torch.Tensor | None:
        """The KV slots, one per token, made on demand if the node stores only pages."""
        if self._starts is None:
            return self._value
        if self._starts.size == self._length:
            return torch.from_numpy(self._starts)
        return expand_pages(self._starts, self._length // self._starts.size)

    @value.setter
    def value(self, value: torch.Tensor | None) -> None:
        self._value, self._starts = value, None

    @property
    def evicted(self) -> bool:
        """Whether the KV slots are gone."""
        return self._value is None and self._starts is None

    def __lt__(self, other: BaseTreeNode) -> bool:
        """Tell whether this node is less recent than another node of its class (R8)."""
        if not isinstance(other, type(self)):
            return NotImplemented
        return (self.last_access_time, self._depth) < (other.last_access_time, other._depth)

    def describe(self) -> str:
        """Return the line of ``pretty_print`` for the node."""
        return f"#{self.id} {self.key!r} last_access_time={self.last_access_time:g}{self._marks()}"

    def _marks(self) -> str:
        return f" lock_ref={self.lock_ref}"


def expand_pages(starts: PageStarts, page_size: int) -> torch.Tensor:
    """Return every slot of pages given by their first slots.

    ``starts``: the first slot of each, ``int64``, shape ``(n,)``. Returns ``int64``, shape ``(n *
    page_size,)``, on the CPU, memory of its own.
    """
    column = starts.reshape(-1, 1)
    if starts.size <= _FEW_PAGES:
        return torch.from_numpy((column + _offsets(page_size)).reshape(-1))
    # Into NumPy's memory: a megabyte of torch's own is of fresh pages in some processes: 350 us, not 52.
    slots = torch.from_numpy(np.empty((starts.size, page_size), np.int64))
    torch.add(torch.from_numpy(_offsets(page_size)), torch.from_numpy(column), out=slots)
    return slots.view(-1)


@cache
def _offsets(page_size: int) -> NDArray[np.int64]:
    return np.arange(page_size)


class TreeNode(BaseTreeNode):
    """A node of a `RadixCache`: the edge into it, its slots, and its uses.

    What it shares with the nodes of other trees is in `BaseTreeNode`.

    Attributes
    ----------
    lock_ref : int
        Holds at or below the node (R6); a root's is 1.
    swa_lock_ref : int
        Holds whose window covers the node (S6).
    swa_tombstone : bool
        The window KV was freed.
    swa_boundary_id : int or None
        Names the node as the edge of a window (S5).
    """

    __slots__ = (  # noqa: RUF023 - the documented order, then what is private
        "lock_ref",
        "swa_lock_ref",
        "swa_tombstone",
        "swa_boundary_id",
    )

    def __init__(self) -> None:
        self.children: dict[Any, TreeNode] = {}
        self.parent: TreeNode | None = None
        self._value: torch.Tensor | None = None
        self._starts: PageStarts | None = None
        self.lock_ref = 0
        self.swa_lock_ref = 0
        self.swa_tombstone = False
        self.swa_boundary_id: int | None = None
        self.last_access_time = 0.0
        self.hit_count = 0
        self.hash_values: list[str] | None = None
        self.id = 1
        self._key: RadixKey | None = None
        self._namespace: Namespace = None
        self._raw = b""
        self._filed_under: Any = None
        self._length = 0
        self._depth = 0
        self._holds = 0
        self._owner: object | None = None
        self._only_child: TreeNode | None = None
        self._order: VictimOrder[TreeNode] | None = None
        self._older: Any = None
        self._younger: Any = None

    def __repr__(self) -> str:
        return f"TreeNode(id={self.id}, tokens={self._length}, depth={self._depth}, lock_ref={self.lock_ref})"

    def _marks(self) -> str:
        dead = " tombstone" if self.swa_tombstone else ""
        return super()._marks() + dead + (f" swa_lock_ref={self.swa_lock_ref}" if self.swa_lock_ref else "")


class RankedTreeNode(TreeNode):
    """A `TreeNode` for policies other than ``lru``, which may need more than recency.

    A class of its own, so that the nodes of all other caches are as small, and made as quickly, as they were:
    this one takes 0.2 us more to make, and 16 bytes.

    Attributes
    ----------
    creation_time : float
        Number of the insert that brought its slots, on the clock of ``last_access_time``.
    priority : int
        The highest that an insert with the node on its path was given.
    """

    __slots__ = ("creation_time", "priority")

    def __init__(self) -> None:
        super().__init__()
        self.creation_time = 0.0
        self.priority = 0


class MambaTreeNode(BaseTreeNode):
    """A node of a `MambaRadixCache`: the edge into it, its KV slots, and perhaps a state at its end.

    What it shares with the nodes of other trees is in `BaseTreeNode`.

    Attributes
    ----------
    mamba_value : torch.Tensor or None
        Track slot of the state after the node's last token, ``int64``, shape ``(1,)``; ``None`` without one.
    full_lock_ref : int
        Holds at or below the node (R6); a root's is 1.
    mamba_lock_ref : int
        Holds at exactly the node while it has a state, else 0; never above ``full_lock_ref`` (M4).
    prev, next : MambaTreeNode or None
        Neighbours in ``full_lru``, the more recent one first.
    mamba_prev, mamba_next : MambaTreeNode or None
        Neighbours in ``mamba_lru``.
    """

    __slots__ = (  # noqa: RUF023 - the documented order, then what is private
        "full_lock_ref",
        "mamba_lock_ref",
        "prev",
        "next",
        "mamba_prev",
        "mamba_next",
        "_list",
        "_mamba_list",
        "_track_slot",
        "_track_index",
    )

    def __init__(self) -> None:
        self.children: dict[Any, MambaTreeNode] = {}
        self.parent: MambaTreeNode | None = None
        self._value: torch.Tensor | None = None
        self._starts: PageStarts | None = None
        self.full_lock_ref = 0
        self.mamba_lock_ref = 0
        self.last_access_time = 0.0
        self.hit_count = 0
        self.hash_values: list[str] | None = None
        self.id = 1
        self.prev: MambaTreeNode | None = None
        self.next: MambaTreeNode | None = None
        self.mamba_prev: MambaTreeNode | None = None
        self.mamba_next: MambaTreeNode | None = None
        self._key: RadixKey | None = None
        self._namespace: Namespace = None
        self._raw = b""
        self._filed_under: Any = None
        self._length = 0
        self._depth = 0
        self._holds = 0
        self._owner: object | None = None
        self._only_child: MambaTreeNode | None = None
        self._order: VictimOrder[MambaTreeNode] | None = None
        self._older: Any = None
        self._younger: Any = None
        self._list: object | None = None  # the `LRUList` of each mode that it is a member of
        self._mamba_list: object | None = None
        self._track_slot: int | None = None  # a number: reading a device tensor would wait for the device
        self._track_index: torch.Tensor | None = None  # the same as a tensor, once asked for

    @property
    def mamba_value(self) -> torch.Tensor | None:
        """The tensor with the state's track slot, made on demand to save 1.7 us in each insert."""
        if self._track_index is None and self._track_slot is not None:
            device = None if self._value is None else self._value.device
            self._track_index = torch.full((1,), self._track_slot, dtype=torch.int64, device=device)
        return self._track_index

    @mamba_value.setter
    def mamba_value(self, value: torch.Tensor | None) -> None:
        self._track_index = value
        if value is None or self._track_slot is None:
            self._track_slot = None if value is None else int(value)

    @property
    def mamba_tombstone(self) -> bool:
        """Whether the node has KV but no state."""
        return not self.evicted and self._track_slot is None

    def __repr__(self) -> str:
        state = "none" if self._track_slot is None else self._track_slot
        return (
            f"MambaTreeNode(id={self.id}, tokens={self._length}, depth={self._depth}, state={state}, "
            f"full_lock_ref={self.full_lock_ref}, mamba_lock_ref={self.mamba_lock_ref})"
        )

    def _marks(self) -> str:
        slot = self._track_slot
        state = "" if slot is None else f" state={slot} mamba_lock_ref={self.mamba_lock_ref}"
        return f" full_lock_ref={self.full_lock_ref}{state}"


class RankedMambaTreeNode(MambaTreeNode):
    """A `MambaTreeNode` for policies other than ``lru``, with the additional fields of `RankedTreeNode`."""

    __slots__ = ("creation_time", "priority")

    def __init__(self) -> None:
        super().__init__()
        self.creation_time = 0.0
        self.priority = 0


# The slot itself under a second name: a property would cost the tree's loops 40 ns for each node of a path.
MambaTreeNode.lock_ref = MambaTreeNode.full_lock_ref  # type: ignore[misc]
