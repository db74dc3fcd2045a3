"""The events of registered blocks tell which are registered, at any time (X10)."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator, PrefixCachingEvictionPolicy
from pymllm.mem_cache.cache_events import AllCleared, BlocksRemoved, BlocksStored, CacheEvent, Part


def make_blocks(policy: str = "lru", blocks: int = 8) -> KVBlockAllocator:
    context = SimpleNamespace(prefix_cache_lru_clock=0)
    return KVBlockAllocator(
        context, blocks, prefix_caching_eviction_policy=PrefixCachingEvictionPolicy(policy)
    )


def make_context(policy: str = "lru", **options: Any) -> DynamicInferenceContext:
    return DynamicInferenceContext(
        max_requests=3,
        num_blocks=10,
        max_blocks_per_request=6,
        block_size_tokens=2,
        prefix_caching_eviction_policy=PrefixCachingEvictionPolicy(policy),
        **options,
    )


class Fold:
    """The hashes that events tell to be registered, and their tokens."""

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}

    def take(self, events: list[CacheEvent]) -> None:
        """Take events over; a block comes once, after its parent, and goes once."""
        for event in events:
            if isinstance(event, AllCleared):
                self.known.clear()
            elif isinstance(event, BlocksRemoved):
                for it in event.hashes:
                    del self.known[it]
            else:
                [it] = event.hashes
                assert it not in self.known
                assert event.parent is None or event.parent in self.known
                self.known[it] = event.tokens


def test_an_event_tells_hash_and_parent() -> None:
    """Of blocks that are registered, evicted, and cleared; an allocator knows no tokens."""
    blocks = make_blocks(blocks=3)
    assert blocks.take_events() == []
    blocks.keep_events()
    taken = blocks.allocate_memory_blocks(2)
    assert taken is not None
    blocks.register_kv_block_hashes(taken, [11, 22])
    assert blocks.take_events() == [
        AllCleared(),
        BlocksStored(Part.KV, (11,), None, None, 0),
        BlocksStored(Part.KV, (22,), 11, None, 0),
    ]
    blocks.release_memory_blocks(taken)
    blocks.allocate_memory_blocks(1)
    assert blocks.take_events() == [BlocksRemoved(Part.KV, (22,))]
    blocks.reset()
    assert blocks.take_events() == [AllCleared()]
    blocks.keep_events(False)
    blocks.reset()
    assert blocks.take_events() == []


def test_who_listens_late_is_told_what_is_registered() -> None:
    """Parents first, whatever their ids; a context knows the tokens, too."""
    blocks = make_blocks()
    taken = blocks.allocate_memory_blocks(4)
    assert taken is not None
    blocks.register_kv_block_hashes(taken.flip(0), [11, 22, 33, 44])
    blocks.keep_events()
    told = [event for event in blocks.take_events() if isinstance(event, BlocksStored)]
    assert [(event.hashes, event.parent) for event in told] == [
        ((11,), None),
        ((22,), 11),
        ((33,), 22),
        ((44,), 33),
    ]
    context = make_context()
    run(context, [1, 2, 3, 4, 5])
    context.keep_events()
    events = [event for event in context.take_events() if isinstance(event, BlocksStored)]
    assert [event.tokens for event in events] == [(1, 2), (3, 4)]
    assert [event.block_size for event in events] == [2, 2]


def run(context: DynamicInferenceContext, tokens: list[int]) -> None:
    """Add a request, and compute its prompt."""
    assert context.add_request(SimpleNamespace(prompt_tokens=tokens, finished_chunk_token_count=0))
    context.begin_step()
    context.commit_step([1])


@pytest.mark.parametrize("policy", ["lru", "ref_zero"])
def test_the_fold_of_the_events_is_what_is_registered(policy: str) -> None:
    """Through steps, releases, evictions and resets, with the tokens of each block."""
    context, chance, told = make_context(policy), random.Random(3), Fold()
    context.keep_events()
    removed = 0
    for turn in range(60):
        tokens = [chance.randrange(2) for _ in range(chance.randrange(2, 10))]
        run(context, tokens)
        if turn == 30:
            context.keep_events()  # anew: all that is there is told again
            told.known.clear()
        events = context.take_events()
        removed += sum(isinstance(event, BlocksRemoved) for event in events)
        told.take(events)
        allocator = context.kv_block_allocator
        assert set(told.known) == set(allocator.kv_hash_to_block_id)
        for it, block in allocator.kv_hash_to_block_id.items():
            assert told.known[it] == tuple(context._index._tokens[block].tolist())
        for each in context.requests:
            context.release(each)
    assert removed > 5
    context.keep_events(False)
    assert context.take_events() == []


def test_events_are_not_asked_for_from_inside_an_observer() -> None:
    """X6: the allocator is amid a call then."""
    blocks = make_blocks()
    blocks.keep_events()
    refused: list[str] = []

    def observe(ids: list[int], hashes: set[int]) -> None:
        with pytest.raises(RuntimeError, match="keep_events was called from inside"):
            blocks.keep_events()
        refused.append("keep_events")

    blocks.on_blocks_deregistered = observe
    taken = blocks.allocate_memory_blocks(1)
    assert taken is not None
    blocks.release_memory_blocks(taken)
    assert refused == ["keep_events"]
