"""Tests of objects with one owner: they are neither copied nor pickled, and one thread calls them."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import pymllm.core.inference.contexts
import pymllm.mem_cache
from pymllm.core.inference.contexts import (
    DynamicInferenceContext,
    ForwardBatch,
    KVBlockAllocator,
    MambaSlotAllocator,
    MambaSlotCapacityError,
    PrefixCachingEvictionPolicy,
    RequestStep,
)
from pymllm.invariants import check_mamba_radix_cache, check_radix_cache
from pymllm.mem_cache import (
    ChunkCache,
    EvictResult,
    GDNPool,
    InsertResult,
    KVPool,
    LRUList,
    MambaRadixCache,
    MambaTreeNode,
    MatchResult,
    RadixCache,
    RadixKey,
    ReqToTokenPool,
    SWATokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
    TreeNode,
)
from pymllm.mem_cache.ownership import refuse_other_thread

# -- one owner -----------------------------------------------------------------------------------------------


WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{
        f"pickle {protocol}": lambda it, protocol=protocol: pickle.loads(pickle.dumps(it, protocol))
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
}
each_way = pytest.mark.parametrize("way", WAYS)


def make_context() -> DynamicInferenceContext:
    return DynamicInferenceContext(
        max_requests=2,
        num_blocks=9,
        max_blocks_per_request=4,
        block_size_tokens=2,
        mamba_slots=2,
        num_mamba_layers=1,
        conv_states_shape=(2,),
        ssm_states_shape=(2,),
    )


def filled(cache: Any) -> Any:
    cache.insert(RadixKey([1, 2]), torch.tensor([3, 4]))
    return cache


ANEW = "build a new one with the same arguments"
OWNERS: dict[type, tuple[Callable[[], Any], str]] = {
    RadixCache: (lambda: filled(RadixCache()), f"{ANEW}, and insert again"),
    MambaRadixCache: (lambda: filled(MambaRadixCache()), f"{ANEW}, and insert again"),
    TreeNode: (
        lambda: filled(RadixCache()).match_prefix(RadixKey([1, 2])).last_node,
        "keep its id, or match its prompt again",
    ),
    MambaTreeNode: (
        lambda: filled(MambaRadixCache()).insert(RadixKey([1, 2]), torch.tensor([3, 4])).last_node,
        "keep its id, or match its prompt again",
    ),
    LRUList: (LRUList, "list() of it has its members"),
    TokenToKVPoolAllocator: (lambda: TokenToKVPoolAllocator(8, "cpu"), ANEW),
    SWATokenToKVPoolAllocator: (lambda: SWATokenToKVPoolAllocator(8, 8, "cpu", 1, False), ANEW),
    ReqToTokenPool: (lambda: ReqToTokenPool(2, 8, "cpu"), ANEW),
    KVPool: (lambda: KVPool(8, 1, 1, 2, device="cpu"), ANEW),
    GDNPool: (lambda: GDNPool(1, 1, 1, 2, 2, 4, 2, device="cpu", max_track_slots=2), ANEW),
    KVBlockAllocator: (lambda: KVBlockAllocator(SimpleNamespace(prefix_cache_lru_clock=0), 4), ANEW),
    MambaSlotAllocator: (lambda: make_context().mamba_slot_allocator, ANEW),
    DynamicInferenceContext: (make_context, f"{ANEW}, and add the requests there"),
}
"""Every public class that keeps trackers, and what its user is told to do."""

DATA: dict[type, Callable[[], Any]] = {
    RadixKey: lambda: RadixKey([1, 2], "lora"),
    EvictResult: lambda: EvictResult(1, 2, 3),
    MatchResult: lambda: ChunkCache().match_prefix(RadixKey([1])),
    InsertResult: lambda: InsertResult(4, None, True, ((0, 4),)),
    ChunkCache: ChunkCache,
    ForwardBatch: lambda: ForwardBatch(
        (RequestStep("r", 0, 0, np.arange(2, dtype=np.uint32), 0, (1,), np.arange(2), (), 0, True),)
    ),
    RequestStep: lambda: RequestStep("r", 0, 0, np.arange(2), 0, (1,), np.arange(2), (1,), 0, True),
    MambaSlotCapacityError: lambda: MambaSlotCapacityError("2 slots are needed"),
    PrefixCachingEvictionPolicy: lambda: PrefixCachingEvictionPolicy.LRU,
}
"""Every public class that is plain data; `ChunkCache` keeps nothing."""


def test_every_public_class_is_one_or_the_other() -> None:
    """X5: nobody is left to be copied by accident."""
    public = {
        found
        for room in (pymllm.mem_cache, pymllm.core.inference.contexts)
        for found in (getattr(room, name) for name in room.__all__)
        if isinstance(found, type) and not getattr(found, "__abstractmethods__", None)
    }
    assert public == set(OWNERS) | set(DATA)


@each_way
@pytest.mark.parametrize("kind", OWNERS)
def test_what_keeps_books_is_refused(kind: type, way: str) -> None:
    """X1, X5: a shallow copy would hand out what the original does; the sentence says what to do."""
    make, instead = OWNERS[kind]
    owner = make()
    assert type(owner) is kind
    with pytest.raises(TypeError) as caught:
        WAYS[way](owner)
    assert str(caught.value) == (
        f"{kind.__name__} cannot be copied or pickled, its resources have one owner: {instead}"
    )


def plain(thing: Any) -> Any:
    """Return all that a thing says, for comparing."""
    if isinstance(thing, (torch.Tensor, np.ndarray)):
        return (str(thing.dtype), thing.tolist())
    if isinstance(thing, (list, tuple)):
        return [plain(each) for each in thing]
    if isinstance(thing, ChunkCache):
        return vars(thing)
    slots = [name for each in type(thing).__mro__ for name in getattr(each, "__slots__", ())]
    return {name: plain(getattr(thing, name)) for name in slots} or repr(thing)


@each_way
@pytest.mark.parametrize("kind", DATA)
def test_plain_data_copies_right(kind: type, way: str) -> None:
    """K1: an equal thing of the same class."""
    thing = DATA[kind]()
    again = WAYS[way](thing)
    assert type(again) is kind
    assert plain(again) == plain(thing)


@pytest.mark.parametrize("kind", [RadixCache, MambaRadixCache])
@pytest.mark.parametrize("way", ["deepcopy", "pickle 5"])
def test_a_long_chain_ends_in_a_sentence(kind: Any, way: str) -> None:
    """X1: not in a RecursionError of Python's, however many nodes there are."""
    cache = kind()
    for end in range(1, 1500):
        cache.insert(RadixKey(np.arange(end)), torch.arange(end))
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        WAYS[way](cache)


@pytest.mark.parametrize("kind", [RadixCache, MambaRadixCache])
def test_a_result_is_copied_with_its_node_but_not_without(kind: Any) -> None:
    """X5: a shallow copy names the same node, and a deep one would need another."""
    cache = kind()
    added = cache.insert(RadixKey([1, 2]), torch.tensor([3, 4]), mamba_value=torch.tensor([2]))
    for result in (added, cache.match_prefix(RadixKey([1, 2]))):
        again = copy.copy(result)
        assert again.last_node is result.last_node
        assert (again.prefix_len, type(again)) == (result.prefix_len, type(result))
        cache.inc_lock_ref(again.last_node)
        cache.dec_lock_ref(result.last_node)
        for way in ("deepcopy", "pickle 5"):
            with pytest.raises(TypeError, match="TreeNode cannot be copied or pickled"):
                WAYS[way](result)


def test_a_cache_that_keeps_nothing_is_copied_unless_its_pool_would_be() -> None:
    """Whoever shares it shares the pool."""
    cache = ChunkCache(TokenToKVPoolAllocator(8, "cpu"))
    assert copy.copy(cache).pool is cache.pool
    for way in ("deepcopy", "pickle 5"):
        with pytest.raises(TypeError, match="TokenToKVPoolAllocator cannot be copied or pickled"):
            WAYS[way](cache)


@pytest.mark.parametrize(
    "tokens", [[1, 2], (1, 2), np.array([1, 2]), torch.tensor([1, 2]), [(1, 2), (3, 4)]], ids=repr
)
@each_way
def test_a_copied_key_finds_what_the_key_does(way: str, tokens: Any) -> None:
    """K1: in every container; a deep copy and a pickle have tokens of their own."""
    cache = RadixCache()
    key = RadixKey(tokens, "lora")
    cache.insert(key, torch.arange(2))
    again = WAYS[way](key)
    assert cache.match_prefix(again).prefix_len == 2
    assert (again.token_ids is key.token_ids) == (
        way == "copy" or (way == "deepcopy" and isinstance(tokens, tuple))
    )


def test_the_key_of_a_node_is_plain_data() -> None:
    """X5: what a node spells can be kept, although the node cannot."""
    cache = RadixCache()
    node = cache.insert(RadixKey([1, 2], 7)).last_node
    again = pickle.loads(pickle.dumps(node.key))
    assert (list(again), again.extra_key) == ([1, 2], 7)


class _Knows(RadixCache):
    """A cache with a deep copy of its own."""

    def __deepcopy__(self, memo: dict[int, Any]) -> str:
        return "a copy"


def test_a_subclass_may_know_how() -> None:
    """X5: what is refused is what would go wrong by itself."""
    assert copy.deepcopy(_Knows()) == "a copy"


# -- one thread ----------------------------------------------------------------------------------------------


_PATIENCE = 30.0
"""Seconds after which a thread that waits gives up: no test comes near it."""

TWO_THREADS = (
    r"{} was called from thread 'MainThread' while thread 'scheduler' {}: two threads use one {}, which one "
    r"scheduler thread owns\. Make all calls from that thread, or hold one lock around each$"
)


class Parking:
    """A place where a thread stops until it is let go."""

    def __init__(self) -> None:
        self._there, self._go = threading.Event(), threading.Event()
        self.is_open = True

    def stop(self, *_: Any) -> None:
        """Stop here, once, in whatever thread calls."""
        if self.is_open:
            self.is_open = False
            self._there.set()
            assert self._go.wait(_PATIENCE)

    @contextmanager
    def holding(self, act: Callable[[], object]) -> Iterator[None]:
        """Let another thread act as far as this place, and go on when the block is left."""
        errors: list[BaseException] = []

        def run() -> None:
            try:
                act()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="scheduler")
        thread.start()
        try:
            assert self._there.wait(_PATIENCE)
            yield
        finally:
            self._go.set()
            thread.join(_PATIENCE)
        assert errors == []


def stop_in(monkeypatch: pytest.MonkeyPatch, target: Any, method: str, parking: Parking) -> None:
    """Let a method of an object stop its thread before it does its work."""
    does = getattr(target, method)

    def stopping(*arguments: Any) -> Any:
        parking.stop()
        return does(*arguments)

    monkeypatch.setattr(target, method, stopping)


def windowed() -> tuple[RadixCache, SWATokenToKVPoolAllocator, Any, torch.Tensor]:
    """Return a cache with a tombstone above a held leaf, and a slot to revive it from."""
    pool = SWATokenToKVPoolAllocator(16, 16, "cpu", 1, False)
    cache = RadixCache(1, 1, pool)
    cache.insert(RadixKey([1]), pool.alloc(1))
    deep = cache.insert(RadixKey([1, 2]), pool.alloc(2)).last_node
    cache.insert(RadixKey([8]), pool.alloc(1))
    slot = pool.alloc(1)
    assert slot is not None
    return cache, pool, deep, slot


CALLS: dict[str, Callable[[Any, Any], object]] = {
    "match_prefix": lambda cache, node: cache.match_prefix(RadixKey([1])),
    "insert": lambda cache, node: cache.insert(RadixKey([7]), torch.tensor([9])),
    "evict": lambda cache, node: cache.evict(1),
    "inc_lock_ref": lambda cache, node: cache.inc_lock_ref(node),
    "dec_lock_ref": lambda cache, node: cache.dec_lock_ref(node),
    "reset": lambda cache, node: cache.reset(),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("where", ["free", "free_swa", "move_swa", "reset"])
def test_a_second_thread_meets_a_pool(monkeypatch: pytest.MonkeyPatch, where: str, name: str) -> None:
    """X6: there is no callback to blame; both threads' names are said, and the first goes on undisturbed."""
    cache, pool, deep, slot = windowed()
    acts: dict[str, Callable[[], object]] = {
        "free": lambda: cache.evict(1),
        "free_swa": lambda: cache.evict(0, 1),
        "move_swa": lambda: cache.insert(RadixKey([1]), slot),
        "reset": cache.reset,
    }
    if where == "move_swa":  # what a held tombstone is revived from
        cache.evict(0, 1)
        cache.inc_lock_ref(deep)
    parking = Parking()
    stop_in(monkeypatch, pool, "free" if where == "reset" else where, parking)
    words = TWO_THREADS.format(name, "is inside a pool that the cache was calling", "cache")
    with parking.holding(acts[where]), pytest.raises(RuntimeError, match=words):
        CALLS[name](cache, deep)
    check_radix_cache(cache)
    assert cache.match_prefix(RadixKey([5])).prefix_len == 0  # nobody is inside any more


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("where", ["free_track_slot", "reset", "on_node_evict"])
def test_a_second_thread_meets_a_cache_of_states(
    monkeypatch: pytest.MonkeyPatch, where: str, name: str
) -> None:
    """X6: the same for states and callbacks."""
    states = GDNPool(1, 1, 1, 2, 2, 4, 2, device="cpu", max_track_slots=2)
    parking = Parking()
    cache = MambaRadixCache(1, None, states, parking.stop if where == "on_node_evict" else None)
    track = torch.tensor([states.alloc_track_slot()])
    node = cache.insert(RadixKey([1, 2]), torch.tensor([3, 4]), mamba_value=track).last_node
    if where != "on_node_evict":
        stop_in(monkeypatch, states, "free_track_slot", parking)
    doing = "on_node_evict" if where == "on_node_evict" else "a pool that the cache was calling"
    words = TWO_THREADS.format(name, f"is inside {doing}", "cache")
    with (
        parking.holding(cache.reset if where == "reset" else lambda: cache.evict(1)),
        pytest.raises(RuntimeError, match=words),
    ):
        CALLS[name](cache, node)
    check_mamba_radix_cache(cache)
    assert states.available_track_slots() == 2


def test_a_callback_is_still_blamed_for_its_own_calls() -> None:
    """X6: one thread that comes back into the cache is told that, whichever thread it is."""
    found: list[BaseException] = []

    def call_back(_: int) -> None:
        try:
            cache.match_prefix(RadixKey([1]))
        except RuntimeError as error:
            found.append(error)

    cache = RadixCache(on_node_evict=call_back)
    for start in (
        lambda act: act(),
        lambda act: [(thread := threading.Thread(target=act)).start(), thread.join()],
    ):
        cache.insert(RadixKey([1]))
        start(lambda: cache.evict(1))
    assert [str(error)[:44] for error in found] == ["match_prefix was called from on_node_evict: "] * 2


@pytest.mark.parametrize("store", ["host", "device"])
@pytest.mark.parametrize("kind", [TokenToKVPoolAllocator, SWATokenToKVPoolAllocator])
def test_a_second_thread_meets_a_free_group(kind: Any, store: Any) -> None:
    """A6: a group of another thread is none that was forgotten; one thread is told as before."""
    sizes = (8, 8) if kind is SWATokenToKVPoolAllocator else (8,)
    pool = kind(*sizes, device="cpu", page_size=1, need_sort=False, store=store)
    parking = Parking()

    def act() -> None:
        pool.free_group_begin()
        parking.stop()
        pool.free_group_end()

    words = TWO_THREADS.format("free_group_begin", "has a free group open", "allocator")
    with parking.holding(act), pytest.raises(RuntimeError, match=words):
        pool.free_group_begin()
    pool.free_group_begin()
    with pytest.raises(RuntimeError, match="a free group is open already: call free_group_end first"):
        pool.free_group_begin()


BLOCK_CALLS: dict[str, Callable[[KVBlockAllocator], object]] = {
    "allocate_memory_blocks": lambda blocks: blocks.allocate_memory_blocks(1),
    "retain_memory_blocks": lambda blocks: blocks.retain_memory_blocks([0]),
    "release_memory_blocks": lambda blocks: blocks.release_memory_blocks([0]),
    "register_kv_block_hashes": lambda blocks: blocks.register_kv_block_hashes([0], [5]),
    "update_timestamps": lambda blocks: blocks.update_timestamps([0]),
    "reset": lambda blocks: blocks.reset(),
}


@pytest.mark.parametrize("name", BLOCK_CALLS)
def test_a_second_thread_meets_an_observer(name: str) -> None:
    """X6: of a block allocator."""
    blocks = KVBlockAllocator(SimpleNamespace(prefix_cache_lru_clock=0), 4)
    taken = blocks.allocate_memory_blocks(1)
    assert taken is not None
    parking = Parking()
    blocks.on_blocks_deregistered = parking.stop
    words = TWO_THREADS.format(name, "is inside on_blocks_deregistered", "allocator")
    with (
        parking.holding(lambda: blocks.release_memory_blocks(taken)),
        pytest.raises(RuntimeError, match=words),
    ):
        BLOCK_CALLS[name](blocks)
    assert blocks.pool_avail == 3


def request(*tokens: int) -> SimpleNamespace:
    return SimpleNamespace(prompt_tokens=list(tokens), finished_chunk_token_count=0)


def make_small_context() -> DynamicInferenceContext:
    return DynamicInferenceContext(
        max_requests=2, num_blocks=9, max_blocks_per_request=4, block_size_tokens=2
    )


def test_a_second_thread_meets_a_step() -> None:
    """X6: a request that another thread adds while the forward pass runs; it is taken between steps."""
    context = make_small_context()
    first, second = request(1, 2, 3), request(4, 5)
    assert context.add_request(first)
    parking = Parking()

    def forward(batch: Any) -> list[int]:
        parking.stop()
        return [7] * len(batch)

    for name, call in {
        "add_request": lambda: context.add_request(second),
        "release": lambda: context.release(first),
        "begin_step": lambda: context.begin_step(),
    }.items():
        parking = Parking()
        words = TWO_THREADS.format(name, "is in a step", "context")
        with parking.holding(lambda: context.step(forward)), pytest.raises(RuntimeError, match=words):
            call()
    assert context.add_request(second)
    context.begin_step()
    with pytest.raises(RuntimeError, match="add_request was called during a step: commit_step or abort_step"):
        context.add_request(request(6))


def test_a_second_thread_meets_the_observer_of_a_context() -> None:
    """X6: rows do not move under whoever called it."""
    context = make_small_context()
    first = request(1, 2, 3)
    assert context.add_request(first)
    parking = Parking()
    context.kv_block_allocator.on_blocks_deregistered = parking.stop
    words = TWO_THREADS.format("add_request", "is inside on_blocks_deregistered", "allocator")
    with parking.holding(lambda: context.release(first)), pytest.raises(RuntimeError, match=words):
        context.add_request(request(4))
    assert context.requests == []


def test_a_thread_that_is_gone_is_named_by_its_number() -> None:
    """A6: it may have ended and left a group open."""
    pool = TokenToKVPoolAllocator(8, "cpu")
    thread = threading.Thread(target=pool.free_group_begin)
    thread.start()
    thread.join()
    assert thread.ident != threading.get_ident()
    with pytest.raises(RuntimeError, match=rf"while thread {thread.ident} has a free group open"):
        pool.free_group_begin()


def test_the_work_of_this_thread_is_left_to_the_caller() -> None:
    """X6: who asks has words of its own for it."""
    assert refuse_other_thread("match_prefix", "cache", threading.get_ident(), "is inside a pool") is None
