"""Tests of eviction policies against a list of nodes that is sorted each time, foreign policies as well."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pymllm.errors import InvariantViolation
from pymllm.invariants import check_mamba_radix_cache, check_radix_cache
from pymllm.mem_cache import MambaRadixCache, RadixCache, RadixKey
from pymllm.mem_cache.tree.eviction_policy import FIFO, LRU, POLICIES, SLRU
from pymllm.mem_cache.tree.victims import RankedOrder


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_no_slots_are_on_the_pools_device(policy: str) -> None:
    """R1: a match that finds nothing is a tensor as others are."""
    pool = SimpleNamespace(device=torch.device("meta"), free=len)
    cache = RadixCache(token_to_kv_pool_allocator=pool, eviction_policy=policy)
    assert cache.match_prefix(RadixKey([1])).indices.device.type == "meta"


@dataclass
class Piece:
    """A node of the list: the tokens down to its end, where it begins, and what was done with it."""

    tokens: tuple[int, ...]
    start: int
    came: int
    used: int
    hits: int = 0
    priority: int = 0

    def begins(self, tokens: tuple[int, ...]) -> bool:
        return tokens[: len(self.tokens)] == self.tokens


ORDERS: dict[str, Any] = {
    "lru": lambda it: (it.used,),
    "lfu": lambda it: (it.hits, it.used),
    "fifo": lambda it: (it.came,),
    "mru": lambda it: (-it.used, len(it.tokens)),
    "filo": lambda it: (-it.came, it.used, len(it.tokens)),
    "priority": lambda it: (it.priority, it.used),
    "slru": lambda it: (it.hits > 1, it.used),
    "log-lfu": lambda it: (len(f"{it.hits:b}") if it.hits else 0, it.used),
}


class ListOfPieces:
    """A radix tree without a tree: pieces in a list, that is searched and sorted for everything."""

    def __init__(self, policy: str) -> None:
        self.order = ORDERS[policy]
        self.pieces: list[Piece] = []
        self.now = 0

    def path(self, tokens: tuple[int, ...]) -> list[Piece]:
        """Return the pieces of a prefix, of which one that is begun is cut in two."""
        for piece in list(self.pieces):
            common = next(
                (at for at, pair in enumerate(zip(piece.tokens, tokens, strict=False)) if len({*pair}) > 1),
                min(len(piece.tokens), len(tokens)),
            )
            if piece.start < common < len(piece.tokens):
                self.pieces.append(replace(piece, tokens=piece.tokens[:common]))
                piece.start = common
        return sorted((it for it in self.pieces if it.begins(tokens)), key=lambda it: it.start)

    def use(self, tokens: tuple[int, ...], hits: int) -> list[Piece]:
        self.now += 1
        path = self.path(tokens)
        for piece in path:
            piece.used, piece.hits = self.now, piece.hits + hits
        return path

    def insert(self, tokens: tuple[int, ...], priority: int) -> None:
        path = self.use(tokens, 0)
        for piece in path:
            piece.priority = max(piece.priority, priority)
        known = len(path[-1].tokens) if path else 0
        if known < len(tokens):
            self.pieces.append(Piece(tokens, known, self.now, self.now, 0, priority))

    def evict(self, tokens: int, held: tuple[int, ...]) -> None:
        while tokens > 0:
            leaves = [
                it
                for it in self.pieces
                if not any(it.begins(other.tokens) and other is not it for other in self.pieces)
                and not it.begins(held)
            ]
            if not leaves:
                return
            victim = min(leaves, key=self.order)
            tokens -= len(victim.tokens) - victim.start
            self.pieces.remove(victim)

    def shown(self) -> list[tuple[tuple[int, ...], int]]:
        return sorted((it.tokens, it.start) for it in self.pieces)


def spelt(cache: Any, node: Any) -> tuple[int, ...]:
    """Return the tokens down to the end of a node."""
    return tuple(token for it in cache._tree.path_to(node) for token in it.key)


def shown(cache: Any) -> list[tuple[tuple[int, ...], int]]:
    """Return the tokens down to the end of each node, and where it begins."""
    return sorted((spelt(cache, node), node._depth - node._length) for node in cache._tree.nodes())


def test_every_policy_is_in_the_list() -> None:
    assert [*ORDERS] == [*POLICIES]


class RankedLRU(LRU):
    """Recency by ranks, where a cache needs none."""


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("policy", [*ORDERS, RankedLRU()], ids=[*ORDERS, "ranked lru"])
def test_policy_evicts_what_a_sorted_list_does(policy: Any, seed: int) -> None:
    """R5, R11: whatever is matched, inserted, split, held and evicted before."""
    cache = RadixCache(eviction_policy=policy)
    name = cache.eviction_policy.name  # type: ignore[attr-defined]
    draw, naive = random.Random(f"{name} {seed}"), ListOfPieces(name)
    held: Any = None
    for _ in range(250):
        tokens = tuple(draw.choice("112") for _ in range(draw.randrange(1, 7)))
        key = tuple(map(int, tokens))
        act = draw.random()
        if act < 0.45:
            priority = draw.randrange(-1, 3)
            cache.insert(RadixKey(list(key)), priority=priority)
            naive.insert(key, priority)
        elif act < 0.75:
            cache.match_prefix(RadixKey(list(key)))
            naive.use(key, 1)
        elif act < 0.85:
            if held is not None:
                cache.dec_lock_ref(held)
            match = cache.match_prefix(RadixKey(list(key)))
            path = naive.use(key, 1)
            held, held_tokens = match.last_node, path[-1].tokens if path else ()
            cache.inc_lock_ref(held)
        else:
            count = draw.randrange(1, 6)
            cache.evict(count)
            naive.evict(count, held_tokens if held is not None else ())
        check_radix_cache(cache)
        assert shown(cache) == naive.shown()


def grown(cache: RadixCache | MambaRadixCache) -> None:
    """Cache an old prompt that is used often, a young one, and one with two ends."""
    hybrid = isinstance(cache, MambaRadixCache)
    for first, tokens, priority in ((1, [1, 2], 0), (3, [3, 4, 5], 2), (6, [3, 4, 6], 1), (9, [9], 1)):
        options = {"mamba_value": torch.tensor([first])} if hybrid else {}
        cache.insert(
            RadixKey(tokens), torch.arange(10 * first, 10 * first + len(tokens)), priority=priority, **options
        )
    for _ in range(2):
        cache.match_prefix(RadixKey([1, 2]))


EVICTED = {
    "lru": [(3, 4, 5), (3, 4, 6), (3, 4), (9,), (1, 2)],
    "lfu": [(3, 4, 5), (3, 4, 6), (3, 4), (9,), (1, 2)],
    "fifo": [(1, 2), (3, 4, 5), (3, 4, 6), (3, 4), (9,)],
    "mru": [(1, 2), (9,), (3, 4, 6), (3, 4, 5), (3, 4)],
    "filo": [(9,), (3, 4, 6), (3, 4, 5), (3, 4), (1, 2)],
    "priority": [(1, 2), (3, 4, 6), (9,), (3, 4, 5), (3, 4)],
    "slru": [(3, 4, 5), (3, 4, 6), (3, 4), (9,), (1, 2)],
    "log-lfu": [(3, 4, 5), (3, 4, 6), (3, 4), (9,), (1, 2)],
}


@pytest.mark.parametrize("kind", ["plain", "window", "states"])
@pytest.mark.parametrize("policy", EVICTED)
def test_leaves_of_every_tree_go_in_the_order_of_the_policy(policy: str, kind: str) -> None:
    """R11: the plain tree, the windowed and the hybrid one agree."""
    gone: list[int] = []
    cache: RadixCache | MambaRadixCache
    if kind == "states":
        cache = MambaRadixCache(on_node_evict=gone.append, eviction_policy=policy)
    else:
        cache = RadixCache(1, 2 if kind == "window" else None, None, gone.append, policy)
    grown(cache)
    names = {node.id: spelt(cache, node) for node in cache._tree.nodes()}
    while cache.evict(1).full_evicted:
        (check_mamba_radix_cache if isinstance(cache, MambaRadixCache) else check_radix_cache)(cache)
    assert [names[number] for number in gone] == EVICTED[policy]


@pytest.mark.parametrize("policy", ["mru", "lfu"])
def test_windows_and_states_go_least_recent_first_whatever_the_policy(policy: str) -> None:
    """S3, M5: what a leaf's policy says counts for leaves that tokens are asked of."""
    for cache in (RadixCache(1, 1, eviction_policy=policy), MambaRadixCache(eviction_policy=policy)):
        grown(cache)
        taken = cache.evict(0, 1)
        assert (taken.full_evicted, taken.swa_evicted + taken.mamba_evicted) == (1, 1)
        assert ((3, 4, 5), 2) not in shown(cache)


def test_hits_of_one_power_of_two_are_equal() -> None:
    """R11: two hits and three are one rank, of which the least recent goes; one and four are others."""
    gone: list[int] = []
    cache = RadixCache(on_node_evict=gone.append, eviction_policy="log-lfu")
    hits = {1: 4, 2: 3, 3: 2, 4: 1, 5: 0}
    names = {cache.insert(RadixKey([token])).last_node.id: token for token in hits}
    for token, times in hits.items():
        for _ in range(times):
            cache.match_prefix(RadixKey([token]))
    cache.evict(5)
    assert [names[number] for number in gone] == [5, 4, 2, 3, 1]


class Largest:
    """A stranger's policy, which derives from nothing."""

    def rank(self, node: Any) -> int:
        return -len(node.key)


def test_policy_of_ones_own_is_an_object_with_a_rank() -> None:
    """R5: of equal ranks the oldest goes; a split makes a leaf shorter."""
    cache = RadixCache(eviction_policy=Largest())
    for tokens in ([1, 2, 3, 4], [5, 6, 7], [8, 9, 10]):
        cache.insert(RadixKey(tokens))
    cache.evict(0)
    assert cache._tree.victims.leaves.first() is not None
    cache.match_prefix(RadixKey([1, 2]))
    check_radix_cache(cache)
    cache.evict(1)
    assert cache.match_prefix(RadixKey([5, 6, 7])).prefix_len == 0
    assert cache.total_size() == 7


class Moody(Largest):
    """Fails, or ranks what cannot be compared, on demand."""

    wrong: Any = None

    def rank(self, node: Any) -> Any:
        if isinstance(self.wrong, Exception):
            raise self.wrong
        return super().rank(node) if self.wrong is None else self.wrong.pop()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (KeyError("mine"), "mine"),
        ([1, "one", 2], "not supported between"),
        ([None] * 3, "Moody ranks a leaf None: give a number, or several in a tuple"),
        ([{}, {}, {}], "Moody ranks a leaf {}"),
        ([1j] * 3, "Moody ranks a leaf 1j"),
        ([float("nan")] * 3, "Moody ranks a leaf nan"),
    ],
)
def test_policy_that_fails_changes_nothing(wrong: Any, message: str) -> None:
    """X2: the eviction raises what the policy raised, and the next one is as if nothing had been."""
    policy = Moody()
    cache = RadixCache(eviction_policy=policy)
    for tokens in ([1, 2, 3], [4], [5, 6]):
        cache.insert(RadixKey(tokens))
    policy.wrong = wrong
    with pytest.raises((KeyError, TypeError), match=message):
        cache.evict(1)
    check_radix_cache(cache)
    policy.wrong = None
    assert cache.evict(1).full_evicted == 3
    check_radix_cache(cache)


@pytest.mark.parametrize("kind", [RadixCache, MambaRadixCache])
@pytest.mark.parametrize(
    "call",
    [
        lambda cache: cache.evict(1),
        lambda cache: cache.match_prefix(RadixKey([1])),
        lambda cache: cache.insert(RadixKey([9])),
        lambda cache: cache.inc_lock_ref(cache.root_node),
        lambda cache: cache.reset(),
    ],
    ids=["evict", "match_prefix", "insert", "inc_lock_ref", "reset"],
)
def test_rank_may_not_call_the_cache(kind: Any, call: Callable[[Any], Any]) -> None:
    """X6: the call is refused, and the eviction with it where the policy does not catch that."""

    class Meddler(Largest):
        catches = False

        def rank(self, node: Any) -> int:
            try:
                call(cache)
            except RuntimeError:
                if not self.catches:
                    raise
            return super().rank(node)

    policy = Meddler()
    cache = kind(eviction_policy=policy)
    for tokens in ([1, 2, 3], [4], [5, 6]):
        cache.insert(RadixKey(tokens))
    before = cache.total_size(), cache.evictable_size()
    with pytest.raises(RuntimeError, match="was called from a rank of its eviction policy: only sizes"):
        cache.evict(1)
    assert (cache.total_size(), cache.evictable_size()) == before
    policy.catches = True
    assert cache.evict(1).full_evicted == 3
    assert cache.insert(RadixKey([5, 6])).prefix_len == 2, "the cache listens again"


class Full(dict[Any, Any]):
    """A table that finds no memory."""

    def __setitem__(self, key: Any, value: Any) -> None:
        raise MemoryError


def test_leaf_that_cannot_be_noted_is_ranked_all_the_same() -> None:
    """X2: there is nobody to tell when a hold was taken back."""
    cache = RadixCache(eviction_policy="filo")
    for tokens in ([1], [2], [3]):
        cache.insert(RadixKey(tokens))
    order: Any = cache._tree.victims.leaves
    order._changed = Full(order._changed)
    cache.insert(RadixKey([4]))
    check_radix_cache(cache)
    gone: list[int] = []
    cache.on_node_evict = gone.append
    cache.evict(4)
    assert gone == [5, 4, 3, 2]


def test_use_that_is_never_asked_about_leaves_nothing_behind() -> None:
    """R5: a leaf that is used between any two evictions makes no heap grow."""
    cache = RadixCache(eviction_policy="mru")
    cache.insert(RadixKey([1]))
    for _ in range(300):
        cache.match_prefix(RadixKey([1]))
        cache._tree.victims.leaves.first()
    order: Any = cache._tree.victims.leaves
    assert isinstance(order, RankedOrder)
    assert len(order._heap) < 100
    cache.evict(1)
    assert cache.total_size() == 0
    assert not order._ranked


def test_nodes_keep_nothing_that_no_policy_asks_for() -> None:
    """Recency alone needs no stamps; a reset keeps the policy."""
    plain, ranked = RadixCache(), RadixCache(eviction_policy=FIFO())
    assert not hasattr(plain.insert(RadixKey([1]), priority=3).last_node, "priority")
    ranked.reset()
    node = ranked.insert(RadixKey([1]), priority=3).last_node
    assert (node.priority, node.creation_time) == (3, 1.0)
    ranked.insert(RadixKey([2]))
    ranked.match_prefix(RadixKey([1]))
    ranked.evict(1)
    assert ranked.match_prefix(RadixKey([1])).prefix_len == 0


DAMAGE = {
    "the order has": "it._tree.victims.leaves._ranked.clear()",
    "ranks nodes that are no members": "it._tree.victims.leaves._changed[it.root_node] = None",
    "came at 9.0, the clock is at 4.0": "leaf.creation_time = 9.0",
    "its child": "leaf.priority = 1",
}


@pytest.mark.parametrize("message", DAMAGE)
@pytest.mark.parametrize("make", [RadixCache, MambaRadixCache])
def test_damaged_ranks_and_stamps_are_noticed(make: Any, message: str) -> None:
    """R5, R11: a walk compares them with the nodes."""
    cache = make(eviction_policy="fifo")
    for tokens in ([1, 2], [1, 2, 3], [4]):
        state = {"mamba_value": torch.tensor([tokens[-1]])} if make is MambaRadixCache else {}
        leaf = cache.insert(RadixKey(tokens), torch.tensor(tokens), **state).last_node
    cache.evict(0)
    cache._tree.victims.leaves.first()
    leaf = cache.match_prefix(RadixKey([1, 2, 3])).last_node
    cache._tree.victims.leaves.first()
    check = check_radix_cache if make is RadixCache else check_mamba_radix_cache
    check(cache)
    exec(DAMAGE[message], {"it": cache, "leaf": leaf})
    with pytest.raises(InvariantViolation, match=message):
        check(cache)


@pytest.mark.parametrize("make", [RadixCache, MambaRadixCache])
def test_unknown_policy_is_refused(make: Any) -> None:
    """X1: the value, what there is, and what was meant."""
    known = "lru, lfu, fifo, mru, filo, priority, slru, log-lfu, or an object with a method rank(node)"
    refusal = f"eviction_policy is 'lfuu' (did you mean lfu?): give one of {known}"
    with pytest.raises(ValueError, match=f"^{re.escape(refusal)}$"):
        make(eviction_policy="lfuu")
    for wrong in (None, 3, list):
        with pytest.raises(TypeError, match="which has no method rank: give one of lru, lfu"):
            make(eviction_policy=wrong)
    with pytest.raises(TypeError, match=r"is the class Largest: give an object of it, such as Largest\(\)$"):
        make(eviction_policy=Largest)
    with pytest.raises(TypeError, match="protected_threshold must be an int"):
        SLRU("2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"protected_threshold must be at least 1, got 0$"):
        SLRU(0)


@pytest.mark.parametrize("wrong", ["3", float("nan"), 1.5, 0.0, None, True])
@pytest.mark.parametrize("policy", ["lru", "priority"])
@pytest.mark.parametrize("make", [RadixCache, MambaRadixCache])
def test_priority_is_an_int_whatever_the_policy(make: Any, policy: str, wrong: Any) -> None:
    """X1: what a cache does not look at is checked all the same, before anything changes."""
    cache = make(eviction_policy=policy)
    with pytest.raises(TypeError, match="priority must be an int, got"):
        cache.insert(RadixKey([1]), torch.tensor([1]), priority=wrong)
    assert cache.total_size() == 0
    cache.insert(RadixKey([1]), torch.tensor([1]), priority=torch.tensor(3))
