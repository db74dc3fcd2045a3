"""Bugs planted in the pools and their allocators, and in `ChunkCache`."""

from __future__ import annotations

from plant import Plant
from planting import Edit

__all__ = ["PLANTS"]

_UNIT = "tests/unit/mem_cache/"
_HOST = "pymllm.mem_cache.host_store:HostSlotStore"
_SWA = "pymllm.mem_cache.swa_allocator:SWATokenToKVPoolAllocator"
_ROWS = "pymllm.mem_cache.req_to_token_pool:ReqToTokenPool"
_STATES = "pymllm.mem_cache.gdn_pool:GDNPool"

_SLOTS = (
    Plant(
        "B91",
        ("A1", "A5"),
        (
            Edit(f"{_HOST}.clear", "self._state[0] = _RESERVED", "self._state[0] = _HELD"),
            Edit(f"{_HOST}._check_held", "if pages.min() < 1 or", "if pages.min() < 0 or"),
        ),
        _UNIT + "test_token_allocator.py::test_a_slot_that_is_nobodys_is_refused",
    ),
    Plant(
        "B92",
        ("A1", "A7"),
        (Edit(f"{_SWA}.free", "halves = halves[halves != 0]", "pass"),),
        _UNIT + "test_swa_allocator.py::test_free_returns_what_is_left_of_both",
    ),
    Plant(
        "B94",
        ("A6", "A7"),
        (Edit(f"{_SWA}.free_group_end", "self._swa.end_group()", "pass"),),
        _UNIT + "test_swa_allocator.py::test_groups_hold_both_halves_back",
        note="no cache groups its frees here: it is the allocator that ends the group of one half only",
    ),
    Plant(
        "B95",
        ("A1",),
        (
            Edit(
                "pymllm.mem_cache.kv_pool:KVPool.__init__",
                "rows = self.size + self.page_size",
                "rows = self.size + 1",
            ),
        ),
        _UNIT + "test_kv_pool.py::test_the_last_slot_of_the_last_page_is_a_row",
    ),
    Plant(
        "B100",
        ("A1", "A3"),
        (
            Edit(
                f"{_HOST}.take",
                "return pages",
                "pages, self.kept = pages.copy(), getattr(self, 'kept', pages)\n"
                "pages[:1] = self.kept[:1] if self.kept.size else pages[:1]\n"
                "return pages",
            ),
        ),
        _UNIT + "test_token_allocator.py::test_pages_are_handed_out_whole",
    ),
    Plant(
        "B103",
        ("R4",),
        (
            Edit(
                "pymllm.mem_cache.chunk_cache:ChunkCache.insert",
                "return InsertResult()",
                "return InsertResult(adopted=((0, len(key)),))",
            ),
        ),
        _UNIT + "test_chunk_cache.py::test_insert_adopts_nothing_and_frees_nothing",
    ),
)

_ROWS_AND_STATES = (
    Plant(
        "B77",
        ("X4", "P5"),
        (Edit(f"{_STATES}.alloc_track_slot", "return None", "raise RuntimeError('no track slot is free')"),),
        _UNIT + "test_gdn_pool.py::test_track_slots_follow_the_rows_and_are_handed_out_once",
        shows_as=RuntimeError,
    ),
    Plant(
        "B107",
        ("P2",),
        (Edit(f"{_ROWS}.free", "self.req_to_token[row].zero_()", "pass"),),
        _UNIT + "test_req_to_token_pool.py::test_a_freed_row_carries_nothing_over[cpu]",
    ),
    Plant(
        "B116",
        ("P1",),
        (
            Edit(f"{_ROWS}._forget_rows", "range(1, self.size + 1)", "range(self.size)"),
            Edit(f"{_ROWS}._check_held", "if not 1 <= row <= self.size:", "if not 0 <= row <= self.size:"),
        ),
        _UNIT + "test_req_to_token_pool.py::test_rows_count_from_1_lowest_first",
    ),
    Plant(
        "B151",
        ("P1", "P5"),
        (Edit(f"{_STATES}._forget_track_slots", "range(self.max_reqs + 1,", "range(self.max_reqs,"),),
        _UNIT + "test_gdn_pool.py::test_track_slots_follow_the_rows_and_are_handed_out_once",
        note="no padding slots are handed out here: the first snapshot shares the state of the last request",
    ),
)

PLANTS = (*_SLOTS, *_ROWS_AND_STATES)
