"""Faults of the pools and their allocators, and of `ChunkCache`."""

from __future__ import annotations

from pymllm.adapters.cabinet.bugs import plant

_HOST = "pymllm.mem_cache.host_store:HostSlotStore"
_SWA = "pymllm.mem_cache.swa_allocator:SWATokenToKVPoolAllocator"
_ROWS = "pymllm.mem_cache.req_to_token_pool:ReqToTokenPool"
_STATES = "pymllm.mem_cache.gdn_pool:GDNPool"

FAULTS = (
    # -- slots, and what lies in them ------------------------------------------------------------------------
    plant("B91", "A1 A5", "token-slots swa-slots")
    .edit(f"{_HOST}.new_books", "state[0] = _RESERVED", "state[0] = _HELD")
    .edit(f"{_HOST}._are_held", "== _HELD", "== np.where(pages >= 0, _HELD, -1)"),
    plant("B92", "A1 A7 A6", "swa-slots").edit(
        "pymllm.mem_cache.slot_store:SlotStore.claim_with", "found = found[found != 0]", "pass"
    ),
    plant(
        "B94",
        "A6 A7",
        "swa-slots",
        note="no cache groups its frees here: it is the allocator that ends the group of one half only",
    ).edit(f"{_SWA}.free_group_end", "self._full.end_group_with(self._swa)", "self._full.end_group()"),
    plant("B95", "A1 P3", "kv-buffers").edit(
        "pymllm.mem_cache.kv_pool:KVPool.__init__",
        "rows = self.size + self.page_size",
        "rows = self.size + 1",
    ),
    # Where the first owner gave it back, it is out of its turn, as if a call before it had done that.
    plant("B100", "A2 A3 A4 X4 X7", "token-slots swa-slots").edit(
        f"{_HOST}.take",
        "return pages",
        "pages, self.kept = pages.copy(), getattr(self, 'kept', pages)\n"
        "pages[:1] = self.kept[:1] if self.kept.size else pages[:1]\n"
        "return pages",
    ),
    plant("B103", "R4", "chunk").edit(
        "pymllm.mem_cache.chunk_cache:ChunkCache.insert",
        "return InsertResult()",
        "return InsertResult(adopted=((0, len(key)),))",
    ),
    plant("B166", "A7 A6 A2", "swa-slots")
    .edit(
        f"{_SWA}.free_swa",
        "self._swa.give_loosely(halves)",
        "if self._full.group_open:\n"
        "    self.later = [*getattr(self, 'later', ()), pages]\n"
        "    return\n"
        "self._swa.give_loosely(halves)",
    )
    .edit(
        f"{_SWA}.free_group_end",
        "self._full.end_group_with(self._swa)",
        "later, self.later = getattr(self, 'later', ()), ()\n"
        "for pages in later:\n"
        "    halves = self._half_of[pages]\n"
        "    self._full.forget(self._half_of, pages)\n"
        "    self._swa.give_loosely(halves[halves != 0])\n"
        "self._full.end_group_with(self._swa)",
    ),
    plant(
        "B167",
        "A7 A6 A1 A2",
        "swa-slots",
        note="halves go by whole pages here, so it is the next page's mapping that is erased",
    ).edit(
        f"{_SWA}.free_swa",
        "self._full.forget(self._half_of, pages)",
        "after = pages[-1:] + 1\n"
        "self._full.forget(self._half_of, pages)\n"
        "self._full.forget(self._half_of, after[after < len(self._half_of)])",
    ),
    plant(
        "B169",
        "A7",
        "swa-slots",
        note="every allocation gives all of its slots a half, so the old mapping shows while they are free",
    ).edit("pymllm.mem_cache.slot_store:SlotStore.free_with", "self.forget(table, pages)", "pass"),
    plant(
        "B181",
        "P3",
        "kv-buffers",
        settings={"page_size": 4},
        note="there is no move: every write puts the tokens of a page into it backwards",
    ).edit(
        "pymllm.mem_cache.kv_pool:KVPool._write_rows",
        "index = index.to(self.device, torch.int64)",
        "index = index.to(self.device, torch.int64)\n"
        "mirrored = index - 2 * (index % self.page_size) + self.page_size - 1\n"
        "index = torch.where(index < self.page_size, index, mirrored)",
    ),
    # The halves come out of their turn, as if a call before them had changed it.
    plant(
        "B182", "A7 A4 X1 X4 X7", "swa-slots", note="one rank: the window pool is what has numbers of its own"
    ).edit(
        f"{_SWA}.translate_to_swa",
        "return self._full.slots_at(self._half_of.take(pages), offsets, indices.shape)",
        "raw = indices.to(self.device, torch.int32)\n"
        "return torch.where(raw < self.swa_size + self.page_size, raw, 0)",
    ),
    # -- rows and states -------------------------------------------------------------------------------------
    plant("B77", "X4 P5", "gdn-states").edit(
        f"{_STATES}.alloc_track_slot", "return None", "raise RuntimeError('no track slot is free')"
    ),
    plant("B107", "P2", "rows").edit(f"{_ROWS}.free", "self.req_to_token[row].zero_()", "pass"),
    plant("B116", "P1", "rows")
    .edit(f"{_ROWS}._new_books", "range(1, self.size + 1)", "range(self.size)")
    .edit(f"{_ROWS}._check_held", "if not 1 <= row <= self.size:", "if not 0 <= row <= self.size:"),
    plant(
        "B151",
        "P1 P5",
        "gdn-states",
        note="no padding slots are handed out here: the first snapshot shares the state of the last request",
    ).edit(f"{_STATES}._forget_track_slots", "range(self.max_reqs + 1,", "range(self.max_reqs,"),
)
