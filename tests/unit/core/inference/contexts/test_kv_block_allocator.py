"""Blocks of `KVBlockAllocator`: places, sharing, registration, eviction and what its observer sees."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator, PrefixCachingEvictionPolicy
from pymllm.errors import OwnershipError
from pymllm.invariants.blocks import check_kv_block_allocator

LRU, REF_ZERO = PrefixCachingEvictionPolicy.LRU, PrefixCachingEvictionPolicy.REF_ZERO


class Watched(KVBlockAllocator):
    """An allocator with a clock of its own and a record of the calls of its observer."""

    def __init__(self, pool_size: int = 9, **options: Any) -> None:
        super().__init__(SimpleNamespace(prefix_cache_lru_clock=0), pool_size, **options)
        self.seen: list[tuple[list[int], set[int]]] = []
        self.on_blocks_deregistered = lambda blocks, hashes: self.seen.append((list(blocks), set(hashes)))

    def at(self, clock: int) -> Watched:
        self.context.prefix_cache_lru_clock = clock
        return self

    def take(self, count: int) -> list[int]:
        blocks = self.allocate_memory_blocks(count)
        assert blocks is not None
        return blocks.tolist()

    def cache_chain(self, count: int, first_hash: int, *, clock: int) -> list[int]:
        """Register a chain of blocks and let it go."""
        blocks = self.at(clock).take(count)
        self.register_kv_block_hashes(blocks, [first_hash + place for place in range(count)])
        self.release_memory_blocks(blocks)
        return blocks


def books_of(allocator: KVBlockAllocator) -> tuple[Any, ...]:
    """Everything that a refused call must leave as it was."""
    return (
        allocator.pool_avail,
        allocator._free[: allocator.pool_avail].tolist(),
        allocator.block_ref_counts.tolist(),
        allocator.block_hashes.tolist(),
        allocator.block_timestamps.tolist(),
        allocator.block_parents.tolist(),
        dict(allocator.kv_hash_to_block_id),
        allocator.evictable_blocks,
    )


def test_a_new_pool_is_free_but_for_the_dummy() -> None:
    """C1: the last block is a dummy; all others are handed out, as int32 on the host, and it never is."""
    allocator = Watched(5)
    assert (allocator.pool_size, allocator.pool_avail, allocator.dummy_block_idx) == (5, 4, 4)
    blocks = allocator.allocate_memory_blocks(4)
    assert blocks is not None
    assert blocks.dtype is torch.int32
    assert blocks.tolist() == [0, 1, 2, 3]
    assert allocator.allocate_memory_blocks(1) is None
    check_kv_block_allocator(allocator)


KINDS: list[Any] = [
    list,
    tuple,
    lambda ids: np.array(ids, np.int16),
    lambda ids: torch.tensor(ids, dtype=torch.int32),
    lambda ids: torch.tensor(ids, dtype=torch.int64),
    lambda ids: torch.tensor(ids, dtype=torch.uint8).reshape(1, -1),
    pytest.param(lambda ids: torch.tensor(ids, device="cuda"), marks=pytest.mark.gpu, id="cuda"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_may_be_any_integers(kind: Callable[[list[int]], Any]) -> None:
    """Specification, blocks: ids may be lists or tensors; each consumer takes any integer dtype."""
    allocator = Watched(6)
    allocator.take(3)
    allocator.retain_memory_blocks(kind([0, 2]))
    allocator.register_kv_block_hashes(kind([0, 1]), kind([7, 8]), kind([0, 7]))
    allocator.at(3).update_timestamps(kind([1]))
    allocator.release_memory_blocks(kind([2]))
    assert allocator.block_ref_counts.tolist() == [2, 1, 1, 0, 0, 0]
    assert allocator.kv_hash_to_block_id == {7: 0, 8: 1}
    assert allocator.block_timestamps.tolist() == [0, 3, 0, 0, 0, 0]
    check_kv_block_allocator(allocator)


@pytest.mark.notices("B118")
def test_a_block_named_twice_counts_twice() -> None:
    """C1: two requests that finish in one step give back two references of the block they share."""
    allocator = Watched(4)
    (block,) = allocator.take(1)
    allocator.retain_memory_blocks([block, block])
    assert allocator.block_ref_counts[block] == 3
    allocator.release_memory_blocks([block, block])
    assert allocator.block_ref_counts[block] == 1
    assert allocator.pool_avail == 2
    before = books_of(allocator)
    with pytest.raises(OwnershipError, match="1 references, 2 are released"):
        allocator.release_memory_blocks([block, block])
    assert books_of(allocator) == before
    allocator.release_memory_blocks([block])
    assert allocator.pool_avail == 3
    with pytest.raises(OwnershipError, match="it is free"):
        allocator.release_memory_blocks([block])
    check_kv_block_allocator(allocator)


@pytest.mark.parametrize("clock", [np.int32(7), torch.tensor(7), 2**63 - 1, -(2**63)])
def test_a_clock_may_be_any_integer(clock: Any) -> None:
    """Specification, blocks: contexts that are not ours."""
    allocator = Watched(4).at(clock)
    (block,) = allocator.take(1)
    allocator.update_timestamps([2])
    assert allocator.block_timestamps[[block, 2]].tolist() == [int(clock)] * 2


def test_without_prefix_caching_nothing_is_registered() -> None:
    """C1: a block without references is free then, whatever the caller tried to register."""
    allocator = Watched(4, enable_prefix_caching=False)
    blocks = allocator.take(2)
    allocator.register_kv_block_hashes(blocks, [10, 11])
    assert allocator.kv_hash_to_block_id == {}
    allocator.release_memory_blocks(blocks)
    assert allocator.pool_avail == 3
    check_kv_block_allocator(allocator)


@pytest.mark.notices("B127")
@pytest.mark.notices("B280")
def test_first_registration_of_a_hash_wins() -> None:
    """C3: the twin stays unregistered, and so does what follows it, although its parent's hash is known."""
    allocator = Watched(9)
    first, twin = allocator.take(2), allocator.take(2)
    allocator.register_kv_block_hashes(first[:1], [10])
    allocator.register_kv_block_hashes(twin, [10, 11])
    allocator.register_kv_block_hashes([twin[1]], [11], [10])
    assert allocator.kv_hash_to_block_id == {10: first[0], 11: twin[1]}, (
        "named alone, its parent is the hash's"
    )
    assert allocator.block_parents[twin[1]] == first[0]
    check_kv_block_allocator(allocator)


@pytest.mark.notices("B122")
def test_registering_again_changes_nothing() -> None:
    """C3: a later chunk offers what is there already; the parent's children are counted once."""
    allocator = Watched(5)
    blocks = allocator.take(3)
    allocator.register_kv_block_hashes(blocks[:2], [10, 11])
    allocator.register_kv_block_hashes(blocks, [10, 11, 12])
    allocator.register_kv_block_hashes([blocks[2], blocks[2]], [12, 12], [11, 11])
    check_kv_block_allocator(allocator)
    allocator.release_memory_blocks(blocks)
    assert allocator.take(4) is not None
    assert allocator.kv_hash_to_block_id == {}


@pytest.mark.notices("B125")
def test_eviction_takes_the_oldest_and_the_lowest_id_among_equals() -> None:
    """C1, X3: by the clock when last stamped, with one call to the observer, and no more than is missing."""
    allocator = Watched(7)
    young = allocator.cache_chain(1, 10, clock=5)
    old = allocator.cache_chain(1, 20, clock=2)
    equals = allocator.at(3).take(2)
    for block, hash_value in zip(reversed(equals), [30, 40], strict=True):
        allocator.register_kv_block_hashes([block], [hash_value])
    allocator.release_memory_blocks(equals)
    taken = allocator.take(4)
    assert allocator.seen == [([old[0], equals[0]], {20, 40})]
    assert set(taken) >= {old[0], equals[0]}
    assert allocator.kv_hash_to_block_id == {10: young[0], 30: equals[1]}
    check_kv_block_allocator(allocator)


def test_a_block_is_as_old_as_its_last_stamp_where_the_clock_goes_back() -> None:
    """C1, X3: also where it began to wait with an older one still."""
    allocator = Watched(4)
    block, other = (allocator.cache_chain(1, first, clock=at)[0] for first, at in ((10, 2), (20, 4)))
    for clock in (6, 3):
        allocator.at(clock).update_timestamps([block])
        check_kv_block_allocator(allocator)
    allocator.take(3)
    assert allocator.seen == [([block, other], {10, 20})]


@pytest.mark.notices("B119")
def test_an_ancestor_is_never_evicted_before_its_descendants() -> None:
    """C1: earlier chunks are older, yet the end of the chain goes first."""
    allocator = Watched(6)
    blocks = allocator.at(1).take(3)
    allocator.register_kv_block_hashes(blocks, [10, 11, 12])
    allocator.at(2).update_timestamps(blocks[1:2])
    allocator.at(3).update_timestamps(blocks[2:])
    allocator.release_memory_blocks(blocks)
    other = allocator.cache_chain(1, 20, clock=4)
    allocator.take(allocator.pool_avail + 3)
    assert [block for gone, _ in allocator.seen for block in gone] == blocks[::-1]
    assert allocator.kv_hash_to_block_id == {20: other[0]}
    check_kv_block_allocator(allocator)


@pytest.mark.notices("B199")
def test_what_lies_above_a_referenced_descendant_is_not_evictable() -> None:
    """C1: the count says so, and an allocation that would need it is refused."""
    allocator = Watched(5)
    chain = allocator.cache_chain(3, 10, clock=1)
    assert allocator.evictable_blocks == 3
    allocator.retain_memory_blocks(chain[1:2])
    assert allocator.evictable_blocks == 1
    assert allocator.allocate_memory_blocks(3) is None
    assert len(allocator.take(2)) == 2
    assert allocator.kv_hash_to_block_id == {10: chain[0], 11: chain[1]}
    allocator.release_memory_blocks(chain[1:2])
    assert allocator.evictable_blocks == 2
    check_kv_block_allocator(allocator)


def test_waiting_blocks_that_are_taken_up_again_leave_nothing_behind() -> None:
    """C1: the heap of leaves does not grow with hits."""
    allocator = Watched(4)
    chain = allocator.cache_chain(2, 10, clock=0)
    for clock in range(1, 300):
        allocator.retain_memory_blocks(chain)
        allocator.at(clock).update_timestamps(chain)
        allocator.release_memory_blocks(chain)
        check_kv_block_allocator(allocator)
    assert len(allocator._forest._heap) <= 70


@pytest.mark.notices("B124-blocks")
@pytest.mark.parametrize("policy", [LRU, REF_ZERO])
def test_an_observer_that_raises_finds_the_books_written(policy: PrefixCachingEvictionPolicy) -> None:
    """X2: its error reaches the caller; what was evicted is free, and nothing was handed out or lost."""
    allocator = Watched(4, prefix_caching_eviction_policy=policy)

    def fail(blocks: list[int], hashes: set[int]) -> None:
        check_kv_block_allocator(allocator)
        raise RuntimeError(f"observer saw {sorted(hashes)}")

    allocator.on_blocks_deregistered = fail
    blocks = allocator.take(3)
    allocator.register_kv_block_hashes(blocks, [10, 11, 12])
    if policy is LRU:
        allocator.release_memory_blocks(blocks)
    with pytest.raises(RuntimeError, match=r"observer saw \[10, 11, 12\]"):
        allocator.allocate_memory_blocks(3) if policy is LRU else allocator.release_memory_blocks(blocks)
    assert (allocator.pool_avail, allocator.evictable_blocks) == (3, 0)
    assert allocator.kv_hash_to_block_id == {}
    check_kv_block_allocator(allocator)
    assert len(allocator.take(3)) == 3, "the observer is not running any more"


# -- transfers -----------------------------------------------------------------------------------------------


@pytest.mark.notices("B264")
@pytest.mark.parametrize("policy", [LRU, REF_ZERO])
def test_blocks_under_transfer_are_not_handed_out(policy: PrefixCachingEvictionPolicy) -> None:
    """C1: whoever gave them up, until the transfer ends; the observer is told then."""
    allocator = Watched(5, prefix_caching_eviction_policy=policy)
    blocks = allocator.take(4)
    transfer = allocator.begin_transfer([*blocks[:2], blocks[0]])
    assert allocator.block_ref_counts.tolist() == [2, 2, 1, 1, 0]
    allocator.release_memory_blocks(blocks)
    check_kv_block_allocator(allocator)
    assert (allocator.pool_avail, allocator.evictable_blocks) == (2, 0)
    assert allocator.allocate_memory_blocks(3) is None
    allocator.seen.clear()
    allocator.end_transfer(transfer)
    check_kv_block_allocator(allocator)
    assert (allocator.pool_avail, allocator.seen) == (4, [(blocks[:2], set())])


def test_cached_blocks_under_transfer_are_not_evicted() -> None:
    """C1: nor those above them, and they can be taken up again meanwhile."""
    allocator = Watched(4)
    blocks = allocator.cache_chain(3, 11, clock=0)
    transfer = allocator.begin_transfer(blocks[1:2])
    assert allocator.evictable_blocks == 1
    assert allocator.allocate_memory_blocks(2) is None
    allocator.retain_memory_blocks(blocks[:2])
    allocator.end_transfer(transfer)
    allocator.release_memory_blocks(blocks[:2])
    check_kv_block_allocator(allocator)
    assert allocator.evictable_blocks == 3


@pytest.mark.notices("B266", "B263-blocks")
def test_several_transfers_of_a_block_end_each_once() -> None:
    """C1: a second end is refused, be the block somebody's again or not, and so is one after a reset."""
    allocator = Watched(3)
    blocks = allocator.take(2)
    first, second = allocator.begin_transfer(blocks), allocator.begin_transfer(blocks[:1])
    allocator.release_memory_blocks(blocks)
    allocator.end_transfer(first)
    assert allocator.pool_avail == 1
    allocator.end_transfer(second)
    assert allocator.pool_avail == 2
    third = allocator.begin_transfer(allocator.take(2))
    for reset in (False, True):
        if reset:
            allocator.reset()
        before = books_of(allocator)
        for wrong in (first, second, 0, *([third] if reset else [])):
            with pytest.raises(
                OwnershipError, match=rf"transfer {wrong} is not under way: end each one once"
            ):
                allocator.end_transfer(wrong)
        assert books_of(allocator) == before
    with pytest.raises(TypeError, match="transfer"):
        allocator.end_transfer(1.0)  # type: ignore[arg-type]


def test_a_release_takes_no_reference_of_a_transfer() -> None:
    """C1: nor does anybody begin a transfer of a free block."""
    allocator = Watched(4)
    blocks = allocator.take(2)
    allocator.begin_transfer(blocks)
    before = books_of(allocator)
    with pytest.raises(OwnershipError, match="block 1 has 1 references, 2 are released"):
        allocator.release_memory_blocks([0, 1, 1])
    with pytest.raises(OwnershipError, match="cannot transfer block 2: it is free"):
        allocator.begin_transfer([0, 2])
    assert books_of(allocator) == before
