"""What the nodes of all radix trees have: an edge, slots, and a place in tree and time."""

from __future__ import annotations

from typing import Any

from pymllm.mem_cache.edge_slots import EdgeSlots
from pymllm.mem_cache.victim_order import VictimOrder


class BaseTreeNode(EdgeSlots):
    """A node that `pymllm.mem_cache.radix_tree` can work with, but for its locks.

    ``parent``: ``None`` for a root and once evicted. ``key``: the tokens of the edge, read-only: ``uint32``,
    or a tuple of tuples. ``value``: their KV slots, ``int64``, shape ``(len(key),)``, on the allocator's
    device; ``None`` once evicted. Subclasses fill all fields themselves: an insert makes a node in 0.4 us,
    and a call to an ``__init__`` of this class would add 0.1 by its name and 0.3 through ``super``.
    """

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
    )

    # Child nodes, filed under the bytes of their first page (below the root with namespace and token
    # width, where there is a namespace or a width)
    children: dict[Any, Any]
    last_access_time: float  # Number of the last match or insert that used it, a logical clock (R8, X3)
    hit_count: int  # Matches whose returned path has the node
    # One chained SHA-256 per page, once the cache's ``compute_node_hash`` was asked
    hash_values: list[str] | None
    id: int  # Counts up per cache, never reused
    _filed_under: Any
    _depth: int
    _holds: int
    _owner: object | None
    _only_child: Any
    _order: VictimOrder[Any] | None
    _older: Any
    _younger: Any

    def __lt__(self, other: BaseTreeNode) -> bool:
        """Tell whether this node is less recent than another of its class (R8)."""
        if not isinstance(other, type(self)):
            return NotImplemented
        return (self.last_access_time, self._depth) < (other.last_access_time, other._depth)
