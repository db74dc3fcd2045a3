"""What becomes of blocks that nobody references."""

from __future__ import annotations

import enum


class PrefixCachingEvictionPolicy(enum.StrEnum):
    """What becomes of a registered block that nobody references."""

    REF_ZERO = "ref_zero"
    """It is deregistered at once and free."""
    LRU = "lru"
    """It stays cached until room is needed; the least recently used block goes first."""

    def __repr__(self) -> str:
        """Show how a caller writes it."""
        return f"{type(self).__name__}.{self.name}"


def is_lru(policy: object) -> bool:
    """Tell whether a policy is LRU: ours, its value, or another engine's enumeration of the same names."""
    return str(getattr(policy, "name", policy)).lower() == "lru"
