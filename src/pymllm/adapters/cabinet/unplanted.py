"""Entries of the catalogue that cannot be planted in our classes, and why."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["UNPLANTED", "Unplanted"]


class Unplanted(NamedTuple):
    """An entry: what the bug is, and why no class of ours can have it."""

    title: str
    reason: str


_BLOCKS = "waits for KVBlockAllocator"
_STATES = "waits for MambaSlotAllocator"
_NO_TIER = "no host tier: KV lives in one place and nothing is copied out or back"

UNPLANTED: dict[str, Unplanted] = {
    "B28": Unplanted(
        "Last reference dropped while pinned: nobody frees",
        f"{_BLOCKS}; nothing can be pinned in the classes that exist",
    ),
    "B76": Unplanted("Aborted restore leaves a published, never-filled slot", _STATES),
    "B80": Unplanted("Offsets framed on the first chunk only", _STATES),
    "B82": Unplanted("Slot batch allocation consumes free slots before failing", _STATES),
    "B83": Unplanted(
        "Scratch buffers not counted in the state budget",
        f"{_STATES}; GDNPool is given a number of slots, not a budget in bytes",
    ),
    "B85": Unplanted(
        "Snapshot allocation evicts the blocks being committed", f"{_STATES} and KVBlockAllocator"
    ),
    "B86": Unplanted(
        "State index computed in the wrong block size",
        f"{_STATES}; no class that exists computes a state's index from a length",
    ),
    "B88": Unplanted("Partial removal reports success but leaves the state", _STATES),
    "B118": Unplanted("Shared block released twice in one call counts once", _BLOCKS),
    "B119": Unplanted("Ancestor evicted before its descendant", _BLOCKS),
    "B122": Unplanted("Registering a block twice raises its parent's child count twice", _BLOCKS),
    "B125": Unplanted("Block popped from the evictor stays in the cached index", _BLOCKS),
    "B127": Unplanted("Second block with the same hash is dropped from the index", _BLOCKS),
    "B128": Unplanted("Removing one duplicate removes the survivor's entry", _BLOCKS),
    "B130": Unplanted("Hash published before the KV exists", _BLOCKS),
    "B131": Unplanted("Reused block's old hash still points at it", _BLOCKS),
    "B133": Unplanted("Null and repeated blocks reach the free queue", _BLOCKS),
    "B137": Unplanted("No check that a hit has the right tokens", _BLOCKS),
    "B149": Unplanted(
        "Poisoned padding slot reaches real outputs",
        "no masked gather: KV is read back by the slots of a row, and padding is in no row",
    ),
    "B158": Unplanted("Host pages freed twice in prefetch", _NO_TIER),
    "B160": Unplanted(
        "Split while a backup is in flight loses a fragment",
        f"{_NO_TIER}, so no operation is pending across a call",
    ),
    "B161": Unplanted("Parent's backup failed, child's succeeded", _NO_TIER),
}
"""By id."""
