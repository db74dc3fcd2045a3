"""Whatever a caller gives the block and the slot allocator: it is done, or one clear error and no change."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from block_caller import BlockCaller

from pymllm.core.inference.contexts import PrefixCachingEvictionPolicy
from pymllm.errors import CapacityError

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


def make_caller() -> BlockCaller:
    """Blocks 0 to 2 are a cached prompt with states, 0 is in use, as are 3 to 5; 6 and 7 are free."""
    caller = BlockCaller(PrefixCachingEvictionPolicy.LRU)
    caller.play("admit 0 a3 3; compute 0; release 0; admit 0 a1 1; admit 1 b3 3")
    return caller


def trace_of(caller: BlockCaller) -> list[Any]:
    """Every book, and every bit of a state."""
    kv, slots, context = caller.kv, caller.slots, caller.context
    tensors = [
        kv.block_ref_counts,
        kv.block_hashes,
        kv.block_timestamps,
        kv.block_parents,
        slots.block_to_slot,
    ]
    states = [slots.conv_states, slots.ssm_states, context.mamba_conv_states, context.mamba_ssm_states]
    return [
        *(each.tolist() for each in tensors + states),
        kv._free[: kv.pool_avail].tolist(),
        slots.free_slots[: slots.free_count].tolist(),
        *(dict(each) for each in (kv.kv_hash_to_block_id, slots.hash_to_block_id, slots._offsets.of_request)),
    ]


def refusal_of(part: Any, act: str, arguments: list[Any]) -> Exception | None:
    """Call, and return the error that was raised, if it is one of the documented ones."""
    try:
        getattr(part, act)(*arguments)
    except (TypeError, ValueError, IndexError, CapacityError) as error:
        return error
    return None


def give_anything(part: Callable[[BlockCaller], Any], act: str, right: tuple[Any, ...]) -> int:
    """Try everything in every place but a request's, and return how often that was refused."""
    refused = 0
    caller = make_caller()
    before = trace_of(caller)
    for place, thing in itertools.product(range(len(right)), ANYTHING):
        if right[place] is REQUEST:
            continue
        error = refusal_of(part(caller), act, [*right[:place], thing, *right[place + 1 :]])
        if error is None:
            caller = make_caller()
            continue
        assert str(error)
        assert trace_of(caller) == before, f"{act} changed something before it refused {thing!r}"
        refused += 1
    return refused


@pytest.mark.parametrize("act", SLOT_CALLS)
def test_what_the_slot_allocator_refuses_changes_nothing(act: str) -> None:
    """X1: a type, a range, a length or a number of tokens that is wrong; states are compared bit for bit."""
    getattr(make_caller().slots, act)(*SLOT_CALLS[act])
    assert give_anything(lambda caller: caller.slots, act, SLOT_CALLS[act]) > len(ANYTHING) // 3


@pytest.mark.parametrize("act", BLOCK_CALLS)
def test_what_the_block_allocator_refuses_changes_nothing(act: str) -> None:
    """X1: the stamps and the order of what is free included."""
    getattr(make_caller().kv, act)(*BLOCK_CALLS[act])
    assert give_anything(lambda caller: caller.kv, act, BLOCK_CALLS[act]) > len(ANYTHING) // 3
