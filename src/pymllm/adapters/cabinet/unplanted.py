"""Bugs that cannot be planted in our classes, and why."""

from __future__ import annotations

__all__ = ["UNPLANTED"]

_NO_TIER = "no host tier: KV lives in one place and nothing is copied out or back"

UNPLANTED: dict[str, str] = {
    "B28": "no pins: references are all that keeps a block, and every one is given back by the same call",
    "B83": "no budget in bytes: every class is given a number of slots, and mem_bytes counts all its buffers",
    "B149": "no masked gather: KV is read back by the slots of a row, and padding is in no row",
    "B158": _NO_TIER,
    "B160": f"{_NO_TIER}, so no operation is pending across a call",
    "B161": _NO_TIER,
}
"""By id."""
