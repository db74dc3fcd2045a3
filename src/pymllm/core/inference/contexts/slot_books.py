"""Which block has which slot, which slots are free, and under which hash a cached state is known."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

_NONE: Final = -1
_NOBODY: Final[NDArray[np.int64]] = np.empty(0, np.int64)


class SlotClaim(NamedTuple):
    """Slots that are to be taken, with all that writing this down needs memory for."""

    slots: NDArray[np.int32]
    """Free ones first, then those of the victims."""
    places: NDArray[np.int64]
    """The same, as NumPy wants them to find places without converting them."""
    free: int
    """How many of them are free."""
    victims: NDArray[np.int64]
    """Blocks that lose their slots."""
    hashes: list[int]
    """Those under which the victims' states are known, -1 for none; empty where nothing is known."""


class SlotBooks:
    """Keep blocks and slots as inverse partial maps, and the free slots as a stack.

    ``num_blocks``: blocks that may get a slot. ``max_slots``: slots. ``slot_of``, ``block_of``:
    ``(num_blocks,)`` and ``(max_slots,)``, int32, -1 for none; views of the tensors below. ``block_to_slot``,
    ``slot_to_block``, ``free_slots``: int32, on the host. ``free_count``: ``free_slots[:free_count]`` are
    free; the last is taken first. ``hash_of``: ``(num_blocks,)``, int64: the hash under which a block's state
    is known, -1 for none. ``hash_to_block_id``: exactly the inverse. Everything is vectorised over the blocks
    of a call and costs nothing for the others. What is changed is claimed before: a claim may find no memory,
    and carrying it out takes none. Laws: C2, C4, C9, X2.
    """

    def __init__(self, num_blocks: int, max_slots: int) -> None:
        self.slot_of: NDArray[np.int32] = np.empty(num_blocks, np.int32)
        self.block_of: NDArray[np.int32] = np.empty(max_slots, np.int32)
        self.hash_of: NDArray[np.int64] = np.empty(num_blocks, np.int64)
        self._free: NDArray[np.int32] = np.empty(max_slots, np.int32)
        self._all_free = np.arange(max_slots, dtype=np.int32)  # kept: `clear` must not want memory
        self.block_to_slot = torch.from_numpy(self.slot_of)
        self.slot_to_block = torch.from_numpy(self.block_of)
        self.free_slots = torch.from_numpy(self._free)
        self.hash_to_block_id: dict[int, int] = {}
        self.clear()

    def clear(self) -> None:
        """Free every slot and forget every hash."""
        self.slot_of[:] = _NONE
        self.block_of[:] = _NONE
        self.hash_of[:] = _NONE
        self._free[:] = self._all_free
        self.free_count = self._free.size
        self.hash_to_block_id.clear()

    def distinct(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each of some blocks without a slot once.

        Each place writes its number where the block's slot will be, and one place per block finds its own
        there: 4 us for 1,024 blocks, where `numpy.unique` takes 20 and a dict 50. A single block, the most
        common number, is spared that: 3 of 10 us.
        """
        if blocks.size == 1:
            return blocks
        places = np.arange(blocks.size, dtype=np.int32)
        self.slot_of[blocks] = places
        try:
            kept: NDArray[np.int64] = blocks[self.slot_of[blocks] == places]
        finally:
            self.slot_of[blocks] = _NONE
        return kept

    def claim(self, free: int, victims: NDArray[np.integer]) -> SlotClaim:
        """Say which slots are to be taken: ``free`` free ones, and those of distinct blocks that have one."""
        slots: NDArray[np.int32] = self._free[self.free_count - free : self.free_count]
        if not victims.size:
            return SlotClaim(slots.copy(), slots.astype(np.int64), free, _NOBODY, [])
        lost = self.slot_of[victims]
        slots = np.append(slots, lost) if free else lost
        known = self.hash_of[victims].tolist() if self.hash_to_block_id else []
        return SlotClaim(slots, slots.astype(np.int64), free, victims.astype(np.int64), known)

    def take(self, claim: SlotClaim) -> None:
        """Carry out a claim: its slots are in hand, and the victims' states have no hashes."""
        self.free_count -= claim.free
        if claim.victims.size:
            self.slot_of[claim.victims] = _NONE
            self.block_of[claim.places[claim.free :]] = _NONE
            for value in claim.hashes:
                if value != _NONE:
                    del self.hash_to_block_id[value]
            self.hash_of[claim.victims] = _NONE

    def give(self, claim: SlotClaim, blocks: NDArray[np.int64], asked: NDArray[np.int64]) -> list[int]:
        """Carry out a claim for distinct blocks without a slot, and return the slots of blocks among them."""
        names = blocks.astype(np.int32)
        self.slot_of[blocks] = claim.slots
        try:
            slots: list[int] = self.slot_of[asked].tolist()
        except BaseException:
            self.slot_of[blocks] = _NONE
            raise
        self.take(claim)
        self.block_of[claim.places] = names
        return slots

    def free_slots_of(self, blocks: NDArray[np.int64]) -> None:
        """Unmap and free the slots of those blocks that have one, however often they are named."""
        having = blocks[self.slot_of[blocks] >= 0]
        if not having.size:
            return
        if having.size > 1:
            having = self._once(having)
        claim = self.claim(0, having)
        self.take(claim)
        self._free[self.free_count : self.free_count + claim.slots.size] = claim.slots
        self.free_count += claim.slots.size

    def _once(self, having: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each of some blocks that have a slot once, as `distinct` does for those without."""
        slots, places = self.slot_of[having].astype(np.int64), np.arange(having.size, dtype=np.int32)
        owners = having.astype(np.int32)
        self.block_of[slots] = places
        try:
            kept: NDArray[np.int64] = having[self.block_of[slots] == places]
        finally:
            self.block_of[slots] = owners
        return kept

    def free_slot_of(self, block: int) -> None:
        """Do the same for one block that has a slot, without an array."""
        slot = self.slot_of.item(block)
        self.slot_of[block] = self.block_of[slot] = _NONE
        self.hash_to_block_id.pop(self.hash_of.item(block), None)
        self.hash_of[block] = _NONE
        self._free[self.free_count] = slot
        self.free_count += 1

    def name(self, block: int, hash_value: int) -> None:
        """Make the state of a block known under a hash instead of any other, unless another block's is."""
        if hash_value in self.hash_to_block_id:
            return
        if self.hash_of[block] != _NONE:
            del self.hash_to_block_id[int(self.hash_of[block])]
        self.hash_to_block_id[hash_value] = block
        self.hash_of[block] = hash_value
