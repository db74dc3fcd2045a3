"""The whole words of each refusal of pools, allocators and what reads their arguments; nothing changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from pymllm.errors import OwnershipError
from pymllm.mem_cache import arguments
from pymllm.mem_cache.chunk_cache import ChunkCache
from pymllm.mem_cache.pools import rows
from pymllm.mem_cache.pools.gdn_pool import GDNPool
from pymllm.mem_cache.pools.kv_pool import KVPool
from pymllm.mem_cache.pools.req_to_token_pool import ReqToTokenPool
from pymllm.mem_cache.slots.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator
from tests.unit.refusals import (
    Refusal,
    all_refusals,
    check_refusal,
    picture,
    refusal_by,
    refusal_of,
    size_refusals,
)


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def wide(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.uint64)


MASKED = np.ma.array([1, 2], mask=[False, True])
UNDER_A_MASK = (
    "is a masked array, and under its mask there is no number: give .compressed(), which leaves that out, "
    "or .filled(number)"
)
BEYOND = 2**63
MOST = 2**31 - 1


NO_DEVICE = "device must be a str or a torch.device, got int 0"
NO_SWITCH = "check_bounds must be True, False or None, got int 1"
NO_DTYPE = "dtype must be a torch.dtype, got str 'half'"
A_POOL = ": give a pool, or None"
PACKED = "cannot be stored: torch does not read its rows by index; keep its bytes in a pool of torch.uint8"

no_as_int = refusal_by(arguments.as_int)
no_as_size = refusal_by(arguments.as_size)
no_as_row_dtype = refusal_by(arguments.as_row_dtype)
no_as_pool = refusal_by(arguments.as_pool)
no_as_page_size = refusal_by(arguments.as_page_size)
no_as_callback = refusal_by(arguments.as_callback)
no_chunk_cache = refusal_by(ChunkCache)

ARGUMENTS = [
    *(
        no_as_int(TypeError, f"row must be an int, got {type(value).__name__} {value!r}", "row", value)
        for value in (
            *(True, np.True_, torch.tensor(True), 1.5, torch.tensor(1.0), torch.tensor([1, 2]), "1", None),
        )
    ),
    no_as_size(ValueError, "n must be at least 1, got 0", "n", 0),
    no_as_size(ValueError, "n must be at least 0, got -1", "n", -1, 0),
    no_as_size(TypeError, "n must be an int, got NoneType None", "n", None),
    no_as_size(ValueError, f"n must be at most {MOST}, got {2**70}", "n", 2**70, 1, MOST),
    no_as_int(TypeError, f"row must be an int, got MaskedArray {MASKED[:1]!r}", "row", MASKED[:1]),
    refusal_by(arguments.make_zeros)(
        ValueError,
        f"a buffer of shape (2, {2**70}) would have {2**73} bytes; at most {2**63 - 1} can be",
        *("a buffer", (2, 2**70), torch.float32, torch.device("cpu")),
    ),
    refusal_by(arguments.as_switch)(
        TypeError, "fused must be True, False or None, got str 'on'", "fused", "on"
    ),
    Refusal(lambda _: arguments.as_device(0), TypeError, NO_DEVICE),
    Refusal(lambda _: arguments.as_dtype("half"), TypeError, NO_DTYPE),
    no_as_row_dtype(TypeError, NO_DTYPE, "half", torch.device("cpu")),
    *(
        no_as_row_dtype(ValueError, f"dtype {dtype} {PACKED}", dtype, torch.device("cpu"))
        for dtype in (torch.float4_e2m1fn_x2, torch.bits16, torch.quint8, torch.int7)
    ),
    no_as_pool(
        TypeError,
        "token_to_kv_pool_allocator is [0, 0, 0, 0, 0, 0, ...], which has no method free" + A_POOL,
        [0] * 99,
    ),
    no_as_pool(
        TypeError,
        "mamba_pool is 5, which has no method free_track_slot" + A_POOL,
        5,
        "mamba_pool",
        "free_track_slot",
    ),
    no_as_pool(
        TypeError,
        "token_to_kv_pool_allocator is namespace(free=5), which has no method free" + A_POOL,
        SimpleNamespace(free=5),
    ),
    no_as_page_size(
        ValueError, "page_size is 8, but the pool's is 4: give both the same", 8, SimpleNamespace(page_size=4)
    ),
    no_as_page_size(TypeError, "page_size must be an int, got str '8'", "8", None),
    no_as_callback(TypeError, "on_node_evict is 5: give a function of a node id, or None", 5),
    no_as_callback(
        TypeError,
        "on_evict is [0, 0, 0, 0, 0, 0, ...]: give a function of a node id, or None",
        [0] * 99,
        "on_evict",
    ),
    no_chunk_cache(TypeError, "token_to_kv_pool_allocator is 5, which has no method free" + A_POOL, 5),
    no_chunk_cache(TypeError, NO_DEVICE, device=0),
]

no_as_integers = refusal_by(rows.as_integers)
no_as_index = refusal_by(rows.as_index)
no_check_range = refusal_by(rows.check_range)

INDICES = [
    *(
        refuse(error, f"rows {words}", "rows", numbers)
        for refuse in (no_as_integers, no_as_index)
        for error, words, numbers in (
            (TypeError, UNDER_A_MASK, MASKED),
            (ValueError, f"has {BEYOND}, which int64 does not have", wide(1, BEYOND, BEYOND + 1)),
            (ValueError, f"has {BEYOND}, which int64 does not have", np.array([[1], [BEYOND]], np.uint64)),
        )
    ),
    no_as_integers(
        TypeError, "rows must be a dense tensor, got layout torch.sparse_coo", "rows", ints(1).to_sparse()
    ),
    *(
        refuse(TypeError, f"rows must have an integer dtype, got {numbers.dtype}", "rows", numbers)
        for refuse in (no_as_integers, no_as_index)
        for numbers in (
            *(torch.tensor([True, False]), torch.tensor([1.0])),
            *(np.array([True]), np.array([1.0]), np.array(["1"])),
        )
    ),
    *(
        no_as_index(
            TypeError,
            f"rows must be a tensor, an array or a sequence of ints, got {type(given).__name__}",
            "rows",
            given,
        )
        for given in ("12", b"12", None, 5, {1: 2})
    ),
    no_as_index(TypeError, "rows must be an int, got float 2.0", "rows", [1, 2.0]),
    no_as_index(TypeError, "rows must be an int, got bool True", "rows", [1, True]),
    *(
        no_as_index(
            ValueError, f"rows has {number}, which int64 does not have", "rows", [200, -200, number, 2**70]
        )
        for number in (2**63, -(2**63) - 1)
    ),
    *(
        no_check_range(
            IndexError,
            f"row {first} is outside 0..4 ({wrong} of {len(numbers)} are); shrink",
            "row",
            numbers,
            5,
            "shrink",
        )
        for first, wrong, numbers in (
            (5, 2, ints(0, 5, -1)),
            (-1, 2, ints(-1, 7)),
            (2**63 - 1, 1, ints(2**63 - 1)),
            (-1, 1, ints(-1).to(torch.int8)),
        )
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


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("no such thing"),
        NotImplementedError("no such thing. Much more"),
        RuntimeError("no such thing\n"),
    ],
)
def test_a_device_that_this_machine_lacks_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """X1: torch has an error of its own for each device that it cannot use; here it is always one."""
    monkeypatch.setattr(arguments.torch, "empty", Mock(side_effect=error))
    with pytest.raises(ValueError, match=r"^device 'cuda:1' cannot be used here: no such thing$") as raised:
        arguments.as_device("cuda:1")
    assert raised.value.__cause__ is error


def test_a_device_without_memory_is_no_wrong_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: whoever catches torch's shortage of memory still can."""
    monkeypatch.setattr(arguments.torch, "empty", Mock(side_effect=torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        arguments.as_device("cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("make", [ReqToTokenPool, TokenToKVPoolAllocator])
def test_a_pool_on_a_gpu_that_is_not_there_is_a_wrong_value(make: Any) -> None:
    """X1: the promised ValueError, whatever torch itself says."""
    with pytest.raises(ValueError, match="device 'cuda' cannot be used here: "):
        make(8, 8, device="cuda") if make is ReqToTokenPool else make(8, device="cuda")


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", (MemoryError, "no memory for a table")), ("cuda", (RuntimeError, "enough"))],
)
def test_what_finds_no_memory_is_told_what_it_asked_for(
    monkeypatch: pytest.MonkeyPatch, device: str, expected: tuple[type[Exception], str]
) -> None:
    """X1: on the host a shortage is Python's own error, with the bytes; a device has torch's."""
    monkeypatch.setattr(arguments.torch, "zeros", Mock(side_effect=RuntimeError("enough")))
    with pytest.raises(expected[0], match=expected[1]):
        arguments.make_zeros("a table", (2, 3), torch.int32, torch.device(device))


def test_an_index_that_torch_cannot_read_is_torchs_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: an error of a device is not taken for a wrong argument."""
    monkeypatch.setattr(arguments.operator, "index", Mock(side_effect=RuntimeError("a device is lost")))
    with pytest.raises(RuntimeError, match="a device is lost"):
        arguments.as_int("row", torch.tensor(1))


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
INDEX = "index must be (row, slice), (rows, positions) or (row, position)"
FLAT = "values must have at most one dimension"
EACH = "entries of the table; give one for each"
INT32 = f"is outside 0..{2**31 - 1} (1 of 2 are); the table holds int32 slots; 0 is the padding slot"
LONGEST = "is outside 0..7 (1 of 2 are); max_context_len is the bound"
OF_ALLOC = "the rows that alloc hands out"

no_table = refusal_of(make_table)

ROWS_MADE = [
    *size_refusals(make_table, max_reqs=1, max_context_len=1),
    no_table(TypeError, NO_DEVICE, device=0),
    no_table(TypeError, NO_SWITCH, check_bounds=1),
    *(
        no_table(ValueError, f"{name} must be at most {MOST}, got {size}", **{name: size})
        for name in ("max_reqs", "max_context_len")
        for size in (2**31, 2**70)
    ),
]

no_free = refusal_of("free")
no_write = refusal_of("write")

ROWS = [
    *size_refusals(lambda pool, **n: pool.alloc(**n), n=0),
    no_free(TypeError, "slot must be an int, got str '1'", "1"),
    no_free(OwnershipError, f"row 0 is outside 1..3, {OF_ALLOC}", 0),
    no_free(OwnershipError, f"row 4 is outside 1..3, {OF_ALLOC}", 4),
    no_free(OwnershipError, f"row {BEYOND} is outside 1..3, {OF_ALLOC}", wide(BEYOND)),
    no_write(TypeError, f"values {UNDER_A_MASK}", (1, slice(0, 2)), MASKED),
    no_free(OwnershipError, f"row 3 {NOT_HANDED_OUT}", 3),
    no_write(TypeError, INDEX, [1, 2], [3]),
    no_write(TypeError, INDEX, (1, 2, 3), [3]),
    no_write(TypeError, "row must be an int, got str '1'", ("1", slice(0, 1)), [3]),
    no_write(OwnershipError, f"row -1 is outside 1..3, {OF_ALLOC}", (-1, slice(0, 1)), [3]),
    no_write(OwnershipError, f"row 3 {NOT_HANDED_OUT}", (3, slice(0, 1)), [3]),
    no_write(OwnershipError, f"row 0 is outside 1..3, {OF_ALLOC}", (0, slice(0, 1)), [3]),
    no_write(TypeError, "row must be an int, got bool True", (True, slice(0, 1)), [3]),
    no_write(TypeError, "values must be an int, got bool True", (1, 2), True),
    no_write(
        IndexError,
        f"value -1 {INT32}",
        (1, slice(0, 2)),
        [1, -1],
    ),
    no_write(
        TypeError,
        "rows must have an integer dtype, got torch.bool",
        (torch.tensor([False, True]), [0, 1]),
        [3, 4],
    ),
    no_write(
        IndexError,
        f"position -1 {LONGEST}",
        ([1, 2], [-1, 0]),
        [3, 4],
    ),
    no_write(
        ValueError, "the slice has step 2; only whole stretches can be written", (1, slice(0, 4, 2)), [3, 4]
    ),
    no_write(TypeError, "step must be an int, got float 1.0", (1, slice(0, 4, 1.0)), [3] * 4),
    no_write(TypeError, "start must be an int, got str '0'", (1, slice("0", 4)), [3] * 4),
    no_write(TypeError, "stop must be an int, got str '4'", (1, slice(0, "4")), [3] * 4),
    *(
        no_write(
            IndexError,
            f"positions {start}..{stop} are outside a row of 8; negative ends do not count from the end",
            (1, slice(start, stop)),
            [],
        )
        for start, stop in ((-1, 4), (0, 9), (-9, -1))
    ),
    no_write(ValueError, "the slice runs backwards, from 5 to 3", (1, slice(5, 3)), []),
    no_write(ValueError, "the slice runs backwards, from 5 to 0", (1, slice(5, 0)), []),
    no_write(
        ValueError,
        f"{FLAT}, got shape [1, 2]",
        (1, slice(0, 2)),
        ints(1, 2).view(1, 2),
    ),
    no_write(
        ValueError,
        f"{FLAT}, got shape [2, 1]",
        (1, slice(0, 2)),
        np.array([[1], [2]]),
    ),
    no_write(TypeError, "values must be an int, got float 1.0", (1, slice(0, 2)), [1.0, 2.0]),
    no_write(ValueError, f"1 values for 2 {EACH}", (1, slice(0, 2)), 7),
    no_write(
        IndexError,
        f"value {2**31} {INT32}",
        (1, slice(0, 2)),
        [5, 2**31],
    ),
    no_write(TypeError, "rows must be a tensor, an array or a sequence of ints, got str", ("1", [1]), [3]),
    no_write(
        TypeError, "positions must be a tensor, an array or a sequence of ints, got str", ([1], "1"), [3]
    ),
    no_write(ValueError, "2 rows with 1 positions; each entry needs both", ([1, 2], [3]), [4, 5]),
    no_write(ValueError, f"1 values for 2 {EACH}", ([1, 2], [3, 4]), [5]),
    no_write(
        IndexError, "row 4 is outside 0..3 (1 of 2 are); padded entries name row 0", ([1, 4], [3, 3]), [4, 5]
    ),
    no_write(OwnershipError, f"row 3 {NOT_HANDED_OUT}", ([1, 0, 3], [3, 3, 3]), [4, 5, 6]),
    no_write(OwnershipError, f"row 3 {NOT_HANDED_OUT}", (3, 3), 4),
    no_write(
        IndexError,
        f"position 8 {LONGEST}",
        ([1, 2], [3, 8]),
        [4, 5],
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


CONVERT = ", the pool stores torch.float32; convert it first"
IN_FULL = "; give its rows in full"
NO_ROW = "is outside 0..8 (1 of 2 are); padded tokens are written to slot 0"
NO_LAYER = "is outside 0..1; layers count from 0"

no_kv = refusal_of(make_kv)

KV_MADE = [
    *size_refusals(
        make_kv, size=1, layer_num=1, k_head_num=1, k_head_dim=1, v_head_num=1, v_head_dim=1, page_size=1
    ),
    no_kv(ValueError, "size 9 is not a multiple of page_size 4; use 8", size=9, page_size=4),
    no_kv(ValueError, "size 3 is not a multiple of page_size 4; use 4", size=3, page_size=4),
    no_kv(TypeError, NO_DEVICE, device=0),
    no_kv(TypeError, NO_DTYPE, dtype="half"),
    no_kv(ValueError, f"dtype torch.quint8 {PACKED}", dtype=torch.quint8),
    no_kv(TypeError, NO_SWITCH, check_bounds=1),
    no_kv(TypeError, "fused must be True, False or None, got int 1", fused=1),
    no_kv(TypeError, "pin_memory must be True or False, got 1", pin_memory=1),
]

no_kv_write = refusal_of(write_kv)

KV = [
    *(
        refusal_of(name)(IndexError, f"layer_id 2 {NO_LAYER}", 2)
        for name in ("get_key_buffer", "get_value_buffer", "get_kv_buffer")
    ),
    no_kv_write(IndexError, f"layer_id -1 {NO_LAYER}", layer_id=-1),
    no_kv_write(TypeError, "layer_id must be an int, got str '0'", layer_id="0"),
    no_kv_write(TypeError, "indices must be a tensor, got list", indices=[1, 2]),
    no_kv_write(TypeError, "indices must have an integer dtype, got torch.float32", indices=torch.ones(2)),
    no_kv_write(TypeError, "k must be a tensor, got list", k=[[1.0]]),
    no_kv_write(TypeError, "v must be a tensor, got NoneType", v=None),
    no_kv_write(
        TypeError,
        f"k has dtype torch.float16{CONVERT}",
        k=torch.ones(2, 2, 4).half(),
    ),
    no_kv_write(
        TypeError,
        f"v has dtype torch.int64{CONVERT}",
        v=torch.ones(2, 1, 3).long(),
    ),
    no_kv_write(
        ValueError, "k is on meta, the pool on cpu; move it first", k=torch.ones(2, 2, 4, device="meta")
    ),
    no_kv_write(
        TypeError,
        f"v is no dense tensor (layout torch.sparse_coo){IN_FULL}",
        v=torch.ones(2, 1, 3).to_sparse(),
    ),
    *(
        no_kv_write(
            ValueError,
            f"k of shape {list(shape)} does not hold 2 rows of 2 * 4 elements, one for each index",
            k=torch.ones(shape),
        )
        for shape in ((2, 4, 4), (1, 2, 4), (3, 2, 4), (), (16,), (2, 1, 4), (4, 2, 2))
    ),
    *(
        no_kv_write(
            ValueError,
            f"v of shape {list(shape)} does not hold 2 rows of 1 * 3 elements, one for each index",
            v=torch.ones(shape),
        )
        for shape in ((3, 1, 3), (1, 1, 3), (3,), (2, 2, 4))
    ),
    no_kv_write(
        ValueError,
        "k of shape [2, 2, 4] does not hold 3 rows of 2 * 4 elements, one for each index",
        indices=ints(1, 2, 3),
    ),
    no_kv_write(
        TypeError,
        f"v is no dense tensor (layout torch.jagged){IN_FULL}",
        v=torch.nested.nested_tensor([torch.ones(1, 3)] * 2, layout=torch.jagged),
    ),
    no_kv_write(
        TypeError,
        "indices must be a dense tensor, got layout torch.sparse_coo",
        indices=ints(1, 2).to_sparse(),
    ),
    no_kv_write(
        IndexError,
        f"slot -1 {NO_ROW}",
        indices=ints(-1, 1),
    ),
    no_kv_write(
        IndexError,
        f"slot 9 {NO_ROW}",
        indices=ints(1, 9),
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

no_states = refusal_of(make_states)

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
    no_states(TypeError, NO_DEVICE, device=0),
    no_states(TypeError, NO_DTYPE, dtype="half"),
    no_states(TypeError, NO_SWITCH, check_bounds=1),
    no_states(TypeError, "fused must be True, False or None, got int 1", fused=1),
]

no_get_layer_state = refusal_of("get_layer_state")
no_reset_states = refusal_of("reset_states")
no_copy_states = refusal_of("copy_states")
no_free_track_slot = refusal_of("free_track_slot")

STATES = [
    no_get_layer_state(TypeError, "gdn_layer_idx must be an int, got str '0'", "0"),
    no_get_layer_state(IndexError, "gdn_layer_idx 2 is outside 0..1", 2),
    no_get_layer_state(IndexError, "gdn_layer_idx -1 is outside 0..1", -1),
    no_reset_states(IndexError, f"req_pool_indices 6 is outside 0..5; {PADDING}", 6),
    no_reset_states(TypeError, "req_pool_indices must be an int, got bool True", True),
    no_reset_states(IndexError, f"req_pool_indices 6 is outside 0..5 (1 of 2 are); {PADDING}", [1, 6]),
    no_copy_states(IndexError, f"src_index -1 is outside 0..5; {PADDING}", -1, 2),
    no_copy_states(IndexError, f"dst_index 6 is outside 0..5; {PADDING}", 1, 6),
    no_copy_states(IndexError, f"src_index 7 is outside 0..5 (1 of 1 are); {PADDING}", [7], [2]),
    no_copy_states(IndexError, f"dst_index 8 is outside 0..5 (1 of 1 are); {PADDING}", [1], ints(8)),
    no_copy_states(TypeError, "src_index must have an integer dtype, got torch.float32", torch.ones(1), [2]),
    no_copy_states(ValueError, "3 rows to read and 2 to write; they must be equally many", [1, 2, 3], [4, 5]),
    no_copy_states(ValueError, "1 rows to read and 2 to write; they must be equally many", 1, [4, 5]),
    no_free_track_slot(TypeError, "slot must be an int, got str '4'", "4"),
    *(
        no_free_track_slot(
            OwnershipError,
            f"track slot {slot} is not handed out; track slots are 4..5 and each is freed once",
            slot,
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
    refusal_of(make)(error, words, **changes)
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


OF_THE_POOL = "this pool hands out slots 1..8; pass slots that alloc returned"
OF_ITS_PAGES = "this pool hands out slots 2..9; pass slots that alloc returned"
ONCE = "give each one back once, after alloc returned it"
NO_GROUP = "no free group is open: call free_group_begin first"
NESTED = "a free group is open already: call free_group_end first, groups do not nest"

OF_BOTH = [
    *size_refusals(lambda pool, **n: pool.alloc(**n), need_size=0),
    no_free(TypeError, "indices must be a tensor of integers, got list", [2]),
    no_free(TypeError, "indices must be integers, got a tensor of torch.float32", torch.ones(1)),
    no_free(TypeError, "indices must be integers, got a tensor of torch.bool", torch.tensor([True])),
    no_free(
        TypeError,
        "indices must be integers, got a tensor of torch.bfloat16",
        torch.ones(1, dtype=torch.bfloat16),
    ),
    Refusal(lambda pool: pool.free_group_end(), RuntimeError, NO_GROUP),
]

SLOTS = [
    no_free(OwnershipError, f"slot 0 is padding and belongs to nobody: {OF_THE_POOL}", ints(1, 0)),
    *(
        no_free(OwnershipError, f"slot {slot} is outside the pool: {OF_THE_POOL}", ints(*named))
        for slot, named in ((9, (1, 9)), (-1, (-1, 1, 2)), (2**40, (1, 2**40, 2)))
    ),
    no_free(OwnershipError, f"slot {BEYOND} is outside the pool: {OF_THE_POOL}", wide(1, BEYOND, BEYOND + 1)),
    no_free(OwnershipError, f"slot 5 is not handed out: {ONCE}", ints(1, 5)),
    no_free(OwnershipError, "slot 2 is named more than once in one call: name each slot once", ints(1, 2, 2)),
]

PAGES = [
    no_free(
        OwnershipError,
        f"slot 1 is padding and belongs to nobody: {OF_ITS_PAGES}",
        ints(2, 1),
    ),
    *(
        no_free(
            OwnershipError,
            f"slot {slot} is outside the pool: {OF_ITS_PAGES}",
            ints(2, slot),
        )
        for slot in (10, -1)
    ),
    no_free(OwnershipError, f"page 3 of slot 7 is not handed out: {ONCE}", ints(2, 7)),
]

no_free_swa = refusal_of("free_swa")
no_translate_to_swa = refusal_of("translate_to_swa")
no_move_swa = refusal_of("move_swa")

HALVES = [
    no_free_swa(OwnershipError, f"slot 0 is padding and belongs to nobody: {OF_THE_POOL}", ints(1, 0)),
    no_free_swa(OwnershipError, f"slot 9 is outside the pool: {OF_THE_POOL}", ints(1, 9)),
    no_free_swa(
        OwnershipError, "slot 1 is named more than once in one call: name each slot once", ints(1, 2, 1)
    ),
    no_free_swa(OwnershipError, "slot 3 has no SWA half any more: free_swa a slot once", ints(1, 3)),
    no_free_swa(OwnershipError, f"slot 5 is not handed out: {ONCE}", ints(1, 5)),
    no_translate_to_swa(
        OwnershipError,
        f"slot 9 is outside the pool: {OF_THE_POOL}",
        ints(1, 9),
    ),
    no_translate_to_swa(
        OwnershipError,
        f"slot -1 is outside the pool: {OF_THE_POOL}",
        ints(1, -1),
    ),
    no_translate_to_swa(OwnershipError, f"slot {BEYOND} is outside the pool: {OF_THE_POOL}", wide(1, BEYOND)),
    no_move_swa(ValueError, "move_swa pairs slots one to one, got 2 src and 1 dst", ints(1, 2), ints(3)),
    *(
        no_move_swa(OwnershipError, words, ints(*src), ints(*dst))
        for src, dst, words in (
            ((1, 3), (4, 4), "slot 4 is named more than once in one call: name each slot once"),
            ((1, 1), (3, 4), "slot 1 is named more than once in one call: name each slot once"),
            ((3, 1), (4, 4), "slot 4 is named more than once in one call: name each slot once"),
            ((1, 3), (4, 3), "slot 3 has no SWA half to move"),
            ((1, 2), (3, 1), "slot 1 has an SWA half: free_swa it before"),
            ((1, 0), (3, 4), f"slot 0 is padding and belongs to nobody: {OF_THE_POOL}"),
            ((1, 2), (3, 9), f"slot 9 is outside the pool: {OF_THE_POOL}"),
            ((1, 8), (3, 4), f"slot 8 is not handed out: {ONCE}"),
            ((1, 2), (3, 8), f"slot 8 is not handed out: {ONCE}"),
        )
    ),
]

PAIRS = (
    "src and dst do not pair pages of 2 slots: pass the slots of a page together, to one page, "
    "in the same places"
)

HALF_PAGES = [
    no_free_swa(OwnershipError, "page 4 has no SWA half any more: free_swa a slot once", ints(2, 8)),
    *(
        no_move_swa(ValueError, PAIRS, ints(*src), ints(*dst))
        for src, dst in (
            ((2, 3), (7, 6)),  # other places
            ((2, 4), (6, 6)),  # two pages to one
            ((2, 3), (6, 9)),  # one page to two
            ((2, 4, 3), (6, 8, 9)),  # crossed
        )
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


@pytest.mark.notices("B91")
@stores
@all_refusals(OF_BOTH, SLOTS)
@pytest.mark.parametrize("make", [make_tokens, make_pairs])
def test_a_refused_slot_is_nobodys_loss(make: Any, store: dict[str, Any], refusal: Refusal) -> None:
    """X1, A5: reserved, outside, free and repeated are told apart, whichever store keeps the trackers."""
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
    pool.alloc(8)
    pool.free_swa(ints(6, 7, 8, 9))
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
    check_refusal(pool, no_free(OwnershipError, words, slots[:1]))
    check_refusal(pool, Refusal(lambda it: it.free_group_begin(), RuntimeError, NESTED))


@pytest.mark.parametrize("make", [make_tokens, make_pairs])
def test_more_than_is_handed_out_is_refused_without_a_record_of_slots(make: Any) -> None:
    """X1, A5: where nobody checks who owns what, the number still tells."""
    pool = make(need_sort=False, check_ownership=False)
    pool.alloc(1)
    words = f"2 pages are given back and 1 are handed out: {ONCE}"
    check_refusal(pool, no_free(OwnershipError, words, ints(1, 2)))


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
