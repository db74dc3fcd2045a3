"""Faults where blocks have cached states: their slots, and the requests that leave and find them."""

from __future__ import annotations

from pymllm.adapters.cabinet.bugs import plant
from pymllm.adapters.cabinet.planting import Edit

__all__ = ["FAULTS"]

_CONTEXTS = "pymllm.core.inference.contexts."
_SLOTS = f"{_CONTEXTS}block_slots:BlockSlots"
_ALLOCATOR = f"{_CONTEXTS}mamba_slot_allocator:MambaSlotAllocator"
_REQUESTS = f"{_CONTEXTS}request_context:RequestContext"

_IN_THE_ALLOCATOR = (
    plant(
        "B76",
        ("X2", "C7"),
        ("requests",),
        (Edit(f"{_ALLOCATOR}._commit", "self._invalidate_one_by_one(kept)", "pass"),),
        note="the slot is mapped before the copy, and stays so where the copy fails",
    ),
    plant(
        "B80",
        ("C8",),
        ("requests",),
        (Edit(f"{_ALLOCATOR}.compute_and_store_offsets", "first = start + skipped", "first = skipped"),),
    ),
    plant(
        "B82",
        ("C5", "C2"),
        ("blocks", "requests"),
        (
            Edit(
                f"{_SLOTS}._claim_slots",
                "return self._books.claim(self.free_count, self._choose_victims(missing, keep))",
                "free = self._books.claim(self.free_count, keep[:0])\n"
                "self._books.take(free)\n"
                "rest = self._books.claim(0, self._choose_victims(missing, keep))\n"
                "slots, places = np.append(free.slots, rest.slots), np.append(free.places, rest.places)\n"
                "return rest._replace(slots=slots, places=places)",
            ),
        ),
    ),
    plant(
        "B85",
        ("C5",),
        ("blocks",),
        (
            Edit(
                f"{_SLOTS}._evictable",
                "return blocks[~np.isin(blocks, kept)] if kept.size else blocks",
                "return blocks",
            ),
        ),
    ),
    plant(
        "B86",
        ("C8", "E4"),
        ("requests",),
        (
            Edit(
                f"{_ALLOCATOR}._blocks_ending_at",
                "depth // self.context.block_size_tokens - 1",
                "depth // self.context.mamba_chunk_size - 1",
            ),
        ),
    ),
    plant(
        "B88",
        ("C7",),
        ("blocks", "requests"),
        (
            Edit(
                f"{_CONTEXTS}slot_states:SlotStates.restore_to_live",
                "return False",
                "return True",
            ),
        ),
    ),
    plant(
        "B128",
        ("C4",),
        ("blocks", "requests"),
        (
            Edit(
                f"{_SLOTS}.on_kv_blocks_deregistered",
                "self._invalidate_blocks_batch(block_ids_list)",
                "self._invalidate_blocks_batch(block_ids_list)\n"
                "for value in hashes_to_delete:\n"
                "    self.hash_to_block_id.pop(value, None)",
            ),
        ),
    ),
)

_IN_REQUESTS = (
    plant(
        "B76-requests",
        # C1: it holds hits behind the last state, which a right one does not. E4: it needs blocks for them.
        ("E1", "E2", "C1", "E4"),
        ("requests",),
        (
            Edit(f"{_REQUESTS}._resume", " if slots.has_state(live.blocks[count - 1])", ""),
            Edit(
                f"{_REQUESTS}._resume",
                "if found and slots.restore_to_live(live.row, live.blocks[found - 1]):",
                "if found:\n    slots.restore_to_live(live.row, live.blocks[found - 1])",
            ),
        ),
        note="the context restores without a look, and takes no notice of a restore that did not happen",
    ),
    plant(
        "B79-requests",
        ("C1", "C6", "E4"),  # E4: requests that are set aside cannot go on
        ("requests",),
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
    ),
    plant(
        "B107-requests",
        ("E2", "C3"),  # what is left in a row looks like a hit
        ("requests",),
        (
            Edit(
                f"{_CONTEXTS}request_rows:RequestRows.close",
                "self._table[live.row] = _NONE",
                "pass",
            ),
        ),
    ),
    plant(
        "B115-requests",
        ("E4", "E1"),
        ("requests",),
        (Edit(f"{_REQUESTS}._resume", "(live.prompt.size - 1) //", "live.prompt.size //"),),
    ),
    plant(
        "B148-requests",
        ("E5", "E2"),
        ("requests",),
        (
            Edit(
                f"{_CONTEXTS}forward_batch:plan_step",
                "blocks[positions < live.matched * block_size] = dummy_block",
                "blocks[positions < live.matched * block_size] = -1",
            ),
        ),
        note="-1 instead of the dummy block is the last row but some of the last block",
    ),
)

FAULTS = (*_IN_THE_ALLOCATOR, *_IN_REQUESTS)
