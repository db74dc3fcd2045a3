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
from pymllm.errors import CapacityError, OwnershipError, UsageError
from tests.unit.refusals import Refusal, all_refusals, check_refusal, size_refusals

NO_DEVICE = "device must be a str or a torch.device, got int 0"
NO_DTYPE = "dtype must be a torch.dtype, got str 'half'"
TOO_LARGE = 2**63

# -- numbers ---------------------------------------------------------------------------------------------

NUMBERS = [
    Refusal(
        lambda _: host_numbers.host_integers("ids", "12"),
        TypeError,
        "ids must be a sequence or a tensor of ints, got str",
    ),
    Refusal(
        lambda _: host_numbers.host_integers("ids", b"12"),
        TypeError,
        "ids must be a sequence or a tensor of ints, got bytes",
    ),
    Refusal(
        lambda _: host_numbers.host_integers("ids", {1: 2}),  # type: ignore[arg-type]
        TypeError,
        "ids must be a sequence or a tensor of ints, got dict",
    ),
    Refusal(
        lambda _: host_numbers.host_integers("ids", torch.ones(1)),
        TypeError,
        "ids must be integers, got a tensor of torch.float32",
    ),
    Refusal(lambda _: host_numbers.host_integers("ids", [1.5]), TypeError, "ids must be integers, got [1.5]"),
    Refusal(
        lambda _: host_numbers.host_integers("ids", ["a"] * 99),
        TypeError,
        "ids must be integers, got ['a', 'a', 'a', 'a', 'a', 'a', ...]",
    ),
    *(
        Refusal(
            lambda _, values=values: host_numbers.host_integers("ids", values),
            ValueError,
            f"ids has {TOO_LARGE}, which int64 does not have",
        )
        for values in ([1, TOO_LARGE], [-5, TOO_LARGE], (TOO_LARGE, 7), np.array([TOO_LARGE], np.uint64))
    ),
    Refusal(
        lambda _: host_numbers.host_integers("ids", [2**70, 1]),
        ValueError,
        f"ids has {2**70}, which int64 does not have",
    ),
    Refusal(
        lambda _: host_numbers.host_integers("ids", [1, -TOO_LARGE - 1]),
        ValueError,
        f"ids has {-TOO_LARGE - 1}, which int64 does not have",
    ),
    Refusal(lambda _: host_numbers.host_integers("ids", [0, 5], 5), IndexError, "ids has 5, outside 0..4"),
    Refusal(lambda _: host_numbers.host_integers("ids", [0, -1], 5), IndexError, "ids has -1, outside 0..4"),
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


BLOCKS_MADE = [
    *size_refusals(make_blocks, pool_size=2, paused_limit=0),
    Refusal(
        lambda _: make_blocks(enable_prefix_caching=1),
        TypeError,
        "enable_prefix_caching must be a bool, got 1",
    ),
    Refusal(
        lambda _: make_blocks(prefix_caching_eviction_policy="fifo"),
        ValueError,
        "'fifo' is not a valid PrefixCachingEvictionPolicy",
    ),
]

ACTS: dict[str, Callable[[KVBlockAllocator, Any], object]] = {
    "retain": lambda allocator, ids: allocator.retain_memory_blocks(ids),
    "release": lambda allocator, ids: allocator.release_memory_blocks(ids),
    "register": lambda allocator, ids: allocator.register_kv_block_hashes(ids, [20] * len(ids)),
}

BLOCKS = [
    *size_refusals(lambda allocator, **n: allocator.allocate_memory_blocks(**n), n=0),
    *(
        Refusal(
            lambda allocator, call=call, block=block: call(allocator, [0, block]),
            OwnershipError,
            f"cannot {act} block {block}: blocks 0..7 can be held, 8 is the dummy",
        )
        for act, call in ACTS.items()
        for block in (-1, 8)
    ),
    *(
        Refusal(
            lambda allocator, call=call: call(allocator, [0, 5]),
            OwnershipError,
            f"cannot {act} block 5: it is free; allocate it",
        )
        for act, call in ACTS.items()
    ),
    *(
        Refusal(
            lambda allocator, call=call: call(allocator, "0"),
            TypeError,
            "ids must be a sequence or a tensor of ints, got str",
        )
        for call in (*ACTS.values(), KVBlockAllocator.update_timestamps, KVBlockAllocator.free_among)
    ),
    *(
        Refusal(lambda allocator, call=call: call(allocator, [0, 9]), IndexError, "ids has 9, outside 0..8")
        for call in (KVBlockAllocator.update_timestamps, KVBlockAllocator.free_among)
    ),
    Refusal(
        lambda allocator: allocator.release_memory_blocks([0, 1, 1, 1]),
        OwnershipError,
        "block 1 has 2 references, 3 are released; release each once",
    ),
    Refusal(
        lambda allocator: allocator.register_kv_block_hashes([2, 3], [5]),
        ValueError,
        "1 hashes for 2 blocks; give one for each",
    ),
    Refusal(
        lambda allocator: allocator.register_kv_block_hashes([2], ["5"]),
        TypeError,
        "hashes must be integers, got ['5']",
    ),
    Refusal(
        lambda allocator: allocator.register_kv_block_hashes([2], [0]),
        ValueError,
        "hashes has 0: give hashes from 1 to 2**63 - 1",
    ),
    Refusal(
        lambda allocator: allocator.register_kv_block_hashes([2, 3], [5, 6], [0]),
        ValueError,
        "1 parent_hashes for 2 blocks; give one for each",
    ),
    Refusal(
        lambda allocator: allocator.register_kv_block_hashes([2], [5], [-1]),
        ValueError,
        "parent_hashes has -1: give hashes from 0 to 2**63 - 1",
    ),
    Refusal(
        lambda allocator: allocator.register_kv_block_hashes([2], [5], ["0"]),
        TypeError,
        "parent_hashes must be integers, got ['0']",
    ),
    Refusal(
        lambda allocator: allocator.register_kv_block_hashes([2, 1], [5, 6]),
        UsageError,
        "block 1 has hash 11, not 6: one block has one content",
    ),
    Refusal(
        lambda allocator: allocator.register_kv_block_hashes([2, 2], [5, 6]),
        UsageError,
        "block 2 has hash 5, not 6: one block has one content",
    ),
]


@all_refusals(BLOCKS_MADE)
def test_no_block_allocator_is_made_of_malformed_arguments(refusal: Refusal) -> None:
    """X1: each argument by its name."""
    check_refusal(None, refusal)


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


SLOTS_MADE = [
    *size_refusals(make_allocator, max_slots=1, num_mamba_layers=1),
    *(
        Refusal(
            lambda make, name=name, shape=shape: make_allocator(make, **{name: shape}),
            error,
            f"{name} {words}",
        )
        for name in ("conv_states_shape", "ssm_states_shape")
        for shape, error, words in (
            (3, TypeError, "must be a tuple of ints, got int"),
            ((2, "2"), TypeError, "must be an int, got str '2'"),
            ((2, 0), ValueError, "must be at least 1, got 0"),
        )
    ),
    *(
        Refusal(lambda make, name=name: make_allocator(make, **{name: "half"}), TypeError, NO_DTYPE)
        for name in ("conv_states_dtype", "ssm_states_dtype")
    ),
    Refusal(
        lambda make: make_allocator(make, fused=1),
        TypeError,
        "fused must be True, False or None, got int 1",
    ),
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


SLOTS = [
    Refusal(
        lambda context: compute_offsets(
            context, req=SimpleNamespace(prompt_tokens=torch.zeros(1, 9), finished_chunk_token_count=0)
        ),
        ValueError,
        "prompt_tokens has 2 dimensions, a prompt has one: give one of a batch (prompt_tokens[0]), "
        "or all of it as one (flatten)",
    ),
    *(
        Refusal(
            lambda context, call=call: call(context.slots, "2"),
            TypeError,
            f"{name} must be a sequence or a tensor of ints, got str",
        )
        for call, name in (
            (MambaSlotAllocator.allocate_slots_batch, "block_ids"),
            (MambaSlotAllocator._invalidate_blocks_batch, "block_ids_list"),
            (lambda slots, ids: slots.register_block_hashes_batch(ids, [5]), "block_ids"),
            (lambda slots, ids: slots.on_kv_blocks_deregistered(ids, set()), "block_ids_list"),
        )
    ),
    Refusal(
        lambda context: context.slots.allocate_slots_batch([3, 9]),
        IndexError,
        "block_ids has 9, outside 0..8",
    ),
    Refusal(
        lambda context: context.slots.allocate_slots_batch([3, 8]),
        OwnershipError,
        "block 8 is free or the dummy and can have no state; allocate it first",
    ),
    Refusal(
        lambda context: context.slots.allocate_slots_batch([3, 4]),
        MambaSlotCapacityError,
        "1 more slots are needed, 0 may be evicted of 3 slots (1 free); "
        "release blocks first or keep fewer states",
    ),
    *size_refusals(lambda context, **n: context.slots._evict_lru_slots_batch(**n), num_needed=0),
    *(
        Refusal(
            lambda context, name=name: getattr(context.slots, name)("2"),
            TypeError,
            "block_id must be an int, got str '2'",
        )
        for name in ("get_slot", "has_state", "invalidate_block")
    ),
    *(
        Refusal(
            lambda context, name=name, block=block: getattr(context.slots, name)(block),
            IndexError,
            f"block_id {block} is outside 0..8",
        )
        for name in ("get_slot", "has_state", "invalidate_block")
        for block in (-1, 9)
    ),
    Refusal(
        lambda context: context.slots.register_block_hashes_batch([2], "5"),
        TypeError,
        "hashes must be a sequence or a tensor of ints, got str",
    ),
    Refusal(
        lambda context: context.slots.register_block_hashes_batch([2, 5], [1002]),
        ValueError,
        "1 hashes for 2 blocks; give one for each",
    ),
    Refusal(
        lambda context: context.slots.register_block_hashes_batch([2, 3], [1002, 1003]),
        UsageError,
        f"block 3 {NO_SLOT}",
    ),
    Refusal(
        lambda context: context.slots.register_block_hashes_batch([2], [7]),
        UsageError,
        "block 2 is registered under 1002, not 7",
    ),
    Refusal(
        lambda context: context.slots.register_block_hashes_batch([2, 5], [1002, 7]),
        UsageError,
        "block 5 is registered under -1, not 7",
    ),
    Refusal(lambda context: store(context, block_id=3), UsageError, f"block 3 {NO_SLOT}"),
    Refusal(lambda context: store(context, block_id="2"), TypeError, "block_id must be an int, got str '2'"),
    Refusal(
        lambda context: store(context, layer_idx="0"), TypeError, "layer_idx must be an int, got str '0'"
    ),
    *(
        Refusal(
            lambda context, layer=layer: store(context, layer_idx=layer),
            IndexError,
            f"layer_idx {layer} is outside 0..1",
        )
        for layer in (-1, 2)
    ),
    *(
        Refusal(
            lambda context, name=name: store(context, **{name: [1.0]}),
            TypeError,
            f"{name} must be a dense tensor, got list",
        )
        for name in ("ssm_state", "conv_state")
    ),
    *(
        Refusal(
            lambda context, name=name: store(context, **{name: torch.ones(2).to_sparse()}),
            TypeError,
            f"{name} must be a dense tensor, got Tensor",
        )
        for name in ("ssm_state", "conv_state")
    ),
    Refusal(
        lambda context: store(context, ssm_state=torch.ones(2, 2).half()),
        TypeError,
        "ssm_state has dtype torch.float16, the slots keep torch.float32; convert it first",
    ),
    Refusal(
        lambda context: store(context, conv_state=torch.ones(3)),
        TypeError,
        "conv_state has dtype torch.float32, the slots keep torch.float16; convert it first",
    ),
    Refusal(
        lambda context: store(context, ssm_state=torch.ones(2, 3)),
        ValueError,
        "ssm_state has shape [2, 3], a slot [2, 2]",
    ),
    Refusal(
        lambda context: store(context, conv_state=torch.ones(4).half()),
        ValueError,
        "conv_state has shape [4], a slot [3]",
    ),
    Refusal(
        lambda context: context.slots.store_from_live_batch("1", [0]),
        TypeError,
        "slots must be a sequence or a tensor of ints, got str",
    ),
    Refusal(
        lambda context: context.slots.store_from_live_batch([3], [0]),
        IndexError,
        "slots has 3, outside 0..2",
    ),
    Refusal(
        lambda context: context.slots.store_from_live_batch([1, 1], [0, 1]),
        ValueError,
        f"slots [1, 1] {NOT_TWICE}",
    ),
    Refusal(
        lambda context: context.slots.store_from_live_batch([1], [0, 1]),
        ValueError,
        "1 slots for 2 requests; give one for each",
    ),
    Refusal(
        lambda context: context.slots.store_from_live_batch([1], [4]),
        IndexError,
        "request index has 4, outside 0..3",
    ),
    Refusal(
        lambda context: context.slots.store_from_live_batch([1], "0"),
        TypeError,
        "request index must be a sequence or a tensor of ints, got str",
    ),
    Refusal(
        lambda context: context.slots.restore_to_live("0", 2),
        TypeError,
        "request_idx must be an int, got str '0'",
    ),
    Refusal(
        lambda context: context.slots.restore_to_live(4, 2), IndexError, "request index has 4, outside 0..3"
    ),
    Refusal(lambda context: context.slots.restore_to_live(0, 9), IndexError, "block_id 9 is outside 0..8"),
    Refusal(
        lambda context: context.slots._copy_intermediate_to_cache("1", [1]),
        TypeError,
        "src_offsets must be a sequence or a tensor of ints, got str",
    ),
    Refusal(
        lambda context: context.slots._copy_intermediate_to_cache([12], [1]),
        IndexError,
        "src_offsets has 12, outside 0..11",
    ),
    Refusal(
        lambda context: context.slots._copy_intermediate_to_cache([1, 2], [1]),
        ValueError,
        "1 slots for 2 rows; give one for each",
    ),
    *size_refusals(
        compute_offsets,
        skip_tokens=0,
        prefill_chunk_length=0,
        num_matched_blocks=0,
        overall_required_blocks=0,
        finished_chunk_token_count=0,
    ),
    Refusal(
        lambda context: compute_offsets(context, current_id="0"),
        TypeError,
        "current_id must be an int, got str '0'",
    ),
    *(
        Refusal(
            lambda context, row=row: compute_offsets(context, current_id=row),
            IndexError,
            f"current_id {row} is outside 0..3",
        )
        for row in (-1, 4)
    ),
    Refusal(
        lambda context: compute_offsets(context, skip_tokens=10),
        ValueError,
        "10 tokens of a chunk of 9 cannot be skipped",
    ),
    Refusal(
        lambda context: compute_offsets(context, matched_block_ids="2"),
        TypeError,
        "matched_block_ids must be a sequence or a tensor of ints, got str",
    ),
    Refusal(
        lambda context: compute_offsets(context, matched_block_ids=[9]),
        IndexError,
        "matched_block_ids has 9, outside 0..8",
    ),
    Refusal(
        lambda context: compute_offsets(context),
        UsageError,
        "row 0 names no block that ends at token 8: fill it before the offsets are computed",
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
    check_refusal(context, Refusal(lambda it: it.slots.store_from_live_batch([1], [0]), ValueError, words))


@pytest.mark.parametrize("row", [-1, 4])
def test_a_request_without_a_live_state_is_refused(make_context: Callable[..., Any], row: int) -> None:
    """X1: the request, its row and how many rows there are."""
    context = make_slots(make_context)
    context.mamba_metadata.request_to_mamba_state_idx[2] = row
    words = f"request 2 has no live state: its row of 4 is {row}"
    check_refusal(
        context, Refusal(lambda it: it.slots.store_from_live_batch([0, 1], [1, 2]), UsageError, words)
    )


def test_a_block_table_beyond_the_pool_is_refused(make_context: Callable[..., Any]) -> None:
    """X1: the row of the table is named."""
    context = make_slots(make_context)
    context.request_to_kv_block_ids[1, 1] = 9
    words = "row 1 of request_to_kv_block_ids has 9, outside 0..8"
    check_refusal(context, Refusal(lambda it: compute_offsets(it, current_id=1), IndexError, words))


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
    Refusal(
        lambda _: make_requests(num_mamba_layers=0),
        ValueError,
        "2 mamba_slots without num_mamba_layers have no states to keep",
    ),
    Refusal(lambda _: make_requests(device=0), TypeError, NO_DEVICE),
    Refusal(
        lambda _: make_requests(enable_prefix_caching=1),
        TypeError,
        "enable_prefix_caching must be a bool, got 1",
    ),
    Refusal(
        lambda _: make_requests(prefix_caching_eviction_policy="fifo"),
        ValueError,
        "'fifo' is not a valid PrefixCachingEvictionPolicy",
    ),
    Refusal(lambda _: make_requests(hash_page=5), TypeError, "hash_page must be a callable, got 5"),
    *(
        Refusal(
            lambda _, name=name: make_requests(**NO_CACHE, **{name: (2, 0)}),
            ValueError,
            f"{name} must be at least 1, got 0",
        )
        for name in ("conv_states_shape", "ssm_states_shape")
    ),
    *(
        Refusal(lambda _, name=name: make_requests(**NO_CACHE, **{name: "half"}), TypeError, NO_DTYPE)
        for name in ("conv_states_dtype", "ssm_states_dtype")
    ),
]

REQUESTS = [
    Refusal(
        lambda context: context.add_request(context.requests[0]),
        UsageError,
        "the request is here already; release it first",
    ),
    Refusal(
        lambda context: context.add_request(request(1, finished=4)),
        UsageError,
        "the request has finished 4 tokens; a new one starts at 0",
    ),
    Refusal(
        lambda context: context.add_request(request()),
        ValueError,
        "prompt_tokens is empty; a request computes at least one token",
    ),
    Refusal(
        lambda context: context.add_request(
            SimpleNamespace(prompt_tokens=[(1, 2)], finished_chunk_token_count=0)
        ),
        ValueError,
        "prompt_tokens has tokens of 2 integers; a context takes plain ones: "
        "give integers, and one prompt of a batch",
    ),
    Refusal(
        lambda context: context.add_request(request(*range(13))),
        ValueError,
        "a prompt of 13 tokens needs 4 blocks, a request may have 3; cut it",
    ),
    *size_refusals(lambda context, **n: context.add_request(request(1), **n), max_tokens=1, reserve=0),
    *size_refusals(lambda context, **n: context.schedule_chunk(context.requests[2], **n), max_tokens=1),
    *(
        Refusal(
            lambda context, act=act: getattr(context, act)(request(1)),
            UsageError,
            f"cannot {act} a request that is not here: it was never added, or was released",
        )
        for act in ("schedule_chunk", "pause", "resume", "release")
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
    Refusal(
        lambda context: context.commit_step([1]),
        RuntimeError,
        "commit_step was called without begin_step",
    ),
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
}


@pytest.mark.parametrize("act", IN_A_STEP)
def test_a_step_is_finished_before_anything_else_begins(act: str) -> None:
    """X1: the call is named, and what comes first."""
    context = busy_context()
    context.begin_step()
    words = f"{act} was called during a step: commit_step or abort_step comes first"
    check_refusal(context, Refusal(IN_A_STEP[act], RuntimeError, words))


@pytest.mark.parametrize("act", IN_A_STEP)
def test_an_observer_may_not_act_on_the_requests(act: str) -> None:
    """X1: nor on the context that its blocks belong to."""
    context = busy_context()
    heard: list[str] = []

    def observe(blocks: list[int], hashes: set[int]) -> None:
        with pytest.raises(RuntimeError) as raised:
            IN_A_STEP[act](context)
        heard.append(str(raised.value))

    context.kv_block_allocator.on_blocks_deregistered = observe
    context.release(context.requests[1])
    assert heard == [refused_inside(act)]


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
    check_refusal(context, Refusal(lambda it: it.commit_step(tokens), error, words))


def decoding(tokens: int, **changes: Any) -> DynamicInferenceContext:
    """Return a context with one request that has filled its blocks."""
    context = make_requests(mamba_slots=0, num_mamba_layers=0, **changes)
    context.add_request(request(*range(tokens)))
    context.step(lambda batch: [1])
    return context


def test_a_request_that_has_all_its_blocks_decodes_no_further() -> None:
    """X1: its row, its blocks, and what to do with it."""
    words = "the request in row 0 has all 3 blocks that one may have; release it"
    check_refusal(decoding(12), Refusal(lambda it: it.begin_step(), UsageError, words))


def test_decoding_without_blocks_says_what_is_missing() -> None:
    """X1: needed, free, evictable, and what to do."""
    words = "1 blocks are needed to decode, 0 are free and 0 may be evicted; pause or release requests"
    check_refusal(decoding(8, num_blocks=3), Refusal(lambda it: it.begin_step(), CapacityError, words))


def test_an_index_of_prefixes_hashes_with_a_function() -> None:
    """X1: anything else is named."""
    allocator = make_blocks()
    words = "hash_page must be a callable, got 'sha256'"
    check_refusal(
        allocator,
        Refusal(lambda it: PrefixIndex(it, 4, "sha256"), TypeError, words),  # type: ignore[arg-type]
    )
