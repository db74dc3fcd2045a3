"""White-box checks of the slot allocators: their stores of pages, on host and device, and SWA halves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.invariants.pools import check_subject, fail
from pymllm.mem_cache.slots import device_store, host_store
from pymllm.mem_cache.slots.device_store import DeviceSlotStore, Whereabouts
from pymllm.mem_cache.slots.host_queue import HostQueueStore
from pymllm.mem_cache.slots.host_store import HostSlotStore
from pymllm.mem_cache.slots.slot_store import SlotStore
from pymllm.mem_cache.slots.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator


def check_slot_store(store: SlotStore) -> NDArray[np.bool_]:
    """Recount a store's pages and compare all that it keeps; return which are handed out, from page 0 on.

    Laws: A1 (padding), A2 (the partition and its counters), A4 (the order of what is handed out next), A5
    (what ownership checks look at), A6 (pending pages outside a group). Cost: a few NumPy passes over the
    pool, after a copy to the host where it is on a device.
    """
    if isinstance(store, HostSlotStore):
        return _check_host_store(store)
    if isinstance(store, HostQueueStore):
        return _check_queue_store(store)
    if isinstance(store, DeviceSlotStore):
        return _check_device_store(store)
    raise TypeError(f"there is no walk for a {type(store).__name__}")


def some_repeated(pages: NDArray[np.integer]) -> list[int]:
    """Return the first few pages that are listed more than once, for a message."""
    values, counts = np.unique(pages, return_counts=True)
    return [int(page) for page in values[counts > 1][:8]]


def _check_host_store(store: HostSlotStore) -> NDArray[np.bool_]:
    """Walk the labels of all pages, and the trackers that find the free pages."""
    state, padding = store._state[: store.pages + 1], store._state[store.pages + 1 :]
    if state[0] != host_store._RESERVED or (padding != host_store._RESERVED).any():
        fail("A1", "padding is not marked as reserved")
    old, young = state < store._epoch, state == store._epoch
    pending: NDArray[np.bool_] = state == host_store._PENDING
    held: NDArray[np.bool_] = state == host_store._HELD
    old_count, young_count, pending_count, held_count = map(np.count_nonzero, (old, young, pending, held))
    known = old_count + young_count + pending_count + held_count
    if known != store.pages or state.min() < 0:
        fail("A2", f"{known} of {store.pages} pages are free, pending or handed out")
    parked = _parked_pages(store)
    _check_counters(store, int(old_count + young_count), int(pending_count) - parked.size)
    if store._young_pages != young_count:
        fail("A4", f"{young_count} pages were freed since the last merge, counted {store._young_pages}")
    listed = np.sort(np.concatenate([parked, *store._pending]))
    if not np.array_equal(listed, np.flatnonzero(pending)):
        fail("A2", f"pages {listed[:8]} are listed as pending, {np.flatnonzero(pending)[:8]} are marked so")
    _check_search(store, old, young)
    return held


def _check_search(store: HostSlotStore, old: NDArray[np.bool_], young: NDArray[np.bool_]) -> None:
    """Compare the pages ready to be taken, and the flags of the search, with the labels."""
    ready = store._ready[store._ready_from :]
    searched = store._next_chunk << host_store._CHUNK_BITS
    if not np.array_equal(ready, np.flatnonzero(old[:searched])):
        fail("A4", f"ready pages {ready[:8]} are not the old free pages below {searched}, in ascending order")
    _check_flags("old", old[searched:], store._old_chunks[store._next_chunk :])
    _check_flags("young", young, store._young_chunks)


def _check_flags(name: str, free: NDArray[np.bool_], flags: NDArray[np.bool_]) -> None:
    """Refuse a free page in a chunk without a flag: no search would find it."""
    padded = np.zeros((flags.size, 1 << host_store._CHUNK_BITS), np.bool_)
    padded.reshape(-1)[: free.size] = free
    lost = padded.any(axis=1) & ~flags
    if lost.any():
        fail("A2", f"no search finds the {name} free pages of chunk {int(lost.argmax())}")


def _check_queue_store(store: HostQueueStore) -> NDArray[np.bool_]:
    """Walk the ring of free pages and the pending pages."""
    if not 0 <= store._first < store.pages or not 0 <= store.free_pages <= store.pages:
        fail("A2", f"{store.free_pages} free pages from place {store._first} on, in a ring of {store.pages}")
    pending = np.concatenate([np.empty(0, np.int32), *(one.astype(np.int32) for one in store._pending)])
    _check_counters(store, store.free_pages, pending.size)
    return _held_beside(store, store._in_ring(store._first, store.free_pages), pending, _parked_pages(store))


def _parked_pages(store: SlotStore) -> NDArray[np.int64]:
    """Return the pages that wait for a transfer; refuse one that no transfer holds, and a wrong count."""
    holds = store._holds
    if holds is None:
        parked = np.empty(0, np.int64)
    else:
        parked = np.flatnonzero(holds.is_parked)
        free = parked[holds.transfers[parked] < 1]
        if free.size or holds.transfers.min() < 0:
            fail("A2", f"pages {free[:8]} wait for a transfer, and none holds them")
    if store.unparked_pages != store.pages - parked.size:
        fail("A2", f"{parked.size} pages wait for a transfer, counted {store.pages - store.unparked_pages}")
    return parked


def _held_beside(store: SlotStore, *lists: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return which pages no list has; refuse one that is none, or is listed twice."""
    listed = np.concatenate(lists)
    outside = listed[(listed < 1) | (listed > store.pages)]
    if outside.size:
        fail("A1", f"pages {outside[:8]} are listed, the pool has 1..{store.pages}")
    held = np.ones(store.pages + 1, np.bool_)
    held[0] = False
    held[listed] = False
    if np.count_nonzero(held) != store.pages - listed.size:
        fail("A2", f"pages {some_repeated(listed)} are free or pending more than once")
    return held


def _check_device_store(store: DeviceSlotStore) -> NDArray[np.bool_]:
    """Walk the lists of free and pending pages, and the labels where ownership is checked."""
    late = Counter[Whereabouts]()
    for count in store._late:
        late[count.where] += count.read()
    main = _numbers([store._main[store._main_from :]])
    end = store._main_sure + late[Whereabouts.MAIN]
    main, behind = main[:end], main[end:]
    released, pending, unread = map(_numbers, (store._released, store._pending, store._unread))
    if store._has_gaps:
        behind, released, pending = (pages[pages != 0] for pages in (behind, released, pending))
    if behind.size:
        fail("A2", f"pages {behind[:8]} are listed behind those that are handed out next")
    if unread.size:
        unread = np.unique(unread[unread != 0])
    parked = _parked_pages(store)
    held = _held_beside(store, main, released, pending, unread, parked)
    counted = store._free_sure + late[Whereabouts.MAIN] + late[Whereabouts.RELEASED]
    _compare(store, main.size + released.size, counted, "free")
    _compare(store, pending.size, store._pending_sure + late[Whereabouts.PENDING], "pending")
    if unread.size and not store.group_open:
        fail("A6", f"pages {unread[:8]} are pending and no group is open")
    if store.need_sort and not (main[1:] > main[:-1]).all():
        fail("A4", "the pages to hand out next are not in ascending order")
    if store.check_ownership:
        _check_labels(store, held, np.concatenate((pending, parked)))
    return held


def _check_labels(store: DeviceSlotStore, held: NDArray[np.bool_], pending: NDArray[np.integer]) -> None:
    """Compare the labels that ownership checks read with the lists."""
    labels = np.full(store.pages + 2, device_store._FREE, np.uint8)
    labels[:-1][held] = device_store._HELD
    labels[pending] = device_store._PENDING
    labels[:: store.pages + 1] = device_store._RESERVED
    wrong = np.flatnonzero(labels != store._state.cpu().numpy())
    if wrong.size:
        fail("A5", f"pages {wrong[:8]} carry another label than the lists give them")


def _check_counters(store: SlotStore, free_count: int, pending_count: int) -> None:
    """Compare the counters of a store with a recount."""
    _compare(store, free_count, store.free_pages, "free")
    _compare(store, pending_count, store.pending_pages, "pending")


def _compare(store: SlotStore, found: int, counted: int, state: str) -> None:
    """Compare one counter; nothing is pending outside a group."""
    if found != counted:
        fail("A2", f"{found} pages are {state}, counted {counted}")
    if found and state == "pending" and not store.group_open:
        fail("A6", f"{found} pages are pending and no group is open")


def _numbers(parts: Sequence[torch.Tensor]) -> NDArray[np.int32]:
    """Return lists of pages as one array on the host."""
    if not parts:  # most lists of a walk: 3 us for each
        return np.empty(0, np.int32)
    return np.concatenate([part.cpu().numpy().astype(np.int32) for part in parts])


def check_token_allocator(allocator: TokenToKVPoolAllocator) -> None:
    """Raise if anything that the allocator keeps contradicts anything else; free groups may be open.

    Laws: A1, A2, A4-A6, as `check_slot_store` lists them. Cost: 1 ms for a million slots on the host.
    """
    check_subject(allocator, TokenToKVPoolAllocator)
    check_slot_store(allocator._store)


def check_swa_allocator(allocator: SWATokenToKVPoolAllocator) -> None:
    """Raise if anything that either pool keeps, or the table between them, contradicts anything else.

    Free groups may be open. Laws: A7 (halves), and those of `check_slot_store`: A1, A2, A4-A6. Cost: 6 ms for
    a million slots in each pool on the host.
    """
    walk_swa_allocator(allocator)


def walk_swa_allocator(allocator: SWATokenToKVPoolAllocator) -> NDArray[np.bool_]:
    """Check as `check_swa_allocator`; return for each full page, page 0 included, if it is handed out."""
    check_subject(allocator, SWATokenToKVPoolAllocator)
    full, swa = check_slot_store(allocator._full), check_slot_store(allocator._swa)
    if allocator._full.group_open != allocator._swa.group_open:
        fail("A6", "a free group is open in one of the two pools only")
    halves = _as_array(allocator._half_of)
    paired = halves != 0
    lost = np.flatnonzero(paired & ~full)
    if lost.size:
        fail("A7", f"full pages {lost[:8]} have SWA halves and are not handed out")
    used = halves[paired]
    if used.size and (used.min() < 1 or used.max() >= swa.size):
        outside = used[(used < 1) | (used >= swa.size)]
        fail("A7", f"halves {outside[:8]} are outside the SWA pages 1..{swa.size - 1}")
    behind = np.zeros(swa.size, np.bool_)
    behind[used] = True
    if np.count_nonzero(behind) != used.size:
        fail("A7", f"SWA pages {some_repeated(used)} are the half of several full pages")
    astray = np.flatnonzero(behind != swa)
    if astray.size:
        fail("A7", f"SWA pages {astray[:8]} are handed out without a full page, or free with one")
    return full


def _as_array(table: NDArray[np.int32] | torch.Tensor) -> NDArray[np.int32]:
    """Return a table of either store on the host."""
    return table.cpu().numpy() if isinstance(table, torch.Tensor) else table
