"""Bugs planted where blocks have cached states: their slots, and the requests that leave and find them."""

from __future__ import annotations

from plant import Plant
from planting import Edit

__all__ = ["PLANTS"]

_CONTEXTS = "pymllm.core.inference.contexts."
_UNIT = "tests/unit/core/inference/contexts/"
_SLOTS = f"{_CONTEXTS}block_slots:BlockSlots"
_ALLOCATOR = f"{_CONTEXTS}mamba_slot_allocator:MambaSlotAllocator"
_REQUESTS = f"{_CONTEXTS}request_context:RequestContext"
_SLOT_TESTS = f"{_UNIT}test_block_slots.py::"
_STATE_TESTS = f"{_UNIT}test_mamba_slot_allocator.py::"
_REQUEST_TESTS = f"{_UNIT}test_request_context.py::"

_IN_THE_ALLOCATOR = (
    Plant(
        "B76",
        ("X2", "C7"),
        (Edit(f"{_ALLOCATOR}._commit", "self._invalidate_blocks_batch(kept)", "pass"),),
        _STATE_TESTS + "test_a_commit_that_fails_half_way_publishes_nothing",
        note="the slot is mapped before the copy, and stays so where the copy fails",
    ),
    Plant(
        "B80",
        ("C8",),
        (Edit(f"{_ALLOCATOR}.compute_and_store_offsets", "first = start + skipped", "first = skipped"),),
        _STATE_TESTS + "test_offsets_are_where_a_state_is_worth_keeping",
    ),
    Plant(
        "B82",
        ("C5", "C2"),
        (
            Edit(
                f"{_SLOTS}._take_slots",
                "evicted = self._books.take_from(self._choose_victims(missing, keep))\n"
                "return evicted if not self.free_count else np.append(self._books.pop_free(self.free_count), "
                "evicted)",
                "free = self._books.pop_free(self.free_count)\n"
                "return np.append(free, self._books.take_from(self._choose_victims(missing, keep)))",
            ),
        ),
        _SLOT_TESTS + "test_what_cannot_be_met_takes_nothing",
    ),
    Plant(
        "B85",
        ("C5",),
        (
            Edit(
                f"{_SLOTS}._evictable",
                "return blocks[~np.isin(blocks, kept)] if kept.size else blocks",
                "return blocks",
            ),
        ),
        _SLOT_TESTS + "test_an_allocation_evicts_none_of_its_own_blocks",
    ),
    Plant(
        "B86",
        ("C8",),
        (
            Edit(
                f"{_ALLOCATOR}._blocks_ending_at",
                "depth // self.context.block_size_tokens - 1",
                "depth // self.context.mamba_chunk_size - 1",
            ),
        ),
        _STATE_TESTS + "test_offsets_are_where_a_state_is_worth_keeping[the first block]",
    ),
    Plant(
        "B88",
        ("C7",),
        (
            Edit(
                f"{_CONTEXTS}slot_states:SlotStates.restore_to_live",
                "return False",
                "return True",
            ),
        ),
        _UNIT + "test_slot_states.py::test_where_nothing_is_cached_the_live_state_stays",
    ),
    Plant(
        "B128",
        ("C4",),
        (
            Edit(
                f"{_SLOTS}.on_kv_blocks_deregistered",
                "self._invalidate_blocks_batch(block_ids_list)",
                "self._invalidate_blocks_batch(block_ids_list)\n"
                "for value in hashes_to_delete:\n"
                "    self.hash_to_block_id.pop(value, None)",
            ),
        ),
        _SLOT_TESTS + "test_a_deregistered_block_takes_only_its_own_hash",
    ),
)

_IN_REQUESTS = (
    Plant(
        "B76",
        ("E1", "C7"),
        (
            Edit(
                f"{_REQUESTS}._resume",
                "if found and slots.restore_to_live(live.row, live.blocks[found - 1]):",
                "if found:\n    slots.restore_to_live(live.row, live.blocks[found - 1])",
            ),
        ),
        _REQUEST_TESTS + "test_a_restore_that_fails_is_no_resume",
        note="the context takes no notice of a restore that did not happen",
        system="requests",
    ),
    Plant(
        "B79",
        ("C1", "C4"),
        (
            Edit(
                f"{_CONTEXTS}dynamic_context:DynamicInferenceContext.step",
                "batch = self.begin_step()",
                "batch = self.begin_step()\n"
                "if not batch.requests:\n"
                "    self.kv_block_allocator.reset()\n"
                "    self.mamba_slot_allocator.reset()",
            ),
        ),
        _UNIT + "test_dynamic_context.py::test_a_step_without_requests_wipes_nothing",
        system="requests",
    ),
    Plant(
        "B107",
        ("E2",),
        (
            Edit(
                f"{_CONTEXTS}request_rows:RequestRows.close",
                "self._table[live.row] = _NONE",
                "pass",
            ),
        ),
        _UNIT + "test_request_rows.py::test_a_closed_row_keeps_nothing",
        system="requests",
    ),
    Plant(
        "B115",
        ("E4",),
        (Edit(f"{_REQUESTS}._resume", "(live.prompt.size - 1) //", "live.prompt.size //"),),
        _REQUEST_TESTS + "test_a_full_hit_leaves_a_token_to_compute",
        system="requests",
    ),
    Plant(
        "B148",
        ("E5", "E2"),
        (
            Edit(
                f"{_CONTEXTS}forward_batch:plan_step",
                "blocks[positions < live.matched * block_size] = dummy_block",
                "blocks[positions < live.matched * block_size] = -1",
            ),
        ),
        _UNIT + "test_forward_batch.py::test_tokens_in_shared_blocks_go_to_the_dummy",
        note="-1 instead of the dummy block is the last row but some of the last block",
        system="requests",
    ),
)

PLANTS = (*_IN_THE_ALLOCATOR, *_IN_REQUESTS)
