"""The slots for the recurrent states of blocks, and the choice of slots to evict if too few are free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.core.inference.contexts.host_numbers import check_as_many, host_array, host_integers
from pymllm.core.inference.contexts.registered_blocks import is_lru
from pymllm.errors import MambaSlotCapacityError, OwnershipError, UsageError
from pymllm.mem_cache.arguments import LAST_INT32, as_int, as_size
from pymllm.mem_cache.ownership import OneOwner

_NONE: Final = -1
_NOBODY: Final[NDArray[np.int64]] = np.empty(0, np.int64)
# Every how many stamps one is looked at, and how many more of those than there should be.
_SAMPLED: Final = 16
_MARGIN: Final = 8


class SlotClaim(NamedTuple):
    """Slots that will be taken, with all memory for recording this allocated beforehand."""

    slots: NDArray[np.int32]
    """The slots: free ones first, then those of the victims."""
    places: NDArray[np.int64]
    """The slots as an index array that NumPy needs not convert."""
    free: int
    """The number of free slots among them."""
    victims: NDArray[np.int64]
    """The blocks that lose their slots."""
    hashes: list[int]
    """The hashes of the victims' states, -1 for a state without one; empty if none has a hash."""


class SlotTracker:
    """The maps between blocks and slots, and a stack of the free slots.

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
        """Return blocks without repeats; none of them may have a slot.

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
        """Return a claim of ``free`` free slots and of the slots of some blocks, without taking them."""
        slots: NDArray[np.int32] = self._free[self.free_count - free : self.free_count]
        if not victims.size:
            return SlotClaim(slots.copy(), slots.astype(np.int64), free, _NOBODY, [])
        lost = self.slot_of[victims]
        slots = np.append(slots, lost) if free else lost
        known = self.hash_of[victims].tolist() if self.hash_to_block_id else []
        return SlotClaim(slots, slots.astype(np.int64), free, victims.astype(np.int64), known)

    def take(self, claim: SlotClaim) -> None:
        """Carry out a claim: the caller holds the slots, and the victims' states lose their hashes."""
        self.free_count -= claim.free
        if claim.victims.size:
            self.slot_of[claim.victims] = _NONE
            self.block_of[claim.places[claim.free :]] = _NONE
            for value in claim.hashes:
                if value != _NONE:
                    del self.hash_to_block_id[value]
            self.hash_of[claim.victims] = _NONE

    def give(self, claim: SlotClaim, blocks: NDArray[np.int64], asked: NDArray[np.int64]) -> list[int]:
        """Carry out a claim for distinct blocks without slots, and return the slots of given blocks."""
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
        """Free the slots of the blocks that have one, even if a block is named several times."""
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
        """Return blocks without repeats, as `distinct` does, where all of them must have a slot."""
        slots, places = self.slot_of[having].astype(np.int64), np.arange(having.size, dtype=np.int32)
        owners = having.astype(np.int32)
        self.block_of[slots] = places
        try:
            kept: NDArray[np.int64] = having[self.block_of[slots] == places]
        finally:
            self.block_of[slots] = owners
        return kept

    def free_slot_of(self, block: int) -> None:
        """Free the slot of one block, which must have one, without creating an array."""
        slot = self.slot_of.item(block)
        self.slot_of[block] = self.block_of[slot] = _NONE
        self.hash_to_block_id.pop(self.hash_of.item(block), None)
        self.hash_of[block] = _NONE
        self._free[self.free_count] = slot
        self.free_count += 1

    def name(self, block: int, hash_value: int) -> None:
        """Give a block's state a new hash, unless the hash belongs to another block's state."""
        if hash_value in self.hash_to_block_id:
            return
        if self.hash_of[block] != _NONE:
            del self.hash_to_block_id[int(self.hash_of[block])]
        self.hash_to_block_id[hash_value] = block
        self.hash_of[block] = hash_value


class BlockSlots(OneOwner):
    """The slots of blocks, without their states: a base class of `MambaSlotAllocator`.

    ``context``: offers ``kv_block_allocator`` and ``prefix_caching_eviction_policy``. ``max_slots``: slots.
    All of it is on the host. Laws: C2, C4, C5, C6.
    """

    def __init__(self, context: Any, max_slots: int) -> None:
        self.context = context
        self.max_slots = as_size("max_slots", max_slots, maximum=LAST_INT32)
        self._tracker = SlotTracker(context.kv_block_allocator.pool_size, self.max_slots)
        self.block_to_slot = self._tracker.block_to_slot
        self.slot_to_block = self._tracker.slot_to_block
        self.free_slots = self._tracker.free_slots
        self.hash_to_block_id = self._tracker.hash_to_block_id

    @property
    def free_count(self) -> int:
        """Return the number of free slots."""
        return self._tracker.free_count

    def allocate_slots_batch(self, block_ids: Sequence[int]) -> list[int]:
        """Return a slot for each block, evicting states of unreferenced blocks if too few are free.

        Parameters
        ----------
        block_ids : list of int
            Blocks that are referenced or cached; a block may be named more than once.

        Returns
        -------
        list of int
            The slots, as many as ``block_ids``, equal for equal blocks; a block that has a slot keeps it.
            What is in a new one is anything.

        Raises
        ------
        IndexError
            A block is outside the pool.
        OwnershipError
            A block is free or the dummy, as far as the block allocator can tell (``free_among``).
        MambaSlotCapacityError
            Too few slots are free or may be evicted; no block of the call counts as such.
        TypeError
            Something is not an integer.

        Notes
        -----
        On an error nothing has changed. Cost: O(blocks), and O(max_slots) where something is evicted; all on
        the host. Laws: C2, C5, C6, X1.
        """
        tracker = self._tracker
        blocks = self._as_blocks("block_ids", block_ids)
        is_new = tracker.slot_of[blocks] < 0
        if np.count_nonzero(is_new):
            new = tracker.distinct(blocks[is_new])
            self._refuse_free(new)
            return tracker.give(self._claim_slots(new.size, blocks), new, blocks)
        slots: list[int] = tracker.slot_of[blocks].tolist()
        return slots

    def _evict_lru_slots_batch(self, num_needed: int) -> list[int]:
        """Take the slots of the least recently used blocks without references.

        Parameters
        ----------
        num_needed : int
            Slots to take.

        Returns
        -------
        list of int
            The slots, those of the oldest blocks first. They are not free: the caller owns them.

        Raises
        ------
        MambaSlotCapacityError
            Fewer blocks with a slot are without references; nothing has changed.
        ValueError
            ``num_needed`` is negative.

        Notes
        -----
        Oldest stamp first, lowest block id among equals; under REF_ZERO lowest block id first.
        Cost: O(max_slots), on the host. Laws: C2, C4, C6.
        """
        count = as_size("num_needed", num_needed, minimum=0)
        claim = self._tracker.claim(0, self._choose_victims(count, keep=np.empty(0, np.int64)))
        slots: list[int] = claim.slots.tolist()
        self._tracker.take(claim)
        return slots

    def get_slot(self, block_id: int) -> int:
        """Return the slot of a block.

        Parameters
        ----------
        block_id : int
            A block of the pool.

        Returns
        -------
        int
            The slot, or -1 for none.

        Raises
        ------
        IndexError
            The block is outside the pool; -1 does not name the last.
        TypeError
            It is no integer.

        Notes
        -----
        Cost: O(1) on the host. Law: C2.
        """
        block = as_int("block_id", block_id)
        if not 0 <= block < self._tracker.slot_of.size:
            raise IndexError(f"block_id {block} is outside 0..{self._tracker.slot_of.size - 1}")
        return self._tracker.slot_of.item(block)

    def has_state(self, block_id: int) -> bool:
        """Tell whether a block has a cached state; parameters and errors as of `get_slot`."""
        return self.get_slot(block_id) >= 0

    def invalidate_block(self, block_id: int) -> None:
        """Free the slot of a block and forget its hash; nothing happens to a block without a slot.

        Parameters
        ----------
        block_id : int
            A block of the pool.

        Raises
        ------
        IndexError
            The block is outside the pool.
        TypeError
            It is no integer.

        Notes
        -----
        A hash that names another block stays. Cost: O(1) on the host. Laws: C2, C4.
        """
        if self.has_state(block_id):
            self._tracker.free_slot_of(as_int("block_id", block_id))

    def _invalidate_blocks_batch(self, block_ids_list: Sequence[int]) -> None:
        """Free the slots of several blocks at once, as `invalidate_block` does for one.

        Parameters
        ----------
        block_ids_list : list of int
            Blocks of the pool, with or without a slot; repeats count once.

        Raises
        ------
        IndexError
            A block is outside the pool; nothing has changed.
        TypeError
            Something is not an integer.

        Notes
        -----
        Cost: O(blocks) on the host, vectorised. Laws: C2, C4.
        """
        self._tracker.free_slots_of(self._as_blocks("block_ids_list", block_ids_list))

    def _invalidate_one_by_one(self, block_ids: Sequence[int]) -> None:
        """Free the slots of blocks one by one, where no array can or may be allocated."""
        for block in block_ids:
            self.invalidate_block(block)

    def on_kv_blocks_deregistered(self, block_ids_list: Sequence[int], hashes_to_delete: set[int]) -> None:
        """Drop the states of blocks that have lost their content, as the block allocator demands.

        Parameters
        ----------
        block_ids_list : list of int
            Blocks that were deregistered or became free, with or without a hash.
        hashes_to_delete : set of int
            Their hashes. A hash is forgotten because its block is named; one that names another block stays.

        Raises
        ------
        IndexError
            A block is outside the pool; nothing has changed.
        TypeError
            Something is not an integer.

        Notes
        -----
        Want of memory is no reason to keep a state: all of them go. Cost: O(blocks) on the host.
        Laws: C4, C6, X2.
        """
        try:
            self._invalidate_blocks_batch(block_ids_list)
        except MemoryError:
            # Nothing has changed then. The blocks are free by now, and a free block must not keep a state.
            self._invalidate_one_by_one(block_ids_list)

    def register_block_hashes_batch(self, block_ids: Sequence[int], hashes: Sequence[int]) -> None:
        """Register the cached states of blocks under their hashes.

        Parameters
        ----------
        block_ids : list of int
            Blocks.
        hashes : list of int
            One for each; entries that are not positive stand for no hash and are passed over.

        Raises
        ------
        IndexError
            A block is outside the pool.
        UsageError
            A block with a hash has no slot, or the block allocator has it under another hash.
        ValueError
            Different lengths.
        TypeError
            Something is not an integer.

        Notes
        -----
        The first block of a hash keeps it. On an error nothing has changed. Cost: O(blocks) on the host.
        Laws: C4, X1.
        """
        blocks = self._as_blocks("block_ids", block_ids)
        values = host_integers("hashes", hashes)
        check_as_many("hashes", values, blocks.size, "blocks")
        blocks, values = blocks[values > 0], values[values > 0]
        self._refuse_hashes(blocks, values)
        for block, value in zip(blocks.tolist(), values.tolist(), strict=True):
            self._tracker.name(block, value)

    def _claim_slots(self, count: int, keep: NDArray[np.int64]) -> SlotClaim:
        """Claim free slots and, if needed, those of the least recently used blocks, except of ``keep``."""
        missing = count - self.free_count
        if missing <= 0:
            return self._tracker.claim(count, keep[:0])
        return self._tracker.claim(self.free_count, self._choose_victims(missing, keep))

    def _evictable(self, keep: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the unreferenced blocks with a slot, except those in ``keep``."""
        refs = host_array(self.context.kv_block_allocator.block_ref_counts)
        blocks = _where(self._tracker.block_of, self._tracker.block_of >= 0)
        blocks = _where(blocks, refs.take(blocks) == 0)
        kept = keep[self._tracker.slot_of[keep] >= 0]
        return blocks[~np.isin(blocks, kept)] if kept.size else blocks

    def _choose_victims(self, count: int, keep: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the blocks that lose their slots next, or raise an error if there are too few."""
        blocks = self._evictable(keep)
        if blocks.size < count:
            raise MambaSlotCapacityError(
                f"{count} more slots are needed, {blocks.size} may be evicted of {self.max_slots} slots "
                f"({self.free_count} free); release blocks first or keep fewer states"
            )
        if not is_lru(self.context.prefix_caching_eviction_policy):
            return np.sort(blocks)[:count]
        return oldest(blocks, host_array(self.context.kv_block_allocator.block_timestamps), count)

    def _which_fit(self, blocks: list[int]) -> list[bool]:
        """Return which of some distinct blocks can get a slot, the first ones preferred."""
        wanted = np.array(blocks)
        is_new = self._tracker.slot_of[wanted] < 0
        room = self.free_count
        if np.count_nonzero(is_new) > room:
            room += self._evictable(keep=wanted).size
        fits: list[bool] = (~is_new | (np.cumsum(is_new) <= room)).tolist()
        return fits

    def _as_blocks(self, name: str, block_ids: Sequence[int]) -> NDArray[np.int64]:
        return host_integers(name, block_ids, self._tracker.slot_of.size)

    def _refuse_free(self, blocks: NDArray[np.int64]) -> None:
        """Raise an error for blocks that are free according to the block allocator."""
        free_among = getattr(self.context.kv_block_allocator, "free_among", None)
        free = free_among(blocks) if free_among is not None else []
        if free:
            raise OwnershipError(
                f"block {free[0]} is free or the dummy and can have no state; allocate it first"
            )

    def _refuse_hashes(self, blocks: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        """Raise an error for hashes of blocks without a slot, or unknown to the block allocator."""
        without = blocks[self._tracker.slot_of[blocks] < 0]
        if without.size:
            raise UsageError(f"block {without[0]} has no slot; allocate_slots_batch gives it one")
        known = host_array(self.context.kv_block_allocator.block_hashes)[blocks]
        if (known != values).any():
            wrong = int(np.argmax(known != values))
            raise UsageError(f"block {blocks[wrong]} is registered under {known[wrong]}, not {values[wrong]}")


def oldest(blocks: NDArray[np.int32], timestamps: NDArray[Any], count: int) -> NDArray[np.int32]:
    """Return the ``count`` blocks with the oldest stamps, the lowest ids first among equals.

    Cost: O(blocks); only what is chosen, or is as old, is sorted. Law: C6.
    """
    if 0 < count < blocks.size:
        stamps = timestamps.take(blocks)
        if count == 1:
            place = int(stamps.argmin())
            is_chosen = stamps == stamps[place]
            if np.count_nonzero(is_chosen) == 1:
                return blocks[place : place + 1].copy()  # 3 us of 4,096 stamps; what follows takes 8
        else:
            is_chosen = stamps <= _bound(stamps, count)
        blocks = blocks[is_chosen]
    blocks = np.sort(blocks)
    return blocks[np.argsort(timestamps.take(blocks), kind="stable")[:count]]


def _bound(stamps: NDArray[Any], count: int) -> Any:
    """Return a stamp that at least ``count`` of ``stamps`` do not exceed, and not many more.

    A sample says it well enough to leave little to sort, in 5 us of 4,096 stamps; `numpy.partition` takes 35.
    """
    sample = np.sort(stamps[::_SAMPLED])
    place = count // _SAMPLED + _MARGIN
    if place < sample.size and np.count_nonzero(stamps <= sample[place]) >= count:
        return sample[place]
    return np.partition(stamps, count - 1)[count - 1]


def _where(blocks: NDArray[np.int32], is_meant: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return selected blocks, with a shortcut if all are selected, which saves 6 of 7 us for 4,096."""
    return blocks if np.count_nonzero(is_meant) == blocks.size else blocks[is_meant]
