"""The node of a `MambaRadixCache`."""

from __future__ import annotations

from typing import Any

import torch

from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.base_tree_node import BaseTreeNode
from pymllm.mem_cache.edge_slots import PageStarts
from pymllm.mem_cache.victim_order import VictimOrder


class MambaTreeNode(BaseTreeNode):
    """One node of a `MambaRadixCache`: the edge into it, its KV slots, and perhaps a state at its end.

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

    lock_ref: int
    """Another name of ``full_lock_ref``, by which `pymllm.mem_cache.radix_tree` knows it."""

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
        self._namespace: str | int | None = None
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
        """The track slot of the state, made when first asked for: an insert need not wait 1.7 us for it."""
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

    def describe(self) -> str:
        """Return what `MambaRadixCache.pretty_print` shows of the node, on one line."""
        marks = f" full_lock_ref={self.full_lock_ref}"
        if self._track_slot is not None:
            marks += f" state={self._track_slot} mamba_lock_ref={self.mamba_lock_ref}"
        return f"#{self.id} {self.key!r} last_access_time={self.last_access_time:g}{marks}"


class RankedMambaTreeNode(MambaTreeNode):
    """The same of a cache with another policy than ``lru``, as `RankedTreeNode`."""

    __slots__ = ("creation_time", "priority")

    def __init__(self) -> None:
        super().__init__()
        self.creation_time = 0.0
        self.priority = 0


# The slot itself under a second name: a property would cost the tree's loops 40 ns for each node of a path.
MambaTreeNode.lock_ref = MambaTreeNode.full_lock_ref  # type: ignore[misc]
