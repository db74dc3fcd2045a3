"""vLLM's cache with a fault planted: a judge that finds nothing in it could be blind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pymllm.adapters.registry import make_adapter
from pymllm.errors import InvariantViolation
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.blocks import BlockMachine
from pymllm.machines.prefix import PrefixMachine
from pymllm_peers.vllm.blocks import VllmBlocks
from pymllm_peers.vllm.hybrid import VllmMamba, VllmWindow
from pymllm_peers.vllm.manager import VllmFull
from pymllm_peers.vllm.package import load_vllm

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


def go_on_without(find: Method) -> Method:
    """Let a hit go on where the second group has nothing any more, with the last block that it has."""

    def planted(cls: type, *, max_length: int, kv_cache_spec: Any, **more: Any) -> Any:
        blocks, length = find(max_length=max_length, kv_cache_spec=kv_cache_spec, **more)
        for found in blocks:
            found += found[-1:] * ((max_length - length) // kv_cache_spec.block_size)
        return blocks, len(blocks[0]) * kv_cache_spec.block_size

    return classmethod(planted)  # type: ignore[return-value]


def stop_at_the_first(find: Method) -> Method:
    """Let a hit end at the first place that would do."""

    def planted(cls: type, *, max_length: int, kv_cache_spec: Any, **more: Any) -> Any:
        ends = range(kv_cache_spec.block_size, max_length + 1, kv_cache_spec.block_size)
        found = (find(max_length=end, kv_cache_spec=kv_cache_spec, **more) for end in ends)
        none = find(max_length=0, kv_cache_spec=kv_cache_spec, **more)
        return next((hit for hit in found if hit[1]), none)

    return classmethod(planted)  # type: ignore[return-value]


def one_block_less(needed: Method) -> Method:
    """Let one block less than a window be enough."""
    return classmethod(lambda cls, *sizes, **more: max(1, needed(*sizes, **more) - 1))  # type: ignore[return-value]


def one_token_less(skipped: Method) -> Method:
    """Let the window of a request begin a block too late."""
    return lambda manager, tokens: skipped(manager, tokens) + manager.block_size


def keep_nothing(add: Method) -> Method:
    """Let no hold remain on the state that a request found."""

    def planted(manager: Any, request: str, blocks: Any, *lengths: int) -> None:
        add(manager, request, blocks, *lengths)
        manager.block_pool.free_blocks(manager.req_to_blocks[request][-1:])

    return planted


@pytest.mark.parametrize(
    ("adapter", "kind", "place", "fault", "laws"),
    [
        (VllmMamba, "MambaManager", "find_longest_cache_hit", go_on_without, "M2 M6"),
        (VllmMamba, "MambaManager", "find_longest_cache_hit", stop_at_the_first, "R2 R6"),
        (VllmMamba, "MambaManager", "add_local_computed_blocks", keep_nothing, "M4 M6"),
        (VllmWindow, "SlidingWindowManager", "find_longest_cache_hit", go_on_without, "M2 S1"),
        (VllmWindow, "SlidingWindowManager", "find_longest_cache_hit", stop_at_the_first, "R2 R6"),
        (VllmWindow, "SlidingWindowManager", "_contiguous_blocks_for_hit", one_block_less, "S1 S5"),
        (VllmWindow, "SlidingWindowManager", "get_num_skipped_tokens", one_token_less, "S5"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_fault_of_a_second_group_is_found(
    adapter: Any, kind: str, place: str, fault: Any, laws: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault is found by a law about the second group's contents, or by the law that sees it first."""
    managers = load_vllm("v1.core.single_type_kv_cache_manager")
    monkeypatch.setattr(getattr(managers, kind), place, fault(getattr(getattr(managers, kind), place)))
    name = "vllm-hybrid-mamba" if adapter is VllmMamba else "vllm-hybrid-window"
    machine = make_machine(PrefixMachine, name, dict(adapter.CONFIGURATIONS[0]))

    def search() -> None:
        for seed in range(20):
            drive(machine, seed, 100)

    with pytest.raises(InvariantViolation) as found:
        search()
    assert found.value.law in laws.split()


def test_a_block_that_is_told_to_go_stays_in_line() -> None:
    """A blank block waits behind cached blocks, which go first, as peers/findings says."""
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


def test_a_page_has_its_own_tokens_after_a_shorter_key() -> None:
    """Also where it ends with the token that every request has behind its key."""
    adapter = make_adapter("vllm-full", dict(VllmFull.CONFIGURATIONS[0]))
    adapter.apply(1, ops.Match(ops.Key(())))
    adapter.apply(2, ops.Insert(ops.Key((3,))))
    shown = adapter.apply(3, ops.Inspect()).result
    assert isinstance(shown, out.Inspected)
    assert [node.tokens for node in shown.nodes] == [(3,)]
