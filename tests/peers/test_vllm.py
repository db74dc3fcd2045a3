"""vLLM's cache with a fault planted: a judge that finds nothing in it could be blind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pymllm.adapters.vllm.blocks import VllmBlocks
from pymllm.adapters.vllm.manager import VllmFull
from pymllm.adapters.vllm.package import load_vllm
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.block_machine import BlockMachine
from pymllm.conformance.prefix_machine import PrefixMachine
from pymllm.errors import InvariantViolation

Method = Callable[..., Any]


def leave_in_queue(touch: Method) -> Method:
    """Let blocks that a request shares be handed to others, too."""

    def planted(pool: Any, blocks: Any) -> None:
        for block in blocks:
            block.ref_cnt += 1

    return planted


def begin_first(free_blocks: Method) -> Method:
    """Let the beginning of a prompt be evicted first."""
    return lambda pool, blocks: free_blocks(pool, reversed(list(blocks)))


def last_first(free_blocks: Method) -> Method:
    """Let what was let go of last be evicted first."""

    def planted(pool: Any, blocks: Any) -> None:
        idle = []
        for block in blocks:
            block.ref_cnt -= 1
            idle += [] if block.ref_cnt else [block]
        pool.free_block_queue.prepend_n(idle)

    return planted


def keep_hash(evict: Method) -> Method:
    """Let a block that is handed out be found under the hash that it had."""

    def planted(pool: Any, block: Any) -> bool:
        block.reset_hash()
        return False

    return planted


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("touch", leave_in_queue),
        ("free_blocks", begin_first),
        ("free_blocks", last_first),
        ("_maybe_evict_cached_block", keep_hash),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_planted_fault_is_found(
    place: str, fault: Callable[[Method], Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the law that it breaks, or by the one that sees it first."""
    pool = load_vllm("v1.core.block_pool").BlockPool
    monkeypatch.setattr(pool, place, fault(getattr(pool, place)))
    machine = make_machine(PrefixMachine, "vllm-full", dict(VllmFull.CONFIGURATIONS[1]))

    def search() -> None:
        for seed in range(20):
            drive(machine, seed, 100)

    with pytest.raises(InvariantViolation) as found:
        search()
    assert found.value.law in {"R2", "R3", "R6", "R7", "R9", "R11"}


def forget_twins(remove: Method) -> Method:
    """Let a hash be forgotten with any of its blocks."""

    def planted(pool: Any, block: Any) -> list[Any]:
        known = block.block_hash
        removed: list[Any] = remove(pool, block)
        if known is not None:
            pool.cached_block_hash_to_block._cache.pop(known, None)
        return removed

    return planted


def find_the_dead(remove: Method) -> Method:
    """Let a block be found that has gone, in place of the others of its hash."""

    def planted(pool: Any, block: Any) -> list[Any]:
        known = block.block_hash
        removed: list[Any] = remove(pool, block)
        if known is not None and pool.cached_block_hash_to_block.get_one_block(known) is not None:
            pool.cached_block_hash_to_block._cache[known] = block
        return removed

    return planted


def tell_nobody(emit: Method) -> Method:
    """Let a router believe that everything stays."""
    return lambda pool, hashes: None


@pytest.mark.parametrize(
    ("place", "fault", "law"),
    [
        ("touch", leave_in_queue, "C1"),
        ("free_blocks", begin_first, "C1"),
        ("free_blocks", last_first, "C1"),
        ("_maybe_evict_cached_block", keep_hash, "C1"),
        ("_remove_cached_block_hashes", forget_twins, "C3"),
        ("_remove_cached_block_hashes", find_the_dead, "C3"),
        ("_emit_block_removed_events", tell_nobody, "C1"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_fault_of_the_pool_is_found(
    place: str, fault: Callable[[Method], Method], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by the law that it breaks."""
    pool = load_vllm("v1.core.block_pool").BlockPool
    monkeypatch.setattr(pool, place, fault(getattr(pool, place)))
    machine = make_machine(BlockMachine, "vllm-blocks", dict(VllmBlocks.CONFIGURATIONS[0]))

    def search() -> None:
        for seed in range(20):
            drive(machine, seed, 100)

    with pytest.raises(InvariantViolation) as found:
        search()
    assert found.value.law == law


def test_a_block_that_is_told_to_go_stays_in_line() -> None:
    """What docs/findings says: a blank block waits behind cached ones, which go first."""
    adapter = VllmFull("vllm-full", {**VllmFull.CONFIGURATIONS[0], "capacity": 2})
    pool = adapter.blocks
    first, second = pool.free_block_queue.get_all_free_blocks()
    assert pool.get_num_free_blocks() == 2
    for number, block in ((1, first), (2, second)):
        pool._insert_block_hash(bytes([number]) * 36, block, num_tokens=1)
    pool.evict_blocks({second.block_id})
    (taken,) = pool.get_new_blocks(1)
    assert taken is first
    assert first.block_hash is second.block_hash is None
