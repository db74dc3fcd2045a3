"""The sizes of a new adapter, compared with its configuration before the first step.

A pool that is built a page too small breaks the law of whichever operation comes first, and the law says
nothing of why. Here the number, the configuration and the line are said together.
"""

from __future__ import annotations

from pymllm.adapters.base import Adapter, BaseAdapter, place_of
from pymllm.errors import AdapterError
from pymllm.machines.adapter_calls import answer_of
from pymllm.work.time_limit import AdapterCall


def demand_first_sizes(adapter: Adapter, capacity: int, page: int) -> None:
    """Refuse sizes of a new adapter that are not its configuration's; `AdapterError` names the first.

    Free slots that are too many, or counted in pages, show by what is handed out, and are told of there.

    Parameters
    ----------
    adapter : Adapter
        It has carried nothing out; one that tells its sizes by outcomes only is left alone.
    capacity : int
        Slots or rows of its configuration; 0 where that does not say.
    page : int
        Slots per page; 0 for rows.
    """
    if not isinstance(adapter, BaseAdapter) or not capacity:
        return
    sizes = answer_of(AdapterCall(adapter.name, adapter.sizes, lambda: "sizes before the first step"))
    if type(sizes) is not dict:  # refused with better words at the first step
        return
    for name in ("available_size",) if page else ("size", "available_size"):
        told = sizes.get(name)
        if type(told) is not int or told == capacity:
            continue
        if page and (told > capacity or told * page == capacity):
            continue
        asked = f"{capacity // page} pages of {page}, {capacity} slots" if page else f"{capacity} rows"
        padding = "page" if page else "row"
        raise AdapterError(
            adapter.name,
            f"sizes{place_of(adapter, 'sizes')}: {name} is {told} before the first step; this configuration"
            f" has {asked}, and {padding} 0 on top for padding: build it so, or correct sizes()"
            f" (with {adapter.config})",
        )
