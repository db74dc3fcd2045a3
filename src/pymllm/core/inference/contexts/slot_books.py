"""Which block has which slot, which slots are free, and under which hash a cached state is known."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["SlotBooks"]

_NONE: Final = -1


class SlotBooks:
    """Keep blocks and slots as inverse partial maps, and the free slots as a stack.

    Parameters
    ----------
    num_blocks : int
        Blocks that may get a slot.
    max_slots : int
        Slots.

    Attributes
    ----------
    slot_of, block_of : numpy.ndarray
        ``(num_blocks,)`` and ``(max_slots,)``, int32, -1 for none; views of the tensors below.
    block_to_slot, slot_to_block, free_slots : torch.Tensor
        int32, on the host.
    free_count : int
        ``free_slots[:free_count]`` are free; the last is taken first.
    hash_of : numpy.ndarray
        ``(num_blocks,)``, int64: the hash under which a block's state is known, -1 for none.
    hash_to_block_id : dict of int to int
        Exactly the inverse.

    Notes
    -----
    Everything is vectorised over the blocks of a call and costs nothing for the others. Laws: C2, C4, C9.
    """

    def __init__(self, num_blocks: int, max_slots: int) -> None:
        self.slot_of: NDArray[np.int32] = np.empty(num_blocks, np.int32)
        self.block_of: NDArray[np.int32] = np.empty(max_slots, np.int32)
        self.hash_of: NDArray[np.int64] = np.empty(num_blocks, np.int64)
        self._free: NDArray[np.int32] = np.empty(max_slots, np.int32)
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
        self._free[:] = np.arange(self._free.size)
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
        kept: NDArray[np.int64] = blocks[self.slot_of[blocks] == places]
        self.slot_of[blocks] = _NONE
        return kept

    def pop_free(self, count: int) -> NDArray[np.int32]:
        """Take ``count`` free slots; there must be as many."""
        self.free_count -= count
        return self._free[self.free_count : self.free_count + count].copy()

    def assign(self, blocks: NDArray[np.int64], slots: NDArray[np.integer]) -> None:
        """Map distinct blocks without a slot to slots in hand."""
        self.slot_of[blocks] = slots
        self.block_of[slots] = blocks

    def take_from(self, blocks: NDArray[np.integer]) -> NDArray[np.int32]:
        """Unmap distinct blocks that have slots, forget their hashes, and return the slots, now in hand."""
        slots: NDArray[np.int32] = self.slot_of[blocks]
        self.slot_of[blocks] = _NONE
        self.block_of[slots] = _NONE
        if self.hash_to_block_id:
            for value in self.hash_of[blocks].tolist():
                if value != _NONE:
                    del self.hash_to_block_id[value]
            self.hash_of[blocks] = _NONE
        return slots

    def free_slots_of(self, blocks: NDArray[np.int64]) -> None:
        """Unmap and free the slots of those blocks that have one, however often they are named."""
        having = blocks[self.slot_of[blocks] >= 0]
        if not having.size:
            return
        if having.size > 1:
            # Each slot once, as in `distinct`: the entries are about to be cleared anyway.
            slots, places = self.slot_of[having], np.arange(having.size, dtype=np.int32)
            self.block_of[slots] = places
            having = having[self.block_of[slots] == places]
        slots = self.take_from(having)
        self._free[self.free_count : self.free_count + slots.size] = slots
        self.free_count += slots.size

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
