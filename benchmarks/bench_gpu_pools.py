"""The times of the data pools on a GPU, beside torch's own calls and a copy of as many bytes.

Times are between events, over sets of data that take turns and are four times the last cache together.
`graph` is a replay, without what the host does for a launch; `launches` has it. On the CPU sizes are small
and there is one sample: a rehearsal.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu_results import GpuResults
from benchmarks.gpu_timing import sets_for
from pymllm.mem_cache.memory_pool import GDNPool, KVPool, ReqToTokenPool
from pymllm.mem_cache.pools.rows import bit_view
from tests.stress.card import Card

HEADS, DIM, DTYPE = 8, 128, torch.bfloat16
ROW_BYTES = HEADS * DIM * 2
TOKENS = [1, 8, 64, 256, 1_024, 4_096, 65_536]
SMALL = 256
SHARE_OF_A_COPY, LAUNCHES_BESIDE_TORCH = 0.85, 1.2


def bytes_to_copy(card: Card, count: int, sets: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and targets of a plain copy of ``count`` bytes, for each set its own."""
    source = torch.ones((sets, count), dtype=torch.uint8, device=card.device)
    return source, torch.zeros_like(source)


@pytest.mark.parametrize("in_graph", [True, False], ids=["graph", "launches"])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("tokens", TOKENS)
def test_store_keys_and_values(
    card: Card, gpu_results: GpuResults, tokens: int, index_dtype: torch.dtype, in_graph: bool
) -> None:
    """P3: keys and values of 8 heads x 128 in bfloat16; torch's pair of ``index_put_`` has int64 indices."""
    tokens = tokens if card.is_cuda else min(tokens, 16)
    moved = 2 * 2 * tokens * ROW_BYTES
    sets = sets_for(card, moved)
    pool = KVPool(max(sets * tokens, 1 << 18 if card.is_cuda else 1), 1, HEADS, DIM, card.device, DTYPE)
    order = torch.randperm(pool.size, generator=torch.Generator().manual_seed(tokens))[: sets * tokens] + 1
    long = order.to(card.device).view(sets, tokens)
    slots = long.to(index_dtype)
    k = torch.randn((sets, tokens, HEADS, DIM), device=card.device, dtype=DTYPE)
    v = torch.randn_like(k)
    source, target = bytes_to_copy(card, 2 * tokens * ROW_BYTES, sets)
    k_buffer, v_buffer = pool.get_kv_buffer(0)

    def put(number: int) -> None:
        k_buffer.index_put_((long[number],), k[number])
        v_buffer.index_put_((long[number],), v[number])

    contenders = {
        "set_kv_buffer": lambda number: pool.set_kv_buffer(0, slots[number], k[number], v[number]),
        "index_put_": put,
        "copy": lambda number: target[number].copy_(source[number]),
    }
    case = {"tokens": tokens, "indices": str(index_dtype).removeprefix("torch."), "heads": HEADS, "dim": DIM}
    gpu_results.measure("store keys and values", case, contenders, moved=moved, sets=sets, in_graph=in_graph)
    if tokens == max(TOKENS):
        gpu_results.judge("share of a copy's speed", "set_kv_buffer", "copy", at_least=SHARE_OF_A_COPY)
    if tokens <= SMALL:
        bound = 1.0 if in_graph else LAUNCHES_BESIDE_TORCH
        gpu_results.judge("time beside index_put_", "set_kv_buffer", "index_put_", at_most=bound)
    k_buffer.zero_()
    v_buffer.zero_()
    for number in range(sets):
        contenders["set_kv_buffer"](number)
    assert torch.equal(bit_view(k_buffer)[long], bit_view(k))
    assert torch.equal(bit_view(v_buffer)[long], bit_view(v))


@pytest.mark.parametrize("in_graph", [True, False], ids=["graph", "launches"])
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_copy_states(card: Card, gpu_results: GpuResults, rows: int, in_graph: bool) -> None:
    """P5: snapshots of 12 layers with 32 heads of 128 x 128 in float32, 24 MiB each and a little."""
    heads, width, conv = (32, 128, 8_192) if card.is_cuda else (2, 4, 16)
    rows = rows if card.is_cuda else min(rows, 8)
    most = 64 if card.is_cuda else 8
    pool = GDNPool(most, 12, heads, width, width, conv, 4, card.device, torch.bfloat16, max_track_slots=most)
    states = (bit_view(pool.recurrent_state), bit_view(pool.conv_state))
    pool.recurrent_state.normal_()
    pool.conv_state.normal_()
    row_bytes = sum(state[:, 0].nbytes for state in states)
    moved = 2 * rows * row_bytes
    sets = min(sets_for(card, moved), most // rows)
    src = torch.arange(1, sets * rows + 1, device=card.device).view(sets, rows)
    dst = src.flip(0, 1) + most
    source, target = bytes_to_copy(card, rows * row_bytes, 1)

    def index(number: int) -> None:
        for state in states:
            state.index_copy_(1, dst[number], state.index_select(1, src[number]))

    contenders = {
        "copy_states": lambda number: pool.copy_states(src[number], dst[number]),
        "index_copy_": index,
        "copy": lambda number: target[0].copy_(source[0]),
    }
    case = {"rows": rows, "layers": 12, "row_bytes": row_bytes}
    gpu_results.measure("copy states", case, contenders, moved=moved, sets=sets, in_graph=in_graph)
    if rows == 64:
        gpu_results.judge("share of a copy's speed", "copy_states", "copy", at_least=SHARE_OF_A_COPY)
    pool.recurrent_state[:, most + 1 :].zero_()
    pool.conv_state[:, most + 1 :].zero_()
    for number in range(sets):
        contenders["copy_states"](number)
    for state in states:
        assert torch.equal(state[:, dst.flatten()], state[:, src.flatten()])


@pytest.mark.parametrize("in_graph", [True, False], ids=["graph", "launches"])
def test_reset_states(card: Card, gpu_results: GpuResults, in_graph: bool) -> None:
    """P5: eight rows of 12 layers, beside zeros over as many bytes."""
    heads, width, conv = (32, 128, 8_192) if card.is_cuda else (2, 4, 16)
    pool = GDNPool(64, 12, heads, width, width, conv, 4, card.device, torch.bfloat16)
    pool.recurrent_state.fill_(1)
    pool.conv_state.fill_(1)
    rows = torch.arange(1, 65, device=card.device).view(8, 8)
    row_bytes = pool.mem_bytes() // pool.pool_size
    plain = torch.ones((8, 8 * row_bytes), dtype=torch.uint8, device=card.device)
    contenders = {
        "reset_states": lambda number: pool.reset_states(rows[number]),
        "zero_": lambda number: plain[number].zero_(),
    }
    case = {"rows": 8, "layers": 12, "row_bytes": row_bytes}
    gpu_results.measure("reset states", case, contenders, moved=8 * row_bytes, sets=8, in_graph=in_graph)
    assert not pool.recurrent_state[:, 1:].any()
    assert not pool.conv_state[:, 1:].any()
    assert pool.recurrent_state[:, 0].all()


@pytest.mark.parametrize("in_graph", [True, False], ids=["graph", "launches"])
@pytest.mark.parametrize("requests", [1, 64, 256])
def test_enter_one_slot_for_each_request(
    card: Card, gpu_results: GpuResults, requests: int, in_graph: bool
) -> None:
    """P2: a decode step's one table write."""
    pool = ReqToTokenPool(256, 8_192, card.device)
    sets = 16
    rows = torch.tensor(pool.alloc(requests), device=card.device)
    positions = torch.arange(sets * requests, device=card.device).view(sets, requests) % 8_192
    slots = torch.arange(1, sets * requests + 1, dtype=torch.int32, device=card.device).view(sets, requests)
    table = pool.req_to_token
    contenders = {
        "write": lambda number: pool.write((rows, positions[number]), slots[number]),
        "index_put_": lambda number: table.index_put_((rows, positions[number]), slots[number]),
    }
    gpu_results.measure(
        "enter slots", {"requests": requests}, contenders, moved=8 * requests, sets=sets, in_graph=in_graph
    )
    table.zero_()
    for number in range(sets):
        contenders["write"](number)
    assert torch.equal(table[rows, positions], slots)
