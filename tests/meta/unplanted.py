"""Catalogue entries that are not planted, and why."""

from __future__ import annotations

__all__ = ["UNPLANTED"]

_BLOCKS = "waits for KVBlockAllocator"
_STATES = "waits for MambaSlotAllocator"
_NO_TIER = "no host tier: KV lives in one place and nothing is copied out or back"

UNPLANTED = {
    "B28": f"{_BLOCKS}; nothing can be pinned in the classes that exist",
    "B76": _STATES,
    "B80": _STATES,
    "B82": _STATES,
    "B83": f"{_STATES}; GDNPool is given a number of slots, not a budget in bytes",
    "B85": f"{_STATES} and KVBlockAllocator",
    "B86": f"{_STATES}; no class that exists computes a state's index from a length",
    "B88": _STATES,
    "B118": _BLOCKS,
    "B119": _BLOCKS,
    "B122": _BLOCKS,
    "B125": _BLOCKS,
    "B127": _BLOCKS,
    "B128": _BLOCKS,
    "B130": _BLOCKS,
    "B131": _BLOCKS,
    "B133": _BLOCKS,
    "B137": _BLOCKS,
    "B149": "no masked gather: KV is read back by the slots of a row, and padding is in no row",
    "B158": _NO_TIER,
    "B160": f"{_NO_TIER}, so no operation is pending across a call",
    "B161": _NO_TIER,
}
