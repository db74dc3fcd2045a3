"""The events of a cache tell what it has, at any time, whatever fails (X10)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from pymllm.mem_cache import MambaRadixCache, RadixCache, RadixKey
from pymllm.mem_cache.cache_events import AllCleared, BlocksRemoved, BlocksStored, CacheEvent, Part
from tests.failing_points import Sweep, watched_places
from tests.unit.mem_cache.warm_worlds import WORLDS, World, acts_of

Cache = RadixCache | MambaRadixCache
Known = set[tuple[Part, Any]]

CACHES: dict[str, Callable[[int], Cache]] = {
    "radix": RadixCache,
    "ranked": lambda page_size: RadixCache(page_size, eviction_policy="lfu"),
    "windowed": lambda page_size: RadixCache(page_size, 2 * page_size),
    "mamba": MambaRadixCache,
}


def fold(known: Known, events: Iterable[CacheEvent]) -> None:
    """Take events over; a block comes once, after its parent, and goes once."""
    for event in events:
        if isinstance(event, AllCleared):
            known.clear()
        elif isinstance(event, BlocksRemoved):
            for it in event.hashes:
                known.remove((event.part, it))
        else:
            assert event.parent is None or (Part.KV, event.parent) in known
            assert event.tokens is not None
            assert len(event.tokens) == len(event.hashes) * event.block_size
            for it in event.hashes:
                assert (event.part, it) not in known
                known.add((event.part, it))


def cached(cache: Cache) -> Known:
    """What the nodes of a cache have."""
    known: Known = set()
    for node in cache._tree.nodes():
        hashes = cache.compute_node_hash(node)
        known |= {(Part.KV, it) for it in hashes}
        if getattr(cache, "supports_swa", False) and not node.swa_tombstone:  # type: ignore[union-attr]
            known |= {(Part.WINDOW, it) for it in hashes}
        if getattr(node, "_track_slot", None) is not None:
            known.add((Part.STATE, hashes[-1]))
    return known


@pytest.mark.parametrize("begins_at", [0, 40])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("kind", CACHES)
def test_the_fold_of_the_events_is_what_is_cached(kind: str, page_size: int, begins_at: int) -> None:
    """After each call, also where the events began with a warm cache."""
    chance, told = random.Random(page_size), Counted()
    cache = CACHES[kind](page_size)
    for step in range(120):
        if step == begins_at:
            cache.keep_events()
        act(cache, chance, step)
        if step >= begins_at:
            told.take(cache)
            assert told.known == cached(cache)
    parts = {"windowed": {Part.KV, Part.WINDOW}, "mamba": {Part.KV, Part.STATE}}.get(kind, {Part.KV})
    assert {part for part, _ in told.ever} == parts


class Counted:
    """The fold of a cache's events, and all that was ever there."""

    def __init__(self) -> None:
        self.known: Known = set()
        self.ever: Known = set()

    def take(self, cache: Cache) -> None:
        fold(self.known, cache.take_events())
        self.ever |= self.known


def act(cache: Cache, chance: random.Random, step: int) -> None:
    """Make one call of a cache without pools."""
    key = RadixKey([chance.randrange(2) for _ in range(chance.randrange(1, 40))], chance.choice([None, "a"]))
    kind = chance.random()
    if kind < 0.5:
        options: dict[str, Any] = {}
        length = len(key) // cache.page_size * cache.page_size
        if isinstance(cache, MambaRadixCache) and length and chance.random() < 0.7:
            key = RadixKey(key.token_ids[:length], key.extra_key)
            options["mamba_value"] = torch.tensor([step + 1])
        elif getattr(cache, "supports_swa", False):
            options["swa_evicted_seqlen"] = chance.choice(
                [0, length // 2 // cache.page_size * cache.page_size]
            )
        cache.insert(key, torch.arange(len(key)) + 1000 * step, **options)
    elif kind < 0.75:
        cache.match_prefix(key)
    elif kind < 0.97:
        cache.evict(chance.randrange(10), chance.randrange(10))
    else:
        cache.reset()


def test_an_event_tells_tokens_parent_and_namespace() -> None:
    """A run of new pages is one event, with the hashes of the cache; a split tells nothing."""
    cache = RadixCache(2)
    assert cache.take_events() == []
    cache.keep_events()
    cache.insert(RadixKey([1, 2, 3, 4, 5], ("ns", 7)))
    last = cache.insert(RadixKey([1, 2, 6, 7], ("ns", 7))).last_node
    cleared, first, second = cache.take_events()
    assert cleared == AllCleared()  # so that nobody keeps what was told of another cache
    whole = cache.compute_node_hash(last.parent) + cache.compute_node_hash(last)
    assert isinstance(first, BlocksStored)
    assert first.tokens == (1, 2, 3, 4)
    assert (first.part, first.parent, first.block_size, first.namespace) == (Part.KV, None, 2, ("ns", 7))
    assert second == BlocksStored(Part.KV, (whole[1],), whole[0], (6, 7), 2, ("ns", 7))
    assert first.hashes[0] == whole[0]
    cache.match_prefix(RadixKey([1, 2], ("ns", 7)))
    assert cache.take_events() == []
    cache.evict(2)
    assert cache.take_events() == [BlocksRemoved(Part.KV, first.hashes[1:])]
    cache.reset()
    assert cache.take_events() == [AllCleared()]


def test_a_state_is_told_at_the_last_page_alone() -> None:
    """With that page's tokens and the page before it; tuples of tokens come back as they were given."""
    cache = MambaRadixCache(2)
    cache.keep_events()
    tokens = [(1, 2), (3, 4), (5, 6), (7, 8)]
    state = torch.tensor([3])
    node = cache.insert(RadixKey(tokens), torch.arange(4), mamba_value=state).last_node  # type: ignore[arg-type]
    _, kv, at_end = cache.take_events()
    pages = tuple(cache.compute_node_hash(node))
    assert kv == BlocksStored(Part.KV, pages, None, tuple(tokens), 2)
    assert at_end == BlocksStored(Part.STATE, pages[1:], pages[0], tuple(tokens[2:]), 2)
    cache.evict(0, 1)
    assert cache.take_events() == [BlocksRemoved(Part.STATE, pages[1:]), BlocksRemoved(Part.KV, pages)]


def test_nobody_listens_any_more() -> None:
    """Events that nobody took are forgotten, and none follow until somebody asks again."""
    cache = RadixCache()
    cache.keep_events()
    cache.insert(RadixKey([1]))
    cache.keep_events(False)
    cache.insert(RadixKey([2]))
    assert cache.take_events() == []
    cache.keep_events()
    told = Counted()
    told.take(cache)
    assert told.known == cached(cache)


def test_events_are_not_asked_for_from_inside_a_callback() -> None:
    """X6: a cache is amid a call then."""
    refused: list[str] = []

    def callback(node_id: int) -> None:
        for call in (cache.keep_events, cache.take_events):
            with pytest.raises(RuntimeError, match=f"{call.__name__} was called from on_node_evict"):
                call()
            refused.append(call.__name__)

    cache = RadixCache(on_node_evict=callback)
    cache.insert(RadixKey([1]))
    cache.evict(1)
    assert refused == ["keep_events", "take_events"]


@pytest.mark.parametrize(
    "name",
    ["radix, checked, pages of 1", "windowed, checked, pages of 4", "mamba, queue, pages of 4"],
)
def test_whichever_use_of_memory_fails_the_events_tell_what_is_there(name: str) -> None:
    """X2: an event is made of what was at hand before the call changed anything."""

    def listened() -> World:
        world = WORLDS[name]()
        world.cache.keep_events()
        return world

    def pools(world: World) -> list[Any]:
        return [it for it in (world.pool, world.states) if it is not None]

    points = 0
    with watched_places():
        for label, call in acts_of(WORLDS[name]()).items():
            for failed in Sweep(listened, call, named=pools):
                points += 1
                told = Counted()
                told.take(failed.subject.cache)
                assert told.known == cached(failed.subject.cache), f"{label}: {failed.where}"
    assert points > 100
