"""Faults for that cache: ways in which it could be wrong, and the laws that must notice."""

from __future__ import annotations

from pymllm.adapters.cabinet.fault import Fault
from pymllm.adapters.cabinet.planting import Edit

_ADAPTER = ("stranger_adapter:StrangerCache",)

TABLE = (
    Fault(
        "padding-slots",
        "hands out the slots that are for padding",
        ("A1",),
        _ADAPTER,
        (Edit("stranger_cache:PageCache.__init__", "range(page_size, page_size + slots)", "range(slots)"),),
    ),
    Fault(
        "held-victims",
        "evicts what is held",
        ("R6", "R5"),
        _ADAPTER,
        (Edit("stranger_cache:PageCache.evict", "and not self.holds[it]", ""),),
    ),
    Fault(
        "stale-hits",
        "does not make young what it matches",
        ("R8",),
        _ADAPTER,
        (Edit("stranger_cache:PageCache.match", "self.pages[prefix] = self.pages.pop(prefix)", "pass"),),
    ),
)
