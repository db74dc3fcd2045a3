"""A pool that watches: which cache has which page, and the wrong inserts and frees of callers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pymllm.errors import OwnershipError
from pymllm.invariants import check_mamba_radix_cache, check_radix_cache
from pymllm.mem_cache import (
    GDNPool,
    MambaRadixCache,
    RadixCache,
    RadixKey,
    SWATokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
)
from pymllm.mem_cache.slots.store_choice import checks_alone
from tests.unit.mem_cache.warm_worlds import pages

EVICT = "evict it or reset the cache, which give it back"
INSERT = "insert slots that alloc returned and no cache has adopted"
FREE = "give each one back once, after alloc returned it"

each_page_size = pytest.mark.parametrize("size", [1, 4])
each_store = pytest.mark.parametrize("store", ["host", "device"])


def watched(size: int = 1, kind: type[Any] = TokenToKVPoolAllocator, **options: Any) -> Any:
    """Return a pool of twelve pages that watches its caches."""
    sizes = [12 * size] * (2 if kind is SWATokenToKVPoolAllocator else 1)
    return kind(*sizes, "cpu", size, check_ownership=True, **options)


def name(page: int, size: int) -> str:
    return f"slot {page}" if size == 1 else f"page {page} of slot {page * size}"


def refused(call: Callable[[], Any]) -> str:
    """Return the message of the `OwnershipError` that a call raises."""
    with pytest.raises(OwnershipError) as caught:
        call()
    return str(caught.value)


class Filled:
    """A pool, a cache with the pages 1 to 3 of a prompt, and the slots of pages 4 to 6 in hand.

    The slots were two steps, the insert was step 3.
    """

    def __init__(self, size: int = 1, window: int | None = None, **options: Any) -> None:
        kind = TokenToKVPoolAllocator if window is None else SWATokenToKVPoolAllocator
        self.size = size
        self.pool: Any = watched(size, kind, **options)
        self.cache = RadixCache(size, window, self.pool)
        self.cached, self.mine = self.pool.alloc(3 * size), self.pool.alloc(3 * size)
        self.node = self.insert(self.cached, 1, 2, 3).last_node

    def insert(self, slots: torch.Tensor, *numbers: int, **options: Any) -> Any:
        return self.cache.insert(RadixKey(pages(self.size, *numbers)), slots, **options)

    def state(self) -> Any:
        """Return all that a refused call may not change."""
        pool, cache = self.pool, self.cache
        every = torch.arange(1, 13 * self.size)
        halves = pool.translate_to_swa(every).tolist() if hasattr(pool, "free_swa") else None
        nodes = [(node.id, node.value.tolist(), node.last_access_time) for node in cache._tree.nodes()]
        sizes = cache.evictable_size(), cache.protected_size(), pool.available_size()
        owned = [getattr(each, "step", None) for each in pool.owners._adoptions], pool.owners._given_back[:]
        return pool.is_handed_out(every).tolist(), halves, nodes, sizes, owned

    def refuses(self, call: Callable[[], Any], message: str) -> None:
        """Demand that a call is refused in these words, and changes nothing."""
        before = self.state()
        assert refused(call) == message
        assert self.state() == before
        check_radix_cache(self.cache)


# -- the switch ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", [None, False])
@pytest.mark.parametrize("kind", [TokenToKVPoolAllocator, SWATokenToKVPoolAllocator])
def test_nobody_is_watched_unless_asked(kind: type[Any], switch: bool | None) -> None:
    """The default of the CPU checks what is given back and keeps no owners; a cache's slots can be freed."""
    pool = kind(*([8] * (2 if kind is SWATokenToKVPoolAllocator else 1)), "cpu", check_ownership=switch)
    cache = RadixCache(token_to_kv_pool_allocator=pool)
    slots = pool.alloc(2)
    cache.insert(RadixKey([1, 2]), slots)
    pool.free(slots)
    assert (pool.owners, cache._owner, pool.available_size()) == (None, None, 8)


def test_checks_can_be_had_without_watching() -> None:
    """On the CPU by the default; what checks on a GPU watches, too."""
    devices = ("cpu", "cpu:0", torch.device("cpu"), "cuda", "cuda:1")
    assert [checks_alone(True, device) for device in devices] == [None, None, None, True, True]
    assert {checks_alone(False, device) for device in devices} == {False}


def test_owners_of_another_kind_are_left_alone() -> None:
    """A pool of somebody else may have an attribute of that name."""

    class Other:
        owners = ("them",)

        def free(self, indices: torch.Tensor) -> None:
            pass

    cache = RadixCache(token_to_kv_pool_allocator=Other())
    assert cache.insert(RadixKey([1]), torch.tensor([5])).adopted == ((0, 1),)
    check_radix_cache(cache)


# -- inserts -------------------------------------------------------------------------------------------------


@each_page_size
@each_store
def test_an_insert_of_free_slots_is_refused(size: int, store: str) -> None:
    """R1: given back, with the step; not handed out yet; pending; under transfer; outside the pool."""
    world = Filled(size, store=store)
    last = world.mine[2 * size :]
    world.pool.free(last)  # step 4
    told = f"{name(6, size)} is not handed out (given back in step 4; this is step {{}}): {INSERT}"
    world.refuses(lambda: world.insert(last, 9), told.format(5))
    world.refuses(lambda: world.insert(torch.cat([world.cached, last]), 1, 2, 3, 9), told.format(6))
    unseen = torch.arange(11 * size, 12 * size)
    never = f"{name(11, size)} is not handed out (alloc has not returned it yet; this is step 7): {INSERT}"
    world.refuses(lambda: world.insert(unseen, 9), never)
    outside = (unseen + 2 * size).to(torch.uint8)
    way = f"this pool hands out slots {size}..{13 * size - 1}; pass slots that alloc returned"
    world.refuses(lambda: world.insert(outside, 9), f"slot {13 * size} is outside the pool: {way}")
    padding = f"slot 0 is padding and belongs to nobody: {way}"
    world.refuses(lambda: world.insert(torch.arange(size), 9), padding)

    second, third = world.mine[size : 2 * size], world.mine[:size]
    transfer = world.pool.begin_transfer(second)
    world.pool.free(second)  # step 10
    world.pool.free_group_begin()
    world.pool.free(third)  # step 11
    for slots, page, given_back, step in ((second, 5, 10, 12), (third, 4, 11, 13)):
        told = f"{name(page, size)} is not handed out (given back in step {given_back}; this is step {step})"
        world.refuses(lambda slots=slots: world.insert(slots, 9), f"{told}: {INSERT}")  # type: ignore[misc]
    world.pool.free_group_end()
    world.pool.end_transfer(transfer)
    world.cache.reset()
    assert world.pool.available_size() == 12 * size


@each_page_size
@each_store
def test_an_insert_of_cached_slots_is_refused(size: int, store: str) -> None:
    """R1: by another key, by another cache over the pool, and after a split, by the node that has it now."""
    world = Filled(size, store=store)
    other = RadixCache(size, token_to_kv_pool_allocator=world.pool)
    has = f"is cached already: node {world.node.id} of RadixCache 1 has it (adopted in step 3; this is step"
    world.refuses(lambda: world.insert(world.cached[:size], 9), f"{name(1, size)} {has} 4): {INSERT}")
    key = RadixKey(pages(size, 8, 9))
    value = torch.cat([world.mine[:size], world.cached[size : 2 * size]])
    world.refuses(lambda: other.insert(key, value), f"{name(2, size)} {has} 5): {INSERT}")
    assert other.total_size() == 0
    # What is not adopted may be anything: here the caller's own copy of the first two pages.
    assert world.insert(torch.cat([world.mine[: 2 * size], world.mine[2 * size :]]), 1, 2, 7).prefix_len
    upper = world.cache.match_prefix(RadixKey(pages(size, 1, 2))).last_node
    assert upper is not world.node
    has = f"is cached already: node {upper.id} of RadixCache 1 has it (adopted in step 3; this is step"
    world.refuses(lambda: world.insert(world.cached[:size], 9), f"{name(1, size)} {has} 7): {INSERT}")
    has = f"is cached already: node {world.node.id} of RadixCache 1 has it (adopted in step 3; this is step"
    last = world.cached[2 * size :]
    world.refuses(lambda: world.insert(last, 9), f"{name(3, size)} {has} 8): {INSERT}")


@each_page_size
def test_a_slot_twice_in_one_key_is_refused(size: int) -> None:
    """R1, R4: what is adopted is named once, neither in what is cached already nor in the tail."""
    world = Filled(size)
    first, second = world.mine[:size], world.mine[size : 2 * size]
    twice = f"{name(4, size)} is named more than once in one key (this is step {{}}): {INSERT}"
    world.refuses(lambda: world.insert(torch.cat([first, second, first]), 7, 8, 9), twice.format(4))
    world.refuses(lambda: world.insert(torch.cat([first, first]), 1, 9), twice.format(5))
    if size > 1:
        key = RadixKey([*pages(size, 9), 1, 2])
        world.refuses(lambda: world.cache.insert(key, torch.cat([first, first[:2]])), twice.format(6))


@each_page_size
def test_a_window_takes_no_slots_of_others(size: int) -> None:
    """R1, S7: neither to revive a tombstone nor to lend their halves to a held one."""
    world = Filled(size, 2 * size)
    last = world.pool.alloc(2 * size)
    held = world.insert(torch.cat([world.cached, last[:size]]), 1, 2, 3, 4).last_node
    boundary = world.cache.inc_lock_ref(held)
    free = world.insert(torch.cat([world.mine, last[size:]]), 11, 12, 13, 14).last_node  # step 6
    token = world.cache.inc_lock_ref(free)
    world.cache.evict(0, 4 * size)
    world.cache.dec_lock_ref(free, token)
    dead = {tuple(each.key) for each in world.cache._tree.nodes() if each.swa_tombstone}
    assert dead == {tuple(pages(size, 1, 2)), tuple(pages(size, 11, 12))}
    new = world.pool.alloc(4 * size)

    lent = torch.cat([world.mine[2 * size :], new[: 2 * size]])  # page 6 of page 13 of the other prompt
    holder = world.cache.match_prefix(RadixKey(pages(size, 11, 12, 13, 14))).last_node
    message = refused(lambda: world.insert(lent, 1, 2, 5))
    assert message.startswith(f"{name(6, size)} is cached already: node {holder.id} of RadixCache 1 has it")
    adopted = torch.cat([world.cached[2 * size :], new[: 2 * size]])
    message = refused(lambda: world.insert(adopted, 11, 12, 15))
    assert message.startswith(f"{name(3, size)} is cached already: node {held.parent.id} of RadixCache 1")
    twice = torch.cat([new[: 2 * size], new[:size]])
    message = refused(lambda: world.insert(twice, 11, 12, 15))
    assert message.startswith(f"{name(9, size)} is named more than once in one key")
    check_radix_cache(world.cache)
    assert world.cache._owner is not None
    before = world.cache._owner.pages()

    assert world.insert(new[: 3 * size], 1, 2, 5).adopted == ((2 * size, 3 * size),)  # halves were lent
    world.pool.free(new[: 2 * size])
    assert world.cache._owner.pages() == before | {int(new[2 * size]) // size}
    again = torch.cat([world.pool.alloc(2 * size), new[3 * size :]])
    assert world.insert(again, 11, 12, 15).adopted == ((0, 3 * size),)  # and the old ones given back
    check_radix_cache(world.cache)
    world.cache.dec_lock_ref(held, boundary)
    world.cache.reset()
    assert (world.pool.available_size(), world.cache._owner.pages()) == (12 * size, set())


@each_page_size
def test_states_are_adopted_once(size: int) -> None:
    """R1, M7: KV as in every cache, and a track slot that another node has."""
    pool, states = watched(size), GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=2)
    cache = MambaRadixCache(size, pool, states)
    track, slots = torch.tensor([states.alloc_track_slot()]), pool.alloc(3 * size)
    key, longer = RadixKey(pages(size, 1, 2)), RadixKey(pages(size, 1, 2, 3))
    node = cache.insert(key, slots[: 2 * size], mamba_value=track).last_node  # step 2
    assert cache.insert(key, slots[: 2 * size], mamba_value=track).mamba_exist  # it is the caller's
    has = f"node {node.id} of MambaRadixCache 1 has it"
    assert refused(lambda: cache.insert(longer, slots, mamba_value=track)) == (
        f"track slot {int(track)} is cached already: {has} (this is step 4): "
        "give one that alloc_track_slot returned and no cache has adopted"
    )
    other = RadixKey(pages(size, 5))
    assert refused(lambda: cache.insert(other, slots[:size], mamba_value=track)) == (
        f"{name(1, size)} is cached already: {has} (adopted in step 2; this is step 5): {INSERT}"
    )
    assert refused(lambda: pool.free(slots[:1])) == (
        f"{name(1, size)} is cached: {has} (adopted in step 2; this is step 6): {EVICT}"
    )
    check_mamba_radix_cache(cache)
    cache.insert(longer, slots, mamba_value=torch.tensor([states.alloc_track_slot()]))
    assert cache.evict(0, 1).mamba_evicted == 1
    cache.reset()
    assert (pool.available_size(), states.available_track_slots()) == (12 * size, 2)


# -- frees ---------------------------------------------------------------------------------------------------


@each_page_size
@each_store
@pytest.mark.parametrize("window", [None, 2])
def test_a_free_of_cached_slots_is_refused(size: int, store: str, window: int | None) -> None:
    """A5, R4: with the node that has them, and whether it is held; the others named with it stay, too."""
    world = Filled(size, None if window is None else window * size, store=store)
    has = f"{name(3, size)} is cached: node {world.node.id} of RadixCache 1 has it"
    steps = "(adopted in step 3; this is step"
    both = torch.cat([world.mine, world.cached[2 * size :]])
    world.refuses(lambda: world.pool.free(both), f"{has} {steps} 4): {EVICT}")
    world.refuses(lambda: world.pool.free_pages(both[::size]), f"{has} {steps} 5): {EVICT}")
    boundary = world.cache.inc_lock_ref(world.node)
    world.refuses(lambda: world.pool.free(both), f"{has}, under a lock {steps} 6): {EVICT}")
    transfer = world.pool.begin_transfer(both)  # whoever has them
    world.refuses(lambda: world.pool.free(both), f"{has}, under a lock {steps} 7): {EVICT}")
    world.refuses(lambda: world.pool.free_pages(both[::size]), f"{has}, under a lock {steps} 8): {EVICT}")
    world.pool.free_group_begin()
    world.refuses(lambda: world.pool.free(both), f"{has}, under a lock {steps} 9): {EVICT}")
    world.cache.dec_lock_ref(world.node, boundary)
    assert world.cache.evict(3 * size).full_evicted == 3 * size  # step 10
    state = "already given back, and waits for a transfer to end"
    message = refused(lambda: world.pool.free(world.cached[2 * size :]))
    assert message == f"{name(3, size)} is {state} (given back in step 10; this is step 11): {FREE}"
    world.pool.free(world.mine)
    world.pool.free_group_end()
    world.pool.end_transfer(transfer)
    assert world.pool.available_size() == 12 * size


@each_page_size
def test_halves_of_cached_slots_are_the_caches(size: int) -> None:
    """A7, S2: nobody else gives them back, or moves them to or from others."""
    world = Filled(size, 2 * size)
    has = f"{name(1, size)} is cached: node {world.node.id} of RadixCache 1 has it (adopted in step 3;"
    cached, mine = world.cached[:size], world.mine[:size]
    world.refuses(lambda: world.pool.free_swa(cached), f"{has} this is step 4): {EVICT}")
    world.refuses(lambda: world.pool.free_swa_pages(cached[::size]), f"{has} this is step 5): {EVICT}")
    world.pool.free_swa(mine)  # step 6
    world.refuses(lambda: world.pool.move_swa(cached, mine), f"{has} this is step 7): {EVICT}")
    world.pool.move_swa(world.mine[size : 2 * size], mine)
    world.pool.free_swa_pages(mine[::size])
    assert world.pool.swa_available_size() == 8 * size


@each_page_size
@pytest.mark.parametrize("kind", [TokenToKVPoolAllocator, SWATokenToKVPoolAllocator])
def test_a_double_free_tells_the_first(size: int, kind: type[Any]) -> None:
    """A5: both steps, outside of a group and inside one."""
    pool = watched(size, kind)
    slots = pool.alloc(2 * size)
    pool.free(slots[:size])
    steps = "(given back in step {}; this is step {})"
    assert refused(lambda: pool.free(slots[:size])) == (
        f"{name(1, size)} is not handed out {steps.format(2, 3)}: {FREE}"
    )
    pool.free_group_begin()
    pool.free(slots[size:])
    assert refused(lambda: pool.free(slots[size:])) == (
        f"{name(2, size)} is already given back inside the open free group {steps.format(4, 5)}: {FREE}"
    )


def test_a_callback_frees_nothing_of_the_cache() -> None:
    """X6: the cache gives back nothing then, so what it still has is not taken from it."""
    pool = watched()
    said: list[str] = []
    slots = pool.alloc(4)
    cache = RadixCache(
        token_to_kv_pool_allocator=pool,
        on_node_evict=lambda _: said.append(refused(lambda: pool.free(slots[:1]))),
    )
    cache.insert(RadixKey([1, 2]), slots[:2])
    cache.insert(RadixKey([3, 4]), slots[2:])
    cache.match_prefix(RadixKey([1, 2]))
    assert cache.evict(1).full_evicted == 2
    assert said == [
        f"slot 1 is cached: node 2 of RadixCache 1 has it (adopted in step 2; this is step 5): {EVICT}"
    ]


# -- what ends an ownership ----------------------------------------------------------------------------------


@each_page_size
def test_slots_that_went_back_can_come_again(size: int) -> None:
    """R1: evicted, reset, or cleared; a page that is handed out again is nobody's."""
    world = Filled(size)
    for give_back in (lambda: world.cache.evict(99), world.cache.reset):
        give_back()
        assert world.cache._owner is not None
        assert world.cache._owner.pages() == set()
        slots = world.pool.alloc(3 * size)
        assert world.insert(slots, 1, 2, 3).prefix_len == 0
        assert world.cache._owner.pages() == {slot // size for slot in slots.tolist()}
    world.cache.reset()
    world.pool.clear()
    assert world.pool.available_size() == 12 * size
    world.insert(world.pool.alloc(3 * size), 1, 2, 3)
    check_radix_cache(world.cache)


def test_a_pool_that_fails_leaves_slots_owned() -> None:
    """X2: what it has not taken is still cached, and still the cache's."""

    class Failing(TokenToKVPoolAllocator):
        fails = True

        def free_pages(self, starts: Any) -> None:
            if self.fails:
                raise ConnectionError
            super().free_pages(starts)

        def free(self, indices: torch.Tensor) -> None:
            super().free(indices)

    pool = watched(4, Failing)
    cache = RadixCache(4, None, pool)
    slots = pool.alloc(8)
    cache.insert(RadixKey(list(range(8))), slots)
    with pytest.raises(ConnectionError):
        cache.evict(8)
    assert refused(lambda: pool.free(slots)).startswith("page 1 of slot 4 is cached: node 2 of RadixCache 1")
    check_radix_cache(cache)
    pool.fails = False
    assert cache.evict(8).full_evicted == 8
    assert pool.available_size() == 48


def test_a_reset_that_a_pool_refuses_ends_the_ownership() -> None:
    """X7: the cache is empty all the same, and whoever finds the slots may give them back."""

    class Refusing(TokenToKVPoolAllocator):
        def free(self, indices: torch.Tensor) -> None:
            raise ConnectionError

    pool = watched(1, Refusing)
    cache = RadixCache(1, None, pool)
    slots = pool.alloc(2)
    cache.insert(RadixKey([1, 2]), slots)
    with pytest.raises(ConnectionError):
        cache.reset()
    TokenToKVPoolAllocator.free(pool, slots)
    assert pool.available_size() == 12


def test_a_page_that_no_node_has_is_told_as_such() -> None:
    """A5: a cache that has lost a node still owns what it never gave back."""
    world = Filled()
    world.cache.root_node.children.clear()
    assert refused(lambda: world.pool.free(world.cached)) == (
        f"slot 1 is cached: RadixCache 1 has it, in no node any more "
        f"(adopted in step 3; this is step 4): {EVICT}"
    )
