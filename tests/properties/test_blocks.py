"""Block contexts and arguments of every kind: what is refused has changed nothing."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts import KVBlockAllocator, MambaSlotAllocator
from pymllm.errors import CapacityError

BLOCKS, SLOTS, ROWS = 9, 3, 3

READ_ONLY = np.array([0, 1])
READ_ONLY.flags.writeable = False

# What callers have given by mistake, and some things that are no mistake.
ANYTHING: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 8, 9, 2**40, 2**63, 2**70, 1.5, float("nan"), 1j, "1", b"1", object()),
    *([], [0], [0, 0], [0, 1], [-1], [8], [9], [1.5], [True], [None], ["a"], [[0], [1]], [[0], [1, 2]]),
    *((0, 1), range(2), range(0), {0, 1}, {0: 1}, memoryview(b"ab"), bytearray(b"ab"), SimpleNamespace()),
    *(np.array([0, 1], dtype) for dtype in ("i4", ">i4", "u8", "f4", "O", "?")),
    *(np.array([0.5]), np.array([], float), np.array(["a"]), np.array(3), READ_ONLY, READ_ONLY[::-1]),
    *(np.int16(2), np.float32(2), np.bool_(True)),
    *(torch.tensor([0, 1], dtype=dtype) for dtype in (torch.int32, torch.uint16, torch.bool, torch.float16)),
    *(
        torch.tensor(1),
        torch.tensor(0.5),
        torch.tensor([[0, 1]]),
        torch.empty(0),
        torch.tensor([0, 1]).to_sparse(),
    ),
    *(torch.zeros(3), torch.zeros(2, 2), torch.zeros(3, requires_grad=True), torch.zeros(2, 2).double()),
)

REQUEST = SimpleNamespace(prompt_tokens=range(9), finished_chunk_token_count=0)

# Arguments that are right; the test puts anything in the place of each.
SLOT_CALLS: dict[str, tuple[Any, ...]] = {
    "allocate_slots_batch": ([3, 4],),
    "_evict_lru_slots_batch": (1,),
    "get_slot": (0,),
    "has_state": (0,),
    "invalidate_block": (0,),
    "_invalidate_blocks_batch": ([0, 1],),
    "on_kv_blocks_deregistered": ([0, 1], {7}),
    "store_from_tensors": (0, 1, torch.ones(2, 2), torch.ones(3)),
    "store_from_live_batch": ([0, 1], [1, 2]),
    "restore_to_live": (2, 0),
    "register_block_hashes_batch": ([0], [9700]),
    "compute_and_store_offsets": (REQUEST, 1, 0, 9, 1, [3], 3),
    "_copy_intermediate_to_cache": ([0, 1], [1, 2]),
}
BLOCK_CALLS: dict[str, tuple[Any, ...]] = {
    "allocate_memory_blocks": (2,),
    "release_memory_blocks": ([3],),
    "retain_memory_blocks": ([1],),
    "register_kv_block_hashes": ([3, 4], [77, 78], [0, 77]),
    "update_timestamps": ([0, 8],),
    "free_among": ([0, 8],),
}


def make_context() -> SimpleNamespace:
    """Blocks 0 to 2 are a cached prompt with states, 0 is in use, as are 3 to 5; 6 and 7 are free."""
    context = SimpleNamespace(
        prefix_cache_lru_clock=4,
        prefix_caching_eviction_policy="lru",
        max_requests=ROWS,
        block_size_tokens=4,
        mamba_chunk_size=2,
        request_to_kv_block_ids=torch.tensor([[0, -1, -1], [3, 4, 5], [-1, -1, -1]], dtype=torch.int32),
        paused_request_count=0,
        batch_dimensions=SimpleNamespace(prefill_req_count=0, decode_req_count=0),
        mamba_metadata=SimpleNamespace(
            request_to_mamba_state_idx=torch.arange(ROWS).flip(0),
            intermediate_count=0,
            per_request_intermediate_counts=[],
        ),
        mamba_conv_states=torch.ones(2, ROWS, 3),
        mamba_ssm_states=torch.ones(2, ROWS, 2, 2),
    )
    kv = context.kv = context.kv_block_allocator = KVBlockAllocator(context, BLOCKS)
    slots = context.slots = MambaSlotAllocator(context, SLOTS, 2, (3,), (2, 2), torch.float32, torch.float32)
    kv.on_blocks_deregistered = slots.on_kv_blocks_deregistered
    kv.allocate_memory_blocks(6)
    kv.register_kv_block_hashes([0, 1, 2], [9700, 9701, 9702])
    slots.allocate_slots_batch([0, 1, 2])
    slots.register_block_hashes_batch([0, 1, 2], [9700, 9701, 9702])
    kv.release_memory_blocks([1, 2])
    slots.conv_states.fill_(2)
    slots.ssm_states.fill_(3)
    return context


def trace_of(context: SimpleNamespace) -> list[Any]:
    """Every book, and every bit of a state."""
    kv, slots = context.kv, context.slots
    books = [kv.block_ref_counts, kv.block_hashes, kv.block_timestamps, kv.block_parents]
    books += [slots.block_to_slot, slots.slot_to_block, slots.conv_states, slots.ssm_states]
    return [
        *(each.tolist() for each in (*books, context.mamba_conv_states, context.mamba_ssm_states)),
        kv._free[: kv.pool_avail].tolist(),
        slots.free_slots[: slots.free_count].tolist(),
        *(dict(each) for each in (kv.kv_hash_to_block_id, slots.hash_to_block_id, slots._offsets.of_request)),
    ]


def refusal_of(part: Any, act: str, arguments: list[Any]) -> Exception | None:
    """Make a call, and return the documented error that it raised, if any."""
    try:
        getattr(part, act)(*arguments)
    except (TypeError, ValueError, IndexError, CapacityError) as error:
        return error
    return None


@pytest.mark.parametrize(
    ("part", "act", "right"),
    [
        (part, act, calls[act])
        for part, calls in (("slots", SLOT_CALLS), ("kv", BLOCK_CALLS))
        for act in calls
    ],
    ids=[*SLOT_CALLS, *BLOCK_CALLS],
)
def test_what_is_refused_changes_nothing(part: str, act: str, right: tuple[Any, ...]) -> None:
    """X1: anything in the place of an argument; stamps, the order of what is free, and states bit for bit."""
    getattr(getattr(make_context(), part), act)(*right)
    refused = 0
    context = make_context()
    before = trace_of(context)
    for place, thing in itertools.product(range(len(right)), ANYTHING):
        if right[place] is REQUEST:
            continue
        error = refusal_of(getattr(context, part), act, [*right[:place], thing, *right[place + 1 :]])
        if error is None:
            context = make_context()
            continue
        assert str(error)
        assert trace_of(context) == before, f"{act} changed something before it refused {thing!r}"
        refused += 1
    assert refused > len(ANYTHING) // 3
