"""The whole words of each refusal of pools, allocators and what reads their arguments; nothing changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.errors import OwnershipError
from pymllm.mem_cache import arguments, index_arguments
from pymllm.mem_cache.chunk_cache import ChunkCache
from pymllm.mem_cache.gdn_pool import GDNPool
from pymllm.mem_cache.kv_pool import KVPool
from pymllm.mem_cache.req_to_token_pool import ReqToTokenPool
from pymllm.mem_cache.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator
from tests.unit.refusals import Refusal, all_refusals, check_refusal, picture, size_refusals


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


NO_DEVICE = "device must be a str or a torch.device, got int 0"
NO_SWITCH = "check_bounds must be True, False or None, got int 1"
NO_DTYPE = "dtype must be a torch.dtype, got str 'half'"
PACKED = "cannot be stored: torch does not read its rows by index; keep its bytes in a pool of torch.uint8"

ARGUMENTS = [
    Refusal(lambda _: arguments.as_int("row", True), TypeError, "row must be an int, got bool True"),
    Refusal(lambda _: arguments.as_int("row", 1.5), TypeError, "row must be an int, got float 1.5"),
    Refusal(
        lambda _: arguments.as_int("row", torch.tensor(True)),
        TypeError,
        "row must be an int, got Tensor tensor(True)",
    ),
    Refusal(lambda _: arguments.as_size("n", 0), ValueError, "n must be at least 1, got 0"),
    Refusal(lambda _: arguments.as_size("n", -1, 0), ValueError, "n must be at least 0, got -1"),
    Refusal(lambda _: arguments.as_size("n", None), TypeError, "n must be an int, got NoneType None"),
    Refusal(
        lambda _: arguments.as_switch("fused", "on"),
        TypeError,
        "fused must be True, False or None, got str 'on'",
    ),
    Refusal(lambda _: arguments.as_device(0), TypeError, NO_DEVICE),
    Refusal(lambda _: arguments.as_dtype("half"), TypeError, NO_DTYPE),
    Refusal(lambda _: arguments.as_row_dtype("half", torch.device("cpu")), TypeError, NO_DTYPE),
    Refusal(
        lambda _: arguments.as_row_dtype(torch.quint8, torch.device("cpu")),
        ValueError,
        f"dtype torch.quint8 {PACKED}",
    ),
    Refusal(
        lambda _: arguments.as_pool([0] * 99),
        TypeError,
        "token_to_kv_pool_allocator is [0, 0, 0, 0, 0, 0, ...], which has no method free: "
        "give a pool, or None",
    ),
    Refusal(
        lambda _: arguments.as_pool(5, "mamba_pool", "free_track_slot"),
        TypeError,
        "mamba_pool is 5, which has no method free_track_slot: give a pool, or None",
    ),
    Refusal(
        lambda _: arguments.as_pool(SimpleNamespace(free=5)),
        TypeError,
        "token_to_kv_pool_allocator is namespace(free=5), which has no method free: give a pool, or None",
    ),
    Refusal(
        lambda _: arguments.as_page_size(8, SimpleNamespace(page_size=4)),
        ValueError,
        "page_size is 8, but the pool's is 4: give both the same",
    ),
    Refusal(lambda _: arguments.as_page_size("8", None), TypeError, "page_size must be an int, got str '8'"),
    Refusal(
        lambda _: arguments.as_callback(5),
        TypeError,
        "on_node_evict is 5: give a function of a node id, or None",
    ),
    Refusal(
        lambda _: arguments.as_callback([0] * 99, "on_evict"),
        TypeError,
        "on_evict is [0, 0, 0, 0, 0, 0, ...]: give a function of a node id, or None",
    ),
    Refusal(
        lambda _: ChunkCache(5),
        TypeError,
        "token_to_kv_pool_allocator is 5, which has no method free: give a pool, or None",
    ),
    Refusal(lambda _: ChunkCache(device=0), TypeError, NO_DEVICE),
]

INDICES = [
    Refusal(
        lambda _: index_arguments.as_integers("rows", torch.tensor([1.0])),
        TypeError,
        "rows must have an integer dtype, got torch.float32",
    ),
    Refusal(
        lambda _: index_arguments.as_integers("rows", ints(1).to_sparse()),
        TypeError,
        "rows must be a dense tensor, got layout torch.sparse_coo",
    ),
    Refusal(
        lambda _: index_arguments.as_integers("rows", np.array([1.0])),
        TypeError,
        "rows must have an integer dtype, got float64",
    ),
    Refusal(
        lambda _: index_arguments.as_integers("rows", np.array(["1"])),
        TypeError,
        "rows must have an integer dtype, got <U1",
    ),
    Refusal(
        lambda _: index_arguments.as_index("rows", {1: 2}),
        TypeError,
        "rows must be a tensor, an array or a sequence of ints, got dict",
    ),
    Refusal(
        lambda _: index_arguments.as_index("rows", "12"),
        TypeError,
        "rows must be a tensor, an array or a sequence of ints, got str",
    ),
    Refusal(
        lambda _: index_arguments.as_index("rows", b"12"),
        TypeError,
        "rows must be a tensor, an array or a sequence of ints, got bytes",
    ),
    Refusal(
        lambda _: index_arguments.as_index("rows", [1, 2.0]),
        TypeError,
        "rows must be an int, got float 2.0",
    ),
    *(
        Refusal(
            lambda _, number=number: index_arguments.as_index("rows", [200, -200, number, 2**70]),
            ValueError,
            f"rows has {number}, which int64 does not have",
        )
        for number in (2**63, -(2**63) - 1)
    ),
    Refusal(
        lambda _: index_arguments.check_range("row", ints(0, 5, -1), 5, "take another"),
        IndexError,
        "row 5 is outside 0..4 (2 of 3 are); take another",
    ),
    Refusal(
        lambda _: index_arguments.check_range("row", ints(-1).to(torch.int8), 5, "take another"),
        IndexError,
        "row -1 is outside 0..4 (1 of 1 are); take another",
    ),
]


@all_refusals(ARGUMENTS, INDICES)
def test_an_argument_is_refused_with_its_name_value_and_bound(refusal: Refusal) -> None:
    """X1: what is wrong, what there is, and what to give instead."""
    check_refusal(None, refusal)


def test_the_error_of_torch_is_kept_in_ours() -> None:
    """X1: which devices there are is torch's to say, and is said."""
    with pytest.raises(ValueError, match="abacus") as raised:
        arguments.as_device("abacus")
    cause = raised.value.__cause__
    assert cause is not None
    assert str(raised.value) == f"device 'abacus' is not one that torch knows: {cause}"


# -- rows of requests ------------------------------------------------------------------------------------


def make_rows(check_bounds: bool | None = None) -> ReqToTokenPool:
    """Rows 1 and 2 of three are handed out, and row 1 has slots in it."""
    pool = ReqToTokenPool(3, 8, "cpu", check_bounds=check_bounds)
    assert pool.alloc(2) == [1, 2]
    pool.write((1, slice(0, 3)), [11, 12, 13])
    return pool


def make_table(_: None, **changes: Any) -> ReqToTokenPool:
    return ReqToTokenPool(**({"max_reqs": 3, "max_context_len": 8, "device": "cpu"} | changes))


NOT_HANDED_OUT = (
    "is not handed out: it was never allocated, or is free again; name rows that alloc returned, "
    "and free each once"
)
OF_ALLOC = "the rows that alloc hands out"

ROWS_MADE = [
    *size_refusals(make_table, max_reqs=1, max_context_len=1),
    Refusal(lambda _: make_table(None, device=0), TypeError, NO_DEVICE),
    Refusal(lambda _: make_table(None, check_bounds=1), TypeError, NO_SWITCH),
]

ROWS = [
    *size_refusals(lambda pool, **n: pool.alloc(**n), n=0),
    Refusal(lambda pool: pool.free("1"), TypeError, "slot must be an int, got str '1'"),
    Refusal(lambda pool: pool.free(0), OwnershipError, f"row 0 is outside 1..3, {OF_ALLOC}"),
    Refusal(lambda pool: pool.free(4), OwnershipError, f"row 4 is outside 1..3, {OF_ALLOC}"),
    Refusal(lambda pool: pool.free(3), OwnershipError, f"row 3 {NOT_HANDED_OUT}"),
    Refusal(
        lambda pool: pool.write([1, 2], [3]),
        TypeError,
        "index must be (row, slice), (rows, positions) or (row, position)",
    ),
    Refusal(
        lambda pool: pool.write((1, 2, 3), [3]),
        TypeError,
        "index must be (row, slice), (rows, positions) or (row, position)",
    ),
    Refusal(lambda pool: pool.write(("1", slice(0, 1)), [3]), TypeError, "row must be an int, got str '1'"),
    Refusal(
        lambda pool: pool.write((-1, slice(0, 1)), [3]),
        OwnershipError,
        f"row -1 is outside 1..3, {OF_ALLOC}",
    ),
    Refusal(lambda pool: pool.write((3, slice(0, 1)), [3]), OwnershipError, f"row 3 {NOT_HANDED_OUT}"),
    Refusal(
        lambda pool: pool.write((0, slice(0, 1)), [3]), OwnershipError, f"row 0 is outside 1..3, {OF_ALLOC}"
    ),
    Refusal(
        lambda pool: pool.write((True, slice(0, 1)), [3]), TypeError, "row must be an int, got bool True"
    ),
    Refusal(lambda pool: pool.write((1, 2), True), TypeError, "values must be an int, got bool True"),
    Refusal(
        lambda pool: pool.write((1, slice(0, 2)), [1, -1]),
        IndexError,
        f"value -1 is outside 0..{2**31 - 1} (1 of 2 are); the table holds int32 slots; "
        "0 is the padding slot",
    ),
    Refusal(
        lambda pool: pool.write((torch.tensor([False, True]), [0, 1]), [3, 4]),
        TypeError,
        "rows must have an integer dtype, got torch.bool",
    ),
    Refusal(
        lambda pool: pool.write(([1, 2], [-1, 0]), [3, 4]),
        IndexError,
        "position -1 is outside 0..7 (1 of 2 are); max_context_len is the bound",
    ),
    Refusal(
        lambda pool: pool.write((1, slice(0, 4, 2)), [3, 4]),
        ValueError,
        "the slice has step 2; only whole stretches can be written",
    ),
    Refusal(
        lambda pool: pool.write((1, slice(0, 4, 1.0)), [3] * 4),
        TypeError,
        "step must be an int, got float 1.0",
    ),
    Refusal(
        lambda pool: pool.write((1, slice("0", 4)), [3] * 4), TypeError, "start must be an int, got str '0'"
    ),
    Refusal(
        lambda pool: pool.write((1, slice(0, "4")), [3] * 4), TypeError, "stop must be an int, got str '4'"
    ),
    *(
        Refusal(
            lambda pool, stretch=slice(start, stop): pool.write((1, stretch), []),
            IndexError,
            f"positions {start}..{stop} are outside a row of 8; negative ends do not count from the end",
        )
        for start, stop in ((-1, 4), (0, 9), (-9, -1))
    ),
    Refusal(
        lambda pool: pool.write((1, slice(5, 3)), []), ValueError, "the slice runs backwards, from 5 to 3"
    ),
    Refusal(
        lambda pool: pool.write((1, slice(5, 0)), []), ValueError, "the slice runs backwards, from 5 to 0"
    ),
    Refusal(
        lambda pool: pool.write((1, slice(0, 2)), ints(1, 2).view(1, 2)),
        ValueError,
        "values must have at most one dimension, got shape [1, 2]",
    ),
    Refusal(
        lambda pool: pool.write((1, slice(0, 2)), np.array([[1], [2]])),
        ValueError,
        "values must have at most one dimension, got shape [2, 1]",
    ),
    Refusal(
        lambda pool: pool.write((1, slice(0, 2)), [1.0, 2.0]),
        TypeError,
        "values must be an int, got float 1.0",
    ),
    Refusal(
        lambda pool: pool.write((1, slice(0, 2)), 7),
        ValueError,
        "1 values for 2 entries of the table; give one for each",
    ),
    Refusal(
        lambda pool: pool.write((1, slice(0, 2)), [5, 2**31]),
        IndexError,
        f"value {2**31} is outside 0..{2**31 - 1} (1 of 2 are); the table holds int32 slots; "
        "0 is the padding slot",
    ),
    Refusal(
        lambda pool: pool.write(("1", [1]), [3]),
        TypeError,
        "rows must be a tensor, an array or a sequence of ints, got str",
    ),
    Refusal(
        lambda pool: pool.write(([1], "1"), [3]),
        TypeError,
        "positions must be a tensor, an array or a sequence of ints, got str",
    ),
    Refusal(
        lambda pool: pool.write(([1, 2], [3]), [4, 5]),
        ValueError,
        "2 rows with 1 positions; each entry needs both",
    ),
    Refusal(
        lambda pool: pool.write(([1, 2], [3, 4]), [5]),
        ValueError,
        "1 values for 2 entries of the table; give one for each",
    ),
    Refusal(
        lambda pool: pool.write(([1, 4], [3, 3]), [4, 5]),
        IndexError,
        "row 4 is outside 0..3 (1 of 2 are); padded entries name row 0",
    ),
    Refusal(
        lambda pool: pool.write(([1, 0, 3], [3, 3, 3]), [4, 5, 6]),
        OwnershipError,
        f"row 3 {NOT_HANDED_OUT}",
    ),
    Refusal(lambda pool: pool.write((3, 3), 4), OwnershipError, f"row 3 {NOT_HANDED_OUT}"),
    Refusal(
        lambda pool: pool.write(([1, 2], [3, 8]), [4, 5]),
        IndexError,
        "position 8 is outside 0..7 (1 of 2 are); max_context_len is the bound",
    ),
]


@all_refusals(ROWS_MADE)
def test_no_table_is_made_of_malformed_arguments(refusal: Refusal) -> None:
    """X1: each argument by its name."""
    check_refusal(None, refusal)


@all_refusals(ROWS)
def test_a_refused_call_leaves_the_rows_alone(refusal: Refusal) -> None:
    """X1, P2, P3: row, position and value are named, and which of them there are."""
    check_refusal(make_rows(), refusal)


# -- keys and values -------------------------------------------------------------------------------------


def make_kv(_: None = None, **changes: Any) -> KVPool:
    sizes = {"size": 8, "layer_num": 2, "k_head_num": 2, "k_head_dim": 4, "v_head_num": 1, "v_head_dim": 3}
    return KVPool(**(sizes | {"device": "cpu", "dtype": torch.float32} | changes))


def write_kv(pool: KVPool, **changes: Any) -> None:
    """Write two rows, of which one argument is another than it should be."""
    good = {"layer_id": 0, "indices": ints(1, 2), "k": torch.ones(2, 2, 4), "v": torch.ones(2, 1, 3)}
    pool.set_kv_buffer(**(good | changes))


NO_LAYER = "is outside 0..1; layers count from 0"

KV_MADE = [
    *size_refusals(
        make_kv, size=1, layer_num=1, k_head_num=1, k_head_dim=1, v_head_num=1, v_head_dim=1, page_size=1
    ),
    Refusal(
        lambda _: make_kv(size=9, page_size=4),
        ValueError,
        "size 9 is not a multiple of page_size 4; use 8",
    ),
    Refusal(
        lambda _: make_kv(size=3, page_size=4),
        ValueError,
        "size 3 is not a multiple of page_size 4; use 4",
    ),
    Refusal(lambda _: make_kv(device=0), TypeError, NO_DEVICE),
    Refusal(lambda _: make_kv(dtype="half"), TypeError, NO_DTYPE),
    Refusal(lambda _: make_kv(dtype=torch.quint8), ValueError, f"dtype torch.quint8 {PACKED}"),
    Refusal(lambda _: make_kv(check_bounds=1), TypeError, NO_SWITCH),
    Refusal(lambda _: make_kv(fused=1), TypeError, "fused must be True, False or None, got int 1"),
    Refusal(lambda _: make_kv(pin_memory=1), TypeError, "pin_memory must be True or False, got 1"),
]

KV = [
    *(
        Refusal(lambda pool, name=name: getattr(pool, name)(2), IndexError, f"layer_id 2 {NO_LAYER}")
        for name in ("get_key_buffer", "get_value_buffer", "get_kv_buffer")
    ),
    Refusal(lambda pool: write_kv(pool, layer_id=-1), IndexError, f"layer_id -1 {NO_LAYER}"),
    Refusal(lambda pool: write_kv(pool, layer_id="0"), TypeError, "layer_id must be an int, got str '0'"),
    Refusal(lambda pool: write_kv(pool, indices=[1, 2]), TypeError, "indices must be a tensor, got list"),
    Refusal(
        lambda pool: write_kv(pool, indices=torch.ones(2)),
        TypeError,
        "indices must have an integer dtype, got torch.float32",
    ),
    Refusal(lambda pool: write_kv(pool, k=[[1.0]]), TypeError, "k must be a tensor, got list"),
    Refusal(lambda pool: write_kv(pool, v=None), TypeError, "v must be a tensor, got NoneType"),
    Refusal(
        lambda pool: write_kv(pool, k=torch.ones(2, 2, 4).half()),
        TypeError,
        "k has dtype torch.float16, the pool stores torch.float32; convert it first",
    ),
    Refusal(
        lambda pool: write_kv(pool, v=torch.ones(2, 1, 3).long()),
        TypeError,
        "v has dtype torch.int64, the pool stores torch.float32; convert it first",
    ),
    Refusal(
        lambda pool: write_kv(pool, k=torch.ones(2, 2, 4, device="meta")),
        ValueError,
        "k is on meta, the pool on cpu; move it first",
    ),
    Refusal(
        lambda pool: write_kv(pool, v=torch.ones(2, 1, 3).to_sparse()),
        TypeError,
        "v is no dense tensor (layout torch.sparse_coo); give its rows in full",
    ),
    *(
        Refusal(
            lambda pool, shape=shape: write_kv(pool, k=torch.ones(shape)),
            ValueError,
            f"k of shape {list(shape)} does not hold 2 rows of 2 * 4 elements, one for each index",
        )
        for shape in ((2, 4, 4), (1, 2, 4), (3, 2, 4), (), (16,), (2, 1, 4), (4, 2, 2))
    ),
    *(
        Refusal(
            lambda pool, shape=shape: write_kv(pool, v=torch.ones(shape)),
            ValueError,
            f"v of shape {list(shape)} does not hold 2 rows of 1 * 3 elements, one for each index",
        )
        for shape in ((3, 1, 3), (1, 1, 3), (3,), (2, 2, 4))
    ),
    Refusal(
        lambda pool: write_kv(pool, indices=ints(1, 2, 3)),
        ValueError,
        "k of shape [2, 2, 4] does not hold 3 rows of 2 * 4 elements, one for each index",
    ),
    Refusal(
        lambda pool: write_kv(
            pool, v=torch.nested.nested_tensor([torch.ones(1, 3)] * 2, layout=torch.jagged)
        ),
        TypeError,
        "v is no dense tensor (layout torch.jagged); give its rows in full",
    ),
    Refusal(
        lambda pool: write_kv(pool, indices=ints(1, 2).to_sparse()),
        TypeError,
        "indices must be a dense tensor, got layout torch.sparse_coo",
    ),
    Refusal(
        lambda pool: write_kv(pool, indices=ints(-1, 1)),
        IndexError,
        "slot -1 is outside 0..8 (1 of 2 are); padded tokens are written to slot 0",
    ),
    Refusal(
        lambda pool: write_kv(pool, indices=ints(1, 9)),
        IndexError,
        "slot 9 is outside 0..8 (1 of 2 are); padded tokens are written to slot 0",
    ),
]


@all_refusals(KV_MADE)
def test_no_kv_pool_is_made_of_malformed_arguments(refusal: Refusal) -> None:
    """X1: each argument by its name."""
    check_refusal(None, refusal)


@all_refusals(KV)
def test_a_refused_write_leaves_keys_and_values_alone(refusal: Refusal) -> None:
    """X1, P3: layer, index, key and value are told apart."""
    pool = make_kv()
    write_kv(pool)
    check_refusal(pool, refusal)


# -- recurrent states ------------------------------------------------------------------------------------


def make_states(_: None = None, **changes: Any) -> GDNPool:
    sizes = {
        "max_reqs": 3,
        "num_gdn_layers": 2,
        "num_v_heads": 1,
        "head_k_dim": 2,
        "head_v_dim": 3,
        "conv_dim": 4,
        "conv_kernel_size": 3,
        "max_track_slots": 2,
        "device": "cpu",
    }
    return GDNPool(**(sizes | changes))


PADDING = "row 0 is padding"

STATES_MADE = [
    *size_refusals(
        make_states,
        max_reqs=1,
        num_gdn_layers=1,
        num_v_heads=1,
        head_k_dim=1,
        head_v_dim=1,
        conv_dim=1,
        conv_kernel_size=1,
        max_track_slots=0,
    ),
    Refusal(lambda _: make_states(device=0), TypeError, NO_DEVICE),
    Refusal(lambda _: make_states(dtype="half"), TypeError, NO_DTYPE),
    Refusal(lambda _: make_states(check_bounds=1), TypeError, NO_SWITCH),
    Refusal(lambda _: make_states(fused=1), TypeError, "fused must be True, False or None, got int 1"),
]

STATES = [
    Refusal(lambda pool: pool.get_layer_state("0"), TypeError, "gdn_layer_idx must be an int, got str '0'"),
    Refusal(lambda pool: pool.get_layer_state(2), IndexError, "gdn_layer_idx 2 is outside 0..1"),
    Refusal(lambda pool: pool.get_layer_state(-1), IndexError, "gdn_layer_idx -1 is outside 0..1"),
    Refusal(lambda pool: pool.reset_states(6), IndexError, f"req_pool_indices 6 is outside 0..5; {PADDING}"),
    Refusal(
        lambda pool: pool.reset_states(True), TypeError, "req_pool_indices must be an int, got bool True"
    ),
    Refusal(
        lambda pool: pool.reset_states([1, 6]),
        IndexError,
        f"req_pool_indices 6 is outside 0..5 (1 of 2 are); {PADDING}",
    ),
    Refusal(lambda pool: pool.copy_states(-1, 2), IndexError, f"src_index -1 is outside 0..5; {PADDING}"),
    Refusal(lambda pool: pool.copy_states(1, 6), IndexError, f"dst_index 6 is outside 0..5; {PADDING}"),
    Refusal(
        lambda pool: pool.copy_states([7], [2]),
        IndexError,
        f"src_index 7 is outside 0..5 (1 of 1 are); {PADDING}",
    ),
    Refusal(
        lambda pool: pool.copy_states([1], ints(8)),
        IndexError,
        f"dst_index 8 is outside 0..5 (1 of 1 are); {PADDING}",
    ),
    Refusal(
        lambda pool: pool.copy_states(torch.ones(1), [2]),
        TypeError,
        "src_index must have an integer dtype, got torch.float32",
    ),
    Refusal(
        lambda pool: pool.copy_states([1, 2, 3], [4, 5]),
        ValueError,
        "3 rows to read and 2 to write; they must be equally many",
    ),
    Refusal(
        lambda pool: pool.copy_states(1, [4, 5]),
        ValueError,
        "1 rows to read and 2 to write; they must be equally many",
    ),
    Refusal(lambda pool: pool.free_track_slot("4"), TypeError, "slot must be an int, got str '4'"),
    *(
        Refusal(
            lambda pool, slot=slot: pool.free_track_slot(slot),
            OwnershipError,
            f"track slot {slot} is not handed out; track slots are 4..5 and each is freed once",
        )
        for slot in (5, 3, 6, 0, -1)
    ),
]


@all_refusals(STATES_MADE)
def test_no_state_pool_is_made_of_malformed_arguments(refusal: Refusal) -> None:
    """X1: each argument by its name."""
    check_refusal(None, refusal)


@all_refusals(STATES)
@pytest.mark.usefixtures("on_the_cpu")
def test_a_refused_call_leaves_the_states_alone(refusal: Refusal) -> None:
    """X1, P5: what is read and what is written are told apart, with one launch as with torch."""
    pool = make_states()
    pool.recurrent_state.copy_(torch.arange(pool.recurrent_state.numel()).view_as(pool.recurrent_state))
    assert pool.alloc_track_slot() == 4
    check_refusal(pool, refusal)


# -- slots -----------------------------------------------------------------------------------------------


def make_tokens(_: None = None, **changes: Any) -> TokenToKVPoolAllocator:
    return TokenToKVPoolAllocator(**({"size": 8, "device": "cpu"} | changes))


def make_pairs(_: None = None, **changes: Any) -> SWATokenToKVPoolAllocator:
    return SWATokenToKVPoolAllocator(**({"size": 8, "swa_size": 8, "device": "cpu"} | changes))


SLOTS_MADE = [
    Refusal(
        lambda _, make=make, changes=changes: make(None, **changes),
        error,
        words,
    )
    for make in (make_tokens, make_pairs)
    for changes, error, words in (
        ({"size": 0}, ValueError, "size must be at least 1, got 0"),
        ({"size": "8"}, TypeError, "size must be an int, got str '8'"),
        ({"page_size": 0}, ValueError, "page_size must be at least 1, got 0"),
        ({"page_size": "1"}, TypeError, "page_size must be an int, got str '1'"),
        ({"page_size": 3}, ValueError, "size 8 is not a multiple of page_size 3: pools hold whole pages"),
        (
            {"size": 2**31, "page_size": 2},
            ValueError,
            f"slots up to {2**31 + 1} do not fit int32 (at most {2**31 - 1})",
        ),
        ({"device": 0}, TypeError, NO_DEVICE),
        ({"need_sort": 1}, TypeError, "need_sort must be True or False, got 1"),
        ({"check_ownership": 1}, TypeError, "check_ownership must be True, False or None, got int 1"),
        ({"store": "tape"}, ValueError, "store must be 'auto', 'host' or 'device', got 'tape'"),
        (
            {"store": "host", "device": "meta"},
            ValueError,
            "the host store serves the CPU only, got device meta: use store='auto'",
        ),
    )
]


@all_refusals(SLOTS_MADE)
def test_no_allocator_is_made_of_malformed_arguments(refusal: Refusal) -> None:
    """X1: each argument by its name, and where two do not fit, both."""
    check_refusal(None, refusal)


ONCE = "give each one back once, after alloc returned it"
NO_GROUP = "no free group is open: call free_group_begin first"
NESTED = "a free group is open already: call free_group_end first, groups do not nest"

OF_BOTH = [
    *size_refusals(lambda pool, **n: pool.alloc(**n), need_size=0),
    Refusal(lambda pool: pool.free([2]), TypeError, "indices must be a tensor of integers, got list"),
    Refusal(
        lambda pool: pool.free(torch.ones(1)),
        TypeError,
        "indices must be integers, got a tensor of torch.float32",
    ),
    Refusal(
        lambda pool: pool.free(torch.tensor([True])),
        TypeError,
        "indices must be integers, got a tensor of torch.bool",
    ),
    Refusal(
        lambda pool: pool.free(torch.ones(1, dtype=torch.bfloat16)),
        TypeError,
        "indices must be integers, got a tensor of torch.bfloat16",
    ),
    Refusal(lambda pool: pool.free_group_end(), RuntimeError, NO_GROUP),
]

SLOTS = [
    Refusal(
        lambda pool: pool.free(ints(1, 0)),
        OwnershipError,
        "slot 0 is padding and belongs to nobody: this pool hands out slots 1..8; "
        "pass slots that alloc returned",
    ),
    *(
        Refusal(
            lambda pool, slot=slot: pool.free(ints(1, slot)),
            OwnershipError,
            f"slot {slot} is outside the pool: this pool hands out slots 1..8; "
            "pass slots that alloc returned",
        )
        for slot in (9, -1)
    ),
    Refusal(lambda pool: pool.free(ints(1, 5)), OwnershipError, f"slot 5 is not handed out: {ONCE}"),
    Refusal(
        lambda pool: pool.free(ints(1, 2, 2)),
        OwnershipError,
        "slot 2 is named more than once in one call: name each slot once",
    ),
]

PAGES = [
    Refusal(
        lambda pool: pool.free(ints(2, 1)),
        OwnershipError,
        "slot 1 is padding and belongs to nobody: this pool hands out slots 2..9; "
        "pass slots that alloc returned",
    ),
    *(
        Refusal(
            lambda pool, slot=slot: pool.free(ints(2, slot)),
            OwnershipError,
            f"slot {slot} is outside the pool: this pool hands out slots 2..9; "
            "pass slots that alloc returned",
        )
        for slot in (10, -1)
    ),
    Refusal(
        lambda pool: pool.free(ints(2, 7)), OwnershipError, f"page 3 of slot 7 is not handed out: {ONCE}"
    ),
]

HALVES = [
    *(
        Refusal(
            lambda pool, slots=slots: pool.free_swa(ints(*slots)),
            OwnershipError,
            words,
        )
        for slots, words in (
            (
                (1, 0),
                "slot 0 is padding and belongs to nobody: this pool hands out slots 1..8; "
                "pass slots that alloc returned",
            ),
            (
                (1, 9),
                "slot 9 is outside the pool: this pool hands out slots 1..8; pass slots that alloc returned",
            ),
            ((1, 2, 1), "slot 1 is named more than once in one call: name each slot once"),
        )
    ),
    Refusal(
        lambda pool: pool.free_swa(ints(1, 3)),
        OwnershipError,
        "slot 3 has no SWA half any more: free_swa a slot once",
    ),
    Refusal(lambda pool: pool.free_swa(ints(1, 5)), OwnershipError, f"slot 5 is not handed out: {ONCE}"),
    Refusal(
        lambda pool: pool.translate_to_swa(ints(1, 9)),
        OwnershipError,
        "slot 9 is outside the pool: this pool hands out slots 1..8; pass slots that alloc returned",
    ),
    Refusal(
        lambda pool: pool.translate_to_swa(ints(1, -1)),
        OwnershipError,
        "slot -1 is outside the pool: this pool hands out slots 1..8; pass slots that alloc returned",
    ),
    Refusal(
        lambda pool: pool.move_swa(ints(1, 2), ints(3)),
        ValueError,
        "move_swa pairs slots one to one, got 2 src and 1 dst",
    ),
    Refusal(
        lambda pool: pool.move_swa(ints(5), ints(3)), OwnershipError, f"slot 5 is not handed out: {ONCE}"
    ),
    Refusal(
        lambda pool: pool.move_swa(ints(1), ints(5)), OwnershipError, f"slot 5 is not handed out: {ONCE}"
    ),
    Refusal(lambda pool: pool.move_swa(ints(3), ints(4)), OwnershipError, "slot 3 has no SWA half to move"),
    Refusal(
        lambda pool: pool.move_swa(ints(1), ints(2)),
        OwnershipError,
        "slot 2 has an SWA half: free_swa it before",
    ),
]

HALF_PAGES = [
    Refusal(
        lambda pool: pool.free_swa(ints(2, 4)),
        OwnershipError,
        "page 2 has no SWA half any more: free_swa a slot once",
    ),
    Refusal(
        lambda pool: pool.move_swa(ints(2, 3), ints(5, 4)),
        ValueError,
        "src and dst do not pair pages of 2 slots: pass the slots of a page together, to one page, "
        "in the same places",
    ),
]

stores = pytest.mark.parametrize(
    "store",
    [
        {"store": "host"},
        {"store": "device"},
        pytest.param({"store": "device", "device": "cuda", "check_ownership": True}, marks=pytest.mark.gpu),
    ],
    ids=["host", "device", "cuda"],
)


@stores
@all_refusals(OF_BOTH, SLOTS)
@pytest.mark.parametrize("make", [make_tokens, make_pairs])
def test_a_refused_slot_is_nobodys_loss(make: Any, store: dict[str, Any], refusal: Refusal) -> None:
    """X1, A5: reserved, outside, free and repeated are told apart, whichever store keeps the books."""
    pool = make(**store)
    assert pool.alloc(3).tolist() == [1, 2, 3]
    check_refusal(pool, refusal)


@stores
@all_refusals(PAGES)
@pytest.mark.parametrize("make", [make_tokens, make_pairs])
def test_a_refused_page_is_nobodys_loss(make: Any, store: dict[str, Any], refusal: Refusal) -> None:
    """X1, A5: of a page that is not the caller's both page and slot are named."""
    changes = {"swa_size": 8} if make is make_pairs else {}
    pool = make(**store, page_size=2, **changes)
    assert pool.alloc(4).tolist() == [2, 3, 4, 5]
    check_refusal(pool, refusal)


@stores
@all_refusals(HALVES)
def test_a_refused_half_stays_where_it_is(store: dict[str, Any], refusal: Refusal) -> None:
    """X1, A7: slots with a half, slots without one and slots of nobody are told apart."""
    pool = make_pairs(**store)
    pool.alloc(4)
    pool.free_swa(ints(3, 4))
    check_refusal(pool, refusal)


@stores
@all_refusals(HALF_PAGES)
def test_a_refused_page_of_halves_stays_where_it_is(store: dict[str, Any], refusal: Refusal) -> None:
    """X1, A7: with pages it is a page that has a half, or none."""
    pool = make_pairs(**store, page_size=2)
    pool.alloc(4)
    pool.free_swa(ints(4, 5))
    check_refusal(pool, refusal)


@stores
@pytest.mark.parametrize("make", [make_tokens, make_pairs])
@pytest.mark.parametrize("page_size", [1, 2])
def test_what_waits_in_a_free_group_is_not_freed_again(
    make: Any, store: dict[str, Any], page_size: int
) -> None:
    """X1, A5: that it waits is said, and that groups do not nest."""
    pool = make(**store, page_size=page_size)
    slots = pool.alloc(2)
    pool.free_group_begin()
    pool.free(slots)
    unit = "slot 1" if page_size == 1 else "page 1 of slot 2"
    words = f"{unit} is already given back inside the open free group: {ONCE}"
    check_refusal(pool, Refusal(lambda it: it.free(slots[:1]), OwnershipError, words))
    check_refusal(pool, Refusal(lambda it: it.free_group_begin(), RuntimeError, NESTED))


@pytest.mark.parametrize("make", [make_tokens, make_pairs])
def test_more_than_is_handed_out_is_refused_without_a_record_of_slots(make: Any) -> None:
    """X1, A5: where nobody checks who owns what, the number still tells."""
    pool = make(need_sort=False, check_ownership=False)
    pool.alloc(1)
    words = f"2 pages are given back and 1 are handed out: {ONCE}"
    check_refusal(pool, Refusal(lambda it: it.free(ints(1, 2)), OwnershipError, words))


def test_a_picture_shows_what_changes() -> None:
    """X1: two pools alike look alike, and after a call they do not."""
    pool, other = make_pairs(), make_pairs()
    assert picture(pool) == picture(other)
    other.alloc(1)
    assert picture(pool) != picture(other)
    states = make_states()
    before = picture(states)
    states.conv_state[0, 1] = 1
    assert picture(states) != before
