"""Small warm caches and pools, the acts on them, and the laws that must hold afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pymllm import invariants
from pymllm.mem_cache import (
    ChunkCache,
    GDNPool,
    KVPool,
    LRUList,
    MambaRadixCache,
    MambaTreeNode,
    RadixCache,
    RadixKey,
    ReqToTokenPool,
    SWATokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
)

Act = Callable[["World"], Any]

SIZE = 64


@dataclass
class World:
    """A subject with its pools; its caller's slots, transfers, states, rows, nodes and boundary of a hold."""

    page_size: int = 1
    cache: Any = None
    pool: Any = None
    states: Any = None
    rows: Any = None
    mine: list[torch.Tensor] = field(default_factory=list)
    transfers: list[int] = field(default_factory=list)
    my_states: list[int] = field(default_factory=list)
    my_rows: list[int] = field(default_factory=list)
    nodes: list[Any] = field(default_factory=list)
    boundary: Any = None
    other: Any = None

    def take(self, count: int) -> torch.Tensor:
        """Allocate whole pages for the caller."""
        slots = self.pool.alloc(count)
        assert slots is not None
        self.mine.append(slots)
        return slots

    def put(self, tokens: list[int], **options: Any) -> Any:
        """Cache tokens, and free what is not adopted."""
        key = RadixKey(tokens)
        if self.pool is None:
            result = self.cache.insert(key, **options)
        else:
            slots = self.pool.alloc(len(tokens))
            result = self.cache.insert(key, slots, **options)
            adopted = [slots[first:end] for first, end in result.adopted]
            kept = torch.cat([slots[:0], *adopted])
            rest = slots[~torch.isin(slots, kept)]
            self.pool.free(rest)
        self.nodes.append(result.last_node)
        return result


# -- worlds --------------------------------------------------------------------------------------------------

STORES: dict[str, dict[str, Any]] = {
    "checked": {},
    "watched": {"check_ownership": True},
    "sorted": {"check_ownership": False, "need_sort": True},
    "queue": {"check_ownership": False, "need_sort": False},
    "device": {"check_ownership": False, "need_sort": True, "store": "device"},
    "device checked": {"need_sort": False, "store": "device"},
    "device watched": {"check_ownership": True, "need_sort": False, "store": "device"},
}


def pages(page_size: int, *numbers: int) -> list[int]:
    """Spell a page of tokens for each number."""
    return [100 * number + at for number in numbers for at in range(page_size)]


def make_token_pool(page_size: int, store: str) -> TokenToKVPoolAllocator:
    return TokenToKVPoolAllocator(SIZE * page_size, "cpu", page_size, **STORES[store])


def make_swa_pool(page_size: int, store: str) -> SWATokenToKVPoolAllocator:
    return SWATokenToKVPoolAllocator(SIZE * page_size, SIZE * page_size, "cpu", page_size, **STORES[store])


def make_radix(page_size: int, store: str) -> World:
    """A trunk with two branches, of which one is held, and slots for one more prompt."""
    pool = None if store == "none" else make_token_pool(page_size, store)
    told: list[int] = []
    world = World(page_size, RadixCache(page_size, None, pool, told.append), pool)
    for tail in ((4, 5), (6,), (7, 8, 9)):
        world.put(pages(page_size, 1, 2, 3, *tail))
    world.put(pages(page_size, 11, 12))
    world.cache.inc_lock_ref(world.nodes[1])
    if pool is not None:
        world.take(6 * page_size)
    return world


def make_windowed(page_size: int, store: str) -> World:
    """Tombstones above alive leaves, one under a hold and one not, and slots for one more prompt."""
    pool = None if store == "none" else make_swa_pool(page_size, store)
    told: list[int] = []
    world = World(page_size, RadixCache(page_size, 2 * page_size, pool, told.append), pool)
    for tail in ((4, 5, 6), (7, 8, 9)):
        world.put(pages(page_size, 1, 2, 3, *tail))
    world.put(pages(page_size, 11, 12, 13, 14))
    world.put(pages(page_size, 11, 12, 15, 16))
    world.boundary = world.cache.inc_lock_ref(world.nodes[0])
    world.cache.evict(0, 5 * page_size)
    if pool is not None:
        world.take(6 * page_size)
    return world


def make_mamba(page_size: int, store: str) -> World:
    """States at the ends of branches and inside, one held, and slots for one more prompt."""
    pool = None if store == "none" else make_token_pool(page_size, store)
    states = make_states()
    told: list[int] = []
    world = World(page_size, MambaRadixCache(page_size, pool, states, told.append), pool, states)
    for tail in ((4, 5), (6,), (7, 8, 9), ()):
        world.put(pages(page_size, 1, 2, 3, *tail), mamba_value=torch.tensor([states.alloc_track_slot()]))
    world.put(pages(page_size, 1, 2, 3, 4))
    world.put(pages(page_size, 11, 12))
    world.cache.inc_lock_ref(world.nodes[1])
    world.my_states.append(states.alloc_track_slot())
    if pool is not None:
        world.take(6 * page_size)
    return world


def make_states() -> GDNPool:
    return GDNPool(2, 1, 1, 2, 2, 2, 2, "cpu", torch.float32, max_track_slots=8)


def warmed(pool: Any, page_size: int, group: bool) -> World:
    """Slots that are free since long, freed of late, pending, and in hand; of some, the half is gone."""
    world = World(page_size, None, pool)
    for count in (3, 5, 2, 4):
        world.take(count * page_size)
    pool.free(world.mine.pop(1))
    pool.merge_and_sort_free()
    pool.free(world.mine.pop(0))
    if hasattr(pool, "free_swa"):
        pool.free_swa(world.mine[0][:page_size])
    if group:
        pool.free_group_begin()
        pool.free(world.take(page_size))
        world.mine.pop()
        if hasattr(pool, "free_swa"):
            pool.free_swa(world.mine[1][:page_size])
    return world


def make_tokens(page_size: int, store: str) -> World:
    return warmed(make_token_pool(page_size, store), page_size, False)


def make_tokens_in_a_group(page_size: int, store: str) -> World:
    return warmed(make_token_pool(page_size, store), page_size, True)


def make_halves(page_size: int, store: str) -> World:
    return warmed(make_swa_pool(page_size, store), page_size, False)


def make_halves_in_a_group(page_size: int, store: str) -> World:
    return warmed(make_swa_pool(page_size, store), page_size, True)


def under_transfer(world: World) -> World:
    """Put slots in hand under transfer, of which one page goes twice, and give one of them back."""
    size, held = world.page_size, world.mine[0]
    world.transfers.append(world.pool.begin_transfer(torch.cat([held, world.mine[1][2 * size :]])))
    world.transfers.append(world.pool.begin_transfer(held[size:]))
    world.pool.free(held[size:])
    world.mine[0] = held[:size]
    return world


def make_tokens_under_transfer(page_size: int, store: str) -> World:
    return under_transfer(make_tokens(page_size, store))


def make_halves_under_transfer(page_size: int, store: str) -> World:
    return under_transfer(make_halves(page_size, store))


def make_rows(page_size: int, store: str) -> World:
    rows = ReqToTokenPool(6, 8, "cpu")
    world = World(rows=rows)
    world.my_rows += rows.alloc(4)
    rows.free(world.my_rows.pop(1))
    rows.write((world.my_rows[0], slice(0, 3)), torch.tensor([5, 6, 7]))
    return world


def make_track_slots(page_size: int, store: str) -> World:
    world = World(states=make_states())
    world.my_states += [world.states.alloc_track_slot() for _ in range(4)]
    world.states.free_track_slot(world.my_states.pop(1))
    return world


def make_others(page_size: int, store: str) -> World:
    """Return a world without slots to lose: buffers, lists of nodes, and the cache that caches nothing."""
    lists = [LRUList(), LRUList(mamba=True)]
    nodes = [MambaTreeNode() for _ in range(4)]
    for node, each in itertools.product(nodes[:3], lists):
        each.insert_mru(node)
    kv = KVPool(8, 1, 1, 2, "cpu", torch.float32, pin_memory=False)
    return World(other={"kv": kv, "lists": lists, "chunk": ChunkCache()}, nodes=nodes)


def _everywhere(make: Callable[[int, str], World], *more: str) -> Iterator[tuple[str, Callable[[], World]]]:
    for page_size, store in itertools.product((1, 4), (*STORES, *more)):
        kind = make.__name__.removeprefix("make_").replace("_", " ")
        name = f"{kind}, {store}, pages of {page_size}"
        yield name, lambda page_size=page_size, store=store: make(page_size, store)


WORLDS: dict[str, Callable[[], World]] = {
    **dict(_everywhere(make_radix, "none")),
    **dict(_everywhere(make_windowed, "none")),
    **dict(_everywhere(make_mamba, "none")),
    **dict(_everywhere(make_tokens)),
    **dict(_everywhere(make_tokens_in_a_group)),
    **dict(_everywhere(make_halves)),
    **dict(_everywhere(make_halves_in_a_group)),
    **dict(_everywhere(make_tokens_under_transfer)),
    **dict(_everywhere(make_halves_under_transfer)),
    "rows": lambda: make_rows(1, ""),
    "track slots": lambda: make_track_slots(1, ""),
    "others": lambda: make_others(1, ""),
}


def empty_world(world: World) -> World:
    """Build the like of a world's objects, new."""
    cache, pool, states, rows = world.cache, world.pool, world.states, world.rows
    fresh = World(world.page_size)
    if pool is not None:
        sizes = (pool.size, pool.swa_size) if hasattr(pool, "swa_size") else (pool.size,)
        store = "device" if "Device" in type(_store_of(pool)).__name__ else "auto"
        checked = None if pool.check_ownership and pool.owners is None else pool.check_ownership
        fresh.pool = type(pool)(
            *sizes, "cpu", pool.page_size, pool.need_sort, check_ownership=checked, store=store
        )
    fresh.states = None if states is None else make_states()
    fresh.rows = None if rows is None else ReqToTokenPool(rows.size, rows.max_context_len, "cpu")
    if isinstance(cache, MambaRadixCache):
        fresh.cache = MambaRadixCache(cache.page_size, fresh.pool, fresh.states)
    elif isinstance(cache, RadixCache):
        fresh.cache = RadixCache(cache.page_size, cache.sliding_window_size, fresh.pool)
    return fresh


def _store_of(pool: Any) -> Any:
    return pool._full if hasattr(pool, "_full") else pool._store


# -- acts ----------------------------------------------------------------------------------------------------


def _insert(*numbers: int, start: int = 0, **options: Any) -> Act:
    def insert(world: World) -> Any:
        tokens = pages(world.page_size, *numbers)
        if "mamba_value" in options:
            options["mamba_value"] = torch.tensor(world.my_states)
        value = world.mine[-1][: len(tokens)] if world.mine else None
        result = world.cache.insert(RadixKey(tokens), value, **options)
        if value is not None:
            rest = [world.mine[-1][: result.adopted[0][0]] if result.adopted else world.mine[-1]]
            ends = [end for _, end in result.adopted]
            starts = [first for first, _ in result.adopted[1:]] + [len(world.mine[-1])]
            rest += [world.mine[-1][end:first] for end, first in zip(ends, starts, strict=bool(ends))][
                : len(ends)
            ]
            world.mine[-1] = torch.cat(rest)
        if "mamba_value" in options and not result.mamba_exist:
            world.my_states.clear()
        return result

    return insert


def _match(*numbers: int) -> Act:
    return lambda world: world.cache.match_prefix(RadixKey(pages(world.page_size, *numbers)))


def _evict(tokens: int, others: int = 0, paged: bool = True) -> Act:
    def evict(world: World) -> Any:
        wide = world.page_size if paged else 1
        return world.cache.evict(tokens * world.page_size, others * wide)

    return evict


def _dec_lock_ref(at: int) -> Act:
    def dec_lock_ref(world: World) -> None:
        world.cache.dec_lock_ref(world.nodes[at], swa_boundary_id=world.boundary)

    return dec_lock_ref


_OF_ALL_CACHES: dict[str, Act] = {
    "match nothing": _match(99),
    "match a whole path": _match(1, 2, 3, 7, 8, 9),
    "match a part of a node": _match(1, 2, 3, 7, 98),
    "insert beside everything": _insert(20, 21, 22),
    "insert into a node": _insert(1, 2, 3, 7, 30),
    "insert what is there": _insert(11, 12),
    "hold": lambda world: world.cache.inc_lock_ref(world.nodes[2]),
    "hash": lambda world: world.cache.compute_node_hash(world.nodes[2]),
    "evict one": _evict(1),
    "evict all": _evict(SIZE),
    "reset": lambda world: world.cache.reset(),
}
_OF_RADIX: dict[str, Act] = {**_OF_ALL_CACHES, "release": _dec_lock_ref(1)}
_OF_WINDOWED: dict[str, Act] = {
    **_OF_ALL_CACHES,
    "release": _dec_lock_ref(0),
    "insert over tombstones": _insert(1, 2, 3, 4, 5, 40),
    "insert over unlocked tombstones": _insert(11, 12, 13, 41),
    "insert over a part of tombstones": _insert(11, 12),
    "insert dead pages": _insert(50, 51, 52, 53, 54),
    "evict windows": _evict(0, 2),
    "evict all windows": _evict(0, SIZE),
}
_OF_MAMBA: dict[str, Act] = {
    **_OF_ALL_CACHES,
    "release": _dec_lock_ref(1),
    "insert with a state": _insert(1, 2, 3, 7, 30, mamba_value=True),
    "insert a state alone": _insert(11, 12, mamba_value=True),
    "insert with a state that is there": _insert(1, 2, 3, mamba_value=True),
    "evict states": _evict(0, 2, paged=False),
    "evict all states": _evict(0, SIZE, paged=False),
}


def _alloc(count: int) -> Act:
    def alloc(world: World) -> Any:
        slots = world.pool.alloc(count * world.page_size)
        if slots is not None:
            world.mine.append(slots)
        return slots

    return alloc


def _free(at: int, first: int = 0) -> Act:
    def free(world: World) -> None:
        world.pool.free(world.mine[at][first * world.page_size :])
        world.mine[at] = world.mine[at][: first * world.page_size]

    return free


def _free_first_page(world: World) -> None:
    world.pool.free(world.mine[0][: world.page_size])
    world.mine[0] = world.mine[0][world.page_size :]


def _free_pages(world: World) -> None:
    world.pool.free_pages(world.mine[1][:: world.page_size])
    world.mine.pop(1)


def _begin_or_end(world: World) -> None:
    store = _store_of(world.pool)
    (world.pool.free_group_end if store.group_open else world.pool.free_group_begin)()


def _move_swa(world: World) -> None:
    size = world.page_size
    world.pool.move_swa(world.mine[1][size : 2 * size], world.mine[0][:size])


def _begin_transfer(world: World) -> None:
    world.transfers.append(world.pool.begin_transfer(world.mine[1]))


def _end_transfer(world: World) -> None:
    if world.transfers:
        world.pool.end_transfer(world.transfers[0])
        world.transfers.pop(0)


def _clear(world: World) -> None:
    world.pool.clear()
    world.mine.clear()
    world.transfers.clear()


_OF_POOLS: dict[str, Act] = {
    "alloc none": _alloc(0),
    "alloc one": _alloc(1),
    "alloc a part of a page": lambda world: world.mine.append(world.pool.alloc(world.page_size - 1)),
    "alloc beyond a merge": _alloc(SIZE - 11),
    "alloc too many": _alloc(SIZE + 1),
    "free some": _free(1),
    "free in part": _free(1, 2),
    "ask": lambda world: world.pool.is_handed_out(world.mine[0]),
    "merge": lambda world: world.pool.merge_and_sort_free(),
    "group": _begin_or_end,
    "begin a transfer": _begin_transfer,
    "end a transfer": _end_transfer,
    "clear": _clear,
}
_OF_TOKENS = {**_OF_POOLS, "free pages": _free_pages}
_OF_HALVES: dict[str, Act] = {
    **_OF_POOLS,
    "free without halves": _free(0),
    "free a page without a half": _free_first_page,
    "free halves": lambda world: world.pool.free_swa(world.mine[1][world.page_size :]),
    "translate": lambda world: world.pool.translate_to_swa(world.mine[0]),
    "move halves": _move_swa,
}


def _free_row(world: World) -> None:
    world.rows.free(world.my_rows[0])
    world.my_rows.pop(0)


def _clear_rows(world: World) -> None:
    world.rows.clear()
    world.my_rows.clear()


_OF_ROWS: dict[str, Act] = {
    "alloc": lambda world: world.my_rows.extend(world.rows.alloc(2)),
    "alloc too many": lambda world: world.rows.alloc(9),
    "free": _free_row,
    "write a stretch": lambda world: world.rows.write((world.my_rows[0], slice(2, 4)), torch.tensor([8, 9])),
    "write entries": lambda world: world.rows.write((world.my_rows[:2], [1, 2]), [3, 4]),
    "clear": _clear_rows,
}


def _free_state(world: World) -> None:
    world.states.free_track_slot(world.my_states[0])
    world.my_states.pop(0)


def _clear_states(world: World) -> None:
    world.states.clear()
    world.my_states.clear()


_OF_STATES: dict[str, Act] = {
    "alloc": lambda world: world.my_states.append(world.states.alloc_track_slot()),
    "free": _free_state,
    "copy": lambda world: world.states.copy_states([1, 2], world.my_states[:2]),
    "zero": lambda world: world.states.reset_states([1, 2]),
    "layer": lambda world: world.states.get_layer_state(0),
    "clear": _clear_states,
}


def _write_kv(world: World) -> None:
    kv = torch.ones(2, 1, 2)
    world.other["kv"].set_kv_buffer(0, torch.tensor([3, 4]), kv, kv)


_OF_OTHERS: dict[str, Act] = {
    "write": _write_kv,
    "buffers": lambda world: world.other["kv"].get_kv_buffer(0),
    "list: insert": lambda world: world.other["lists"][0].insert_mru(world.nodes[3]),
    "list: touch": lambda world: world.other["lists"][1].touch_mru(world.nodes[0]),
    "list: remove": lambda world: world.other["lists"][1].remove(world.nodes[1]),
    "list: clear": lambda world: world.other["lists"][0].clear(),
    "chunk: match": lambda world: world.other["chunk"].match_prefix(RadixKey([1])),
    "chunk: insert": lambda world: world.other["chunk"].insert(RadixKey([1]), torch.tensor([1])),
    "chunk: evict": lambda world: world.other["chunk"].evict(1),
    "chunk: reset": lambda world: world.other["chunk"].reset(),
}


def acts_of(world: World) -> dict[str, Act]:
    """Return what can be done with a world, by name."""
    if isinstance(world.cache, MambaRadixCache):
        return _OF_MAMBA
    if world.cache is not None:
        return _OF_RADIX if world.cache.sliding_window_size is None else _OF_WINDOWED
    if world.pool is not None:
        return _OF_HALVES if hasattr(world.pool, "free_swa") else _OF_TOKENS
    if world.rows is not None:
        return _OF_ROWS
    return _OF_OTHERS if world.states is None else _OF_STATES


# -- what must hold ------------------------------------------------------------------------------------------


def check(world: World) -> None:
    """Demand every invariant, and an owner for each slot: the pool, the tree or the caller (X2)."""
    cache, pool, states = world.cache, world.pool, world.states
    if cache is not None:
        walk = invariants.check_radix_cache
        (walk if isinstance(cache, RadixCache) else invariants.check_mamba_radix_cache)(cache)
    if pool is not None:
        walk = (
            invariants.check_swa_allocator if hasattr(pool, "free_swa") else invariants.check_token_allocator
        )
        walk(pool)
        held = pool.is_handed_out(_all_slots(pool)).numpy().nonzero()[0] + pool.page_size
        cached = [] if cache is None else [node.value for node in cache._tree.nodes()]
        owned = torch.cat([*cached, *world.mine, torch.empty(0, dtype=torch.int64)])
        owners = np.unique(owned.numpy() // pool.page_size)  # the rest of a page that is begun is its owner's
        assert owners.tolist() == np.unique(held // pool.page_size).tolist()
        assert len(owned) == len(owned.unique())
    if states is not None:
        invariants.check_gdn_pool(states)
        in_tree = [] if cache is None else [n._track_slot for n in cache._tree.nodes()]
        in_tree = [slot for slot in in_tree if slot is not None]
        assert sorted(in_tree + world.my_states) == sorted(states._held_track_slots)
    if world.rows is not None:
        invariants.check_req_to_token_pool(world.rows)
        assert world.rows.available_size() == world.rows.size - len(world.my_rows)
    if world.other is not None:
        for each in world.other["lists"]:
            assert list(reversed(each)) == list(each)[::-1]
            assert len(each) == len(list(each))


def _all_slots(pool: Any) -> torch.Tensor:
    return torch.arange(pool.page_size, pool.size + pool.page_size)


def view_of(world: World) -> list[Any]:
    """Say what a caller could tell: nodes, ages, holds, and who has which slot."""
    view: list[Any] = [[slots.tolist() for slots in world.mine], world.my_states[:], world.my_rows[:]]
    cache, pool = world.cache, world.pool
    if cache is not None:
        view.append(sorted(_view_of_node(cache, node) for node in cache._tree.nodes()))
        view.append((cache.evictable_size(), cache.protected_size(), cache._tree.clock))
        view.append((cache.swa_evictable_size(), cache.swa_protected_size()))
    if pool is not None:
        view.append(pool.is_handed_out(_all_slots(pool)).tolist())
        view.append((pool.available_size(), _store_of(pool).group_open, world.transfers[:]))
        if hasattr(pool, "free_swa"):
            view.append((pool.swa_available_size(), pool.translate_to_swa(_all_slots(pool)).tolist()))
    if world.states is not None:
        view.append(sorted(world.states._held_track_slots))
    if world.rows is not None:
        view.append((world.rows.available_size(), world.rows.req_to_token.tolist()))
    if world.other is not None:
        view += [[world.nodes.index(node) for node in each] for each in world.other["lists"]]
    return view


def _view_of_node(cache: Any, node: Any) -> Any:
    tokens = [token for at in cache._tree.path_to(node) for token in at.key]
    more = (
        getattr(node, "swa_lock_ref", 0),
        getattr(node, "swa_tombstone", None),
        getattr(node, "_track_slot", 0),
    )
    stamp = node.last_access_time, node.hit_count, node.lock_ref, node._holds
    return tokens, node.value.tolist(), stamp, repr(more)


def give_everything_back(world: World) -> None:
    """Return what the caller has, reset, and demand that the pools have everything (X7)."""
    cache, pool = world.cache, world.pool
    if pool is not None and _store_of(pool).group_open:
        pool.free_group_end()
    for slots in world.mine:
        pool.free(slots)
    for transfer in world.transfers:
        pool.end_transfer(transfer)
    for row in world.my_rows:
        world.rows.free(row)
    for slot in world.my_states:
        world.states.free_track_slot(slot)
    for owned in (world.mine, world.transfers, world.my_rows, world.my_states):
        owned.clear()
    if cache is not None:
        cache.reset()
        assert cache.total_size() == 0
    check(world)
    if pool is not None:
        assert pool.available_size() == pool.size
        if hasattr(pool, "free_swa"):
            assert pool.swa_available_size() == pool.swa_size
