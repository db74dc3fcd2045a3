"""White-box check of a `MambaSlotAllocator`: where each slot is, and what each hash names."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pymllm.core.inference.contexts.host_numbers import host_array
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator
from pymllm.errors import InvariantViolation
from pymllm.invariants.subject import check_subject

__all__ = ["check_mamba_slot_allocator"]

_NONE = -1


def check_mamba_slot_allocator(slots: MambaSlotAllocator, in_hands: Iterable[int] = ()) -> None:
    """Raise if a slot is lost, a hash names another content, or a free block has a state.

    Parameters
    ----------
    slots : MambaSlotAllocator
        Between two calls; no state is read.
    in_hands : iterable of int
        Slots that the caller took with ``_evict_lru_slots_batch`` and still has.

    Raises
    ------
    InvariantViolation
        Naming the law: C2 (slots and blocks), C4 (hashes), C6 (free blocks) or C8 (offsets).
    TypeError
        It is no `MambaSlotAllocator`.

    Notes
    -----
    Cost: O(blocks + slots); synchronises where the context keeps its tables on a device.
    Laws: C2, C4, C6, C8.
    """
    check_subject(slots, MambaSlotAllocator)
    _check_maps(slots, sorted(in_hands))
    _check_hashes(slots)
    _check_owners(slots)
    _check_offsets(slots)


def _check(holds: bool, law: str, message: str) -> None:
    if not holds:
        raise InvariantViolation(law, message)


def _check_maps(slots: MambaSlotAllocator, in_hands: list[int]) -> None:
    books = slots._books
    slot_of = {int(block): int(books.slot_of[block]) for block in np.flatnonzero(books.slot_of != _NONE)}
    block_of = {int(books.block_of[slot]): int(slot) for slot in np.flatnonzero(books.block_of != _NONE)}
    _check(slot_of == block_of, "C2", f"blocks have the slots {slot_of}, slots the blocks {block_of}")
    free = slots.free_slots[: slots.free_count].tolist()
    places = sorted([*free, *slot_of.values(), *in_hands])
    _check(
        places == list(range(slots.max_slots)),
        "C2",
        f"slots are not free, mapped or in hand once each: free {sorted(free)}, mapped "
        f"{sorted(slot_of.values())}, in hand {in_hands}",
    )


def _check_hashes(slots: MambaSlotAllocator) -> None:
    books = slots._books
    known = {int(books.hash_of[block]): int(block) for block in np.flatnonzero(books.hash_of != _NONE)}
    _check(
        known == slots.hash_to_block_id, "C4", f"blocks have {known}, the index has {slots.hash_to_block_id}"
    )
    registered = host_array(slots.context.kv_block_allocator.block_hashes)
    for value, block in known.items():
        _check(books.slot_of[block] != _NONE, "C4", f"hash {value} names block {block}, which has no slot")
        found = int(registered[block])
        _check(found == value, "C4", f"hash {value} names block {block}, which is registered under {found}")


def _check_owners(slots: MambaSlotAllocator) -> None:
    """Check that no free block has a slot, where the block allocator can tell."""
    free_among = getattr(slots.context.kv_block_allocator, "free_among", None)
    if free_among is not None:
        free = free_among(np.flatnonzero(slots._books.slot_of != _NONE))
        _check(not free, "C6", f"free blocks {free} have slots")


def _check_offsets(slots: MambaSlotAllocator) -> None:
    for row, left in slots._offsets.of_request.items():
        ascending = sorted(set(left.offsets)) == list(left.offsets) and min(left.offsets, default=1) > 0
        _check(ascending, "C8", f"row {row} has offsets {left.offsets}, not ascending and positive")
        counts = {len(left.offsets), len(left.depths), len(left.blocks)}
        _check(len(counts) == 1, "C8", f"row {row} has {left.offsets} for blocks {left.blocks}")
