"""Slots of a tree: what an insert may bring, what nodes keep, and how they go back to their pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pymllm.mem_cache import (
    GDNPool,
    MambaRadixCache,
    RadixCache,
    RadixKey,
    SWATokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
)
from pymllm.mem_cache.tree.node import expand_pages
from pymllm.mem_cache.tree.radix_tree import PagedKey
from pymllm.mem_cache.tree.slot_exchange import (
    copy_for_keeps,
    counts_in_pages,
    read_incoming_slots,
    read_track_slot,
    return_what_is_left,
    takes_pages,
)

# -- coming in -----------------------------------------------------------------------------------------------


_POOL = TokenToKVPoolAllocator(16, "cpu", page_size=4)


def _read(
    value: Any, tokens: Any = (7, 8, 9, 7), page_size: int = 4, pool: Any = _POOL, on_host: bool = False
) -> Any:
    tokens = list(tokens)
    paged = PagedKey.of(RadixKey(tokens), page_size)
    return read_incoming_slots(value, len(tokens), paged, page_size, pool, on_host)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.uint64])
def test_any_integer_dtype_passes_as_it_is(dtype: torch.dtype) -> None:
    """X: every consumer takes any integer dtype; nothing is copied here."""
    value = torch.tensor([4, 5, 6, 7], dtype=dtype)
    assert _read(value) is value


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_tree_on_the_host_reads_slots_as_an_array_over_their_memory(dtype: torch.dtype) -> None:
    """X5: nothing is copied here, and the tree copies what it keeps."""
    value = torch.tensor([4, 9, 6, 7], dtype=dtype)
    numbers = _read(value, page_size=1, on_host=True)
    assert isinstance(numbers, np.ndarray)
    value[1] = 5
    assert numbers.tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(4, dtype=torch.bfloat16), "value has dtype torch.bfloat16: slots are integers"),
        (torch.ones(4, dtype=torch.int64).to_sparse(), "value has layout torch.sparse_coo"),
        (torch.ones(4, dtype=torch.int64, device="meta"), "value is on the meta device"),
    ],
    ids=["bfloat16", "sparse", "meta"],
)
def test_a_tree_on_the_host_refuses_tensors_without_an_array(value: torch.Tensor, words: str) -> None:
    """X1: as a tree on a device does."""
    with pytest.raises(TypeError, match=words):
        _read(value, page_size=1, on_host=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint64])
def test_a_tree_on_the_host_takes_other_integers_as_they_are(dtype: torch.dtype) -> None:
    """X: every consumer takes any integer dtype."""
    value = torch.tensor([4, 5, 6, 7], dtype=dtype)
    assert _read(value, page_size=1, on_host=True) is value


@pytest.mark.parametrize("numbers", [(0, 1, 2, 3), (2**63 - 4, 2**63 - 3, 2**63 - 2, 2**63 - 1)])
def test_unsigned_slots_reach_from_zero_to_the_end_of_int64(numbers: tuple[int, ...]) -> None:
    """R1: without a pool slots are plain numbers."""
    value = torch.tensor(numbers, dtype=torch.uint64)
    assert _read(value, pool=None) is value
    kept = copy_for_keeps(value, 0, 4, torch.device("cpu"))
    assert (kept.dtype, kept.tolist()) == (torch.int64, [*numbers])


def test_pages_are_not_looked_at_without_ownership_checks() -> None:
    """R1: the caller's duty where the pool does not check ownership."""
    unchecked = TokenToKVPoolAllocator(16, "cpu", page_size=4, check_ownership=False)
    value = torch.tensor([5, 6, 7, 8])
    assert _read(value, pool=unchecked) is value


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize(("start", "stop"), [(0, 4), (0, 2), (1, 4), (2, 2)])
def test_copy_shares_no_memory_with_the_callers(dtype: torch.dtype, start: int, stop: int) -> None:
    """X5: int64 in memory of its own and no more of it, the whole or a part, whatever dtype came."""
    value = torch.tensor([4, 5, 6, 7], dtype=dtype)
    kept = copy_for_keeps(value, start, stop, torch.device("cpu"))
    value.zero_()
    assert (kept.dtype, kept.tolist()) == (torch.int64, [4, 5, 6, 7][start:stop])
    assert kept.untyped_storage().nbytes() == kept.nbytes


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_copy_of_a_strided_view_is_dense(dtype: torch.dtype) -> None:
    """X5: a column of a table and a single slot repeated keep nothing of where they came from."""
    table = torch.arange(12, dtype=dtype).reshape(4, 3)
    for value, slots in ((table[:, 1], [1, 4, 7, 10]), (table[0, :1].expand(4), [0] * 4)):
        kept = copy_for_keeps(value, 0, 4, torch.device("cpu"))
        assert kept.tolist() == slots
        assert kept.untyped_storage().nbytes() == kept.nbytes


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("start", [0, 1])
def test_copy_goes_to_the_device_of_the_tree(start: int, dtype: torch.dtype) -> None:
    """R1: slots may come from anywhere; a device without memory stands in for another one."""
    kept = copy_for_keeps(torch.tensor([4, 5, 6], dtype=dtype), start, 3, torch.device("meta"))
    assert (kept.device.type, kept.dtype, kept.shape) == ("meta", torch.int64, (3 - start,))


@pytest.mark.gpu
@pytest.mark.parametrize(("source", "target"), [("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cuda:0", "cuda:0")])
def test_copy_crosses_devices(source: str, target: str) -> None:
    """R1, X5: the values arrive, and no write to the caller's tensor reaches the copy."""
    value = torch.tensor([4, 5, 6], device=source)
    kept = copy_for_keeps(value, 0, 3, torch.device(target))
    value.zero_()
    assert (str(kept.device), kept.tolist()) == (target, [4, 5, 6])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.uint64])
def test_a_track_slot_is_one_integer_of_any_dtype(dtype: torch.dtype) -> None:
    """M1: without a pool it is a plain number; with one, a slot that it handed out."""
    assert read_track_slot(torch.tensor([200], dtype=dtype), None) == 200
    states = GDNPool(1, 1, 1, 1, 1, 1, 2, "cpu", max_track_slots=2)
    slot = states.alloc_track_slot()
    assert read_track_slot(torch.tensor([slot], dtype=dtype), states) == slot


# -- kept ----------------------------------------------------------------------------------------------------


@pytest.fixture
def pool() -> TokenToKVPoolAllocator:
    return TokenToKVPoolAllocator(1024, "cpu", 4)


@pytest.fixture(params=[RadixCache, MambaRadixCache], ids=["plain", "mamba"])
def cache(request: pytest.FixtureRequest, pool: TokenToKVPoolAllocator) -> RadixCache | MambaRadixCache:
    kind: type[RadixCache | MambaRadixCache] = request.param
    return kind(4, token_to_kv_pool_allocator=pool)


@pytest.mark.parametrize("pages", [1, 7, 64, 65, 300])
@pytest.mark.parametrize("page_size", [2, 3, 16])
def test_pages_are_expanded_in_order(pages: int, page_size: int) -> None:
    """R1: each page is its first slot and those that follow on, int64, in memory of its own."""
    starts = np.random.default_rng(pages).permutation(pages + 9)[:pages] * page_size
    slots = expand_pages(starts, page_size)
    assert slots.tolist() == [start + at for start in starts.tolist() for at in range(page_size)]
    assert slots.dtype is torch.int64
    slots.zero_()
    assert starts.any()


def test_value_that_was_set_counts(cache: RadixCache | MambaRadixCache, pool: TokenToKVPoolAllocator) -> None:
    """R2, X2: a node whose value somebody has set is matched and evicted with those slots."""
    slots = pool.alloc(12)
    assert slots is not None
    node = cache.insert(RadixKey(range_of(4)), slots[:4]).last_node
    below = cache.insert(RadixKey(range_of(8)), slots[:8]).last_node
    pool.free(slots[:4])
    node.value = slots[8:].long()
    assert cache._tree.gather([node, below]).tolist() == slots[8:].tolist() + slots[4:8].tolist()
    cache.evict(8)
    assert pool.available_size() == 1024


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [0, 1, 2, 4], [0, 1, 2, 3, 4, 6, 5, 7]])
def test_slots_in_an_order_of_their_own_are_kept_as_they_came(order: list[int]) -> None:
    """R1: pages are the caller's duty where ownership is not checked; nobody reorders them."""
    pool = TokenToKVPoolAllocator(64, "cpu", 4, check_ownership=False)
    cache = RadixCache(4, token_to_kv_pool_allocator=pool)
    key, slots = RadixKey(range_of(len(order))), pool.alloc(8)
    assert slots is not None
    cache.insert(key, slots[order])
    expected = slots[order].tolist()
    if order[4:]:  # what is wrong inside a page that begins and ends as one is not seen
        expected = slots.tolist()
    assert cache.match_prefix(key).indices.tolist() == expected


def range_of(tokens: int) -> list[int]:
    return list(range(tokens))


# -- going back ----------------------------------------------------------------------------------------------


class _Counting(TokenToKVPoolAllocator):
    """Overrides `free` alone, as a user's pool may."""

    freed = 0

    def free(self, indices: torch.Tensor) -> None:
        self.freed += indices.numel()
        super().free(indices)


class _Paging(_Counting):
    def free_pages(self, starts: Any) -> None:
        self.freed += len(starts) * self.page_size
        super().free_pages(starts)


class _Named(TokenToKVPoolAllocator):
    """Overrides neither."""


def make_pool(kind: type[Any], *sizes: int) -> Any:
    return kind(*sizes, "cpu", 4)


@pytest.mark.parametrize(
    ("kind", "sizes", "expected"),
    [
        (TokenToKVPoolAllocator, (64,), True),
        (_Named, (64,), True),
        (_Paging, (64,), True),
        (_Counting, (64,), False),
        (SWATokenToKVPoolAllocator, (64, 64), True),
    ],
)
def test_pool_takes_pages_where_nobody_replaced_free_alone(
    kind: type[Any], sizes: tuple[int, ...], expected: bool
) -> None:
    """X2: the class that says last what `free` does says what `free_pages` does, too."""
    pool = make_pool(kind, *sizes)
    assert takes_pages(pool) is expected
    has_halves = kind is SWATokenToKVPoolAllocator
    assert counts_in_pages(pool, 4, torch.device("cpu")) is (expected and not has_halves)
    assert counts_in_pages(pool, 1, torch.device("cpu"))  # a slot is all of its page, whose ever it is
    assert not counts_in_pages(pool, 4, torch.device("meta"))


@pytest.mark.parametrize("kind", [_Counting, _Paging])
def test_subclass_sees_every_slot_that_goes(kind: type[Any]) -> None:
    """X2: in whole pages, by whichever call it has."""
    pool = make_pool(kind, 64)
    cache = RadixCache(4, token_to_kv_pool_allocator=pool)
    cache.insert(RadixKey(list(range(12))), pool.alloc(12))
    cache.insert(RadixKey([50, 51, 52, 53]), pool.alloc(4))
    assert cache.evict(16).full_evicted == 16
    assert (pool.freed, pool.available_size()) == (16, 64)


class _Bare:
    """A pool that knows `free` alone, and may refuse."""

    def __init__(self, refuses: tuple[int, ...] = ()) -> None:
        self.freed: list[int] = []
        self._refuses = refuses

    def free(self, indices: torch.Tensor) -> None:
        if set(indices.tolist()) & set(self._refuses):
            raise ValueError("not mine")
        self.freed += indices.tolist()


def left_in(pool: Any, values: list[list[int]]) -> tuple[RadixCache, list[Any]]:
    """Make a cache with a node for each list of slots."""
    cache = RadixCache(1, None, pool)
    nodes = [
        cache.insert(RadixKey([100 * at + slot for slot in value]), torch.tensor(value)).last_node
        for at, value in enumerate(values)
    ]
    return cache, nodes


def test_what_is_left_goes_back_once_and_node_by_node(caplog: pytest.LogCaptureFixture) -> None:
    """X7: what one node's slots are refused for is no other's loss."""
    pool = _Bare(refuses=(4,))
    cache, nodes = left_in(pool, [[1, 2], [2, 3], [4], [5]])
    return_what_is_left(pool, cache._tree, nodes)
    assert pool.freed == [1, 2, 3, 5]
    assert "does not take tensor([4])" in caplog.text


def test_a_pool_is_asked_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """X7: what it has already is not given back again, and nodes without slots have nothing to give."""
    pool = TokenToKVPoolAllocator(8, "cpu")
    slots = pool.alloc(5)
    assert slots is not None
    cache, nodes = left_in(pool, [slots[:2].tolist(), slots[2:4].tolist(), slots[4:].tolist()])
    pool.free(slots[1:4])
    nodes[2]._starts = None
    return_what_is_left(pool, cache._tree, nodes)
    assert (pool.available_size(), caplog.text) == (7, "")
    assert pool.is_handed_out(slots[4:]).all()
