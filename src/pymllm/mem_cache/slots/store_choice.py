"""The choice of a free list for a pool, by its device and by the checks and order it needs."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from pymllm.mem_cache.arguments import as_device, as_size, as_switch, refuse_long_pool
from pymllm.mem_cache.slots.device_store import DeviceSlotStore
from pymllm.mem_cache.slots.host_queue import HostQueueStore
from pymllm.mem_cache.slots.host_store import HostSlotStore
from pymllm.mem_cache.slots.slot_store import SlotStore

StoreKind: TypeAlias = Literal["auto", "host", "device"]


def checks_alone(is_checked: bool, device: str | torch.device) -> bool | None:
    """Return ``check_ownership`` for an allocator that checks its arguments but does not track caches.

    A GPU has no such allocator: what checks there watches, too.
    """
    return None if is_checked and torch.device(device).type == "cpu" else is_checked


def make_slot_store(
    size: int,
    device: str | torch.device,
    page_size: int,
    need_sort: bool,
    check_ownership: bool | None,
    store: StoreKind,
) -> SlotStore:
    """Check a pool's dimensions, and return a store that fits its device.

    ``check_ownership``: ``None`` checks on CPU only, since on CUDA a check synchronises. Source:
    docs/specification/slots.md. Laws: A1, A5, X1.
    """
    as_switch("check_ownership", check_ownership)
    if not isinstance(need_sort, bool):
        raise TypeError(f"need_sort must be True or False, got {need_sort!r}")
    size, page_size = as_size("size", size), as_size("page_size", page_size)
    if size % page_size:
        raise ValueError(f"size {size} is not a multiple of page_size {page_size}: pools hold whole pages")
    refuse_long_pool(size, page_size)
    place = as_device(device)
    on_cpu = place.type == "cpu"
    if store not in ("auto", "host", "device"):
        raise ValueError(f"store must be 'auto', 'host' or 'device', got {store!r}")
    if store == "host" and not on_cpu:
        raise ValueError(f"the host store serves the CPU only, got device {place}: use store='auto'")
    checked = on_cpu if check_ownership is None else check_ownership
    kind: type[SlotStore] = HostSlotStore if checked or need_sort else HostQueueStore
    if store == "device" or not on_cpu:
        kind = DeviceSlotStore
    return kind(size, page_size, place, need_sort, checked)
