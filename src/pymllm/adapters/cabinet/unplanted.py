"""Entries of the catalogue that cannot be planted in our classes, and why."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["UNPLANTED", "Unplanted"]


class Unplanted(NamedTuple):
    """An entry: what the bug is, and why no class of ours can have it."""

    title: str
    reason: str


_NO_TIER = "no host tier: KV lives in one place and nothing is copied out or back"

UNPLANTED: dict[str, Unplanted] = {
    "B28": Unplanted(
        "Last reference dropped while pinned: nobody frees",
        "no pins: references are all that keeps a block, and every one is given back by the same call",
    ),
    "B83": Unplanted(
        "Scratch buffers not counted in the state budget",
        "no budget in bytes: every class is given a number of slots, and mem_bytes counts all its buffers",
    ),
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
