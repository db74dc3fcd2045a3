"""The ranks that named eviction policies give to a page: the page of smallest rank is evicted first (R11).

A rank may use what a page has: hits, arrival, priority and recency. A policy that asks for more, such as the
length of a node, has ``None``, and its order is not judged.
"""

from __future__ import annotations

from pymllm.oracle.models.prefix_model import Rank

POLICY_RANKS: dict[str, Rank | None] = {
    "lru": lambda page: 0,  # of equal ranks the least recent goes first
    "lfu": lambda page: page.hits,
    "fifo": lambda page: page.came,
    "mru": lambda page: -page.access,
    "filo": lambda page: -page.came,
    "priority": lambda page: page.priority,
    "slru": lambda page: int(page.hits >= 2),
    "log-lfu": lambda page: page.hits.bit_length(),
}
"""The rank functions of this package's own policies, by name in a configuration's ``policy``."""

_OF_OTHERS: dict[str, Rank] = {
    "release": lambda page: page.released,
    "inserts": lambda page: page.inserts,
}
"""The rank functions of policies that only other projects' caches have."""


def find_rank(policy: object) -> Rank | None:
    """Return the rank function of a policy; ``None`` if the policy is unknown or no page shows its rank."""
    return POLICY_RANKS.get(str(policy)) or _OF_OTHERS.get(str(policy))


def known_policies() -> str:
    """Return the names of all policies whose order can be judged, as text for messages."""
    return ", ".join(name for name in (*POLICY_RANKS, *_OF_OTHERS) if find_rank(name))
