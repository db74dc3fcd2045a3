"""Tests of the states that the requests of a step leave: offsets, commit, and starting anew."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pymllm.core.inference.contexts import mamba_slot_allocator
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotCapacityError
from pymllm.errors import CapacityError

MakeContext = Callable[..., Any]
ReadBits = Callable[[torch.Tensor], torch.Tensor]


def request(length: int, finished: int = 0) -> SimpleNamespace:
    return SimpleNamespace(prompt_tokens=list(range(length)), finished_chunk_token_count=finished)


def prefill(context: Any, rows: dict[int, list[int]], lengths: list[int], **options: Any) -> None:
    """Let requests in adjacent rows compute their whole prompts in this step."""
    for (row, blocks), length in zip(rows.items(), lengths, strict=True):
        context.request_to_kv_block_ids[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        context.slots.compute_and_store_offsets(
            request(length), row, 0, length, options.get("matched", 0), [], -(-length // 4)
        )
    first = min(rows)
    context.set_batch(decode=first, prefill=len(rows))
    counts = [len(context.slots._offsets.of_request[row].offsets) for row in rows]
    context.mamba_metadata.per_request_intermediate_counts = counts
    context.mamba_metadata.intermediate_count = sum(counts)


def test_the_documented_constant_and_errors_are_here() -> None:
    """Reference; C5: the capacity error is importable from this module, and a CapacityError."""
    assert mamba_slot_allocator.MAX_INTERMEDIATE_OFFSETS_PER_REQUEST == 3
    assert issubclass(MambaSlotCapacityError, CapacityError)
    assert issubclass(MambaSlotCapacityError, RuntimeError)


# Block size 4, chunk size 2: (prompt, finished, skip, chunk, matched, required) -> offsets, blocks, end
OFFSETS = [
    pytest.param(
        (15, 0, 0, 15, 1, 4), [4, 12], [10, 12], -1, id="where the KV ended, and the last whole block"
    ),
    pytest.param((15, 0, 4, 15, 2, 4), [4, 8], [11, 12], -1, id="counted from behind what is skipped"),
    pytest.param((16, 0, 0, 16, 0, 4), [12], [12], 13, id="a prompt of whole blocks keeps its end"),
    pytest.param((16, 8, 0, 8, 0, 4), [4], [12], 13, id="in the last chunk"),
    pytest.param((16, 0, 0, 8, 0, 2), [4], [10], -1, id="and in no other"),
    pytest.param((15, 6, 0, 9, 0, 4), [6], [12], -1, id="counted from the first token of a later chunk"),
    pytest.param(
        (15, 6, 0, 9, 2, 4), [2, 6], [11, 12], -1, id="where the KV ended, reached in a later chunk"
    ),
    pytest.param((15, 5, 0, 10, 0, 4), [], [], -1, id="the kernel has no state at odd distances"),
    pytest.param((12, 0, 0, 12, 3, 3), [8], [11], 12, id="not at the end of the chunk"),
    pytest.param((3, 0, 0, 3, 0, 1), [], [], -1, id="not within the first block"),
    pytest.param((4, 0, 4, 4, 1, 1), [], [], 10, id="nothing computed"),
    pytest.param((7, 0, 0, 7, 0, 2), [4], [10], -1, id="the first block"),
    pytest.param((17, 0, 0, 17, 2, 4), [8, 12, 16], [11, 12, 13], -1, id="all three"),
]


@pytest.mark.notices("B86", when="the first block")
@pytest.mark.notices("B80")
@pytest.mark.parametrize(("given", "offsets", "blocks", "end"), OFFSETS)
def test_offsets_are_where_a_state_is_worth_keeping(
    make_context: MakeContext, given: tuple[int, ...], offsets: list[int], blocks: list[int], end: int
) -> None:
    """C8: three boundaries, strictly inside what is computed, where the kernel has a state."""
    context = make_context(blocks=16)
    context.request_to_kv_block_ids[2, :5] = torch.arange(10, 15)
    prompt, finished, skip, chunk, matched, required = given
    context.slots.compute_and_store_offsets(
        request(prompt, finished), 2, skip, chunk, matched, [10, 11, 12][:matched], required
    )
    left = context.slots._offsets.of_request[2]
    assert list(left.offsets) == offsets
    assert list(left.depths) == [finished + skip + offset for offset in offsets]
    assert list(left.blocks) == blocks
    assert left.end_block == end


@pytest.mark.parametrize(("length", "end"), [(0, -1), (1, 10), (2, 11)])
def test_a_block_may_be_a_single_token(make_context: MakeContext, length: int, end: int) -> None:
    """C8: every prompt is block-aligned then, but one without tokens ends nowhere."""
    context = make_context(blocks=16)
    context.block_size_tokens = 1
    context.request_to_kv_block_ids[0, :2] = torch.tensor([10, 11])
    context.slots.compute_and_store_offsets(request(length), 0, 0, length, 0, [], length)
    assert context.slots._offsets.of_request[0].end_block == end


@pytest.mark.parametrize("as_table", [torch.Tensor.tolist, torch.Tensor.numpy])
def test_the_block_table_may_be_anything(make_context: MakeContext, as_table: Callable[..., Any]) -> None:
    """Specification, blocks: any context."""
    context = make_context(blocks=16)
    table = torch.full((4, 6), -1, dtype=torch.int32)
    table[1, :3] = torch.tensor([7, 8, 9])
    context.request_to_kv_block_ids = as_table(table)
    context.slots.compute_and_store_offsets(request(12), 1, 0, 12, 1, [7], 3)
    left = context.slots._offsets.of_request[1]
    assert (left.blocks, left.end_block) == ((7, 8), 9)


def test_the_device_sees_the_prefill_batch(make_context: MakeContext, device: torch.device) -> None:
    """Reference: [prefill_count, 3] and [prefill_count]; paused and decoding requests come before it."""
    context = make_context(max_requests=6, device=device)
    assert context.slots.get_intermediate_gpu_data() == (None, None)
    prefill(context, {3: [0, 1, 2], 4: [3, 4, 5, 6, 7]}, [9, 18])
    context.set_batch(paused=1, decode=2, prefill=2)
    offsets, counts = context.slots.get_intermediate_gpu_data()
    assert offsets.device.type == device.type
    assert offsets.tolist() == [[8, 0, 0], [16, 0, 0]]
    assert counts.tolist() == [1, 1]
    context.set_batch(paused=1, decode=2, prefill=0)
    assert context.slots.get_intermediate_gpu_data() == (None, None)


def test_a_commit_keeps_what_every_request_left(
    make_context: MakeContext, read_bits: ReadBits, device: torch.device
) -> None:
    """C7: outputs and live states of all requests of the batch, bit for bit, known under their hashes."""
    context = make_context(max_slots=8, device=device)
    prefill(context, {1: [0, 1, 2], 2: [3, 4, 5, 6], 3: [7]}, [12, 14, 4])
    hashes = context.register(list(range(8)))
    slots = context.slots
    outs = [read_bits(slots.intermediate_conv_out), read_bits(slots.intermediate_ssm_out)]
    live = [read_bits(context.mamba_conv_states), read_bits(context.mamba_ssm_states)]
    before = [read_bits(slots.conv_states), read_bits(slots.ssm_states)]
    slots.commit_intermediate_states()
    found = [read_bits(slots.conv_states), read_bits(slots.ssm_states)]
    from_outs, from_live = {1: 0, 5: 1}, {2: 1, 7: 3}  # blocks; request 3 - row is the live row
    assert slots.hash_to_block_id == {hashes[block]: block for block in (1, 5, 2, 7)}
    for kind in (0, 1):
        for block, source in from_outs.items():
            assert torch.equal(found[kind][:, slots.get_slot(block)], outs[kind][:, source])
        for block, row in from_live.items():
            assert torch.equal(found[kind][:, slots.get_slot(block)], live[kind][:, 3 - row])
        untouched = slots.free_slots[: slots.free_count].long()
        assert torch.equal(found[kind][:, untouched], before[kind][:, untouched])
    assert slots.free_count == 4
    assert slots._offsets.of_request == {}
    slots.commit_intermediate_states()
    assert slots.free_count == 4, "what was committed is not committed again"


@pytest.mark.parametrize("hash_value", [1, 2**63 - 1])
def test_a_state_is_kept_under_the_least_hash_and_the_largest(
    make_context: MakeContext, hash_value: int
) -> None:
    """C4: from 1 on a block has a hash."""
    context = make_context(max_slots=8)
    prefill(context, {0: [0, 1, 2]}, [12])
    context.kv_block_allocator.register_kv_block_hashes([2], [hash_value], [0])
    context.slots.commit_intermediate_states()
    assert context.slots.hash_to_block_id == {hash_value: 2}


@pytest.mark.parametrize(
    ("count", "per_request", "expected"),
    [
        (2, [1, 1], [6, 1]),
        (1, [1, 1], [1]),
        (0, [1, 1], []),
        (1, [0, 1], [6]),
        (1, [1], [1]),
        (4, [2, 2], [6, 1]),
    ],
)
def test_only_what_was_extracted_is_collected(
    make_context: MakeContext, count: int, per_request: list[int], expected: list[int]
) -> None:
    """C7: the metadata says what the forward pass put where; beyond its count nothing is read."""
    context = make_context()
    prefill(context, {0: [0, 1, 2], 1: [3, 4, 5, 6, 7]}, [9, 17])
    context.register(list(range(8)))
    context.request_to_kv_block_ids.fill_(-1)
    context.slots._offsets.of_request |= {
        0: mamba_slot_allocator.Snapshots((4,), (8,), (1,), -1, 9),
        1: mamba_slot_allocator.Snapshots((4,), (16,), (6,), -1, 17),
    }
    context.mamba_metadata.intermediate_count = count
    context.mamba_metadata.per_request_intermediate_counts = per_request
    collected = context.slots._collect_commit_data()
    assert (collected[0] if collected else []) == expected


@pytest.mark.parametrize(("counts", "error"), [([-1], ValueError), ([0.5], TypeError)])
def test_counts_that_are_none_commit_nothing(
    make_context: MakeContext, counts: list[Any], error: type[Exception]
) -> None:
    """X1, C7: one clear error, and the step's offsets are gone."""
    context = make_context()
    prefill(context, {0: [0, 1, 2]}, [12])
    context.register([1, 2])
    context.mamba_metadata.per_request_intermediate_counts = counts
    before = context.tracker()
    with pytest.raises(error, match="per_request_intermediate_counts"):
        context.slots.commit_intermediate_states()
    assert context.tracker() == before
    assert context.slots._offsets.of_request == {}


AS_TABLE: dict[str, Callable[[torch.Tensor], Any]] = {
    "lists": torch.Tensor.tolist,
    "arrays": torch.Tensor.numpy,
    "int64": torch.Tensor.long,
    "int16": lambda table: table.to(torch.int16),
    "GPU": torch.Tensor.cuda,
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.gpu if kind == "GPU" else ()) for kind in AS_TABLE]
)
def test_a_context_keeps_its_tables_as_it_likes(make_context: MakeContext, kind: str) -> None:
    """Blocks: any object with these attributes; offsets, commit, eviction and restore agree."""
    results = []
    for convert in (torch.clone, AS_TABLE[kind]):
        context = make_context(max_slots=3, device="cuda" if kind == "GPU" else "cpu")
        prefill(context, {1: [0, 1, 2], 2: [3, 4, 5, 6]}, [12, 14])
        context.register(list(range(8)))
        kv, metadata = context.kv_block_allocator, context.mamba_metadata
        kv.release_memory_blocks([0, 1, 2])
        rows = metadata.request_to_mamba_state_idx
        context.kv_block_allocator = SimpleNamespace(
            block_ref_counts=convert(kv.block_ref_counts),
            block_timestamps=convert(kv.block_timestamps),
            block_hashes=convert(kv.block_hashes),
        )
        context.request_to_kv_block_ids = convert(context.request_to_kv_block_ids)
        metadata.request_to_mamba_state_idx = convert(rows)
        metadata.per_request_intermediate_counts = convert(torch.tensor([1, 1]))
        metadata.intermediate_count = convert(torch.tensor(2)) if kind != "arrays" else 2
        context.slots.compute_and_store_offsets(request(14), 2, 0, 14, 0, [], 4)
        offsets, counts = context.slots.get_intermediate_gpu_data()
        context.slots.commit_intermediate_states()
        tracker = context.tracker()
        context.slots.allocate_slots_batch([6])
        assert context.slots.restore_to_live(3, 5)
        states = [context.slots.ssm_states, context.mamba_ssm_states]
        results.append(
            (
                tracker,
                context.tracker(),
                offsets.tolist(),
                counts.tolist(),
                [s.view(torch.int32).tolist() for s in states],
            )
        )
    assert results[0] == results[1]
    assert results[0][0] != results[0][1], "something was evicted"


def test_live_states_of_another_form_stop_a_commit_before_it_begins(make_context: MakeContext) -> None:
    """C7, X1: no state is evicted for one that cannot be copied, and the step's offsets are gone."""
    context = make_context(max_slots=1)
    prefill(context, {0: [0, 1, 2]}, [12])
    context.register([1, 2, 5])
    context.slots.allocate_slots_batch([5])
    context.kv_block_allocator.release_memory_blocks([5])
    context.mamba_conv_states = context.mamba_conv_states.double()
    before = context.tracker()
    with pytest.raises(ValueError, match="only the rows may differ"):
        context.slots.commit_intermediate_states()
    assert context.tracker() == before
    assert context.slots._offsets.of_request == {}


@pytest.mark.notices("B76")
def test_a_commit_that_fails_half_way_publishes_nothing(
    make_context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2, C7, B76: a slot that was never filled, or only in part, is not found by anybody."""
    context = make_context(max_slots=8)
    context.slots.allocate_slots_batch([1, 7])
    prefill(context, {0: [0, 1, 2]}, [12])
    context.register([1, 2])

    def fail(slots: list[int], requests: list[int]) -> None:
        raise MemoryError("no room on the device")

    monkeypatch.setattr(context.slots, "store_from_live_batch", fail)
    with pytest.raises(MemoryError):
        context.slots.commit_intermediate_states()
    assert [context.slots.has_state(block) for block in (1, 2, 7)] == [False, False, True]
    assert context.slots.hash_to_block_id == {}
    assert context.slots.free_count == 7


@pytest.mark.gpu
def test_offsets_reach_a_captured_graph(make_context: MakeContext) -> None:
    """Fixed addresses; no call of a step but the first waits for the GPU."""
    context = make_context(device="cuda", max_slots=8)
    prefill(context, {0: [0, 1, 2]}, [9])
    offsets, counts = context.slots.get_intermediate_gpu_data()
    graph, seen = torch.cuda.CUDAGraph(), torch.zeros(4, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        seen[:3].copy_(offsets[0])
        seen[3:].copy_(counts)
    context.register(list(range(8)))
    context.slots.commit_intermediate_states()
    torch.cuda.set_sync_debug_mode("error")
    try:
        prefill(context, {2: [3, 4, 5, 6]}, [14])
        context.slots.get_intermediate_gpu_data()
        graph.replay()
        context.slots.commit_intermediate_states()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert seen.tolist() == [12, 0, 0, 1]
