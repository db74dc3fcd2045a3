"""Bugs that cannot be planted in our classes, and why."""

from __future__ import annotations

__all__ = ["UNPLANTED"]

_NO_TIER = "no host tier: KV lives in one place and nothing is copied out or back"
_NO_EVENTS = "no events: nobody outside is told what is cached"

UNPLANTED: dict[str, str] = {
    "B28": "no pins: references are all that keeps a block, and every one is given back by the same call",
    "B83": "no budget in bytes: every class is given a number of slots, and mem_bytes counts all its buffers",
    "B149": "no masked gather: KV is read back by the slots of a row, and padding is in no row",
    "B158": _NO_TIER,
    "B160": f"{_NO_TIER}, so no operation is pending across a call",
    "B161": _NO_TIER,
    "B184": f"{_NO_EVENTS}, nor in which unit",
    "B190": f"{_NO_TIER}; a cached state comes with the slot that it lies in (M1)",
    "B191": "no groups: a request has one list of blocks, and children go before parents in any order",
    "B196": f"{_NO_EVENTS}; the observer of blocks serves their state slots, and a hash names one block (C3)",
    "B197": f"{_NO_TIER}; within one tier it is B164",
    "B203": "no index of several workers: the index has the blocks of one allocator, and they leave together",
}
"""By id."""
