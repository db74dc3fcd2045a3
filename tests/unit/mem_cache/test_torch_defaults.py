"""Tests of other default devices and dtypes of torch, which change no tensor of pools and caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pymllm.mem_cache.arguments import as_row_dtype
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.chunk_cache import ChunkCache
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.pools import gdn_pool, kv_pool, req_to_token_pool, rows
from pymllm.mem_cache.pools.gdn_pool import GDNPool
from pymllm.mem_cache.pools.kv_pool import KVPool
from pymllm.mem_cache.pools.req_to_token_pool import ReqToTokenPool
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.mem_cache.slots.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("other_defaults")


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def test_the_defaults_are_others() -> None:
    """P4: the tests below would notice."""
    made = torch.zeros(1)
    assert (made.device.type, made.dtype) == ("meta", torch.float64)


def test_rows_are_where_their_pool_is() -> None:
    """P1, P3: written by lists, by stretches and one by one."""
    pool = ReqToTokenPool(2, 4, "cpu")
    assert pool.alloc(2) == [1, 2]
    pool.write((1, slice(0, 2)), [3, 4])
    pool.write(([1, 2], [2, 3]), [5, 6])
    pool.write((2, 0), 7)
    assert pool.req_to_token.dtype is torch.int32
    assert pool.req_to_token.tolist() == [[0, 0, 0, 0], [3, 4, 5, 0], [7, 0, 0, 6]]


def test_keys_and_values_are_where_their_pool_is() -> None:
    """P3: and of its dtype, half where nobody said."""
    pool = KVPool(4, 1, 1, 2, "cpu")
    rows = torch.ones(2, 1, 2, dtype=torch.float16, device="cpu")
    pool.set_kv_buffer(0, ints(1, 3), rows, 2 * rows)
    k, v = pool.get_kv_buffer(0)
    assert (k.dtype, v.dtype) == (torch.float16, torch.float16)
    assert (k[:, 0, 1].tolist(), v[:, 0, 1].tolist()) == ([0, 1, 0, 1, 0], [0, 2, 0, 2, 0])


def test_states_are_where_their_pool_is() -> None:
    """P4, P5: recurrent ones in float32, whatever numbers are otherwise."""
    pool = GDNPool(3, 2, 1, 2, 3, 4, 3, "cpu", max_track_slots=1)
    assert (pool.recurrent_state.dtype, pool.conv_state.dtype) == (torch.float32, torch.bfloat16)
    pool.recurrent_state[:, 1] = 1
    pool.conv_state[:, 1] = 1
    pool.copy_states(1, 2)
    pool.copy_states([2], [3])
    pool.reset_states(1)
    pool.reset_states([2])
    for state in (pool.recurrent_state, pool.conv_state):
        assert state.device == CPU
        assert state.flatten(2).all(2).tolist() == [[False, False, False, True, False]] * 2


def make_tokens(page_size: int, **options: Any) -> TokenToKVPoolAllocator:
    return TokenToKVPoolAllocator(12, "cpu", page_size, **options)


def make_pairs(page_size: int, **options: Any) -> SWATokenToKVPoolAllocator:
    return SWATokenToKVPoolAllocator(12, 12, "cpu", page_size, **options)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("store", ["host", "device"])
@pytest.mark.parametrize("page_size", [1, 2, 3])
@pytest.mark.parametrize("make", [make_tokens, make_pairs])
def test_slots_are_where_their_allocator_is(
    make: Callable[..., Any], page_size: int, store: str, checked: bool
) -> None:
    """A1, A3: with pages and without, sorted and checked or neither."""
    allocator = make(page_size, store=store, need_sort=checked, check_ownership=checked)
    slots = allocator.alloc(4 * page_size)
    assert (slots.device, slots.dtype) == (CPU, torch.int32)
    assert slots.tolist() == list(range(page_size, 5 * page_size))
    assert allocator.is_handed_out(slots).tolist() == [True] * 4 * page_size
    allocator.free(slots[:page_size])
    allocator.free_group_begin()
    allocator.free(slots[page_size : 2 * page_size])
    allocator.free_group_end()
    allocator.merge_and_sort_free()
    assert allocator.is_handed_out(slots).tolist() == [False] * 2 * page_size + [True] * 2 * page_size
    assert allocator.alloc(12 - 2 * page_size).device == CPU
    assert allocator.available_size() == 0


@pytest.mark.parametrize("store", ["host", "device"])
@pytest.mark.parametrize("page_size", [1, 2])
def test_halves_are_where_their_allocator_is(page_size: int, store: str) -> None:
    """A7: translated, freed and moved."""
    allocator = make_pairs(page_size, store=store)
    slots = allocator.alloc(2 * page_size)
    halves = allocator.translate_to_swa(slots)
    assert (halves.device, halves.tolist()) == (CPU, slots.tolist())
    first, second = slots[:page_size], slots[page_size:]
    allocator.free_swa(first)
    allocator.move_swa(second, first)
    assert allocator.translate_to_swa(first).tolist() == second.tolist()
    assert allocator.translate_to_swa(second).tolist() == [0] * page_size


def make_plain(pool: Any) -> RadixCache:
    return RadixCache(2, token_to_kv_pool_allocator=pool)


def make_window(pool: Any) -> RadixCache:
    return RadixCache(2, 3, pool)


def make_states(pool: Any) -> MambaRadixCache:
    return MambaRadixCache(2, pool, None)


@pytest.mark.parametrize("make", [make_plain, make_window, make_states])
@pytest.mark.parametrize("with_pool", [False, True])
def test_a_prefix_is_found_where_its_cache_is(make: Callable[[Any], Any], with_pool: bool) -> None:
    """R1, R3, M1: slots, states and nothing at all, through splits and evictions."""
    cache = make(make_pairs(2) if with_pool else None)
    options: dict[str, Any] = {"mamba_value": ints(3)} if make is make_states else {}
    slots = cache.pool.alloc(6) if with_pool else ints(*range(2, 8))
    node = cache.insert(RadixKey([1, 2, 3, 4, 5, 6]), slots, **options).last_node
    if options:
        assert (node.mamba_value.device, node.mamba_value.tolist()) == (CPU, [3])
    for tokens, found in (([1, 2, 3, 4, 5, 6], slots.tolist()), ([7, 7], [])):
        indices = cache.match_prefix(RadixKey(tokens)).indices
        assert (indices.device, indices.dtype, indices.tolist()) == (CPU, torch.int64, found)
    more = cache.pool.alloc(4) if with_pool else ints(10, 11, 12, 13)
    assert cache.insert(RadixKey([1, 2, 8, 8]), more).prefix_len == 2
    if with_pool:
        cache.pool.free(more[:2])
    assert cache.evict(99).full_evicted == 8
    cache.reset()
    assert (cache.root_node.value.device, cache.root_node.value.dtype) == (CPU, torch.int64)


class Elsewhere:
    """A pool whose slots are on a device without memory."""

    device = "meta"

    def free(self, slots: torch.Tensor) -> None:
        assert slots.device.type == "meta"


@pytest.mark.parametrize("make", [RadixCache, MambaRadixCache, ChunkCache])
def test_a_cache_is_where_its_pool_is(make: Callable[..., Any]) -> None:
    """R1: what a match returns is on the pool's device; without a pool, on the host."""
    for pool, device in ((Elsewhere(), "meta"), (None, "cpu")):
        cache = make(token_to_kv_pool_allocator=pool)
        assert cache.device.type == device
        assert cache.match_prefix(RadixKey([1])).indices.device.type == device
        if make is not ChunkCache:
            value = cache.insert(RadixKey([1, 2]), ints(5, 6).int()).last_node.value
            assert (value.device.type, value.dtype) == (device, torch.int64)


@pytest.mark.parametrize("check_bounds", [None, True, False])
def test_a_pool_looks_at_what_it_was_told_to(
    check_bounds: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: rows, positions, values and slots alike, under the pool's own setting."""
    settings: list[bool | None] = []
    looked_at: list[str] = []

    def is_readable(index: torch.Tensor, setting: bool | None) -> bool:
        settings.append(setting)
        return rows.is_readable(index, setting)

    def check_range(name: str, *_: Any) -> None:
        looked_at.append(name)

    for module in (req_to_token_pool, kv_pool, gdn_pool):
        monkeypatch.setattr(module, "is_readable", is_readable)
        monkeypatch.setattr(module, "check_range", check_range)
    table = ReqToTokenPool(2, 4, "cpu", check_bounds=check_bounds)
    table.alloc(1)
    table.write((1, slice(0, 2)), [3, 4])
    table.write(([1, 0], [2, 3]), [5, 6])
    numbers = torch.ones(1, 1, 1, dtype=torch.float16, device="cpu")
    KVPool(2, 1, 1, 1, "cpu", check_bounds=check_bounds).set_kv_buffer(0, ints(1), numbers, numbers)
    GDNPool(2, 1, 1, 1, 1, 1, 2, "cpu", check_bounds=check_bounds).copy_states([1], [2])
    assert settings == [check_bounds] * 7
    names = ["value", "value", "row", "position", "slot", "src_index", "dst_index"]
    assert looked_at == ([] if check_bounds is False else names)


def test_whether_rows_can_be_read_is_asked_of_the_pools_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """P3, P5: another device may read other dtypes by index."""
    asked: list[tuple[torch.dtype, str]] = []

    def ask(dtype: torch.dtype, device: torch.device) -> torch.dtype:
        asked.append((dtype, device.type))
        return as_row_dtype(dtype, device)

    for module in (kv_pool, gdn_pool):
        monkeypatch.setattr(module, "as_row_dtype", ask)
    KVPool(4, 1, 1, 1, "meta", torch.int8)
    GDNPool(2, 1, 1, 1, 1, 1, 2, "meta", torch.float16)
    assert asked == [(torch.int8, "meta"), (torch.float16, "meta")]


class NoteDevices(TorchDispatchMode):
    """Notes where the tensors are that a write into a table is given."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "index_put" in str(func):
            table, index, slots, *_ = args
            self.devices += [str(it.device) for it in (table, *index, slots)]
        return func(*args, **(kwargs or {}))


def test_an_entry_is_named_and_written_on_the_device_of_the_table() -> None:
    """P3: rows, positions and slots go there before the write, which waits for none of them."""
    table = ReqToTokenPool(2, 4, "meta")
    assert table.alloc(2) == [1, 2]
    with NoteDevices() as noted:
        table.write(([1, 2], ints(0, 3)), [5, 6])
    assert noted.devices == ["meta"] * 4
