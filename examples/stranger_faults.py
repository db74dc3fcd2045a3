"""Faults for that cache: ways in which it could be wrong, and the laws that must notice."""

from __future__ import annotations

from stranger_cache import PageCache

from pymllm.faults.fault import ANY, Fault
from pymllm.faults.plant import Edit, Replace

_ADAPTER = ("stranger_adapter:StrangerCache",)


def forget_all(self: PageCache, count: int) -> list[int]:
    """Evict, and lose the slots."""
    self.pages.clear()
    return []


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
    Fault(
        "clumsy-eviction",
        "loses what it evicts",
        ANY,  # some law must notice; which one, we cannot tell
        _ADAPTER,
        (Replace("stranger_cache:PageCache.evict", forget_all),),
    ),
    Fault(
        "sticky-holds",
        "counts a hold twice, and its release once",
        ("R6", "R5"),
        _ADAPTER,
        (Replace("stranger_cache:PageCache.hold(by)", 2, was=1),),
    ),
)
