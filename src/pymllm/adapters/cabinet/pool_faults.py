"""Faults of the pools and their allocators, and of `ChunkCache`."""

from __future__ import annotations

from pymllm.adapters.cabinet.bugs import plant
from pymllm.adapters.cabinet.planting import Edit

__all__ = ["FAULTS"]

_HOST = "pymllm.mem_cache.host_store:HostSlotStore"
_SWA = "pymllm.mem_cache.swa_allocator:SWATokenToKVPoolAllocator"
_ROWS = "pymllm.mem_cache.req_to_token_pool:ReqToTokenPool"
_STATES = "pymllm.mem_cache.gdn_pool:GDNPool"

_SLOTS = (
    plant(
        "B91",
        ("A1", "A5"),
        ("token-slots", "swa-slots"),
        (
            Edit(f"{_HOST}.new_books", "state[0] = _RESERVED", "state[0] = _HELD"),
            Edit(f"{_HOST}._are_held", "== _HELD", "== np.where(pages >= 0, _HELD, -1)"),
        ),
    ),
    plant(
        "B92",
        ("A1", "A7", "A6"),
        ("swa-slots",),
        (Edit("pymllm.mem_cache.slot_store:SlotStore.claim_with", "found = found[found != 0]", "pass"),),
    ),
    plant(
        "B94",
        ("A6", "A7"),
        ("swa-slots",),
        (Edit(f"{_SWA}.free_group_end", "self._full.end_group_with(self._swa)", "self._full.end_group()"),),
        note="no cache groups its frees here: it is the allocator that ends the group of one half only",
    ),
    plant(
        "B95",
        ("A1", "P3"),
        ("kv-buffers",),
        (
            Edit(
                "pymllm.mem_cache.kv_pool:KVPool.__init__",
                "rows = self.size + self.page_size",
                "rows = self.size + 1",
            ),
        ),
    ),
    plant(
        "B100",
        # Where the first owner gave it back, it is out of its turn, as if a call before it had done that.
        ("A2", "A3", "A4", "X4", "X7"),
        ("token-slots", "swa-slots"),
        (
            Edit(
                f"{_HOST}.take",
                "return pages",
                "pages, self.kept = pages.copy(), getattr(self, 'kept', pages)\n"
                "pages[:1] = self.kept[:1] if self.kept.size else pages[:1]\n"
                "return pages",
            ),
        ),
    ),
    plant(
        "B103",
        ("R4",),
        ("chunk",),
        (
            Edit(
                "pymllm.mem_cache.chunk_cache:ChunkCache.insert",
                "return InsertResult()",
                "return InsertResult(adopted=((0, len(key)),))",
            ),
        ),
    ),
)

_ROWS_AND_STATES = (
    plant(
        "B77",
        ("X4", "P5"),
        ("gdn-states",),
        (Edit(f"{_STATES}.alloc_track_slot", "return None", "raise RuntimeError('no track slot is free')"),),
    ),
    plant(
        "B107",
        ("P2",),
        ("rows",),
        (Edit(f"{_ROWS}.free", "self.req_to_token[row].zero_()", "pass"),),
    ),
    plant(
        "B116",
        ("P1",),
        ("rows",),
        (
            Edit(f"{_ROWS}._new_books", "range(1, self.size + 1)", "range(self.size)"),
            Edit(f"{_ROWS}._check_held", "if not 1 <= row <= self.size:", "if not 0 <= row <= self.size:"),
        ),
    ),
    plant(
        "B151",
        ("P1", "P5"),
        ("gdn-states",),
        (Edit(f"{_STATES}._forget_track_slots", "range(self.max_reqs + 1,", "range(self.max_reqs,"),),
        note="no padding slots are handed out here: the first snapshot shares the state of the last request",
    ),
)

FAULTS = (*_SLOTS, *_ROWS_AND_STATES)
