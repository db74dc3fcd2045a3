"""The node of a `RadixCache`."""

from __future__ import annotations

from typing import Any

import torch

from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.base_tree_node import BaseTreeNode
from pymllm.mem_cache.edge_slots import PageStarts
from pymllm.mem_cache.victim_order import VictimOrder


class TreeNode(BaseTreeNode):
    """One node of a `RadixCache`: the edge into it, its slots, and who uses it.

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
        self._namespace: str | int | None = None
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

    def describe(self) -> str:
        """Return what `RadixCache.pretty_print` shows of the node, on one line."""
        marks = f" lock_ref={self.lock_ref}"
        if self.swa_tombstone:
            marks += " tombstone"
        if self.swa_lock_ref:
            marks += f" swa_lock_ref={self.swa_lock_ref}"
        return f"#{self.id} {self.key!r} last_access_time={self.last_access_time:g}{marks}"


class RankedTreeNode(TreeNode):
    """The same of a cache with another policy than ``lru``, which may look at more.

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
