"""The whole words of each refusal of block contexts, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts import host_numbers
from pymllm.core.inference.contexts.dynamic_context import DynamicInferenceContext
from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator
from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator, MambaSlotCapacityError
from pymllm.core.inference.contexts.prefix_index import PrefixIndex
from pymllm.errors import OwnershipError, UsageError
from tests.unit.refusals import Refusal, all_refusals, check_refusal, refusal_by, refusal_of, size_refusals

NO_DEVICE = "device must be a str or a torch.device, got int 0"
NO_DTYPE = "dtype must be a torch.dtype, got str 'half'"
NO_INTS = "must be a sequence or a tensor of ints, got"
TOO_LARGE = 2**63

# -- numbers ---------------------------------------------------------------------------------------------

no_ids = refusal_by(host_numbers.host_integers)

NUMBERS = [
    no_ids(TypeError, f"ids {NO_INTS} str", "ids", "12"),
    no_ids(TypeError, f"ids {NO_INTS} bytes", "ids", b"12"),
    no_ids(TypeError, f"ids {NO_INTS} dict", "ids", {1: 2}),
    no_ids(TypeError, "ids must be integers, got a tensor of torch.float32", "ids", torch.ones(1)),
    no_ids(TypeError, "ids must be integers, got [1.5]", "ids", [1.5]),
    no_ids(
        TypeError,
        "ids is a masked array, and under its mask there is no number: give .compressed(), which leaves "
        "that out, or .filled(number)",
        "ids",
        np.ma.array([1, 2], mask=[False, True]),
    ),
    no_ids(TypeError, "ids must be integers, got ['a', 'a', 'a', 'a', 'a', 'a', ...]", "ids", ["a"] * 99),
    *(
        no_ids(ValueError, f"ids has {TOO_LARGE}, which int64 does not have", "ids", values)
        for values in ([1, TOO_LARGE], [-5, TOO_LARGE], (TOO_LARGE, 7), np.array([TOO_LARGE], np.uint64))
    ),
    no_ids(ValueError, f"ids has {2**70}, which int64 does not have", "ids", [2**70, 1]),
    no_ids(ValueError, f"ids has {-TOO_LARGE - 1}, which int64 does not have", "ids", [1, -TOO_LARGE - 1]),
    no_ids(IndexError, "ids has 5, outside 0..4", "ids", [0, 5], 5),
    no_ids(IndexError, "ids has -1, outside 0..4", "ids", [0, -1], 5),
    Refusal(
        lambda _: host_numbers.check_as_many("hashes", np.array([1]), 2, "blocks"),
        ValueError,
        "1 hashes for 2 blocks; give one for each",
    ),
]


@all_refusals(NUMBERS)
def test_numbers_are_refused_by_name(refusal: Refusal) -> None:
    """X1: the name, the value and the bound."""
    check_refusal(None, refusal)


# -- blocks ----------------------------------------------------------------------------------------------


def make_blocks(_: None = None, **changes: Any) -> KVBlockAllocator:
    """Of eight blocks and a dummy, blocks 0 .. 3 are held, block 1 twice; 0 and 1 are registered."""
    context = SimpleNamespace(prefix_cache_lru_clock=0)
    allocator = KVBlockAllocator(context, **({"pool_size": 9} | changes))
    assert allocator.allocate_memory_blocks(4).tolist() == [0, 1, 2, 3]
    allocator.retain_memory_blocks([1])
    allocator.register_kv_block_hashes([0, 1], [10, 11])
    return allocator


no_blocks = refusal_of(make_blocks)

ONE_CONTENT = ": one block has one content"
BLOCKS_MADE = [
    *size_refusals(make_blocks, pool_size=2, paused_limit=0),
    no_blocks(TypeError, "enable_prefix_caching must be a bool, got 1", enable_prefix_caching=1),
    no_blocks(
        ValueError, "'fifo' is not a valid PrefixCachingEvictionPolicy", prefix_caching_eviction_policy="fifo"
    ),
]

ACTS: dict[str, Callable[[KVBlockAllocator, Any], object]] = {
    "retain": lambda allocator, ids: allocator.retain_memory_blocks(ids),
    "release": lambda allocator, ids: allocator.release_memory_blocks(ids),
    "register": lambda allocator, ids: allocator.register_kv_block_hashes(ids, [20] * len(ids)),
}

no_hashes = refusal_of("register_kv_block_hashes")

BLOCKS = [
    *size_refusals(lambda allocator, **n: allocator.allocate_memory_blocks(**n), n=0),
    *(
        refusal_of(call)(
            OwnershipError,
            f"cannot {act} block {block}: blocks 0..7 can be held, 8 is the dummy",
            [0, block],
        )
        for act, call in ACTS.items()
        for block in (-1, 8, 9)
    ),
    *(
        refusal_of(call)(OwnershipError, f"cannot {act} block 5: it is free; allocate it", [0, 5])
        for act, call in ACTS.items()
    ),
    *(
        refusal_of(call)(TypeError, f"ids {NO_INTS} str", "0")
        for call in (*ACTS.values(), KVBlockAllocator.update_timestamps, KVBlockAllocator.free_among)
    ),
    *(
        refusal_of(call)(IndexError, "ids has 9, outside 0..8", [0, 9])
        for call in (KVBlockAllocator.update_timestamps, KVBlockAllocator.free_among)
    ),
    Refusal(
        lambda allocator: allocator.release_memory_blocks([0, 1, 1, 1]),
        OwnershipError,
        "block 1 has 2 references, 3 are released; release each once",
    ),
    no_hashes(ValueError, "1 hashes for 2 blocks; give one for each", [2, 3], [5]),
    no_hashes(TypeError, "hashes must be integers, got ['5']", [2], ["5"]),
    no_hashes(ValueError, "hashes has 0: give hashes from 1 to 2**63 - 1", [2], [0]),
    no_hashes(ValueError, "1 parent_hashes for 2 blocks; give one for each", [2, 3], [5, 6], [0]),
    no_hashes(ValueError, "parent_hashes has -1: give hashes from 0 to 2**63 - 1", [2], [5], [-1]),
    no_hashes(TypeError, "parent_hashes must be integers, got ['0']", [2], [5], ["0"]),
    no_hashes(UsageError, f"block 1 has hash 11, not 6{ONE_CONTENT}", [2, 1], [5, 6]),
    no_hashes(UsageError, f"block 2 has hash 5, not 6{ONE_CONTENT}", [2, 2], [5, 6]),
]


@all_refusals(BLOCKS_MADE)
def test_no_block_allocator_is_made_of_malformed_arguments(refusal: Refusal) -> None:
    """X1: each argument by its name."""
    check_refusal(None, refusal)


@pytest.mark.notices("B133")
@all_refusals(BLOCKS)
def test_a_refused_call_leaves_the_blocks_alone(refusal: Refusal) -> None:
    """X1, C1, C3: which block, what is wrong with it and what may be done."""
    check_refusal(make_blocks(), refusal)


@pytest.mark.parametrize("clock", [TOO_LARGE, -TOO_LARGE - 1])
def test_a_clock_beyond_a_stamp_is_refused(clock: int) -> None:
    """X1: the clock is the context's, and is named as there."""
    allocator = make_blocks()
    allocator.context.prefix_cache_lru_clock = clock
    words = f"prefix_cache_lru_clock is {clock}, which a stamp of 64 bits cannot hold"
    for call in (lambda it: it.allocate_memory_blocks(1), lambda it: it.update_timestamps([0])):
        check_refusal(allocator, Refusal(call, ValueError, words))


@pytest.mark.parametrize("clock", [1.5, None, True])
def test_a_clock_that_is_no_number_is_refused(clock: Any) -> None:
    """X1, X3: a clock of floats would compare with stamps as something else."""
    allocator = make_blocks()
    allocator.context.prefix_cache_lru_clock = clock
    words = f"prefix_cache_lru_clock must be an int, got {type(clock).__name__} {clock}"
    check_refusal(allocator, Refusal(lambda it: it.allocate_memory_blocks(1), TypeError, words))


def refused_inside(name: str) -> str:
    return (
        f"{name} was called from inside on_blocks_deregistered, which may only read: "
        "act after the call that it was told about"
    )


INSIDE: dict[str, Callable[[KVBlockAllocator], object]] = {
    "allocate_memory_blocks": lambda allocator: allocator.allocate_memory_blocks(1),
    "retain_memory_blocks": lambda allocator: allocator.retain_memory_blocks([2]),
    "release_memory_blocks": lambda allocator: allocator.release_memory_blocks([2]),
    "register_kv_block_hashes": lambda allocator: allocator.register_kv_block_hashes([2], [5]),
    "update_timestamps": lambda allocator: allocator.update_timestamps([2]),
    "reset": lambda allocator: allocator.reset(),
}


@pytest.mark.parametrize("name", INSIDE)
def test_an_observer_may_not_act_on_the_blocks(name: str) -> None:
    """X1: the call is named, and when it may be made."""
    heard: list[str] = []

    def observe(blocks: list[int], hashes: set[int]) -> None:
        with pytest.raises(RuntimeError) as raised:
            INSIDE[name](allocator)
        heard.append(str(raised.value))

    allocator = make_blocks()
    allocator.on_blocks_deregistered = observe
    allocator.release_memory_blocks([3])
    assert heard == [refused_inside(name)]


# -- slots for states ------------------------------------------------------------------------------------


def make_slots(make_context: Callable[..., Any], **changes: Any) -> Any:
    """Of eight blocks in use, 2 and 5 have the slots 2 and 1 of three; 2 and 3 are registered."""
    context = make_context(**changes)
    assert context.slots.allocate_slots_batch([2, 5]) == [1, 2]
    context.register([2, 3])
    context.request_to_kv_block_ids[0, :3] = torch.tensor([2, 3, 4])
    compute_offsets(context)  # what a row is remembered to leave stays so when a later call is refused
    context.request_to_kv_block_ids[0, :3] = -1
    return context


def make_allocator(make_context: Callable[..., Any], **changes: Any) -> MambaSlotAllocator:
    good = {
        "max_slots": 3,
        "num_mamba_layers": 2,
        "conv_states_shape": (3,),
        "ssm_states_shape": (2, 2),
        "conv_states_dtype": torch.float16,
        "ssm_states_dtype": torch.float32,
    }
    return MambaSlotAllocator(make_context(), **(good | changes))


def changed(context: Any, **changes: Any) -> Any:
    vars(context).update(changes)
    return context


no_allocator = refusal_of(make_allocator)

SLOTS_MADE = [
    *size_refusals(make_allocator, max_slots=1, num_mamba_layers=1),
    *(
        no_allocator(error, f"{name} {words}", **{name: shape})
        for name in ("conv_states_shape", "ssm_states_shape")
        for shape, error, words in (
            (3, TypeError, "must be a tuple of ints, got int"),
            ((2, "2"), TypeError, "must be an int, got str '2'"),
            ((2, 0), ValueError, "must be at least 1, got 0"),
        )
    ),
    *(
        no_allocator(TypeError, NO_DTYPE, **{name: "half"})
        for name in ("conv_states_dtype", "ssm_states_dtype")
    ),
    no_allocator(TypeError, "fused must be True, False or None, got int 1", fused=1),
    Refusal(
        lambda make: make_allocator(lambda: changed(make(), max_requests=0)),
        ValueError,
        "context.max_requests must be at least 1, got 0",
    ),
    Refusal(lambda make: make_allocator(lambda: changed(make(), device=0)), TypeError, NO_DEVICE),
]

NO_SLOT = "has no slot; allocate_slots_batch gives it one"
NOT_TWICE = "name one slot twice; each keeps one state"


def store(context: Any, **changes: Any) -> None:
    good = {
        "block_id": 2,
        "layer_idx": 0,
        "ssm_state": torch.ones(2, 2),
        "conv_state": torch.ones(3, dtype=torch.float16),
    }
    context.slots.store_from_tensors(**(good | changes))


def compute_offsets(context: Any, **changes: Any) -> None:
    finished = changes.pop("finished_chunk_token_count", 0)
    good = {
        "req": SimpleNamespace(prompt_tokens=list(range(9)), finished_chunk_token_count=finished),
        "current_id": 0,
        "skip_tokens": 0,
        "prefill_chunk_length": 9,
        "num_matched_blocks": 1,
        "matched_block_ids": [2],
        "overall_required_blocks": 3,
    }
    context.slots.compute_and_store_offsets(**(good | changes))


no_offsets = refusal_of(compute_offsets)
no_slots = refusal_of("slots.allocate_slots_batch")
no_state_hashes = refusal_of("slots.register_block_hashes_batch")
no_store = refusal_of(store)
no_live_store = refusal_of("slots.store_from_live_batch")
no_restore = refusal_of("slots.restore_to_live")
no_copy = refusal_of("slots._copy_intermediate_to_cache")

SLOTS = [
    no_offsets(
        ValueError,
        "prompt_tokens has 2 dimensions, a prompt has one: give one of a batch (prompt_tokens[0]), "
        "or all of it as one (flatten)",
        req=SimpleNamespace(prompt_tokens=torch.zeros(1, 9), finished_chunk_token_count=0),
    ),
    *(
        Refusal(
            lambda context, call=call: call(context.slots, "2"),
            TypeError,
            f"{name} {NO_INTS} str",
        )
        for call, name in (
            (MambaSlotAllocator.allocate_slots_batch, "block_ids"),
            (MambaSlotAllocator._invalidate_blocks_batch, "block_ids_list"),
            (lambda slots, ids: slots.register_block_hashes_batch(ids, [5]), "block_ids"),
            (lambda slots, ids: slots.on_kv_blocks_deregistered(ids, set()), "block_ids_list"),
        )
    ),
    no_slots(IndexError, "block_ids has 9, outside 0..8", [3, 9]),
    no_slots(OwnershipError, "block 8 is free or the dummy and can have no state; allocate it first", [3, 8]),
    no_slots(
        MambaSlotCapacityError,
        "1 more slots are needed, 0 may be evicted of 3 slots (1 free); "
        "release blocks first or keep fewer states",
        [3, 4],
    ),
    *size_refusals(lambda context, **n: context.slots._evict_lru_slots_batch(**n), num_needed=0),
    *(
        refusal_of(f"slots.{name}")(TypeError, "block_id must be an int, got str '2'", "2")
        for name in ("get_slot", "has_state", "invalidate_block")
    ),
    *(
        refusal_of(f"slots.{name}")(IndexError, f"block_id {block} is outside 0..8", block)
        for name in ("get_slot", "has_state", "invalidate_block")
        for block in (-1, 9)
    ),
    no_state_hashes(TypeError, f"hashes {NO_INTS} str", [2], "5"),
    no_state_hashes(ValueError, "1 hashes for 2 blocks; give one for each", [2, 5], [1002]),
    no_state_hashes(UsageError, f"block 3 {NO_SLOT}", [2, 3], [1002, 1003]),
    no_state_hashes(UsageError, "block 2 is registered under 1002, not 7", [2], [7]),
    no_state_hashes(UsageError, "block 5 is registered under -1, not 7", [2, 5], [1002, 7]),
    no_store(UsageError, f"block 3 {NO_SLOT}", block_id=3),
    no_store(TypeError, "block_id must be an int, got str '2'", block_id="2"),
    no_store(TypeError, "layer_idx must be an int, got str '0'", layer_idx="0"),
    *(no_store(IndexError, f"layer_idx {layer} is outside 0..1", layer_idx=layer) for layer in (-1, 2)),
    *(
        no_store(TypeError, f"{name} must be a dense tensor, got list", **{name: [1.0]})
        for name in ("ssm_state", "conv_state")
    ),
    *(
        no_store(TypeError, f"{name} must be a dense tensor, got Tensor", **{name: torch.ones(2).to_sparse()})
        for name in ("ssm_state", "conv_state")
    ),
    no_store(
        TypeError,
        "ssm_state has dtype torch.float16, the slots keep torch.float32; convert it first",
        ssm_state=torch.ones(2, 2).half(),
    ),
    no_store(
        TypeError,
        "conv_state has dtype torch.float32, the slots keep torch.float16; convert it first",
        conv_state=torch.ones(3),
    ),
    no_store(ValueError, "ssm_state has shape [2, 3], a slot [2, 2]", ssm_state=torch.ones(2, 3)),
    no_store(ValueError, "conv_state has shape [4], a slot [3]", conv_state=torch.ones(4).half()),
    no_live_store(TypeError, f"slots {NO_INTS} str", "1", [0]),
    no_live_store(IndexError, "slots has 3, outside 0..2", [3], [0]),
    no_live_store(ValueError, f"slots [1, 1] {NOT_TWICE}", [1, 1], [0, 1]),
    no_live_store(ValueError, "1 slots for 2 requests; give one for each", [1], [0, 1]),
    no_live_store(IndexError, "request index has 4, outside 0..3", [1], [4]),
    no_live_store(TypeError, f"request index {NO_INTS} str", [1], "0"),
    no_restore(TypeError, "request_idx must be an int, got str '0'", "0", 2),
    no_restore(IndexError, "request index has 4, outside 0..3", 4, 2),
    no_restore(IndexError, "block_id 9 is outside 0..8", 0, 9),
    no_copy(TypeError, f"src_offsets {NO_INTS} str", "1", [1]),
    no_copy(IndexError, "src_offsets has 12, outside 0..11", [12], [1]),
    no_copy(ValueError, "1 slots for 2 rows; give one for each", [1, 2], [1]),
    *size_refusals(
        compute_offsets,
        skip_tokens=0,
        prefill_chunk_length=0,
        num_matched_blocks=0,
        overall_required_blocks=0,
        finished_chunk_token_count=0,
    ),
    no_offsets(TypeError, "current_id must be an int, got str '0'", current_id="0"),
    *(no_offsets(IndexError, f"current_id {row} is outside 0..3", current_id=row) for row in (-1, 4)),
    no_offsets(ValueError, "10 tokens of a chunk of 9 cannot be skipped", skip_tokens=10),
    no_offsets(TypeError, f"matched_block_ids {NO_INTS} str", matched_block_ids="2"),
    no_offsets(IndexError, "matched_block_ids has 9, outside 0..8", matched_block_ids=[9]),
    no_offsets(
        UsageError, "row 0 names no block that ends at token 8: fill it before the offsets are computed"
    ),
]


@all_refusals(SLOTS_MADE)
def test_no_slots_are_made_of_malformed_arguments(make_context: Callable[..., Any], refusal: Refusal) -> None:
    """X1: each argument by its name, the context's own included."""
    check_refusal(make_context, refusal)


@all_refusals(SLOTS)
def test_a_refused_call_leaves_slots_and_states_alone(
    make_context: Callable[..., Any], refusal: Refusal
) -> None:
    """X1, C2, C5: blocks, slots, rows and states are told apart."""
    check_refusal(make_slots(make_context), refusal)


def test_live_states_of_another_form_are_refused(make_context: Callable[..., Any]) -> None:
    """X1: which buffer, what it is and what the cached states are."""
    context = make_slots(make_context)
    good = context.mamba_ssm_states
    refused: list[tuple[Any, type[Exception], str]] = [
        (None, TypeError, "mamba_ssm_states must be a tensor, got NoneType")
    ]
    for wrong in (good.half(), good[:, :, :1], good[:1], good.to("meta")):
        words = (
            f"mamba_ssm_states is {list(wrong.shape)} {wrong.dtype} on {wrong.device}, the cached states are "
            "[2, 3, 2, 2] torch.float32 on cpu; only the rows may differ"
        )
        refused.append((wrong, ValueError, words))
    for wrong, error, words in refused:
        context.mamba_ssm_states = wrong
        for call in (
            lambda it: it.slots.store_from_live_batch([1], [0]),
            lambda it: it.slots.restore_to_live(0, 2),
        ):
            check_refusal(context, Refusal(call, error, words))


def test_the_convolution_of_another_form_is_refused(make_context: Callable[..., Any]) -> None:
    """X1: the other buffer by its name."""
    context = make_slots(make_context)
    context.mamba_conv_states = context.mamba_conv_states.float()
    words = (
        "mamba_conv_states is [2, 4, 3] torch.float32 on cpu, the cached states are "
        "[2, 3, 3] torch.float16 on cpu; only the rows may differ"
    )
    check_refusal(context, no_live_store(ValueError, words, [1], [0]))


@pytest.mark.parametrize("row", [-1, 4])
def test_a_request_without_a_live_state_is_refused(make_context: Callable[..., Any], row: int) -> None:
    """X1: the request, its row and how many rows there are."""
    context = make_slots(make_context)
    context.mamba_metadata.request_to_mamba_state_idx[2] = row
    words = f"request 2 has no live state: its row of 4 is {row}"
    check_refusal(context, no_live_store(UsageError, words, [0, 1], [1, 2]))


def test_a_block_table_beyond_the_pool_is_refused(make_context: Callable[..., Any]) -> None:
    """X1: the row of the table is named."""
    context = make_slots(make_context)
    context.request_to_kv_block_ids[1, 1] = 9
    words = "row 1 of request_to_kv_block_ids has 9, outside 0..8"
    check_refusal(context, no_offsets(IndexError, words, current_id=1))


# -- requests --------------------------------------------------------------------------------------------


def make_requests(_: None = None, **changes: Any) -> DynamicInferenceContext:
    good: dict[str, Any] = {
        "max_requests": 3,
        "num_blocks": 9,
        "max_blocks_per_request": 3,
        "block_size_tokens": 4,
        "mamba_chunk_size": 2,
        "num_mamba_layers": 2,
        "conv_states_shape": (3,),
        "ssm_states_shape": (2, 2),
        "mamba_slots": 2,
        "paused_limit": 9,
    }
    return DynamicInferenceContext(**(good | changes))


def request(*tokens: int, finished: int = 0) -> SimpleNamespace:
    return SimpleNamespace(prompt_tokens=list(tokens), finished_chunk_token_count=finished)


NO_CACHE = {"mamba_slots": 0}

no_requests = refusal_of(make_requests)

REQUESTS_MADE = [
    *size_refusals(
        make_requests,
        max_requests=1,
        max_blocks_per_request=1,
        block_size_tokens=1,
        mamba_chunk_size=1,
        num_mamba_layers=0,
        mamba_slots=0,
        num_blocks=2,
        paused_limit=0,
    ),
    no_requests(
        ValueError, "2 mamba_slots without num_mamba_layers have no states to keep", num_mamba_layers=0
    ),
    no_requests(TypeError, NO_DEVICE, device=0),
    no_requests(TypeError, "enable_prefix_caching must be a bool, got 1", enable_prefix_caching=1),
    no_requests(
        ValueError, "'fifo' is not a valid PrefixCachingEvictionPolicy", prefix_caching_eviction_policy="fifo"
    ),
    no_requests(TypeError, "hash_page must be a callable, got 5", hash_page=5),
    *(
        no_requests(ValueError, f"{name} must be at least 1, got 0", **NO_CACHE, **{name: (2, 0)})
        for name in ("conv_states_shape", "ssm_states_shape")
    ),
    *(
        no_requests(TypeError, NO_DTYPE, **NO_CACHE, **{name: "half"})
        for name in ("conv_states_dtype", "ssm_states_dtype")
    ),
]

no_add_request = refusal_of("add_request")
no_commit_step = refusal_of("commit_step")

REQUESTS = [
    Refusal(
        lambda context: context.add_request(context.requests[0]),
        UsageError,
        "the request is here already; release it first",
    ),
    no_add_request(
        UsageError, "the request has finished 4 tokens; a new one starts at 0", request(1, finished=4)
    ),
    no_add_request(ValueError, "prompt_tokens is empty; a request computes at least one token", request()),
    no_add_request(
        ValueError,
        "prompt_tokens has tokens of 2 integers; a context takes plain ones: "
        "give integers, and one prompt of a batch",
        SimpleNamespace(prompt_tokens=[(1, 2)], finished_chunk_token_count=0),
    ),
    no_add_request(
        ValueError, "a prompt of 13 tokens needs 4 blocks, a request may have 3; cut it", request(*range(13))
    ),
    *size_refusals(lambda context, **n: context.add_request(request(1), **n), max_tokens=1, reserve=0),
    *size_refusals(lambda context, **n: context.schedule_chunk(context.requests[2], **n), max_tokens=1),
    *(
        refusal_of(act)(
            UsageError,
            f"cannot {act} a request that is not here: it was never added, or was released",
            request(1),
        )
        for act in ("schedule_chunk", "pause", "resume", "release")
    ),
    refusal_of("truncate")(
        UsageError,
        "cannot truncate a request that is not here: it was never added, or was released",
        request(1),
        1,
        1,
    ),
    Refusal(
        lambda context: context.truncate(context.requests[2], 1, 1),
        UsageError,
        "1 of 3 prompt tokens are computed; a cut comes behind the prompt",
    ),
    *size_refusals(
        lambda context, **n: context.truncate(context.requests[1], **({"next_token": 1} | n)), tokens=2
    ),
    Refusal(
        lambda context: context.truncate(context.requests[1], 3, 1),
        ValueError,
        "tokens must be at most 2, got 3",
    ),
    Refusal(
        lambda context: context.truncate(context.requests[1], 2, -1),
        ValueError,
        "next token -1 is outside 0 .. 2**32 - 1",
    ),
    Refusal(
        lambda context: context.truncate(context.requests[1], 2, "3"),  # type: ignore[arg-type]
        TypeError,
        "next token must be an int, got str '3'",
    ),
    Refusal(
        lambda context: context.schedule_chunk(context.requests[0]),
        UsageError,
        "the request is in paused; only one that waits takes a chunk",
    ),
    Refusal(
        lambda context: context.schedule_chunk(context.requests[1]),
        UsageError,
        "the request is in decode; only one that waits takes a chunk",
    ),
    Refusal(lambda context: context.pause(context.requests[0]), UsageError, "the request is paused already"),
    Refusal(
        lambda context: context.resume(context.requests[1]),
        UsageError,
        "the request is in decode, not paused",
    ),
    Refusal(
        lambda context: context.resume(context.requests[2]),
        UsageError,
        "the request is in waiting, not paused",
    ),
    no_commit_step(RuntimeError, "commit_step was called without begin_step", [1]),
    Refusal(lambda context: context.abort_step(), RuntimeError, "abort_step was called without begin_step"),
]


def busy_context() -> DynamicInferenceContext:
    """One request is paused, one decodes, one waits."""
    context = make_requests()
    paused = request(1, 2, 3)
    for req, chunk in ((paused, None), (request(4, 5), None), (request(6, 7, 8), 1)):
        assert context.add_request(req, chunk)
    context.step(lambda batch: [9] * len(batch))
    assert context.pause(paused)
    return context


@all_refusals(REQUESTS_MADE)
def test_no_context_is_made_of_malformed_arguments(refusal: Refusal) -> None:
    """X1: each argument by its name, and where two do not fit, both."""
    check_refusal(None, refusal)


@all_refusals(REQUESTS)
def test_a_refused_call_leaves_the_requests_alone(refusal: Refusal) -> None:
    """X1: where a request is, and where it would have to be."""
    check_refusal(busy_context(), refusal)


IN_A_STEP: dict[str, Callable[[DynamicInferenceContext], object]] = {
    "begin_step": lambda context: context.begin_step(),
    "add_request": lambda context: context.add_request(request(1)),
    "schedule_chunk": lambda context: context.schedule_chunk(context.requests[-1]),
    "pause": lambda context: context.pause(context.requests[1]),
    "resume": lambda context: context.resume(context.requests[0]),
    "release": lambda context: context.release(context.requests[0]),
    "truncate": lambda context: context.truncate(context.requests[1], 2, 1),
}


@pytest.mark.parametrize("act", IN_A_STEP)
def test_a_step_is_finished_before_anything_else_begins(act: str) -> None:
    """X1: the call is named, and what comes first."""
    context = busy_context()
    context.begin_step()
    words = f"{act} was called during a step: commit_step or abort_step comes first"
    check_refusal(context, Refusal(IN_A_STEP[act], RuntimeError, words))


TOKENS = [
    ([1], ValueError, "1 next tokens for 2 requests; give one for each"),
    ([1, "2"], TypeError, "next token must be an int, got str '2'"),
    ([1, None], TypeError, "next token must be an int, got NoneType None"),
    ([1, -1], ValueError, "next token -1 is outside 0 .. 2**32 - 1"),
    ([1, 2**32], ValueError, f"next token {2**32} is outside 0 .. 2**32 - 1"),
]


@pytest.mark.parametrize(("tokens", "error", "words"), TOKENS)
def test_a_refused_commit_leaves_the_step_open(tokens: list[Any], error: type[Exception], words: str) -> None:
    """X1: a token for each request, and each one a token."""
    context = make_requests()
    for req in (request(1, 2), request(3)):
        context.add_request(req)
    context.begin_step()
    check_refusal(context, no_commit_step(error, words, tokens))


def test_a_request_that_has_all_its_blocks_decodes_no_further() -> None:
    """X1: its row, its blocks, and what to do with it."""
    context = make_requests(mamba_slots=0, num_mamba_layers=0)
    context.add_request(request(*range(12)))
    context.step(lambda batch: [1])
    words = "the request in row 0 has all 3 blocks that one may have; release it"
    check_refusal(context, refusal_of("begin_step")(UsageError, words))


def test_an_index_of_prefixes_hashes_with_a_function() -> None:
    """X1: anything else is named."""
    allocator = make_blocks()
    words = "hash_page must be a callable, got 'sha256'"
    check_refusal(
        allocator,
        Refusal(lambda it: PrefixIndex(it, 4, "sha256"), TypeError, words),  # type: ignore[arg-type]
    )
