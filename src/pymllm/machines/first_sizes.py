"""The check that a new adapter's sizes fit its configuration before the first step.

A pool that is built a page too small breaks the law of whichever operation comes first, and the law says
nothing of why. Here the number, the configuration and the line are said together.
"""

from __future__ import annotations

from pymllm.adapters.base import Adapter, BaseAdapter, place_of
from pymllm.errors import AdapterError
from pymllm.machines.adapter_calls import answer_of
from pymllm.work.time_limit import AdapterCall


def demand_first_sizes(adapter: Adapter, capacity: int, page: int) -> AdapterError | None:
    """Raise `AdapterError` for the first size of a new adapter that does not fit its configuration.

    What a few steps may tell of with better words is returned, to be raised behind them: slots that are too
    many show by what is handed out, and so do sizes in pages.

    Parameters
    ----------
    adapter : Adapter
        It has carried nothing out; one that tells its sizes by outcomes only is left alone.
    capacity : int
        Slots, rows or blocks of its configuration; 0 where that does not say.
    page : int
        Slots per page; 0 for rows and blocks.
    """
    if not isinstance(adapter, BaseAdapter) or not capacity:
        return None
    sizes = answer_of(AdapterCall(adapter.name, adapter.sizes, lambda: "sizes before the first step"))
    if type(sizes) is not dict:  # refused with better words at the first step
        return None
    for name in _OF_ALL[adapter.kind]:
        told = sizes.get(name)
        if type(told) is not int or told == capacity:
            continue
        asked, padding = _asked(adapter.kind, capacity, page)
        counted = f"; is {padding} counted?" if told == capacity + (page or 1) else ""
        fault = _fault(
            adapter,
            f"{name} is {told} before the first step; this configuration has {asked}, and {padding} on top:"
            f" {_way_out(adapter, 'build it so, or correct sizes()')}{counted}",
        )
        if page and (told > capacity or told * page == capacity):
            return fault
        raise fault
    for name in _OF_CACHED.get(adapter.kind, ()):
        told = sizes.get(name)
        if type(told) is int and told:
            padding = _asked(adapter.kind, capacity, page)[1]
            counted = f"; is {padding} counted?" if told == (page or 1) else ""
            return _fault(
                adapter,
                f"{name} is {told} before the first step; nothing is cached then, in a cache that is made"
                f" anew with each adapter, so it must be 0: {_way_out(adapter, 'correct sizes()')}{counted}",
            )
    return None


_OF_ALL = {
    "rows": ("size", "available_size"),
    "slots": ("available_size",),
    "prefix": ("available_size",),
    "blocks": ("pool_avail",),
}
"""Sizes that must equal the capacity of the whole pool at first, by kind."""
_OF_CACHED = {
    "prefix": ("total_size", "evictable_size", "protected_size"),
    "blocks": ("evictable_blocks",),
}
"""Sizes that must be 0 at first, by kind."""


def _asked(kind: str, capacity: int, page: int) -> tuple[str, str]:
    """Return words for the capacity of a configuration, and for the reserved block, row or page beside it."""
    if kind == "blocks":
        return f"{capacity} blocks", "the dummy (null) block"
    if kind == "rows":
        return f"{capacity} rows", "row 0 (padding)"
    return f"{capacity // page} pages of {page}, {capacity} slots", "page 0 (padding)"


def _way_out(adapter: BaseAdapter, written: str) -> str:
    """Return the advice ``written`` for the author of an adapter, or advice about a plain object."""
    return "let its methods, its attributes and config agree" if adapter.METHODS else written


def _fault(adapter: BaseAdapter, words: str) -> AdapterError:
    method = adapter.METHODS.get("sizes", f"sizes{place_of(adapter, 'sizes')}")
    return AdapterError(adapter.name, f"{method}: {words} (with {adapter.config})")
