"""The times of match, insert and evict in a `MambaRadixCache`, also beside locked nodes.

T6a: 10,000 paths of 64 tokens, each with a state: insert, match, evict one state, evict one leaf. T6b: one
chain of 1,000 nodes of 8 tokens, with a state at every node or at the last: its last inserts, the whole
match, and evicting one leaf. Beside T4: one eviction of a leaf, and of an inner node's state, among 2,000 and
20,000 that may go, alone and with 10,000 older ones locked. Allocators do not check ownership here. Each
benchmark asserts its result.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.notes import note
from pymllm.mem_cache import GDNPool, MambaRadixCache, MambaTreeNode, RadixKey, TokenToKVPoolAllocator

PATHS, PATH = 10_000, 64
CHAIN, LINK = 1_000, 8
LEAF = 16
LOCKED = 10_000
ROUNDS = 500


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out: its pauses over hundreds of thousands of nodes are not the cache's."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Hybrid:
    """A cache over pools of a given size, with the arguments of its inserts made beforehand."""

    def __init__(self, tokens: int, states: int) -> None:
        self.kv = TokenToKVPoolAllocator(tokens, "cpu", 1, check_ownership=False)
        self.states = GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=states)
        self.cache = MambaRadixCache(1, self.kv, self.states)

    def alloc(self, tokens: int) -> torch.Tensor:
        slots = self.kv.alloc(tokens)
        assert slots is not None
        return slots

    def track_slot(self) -> torch.Tensor:
        return torch.tensor([self.states.alloc_track_slot()])

    def put(self, tokens: Any, with_state: bool = True) -> MambaTreeNode:
        """Insert tokens that share their first slots with what is cached, if anything."""
        state = self.track_slot() if with_state else None
        slots = self.alloc(len(tokens))
        result = self.cache.insert(RadixKey(tokens), slots, mamba_value=state)
        self.kv.free(slots[: result.prefix_len])
        node: MambaTreeNode = result.last_node
        return node


def distinct_rows(rows: int, length: int) -> np.ndarray[Any, Any]:
    """Keys of which no two begin alike."""
    return np.arange(rows * length, dtype=np.uint32).reshape(rows, length)


def assert_nothing_is_lost(hybrid: Hybrid) -> None:
    """Assert that each slot and each track slot is cached or free."""
    cache = hybrid.cache
    states = cache.mamba_evictable_size() + cache.mamba_protected_size()
    assert cache.total_size() + hybrid.kv.available_size() == hybrid.kv.size
    assert states + hybrid.states.available_track_slots() == hybrid.states.max_track_slots


# -- T6a -----------------------------------------------------------------------------------------------


def make_paths(paths: int) -> Hybrid:
    hybrid = Hybrid(PATHS * PATH, PATHS)
    for row in distinct_rows(PATHS, PATH)[:paths]:
        hybrid.put(row)
    return hybrid


def test_insert_a_path(benchmark: BenchmarkFixture) -> None:
    """T6a: insert 64 new tokens and a state."""
    hybrid = make_paths(0)
    rows = iter(distinct_rows(PATHS, PATH))

    def set_up() -> tuple[tuple[RadixKey, torch.Tensor], dict[str, torch.Tensor]]:
        return (RadixKey(next(rows)), hybrid.alloc(PATH)), {"mamba_value": hybrid.track_slot()}

    result = benchmark.pedantic(hybrid.cache.insert, setup=set_up, rounds=PATHS)
    assert (result.adopted, result.mamba_exist) == (((0, PATH),), False)
    assert_nothing_is_lost(hybrid)
    note(benchmark, paths=PATHS)


def test_match_a_path(benchmark: BenchmarkFixture) -> None:
    """T6a: a full hit of one of 10,000 paths, each hit once."""
    hybrid = make_paths(PATHS)
    rows = iter(distinct_rows(PATHS, PATH))
    hit = benchmark.pedantic(
        hybrid.cache.match_prefix, setup=lambda: ((RadixKey(next(rows)),), {}), rounds=PATHS
    )
    assert (hit.prefix_len, hit.mamba_branching_seqlen) == (PATH, None)
    note(benchmark, paths=PATHS)


@pytest.mark.parametrize("amounts", [(0, 1), (1, 0)], ids=["state", "leaf"])
def test_evict_one_of_many_paths(benchmark: BenchmarkFixture, amounts: tuple[int, int]) -> None:
    """T6a: evict one state, evict one leaf; a path is one leaf here, so both take the same."""
    hybrid = make_paths(PATHS)
    result = benchmark.pedantic(hybrid.cache.evict, args=amounts, rounds=ROUNDS)
    assert (result.full_evicted, result.mamba_evicted) == (PATH, 1)
    assert_nothing_is_lost(hybrid)
    note(benchmark, paths=PATHS)


# -- T6b -----------------------------------------------------------------------------------------------


def make_chain(links: int, every_state: bool) -> tuple[Hybrid, np.ndarray[Any, Any]]:
    """Insert prefixes of one key that grow by a link, and return the key."""
    hybrid = Hybrid(2 * CHAIN * LINK, CHAIN)
    tokens = np.random.default_rng(1).integers(0, 128_000, CHAIN * LINK).astype(np.uint32)
    for link in range(1, links + 1):
        hybrid.put(tokens[: link * LINK], every_state or link == CHAIN)
    return hybrid, tokens


EACH_CHAIN = pytest.mark.parametrize("every_state", [True, False], ids=["states", "one-state"])


@EACH_CHAIN
def test_lengthen_a_chain(benchmark: BenchmarkFixture, every_state: bool) -> None:
    """T6b: the last 50 inserts, each one link longer than what is cached."""
    hybrid, tokens = make_chain(CHAIN - 50, every_state)
    slots = hybrid.alloc(CHAIN * LINK)
    lengths = iter(range((CHAIN - 49) * LINK, CHAIN * LINK + 1, LINK))

    def set_up() -> tuple[tuple[RadixKey, torch.Tensor], dict[str, torch.Tensor | None]]:
        length = next(lengths)
        state = hybrid.track_slot() if every_state else None
        return (RadixKey(tokens[:length]), slots[:length]), {"mamba_value": state}

    result = benchmark.pedantic(hybrid.cache.insert, setup=set_up, rounds=50)
    ((start, end),) = result.adopted
    assert end - start == LINK
    note(benchmark, nodes=CHAIN)


@EACH_CHAIN
def test_match_a_chain(benchmark: BenchmarkFixture, every_state: bool) -> None:
    """T6b: the whole chain."""
    hybrid, tokens = make_chain(CHAIN, every_state)
    hit = benchmark.pedantic(lambda: hybrid.cache.match_prefix(RadixKey(tokens)), rounds=100)
    assert hit.prefix_len == CHAIN * LINK
    note(benchmark, nodes=CHAIN)


def test_evict_the_end_of_a_chain(benchmark: BenchmarkFixture) -> None:
    """T6b: one leaf after another, each with its state, below a path of a thousand."""
    hybrid, _ = make_chain(CHAIN, every_state=True)
    result = benchmark.pedantic(hybrid.cache.evict, args=(1,), rounds=200)
    assert (result.full_evicted, result.mamba_evicted) == (LINK, 1)
    note(benchmark, nodes=CHAIN)


# -- beside T4 -----------------------------------------------------------------------------------------


def make_pairs(free: int, locked: int) -> Hybrid:
    """Trunks with a state, each with one leaf that has none; the older pairs are held at both.

    An eviction of tokens takes a leaf, then its trunk, and so on; one of states leaves the KV where it is.
    """
    hybrid = Hybrid((free + locked) * (LEAF + 2 * LEAF), free + locked)
    for number, row in enumerate(distinct_rows(free + locked, 2 * LEAF)):
        trunk = hybrid.put(row[:LEAF])
        leaf = hybrid.put(row, with_state=False)
        if number < locked:
            hybrid.cache.inc_lock_ref(trunk)
            hybrid.cache.inc_lock_ref(leaf)
    return hybrid


EACH_SIZE = pytest.mark.parametrize("free", [2_000, 20_000])
EACH_LOCK = pytest.mark.parametrize("locked", [0, LOCKED], ids=["none-locked", "10k-locked"])


@EACH_SIZE
@EACH_LOCK
def test_evict_a_leaf_beside_locked_ones(benchmark: BenchmarkFixture, free: int, locked: int) -> None:
    """T4 for hybrids: evict one leaf, then its trunk with the state; no locked or inner node is looked at."""
    hybrid = make_pairs(free, locked)
    result = benchmark.pedantic(hybrid.cache.evict, args=(1,), rounds=ROUNDS)
    assert result.full_evicted == LEAF
    assert hybrid.cache.mamba_protected_size() == locked
    assert_nothing_is_lost(hybrid)
    note(benchmark, free=free, locked=locked)


@EACH_SIZE
@EACH_LOCK
def test_evict_an_inner_state_beside_locked_ones(benchmark: BenchmarkFixture, free: int, locked: int) -> None:
    """T4 for hybrids: evict one state of an inner node; its KV stays."""
    hybrid = make_pairs(free, locked)
    result = benchmark.pedantic(hybrid.cache.evict, args=(0, 1), rounds=ROUNDS)
    assert (result.full_evicted, result.mamba_evicted) == (0, 1)
    assert hybrid.cache.mamba_protected_size() == locked
    assert_nothing_is_lost(hybrid)
    note(benchmark, free=free, locked=locked)
