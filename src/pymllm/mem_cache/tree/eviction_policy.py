"""Eviction policies: the order in which unlocked leaves are evicted, by name or by a user's object.

A further policy is a class here, in `POLICIES`, and its line in `pymllm.oracle.models.policy_ranks`. The
judge's rank there may use what a page has: hits, arrival, priority and recency. Of one that looks at more,
such as ``key``, the line is ``None``, and its order is not judged (R11).
"""

from __future__ import annotations

import difflib
from reprlib import repr as short_repr
from typing import Any, ClassVar, Protocol, TypeGuard

from pymllm.mem_cache.arguments import as_size

__all__ = [
    "FIFO",
    "FILO",
    "LFU",
    "LRU",
    "MRU",
    "POLICIES",
    "SLRU",
    "EvictionPolicy",
    "LogLFU",
    "Priority",
    "RankedNode",
]


class RankedNode(Protocol):
    """The attributes of a node that a policy may read.

    Attributes
    ----------
    last_access_time : float
        Number of the last match or insert that used the node (R8).
    creation_time : float
        Number of the insert that brought its slots; both halves of a split have that of the whole.
    hit_count : int
        Matches whose returned prefix had it (R10).
    priority : int
        The highest that an insert with the node on its path was given.
    key : RadixKey
        The tokens of its edge; ``len(node.key)`` of them.
    """

    last_access_time: float
    creation_time: float
    hit_count: int
    priority: int

    @property
    def key(self) -> Any:
        """The tokens of the edge."""


class EvictionPolicy(Protocol):
    """The interface of an eviction policy: any object with a method `rank`.

    Notes
    -----
    A ``name`` is shown where it has one. It need not derive from this class.

    Examples
    --------
    >>> from pymllm.mem_cache import RadixCache, RadixKey
    >>> class Largest:
    ...     def rank(self, node):
    ...         return -len(node.key)
    >>> cache = RadixCache(eviction_policy=Largest())
    >>> small, large = cache.insert(RadixKey([1])), cache.insert(RadixKey([2, 3]))
    >>> cache.evict(1).full_evicted
    2
    """

    def rank(self, node: RankedNode) -> Any:
        """Return the rank of a node; the leaf with the smallest rank is evicted first.

        Parameters
        ----------
        node : RankedNode
            An unlocked leaf, which is only looked at; the cache itself refuses calls meanwhile (X6).

        Returns
        -------
        comparable
            A number, or a tuple of numbers: ranks of any two nodes compare by ``<``, and each is equal to
            itself. Of equal ones the least recent leaf goes first (R8).

        Notes
        -----
        Asked in an eviction, once for each leaf that was used, split or became a leaf since the last one. So
        a rank changes only with what a node knows of itself, and not with the time of day. What it raises,
        the eviction raises, and nothing has changed; a rank that does not compare with itself, such as
        ``None`` or NaN, is a ``TypeError``. NaN inside of a tuple is not looked for.
        """


class LRU:
    """The policy that evicts the least recently used node first (R8)."""

    name: ClassVar[str] = "lru"

    def rank(self, node: RankedNode) -> Any:
        """Return the number of the node's last access."""
        return node.last_access_time


class LFU:
    """The policy that evicts the least frequently matched node first."""

    name: ClassVar[str] = "lfu"

    def rank(self, node: RankedNode) -> Any:
        """Return the node's number of hits."""
        return node.hit_count


class FIFO:
    """The policy that evicts the node that was cached first, regardless of its use."""

    name: ClassVar[str] = "fifo"

    def rank(self, node: RankedNode) -> Any:
        """Return the number of the insert that created the node."""
        return node.creation_time


class MRU:
    """The policy that evicts the most recently used node first."""

    name: ClassVar[str] = "mru"

    def rank(self, node: RankedNode) -> Any:
        """Return the number of the node's last access, negated."""
        return -node.last_access_time


class FILO:
    """The policy that evicts the node that was cached last."""

    name: ClassVar[str] = "filo"

    def rank(self, node: RankedNode) -> Any:
        """Return the number of the insert that created the node, negated."""
        return -node.creation_time


class Priority:
    """The policy that evicts the lowest priority first, as given by ``insert(..., priority=...)``."""

    name: ClassVar[str] = "priority"

    def rank(self, node: RankedNode) -> Any:
        """Return the highest priority with which the node was inserted."""
        return node.priority


class SLRU:
    """The segmented LRU policy, which evicts nodes with few hits before others, each part by recency.

    Parameters
    ----------
    protected_threshold : int
        Hits from which on a node is protected, at least 1: with none, all are.

    Raises
    ------
    TypeError, ValueError
        The threshold is no int, or below 1.
    """

    name: ClassVar[str] = "slru"

    def __init__(self, protected_threshold: int = 2) -> None:
        self.protected_threshold = as_size("protected_threshold", protected_threshold)

    def rank(self, node: RankedNode) -> Any:
        """Return whether the node is in the protected part."""
        return node.hit_count >= self.protected_threshold


class LogLFU:
    """The policy that evicts by hits in powers of two (0, 1, 2 or 3, 4 to 7), and then by recency."""

    name: ClassVar[str] = "log-lfu"

    def rank(self, node: RankedNode) -> Any:
        """Return the number of binary digits of the hit count."""
        return node.hit_count.bit_length()


POLICIES: dict[str, type[EvictionPolicy]] = {
    policy.name: policy for policy in (LRU, LFU, FIFO, MRU, FILO, Priority, SLRU, LogLFU)
}
"""The named policies, of which the first is the default."""


def as_policy(policy: Any) -> EvictionPolicy:
    """Return the policy for ``eviction_policy``: a name, or an object with a method ``rank`` (X1)."""
    if isinstance(policy, str):
        if policy not in POLICIES:
            near = difflib.get_close_matches(policy[:20].lower(), POLICIES, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(
                f"eviction_policy is {short_repr(policy)}{meant}: give one of {', '.join(POLICIES)}, "
                "or an object with a method rank(node)"
            )
        return POLICIES[policy]()
    if is_policy(policy):
        return policy
    if isinstance(policy, type) and hasattr(policy, "rank"):
        name = policy.__name__
        raise TypeError(f"eviction_policy is the class {name}: give an object of it, such as {name}()")
    raise TypeError(
        f"eviction_policy is {short_repr(policy)}, which has no method rank: give one of "
        f"{', '.join(POLICIES)}, or an object with a method rank(node)"
    )


def is_policy(policy: object) -> TypeGuard[EvictionPolicy]:
    """Tell whether an object, which must not be a class, has a method ``rank``."""
    return not isinstance(policy, type) and callable(getattr(policy, "rank", None))


def is_lru(policy: EvictionPolicy) -> bool:
    """Tell whether a policy uses recency alone, so that the tree needs no other data of nodes."""
    return type(policy) is LRU
