"""Which cached pages end with a recurrent state, as a part of the model of a prefix cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pymllm.oracle.prefix_pages import Hold, Path

__all__ = ["StateEnds"]


class StateEnds:
    """The states of a cache: at most one at the end of each page, each in a track slot.

    Attributes
    ----------
    slots : dict of Path to int
        Track slots, by the prefixes whose states they hold.
    evicted : frozenset of Path
        Cached prefixes whose state was evicted, and their KV was not.
    changes : int
        Counts up whenever a state comes or goes.
    """

    def __init__(self) -> None:
        self.slots: dict[Path, int] = {}
        self.evicted: frozenset[Path] = frozenset()
        self.changes = 0

    def __contains__(self, path: Path) -> bool:
        return path in self.slots

    def locks(self, path: Path, holds: Mapping[int, Hold]) -> int:
        """Count the holds at exactly a path while it has a state (M4)."""
        return [hold.path for hold in holds.values()].count(path) if path in self.slots else 0

    def sizes(self, holds: Mapping[int, Hold]) -> dict[str, int]:
        """Return the numbers of states without and with a lock (M6)."""
        held = {hold.path for hold in holds.values()}
        protected = len(held & self.slots.keys())
        return {
            "mamba_evictable_size": len(self.slots) - protected,
            "mamba_protected_size": protected,
        }

    def add(self, path: Path, slot: int) -> None:
        """Put a state at the end of a path."""
        self.changes += 1
        self.slots[path] = slot

    def clear(self) -> None:
        """Forget every state."""
        self.changes += 1
        self.slots.clear()
        self.evicted = frozenset()

    def remove(self, paths: Iterable[Path]) -> None:
        """Take states away; their KV may stay."""
        self.changes += 1
        for path in paths:
            del self.slots[path]
