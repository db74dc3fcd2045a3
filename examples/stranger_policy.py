"""An eviction policy from another project, and how to examine and compare it.

pymllm replay chat --eviction-policy lru --eviction-policy stranger_policy:Cheapest --capacity 4k
pymllm verify --adapter stranger_policy:CheapestRadix
"""

from __future__ import annotations

from typing import Any, ClassVar

from pymllm.adapters.own_caches import Radix
from pymllm.mem_cache.radix_cache import RadixCache


class Cheapest:
    """The policy of evicting leaves that are soon computed again: short unmatched ones, then longer ones."""

    name = "cheapest"

    def rank(self, node: Any) -> int:
        """Return the number of tokens to compute again, counted once for each request for them."""
        return len(node.key) * (1 + node.hit_count)


class RadixWithCheapest(RadixCache):
    """The tree of pymllm with the policy `Cheapest`, along with any other options."""

    def __init__(self, *sizes: Any, **options: Any) -> None:
        super().__init__(*sizes, **options | {"eviction_policy": Cheapest()})


class CheapestRadix(Radix):
    """The adapter of `RadixWithCheapest`, which claims no order, as the specification lacks the policy."""

    CACHE = RadixWithCheapest
    CONFIGURATIONS: ClassVar = [{**config, "policy": Cheapest.name} for config in Radix.CONFIGURATIONS[1:2]]
