"""Block contexts read nothing back from a device, and the number of their operations does not grow."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pymllm.core.inference.contexts import (
    DynamicInferenceContext,
    KVBlockAllocator,
    MambaSlotAllocator,
    PrefixCachingEvictionPolicy,
)
from pymllm.core.inference.contexts.slot_states import Buffers
from pymllm.errors import CapacityError
from pymllm.invariants.blocks import check_dynamic_context

MANY = 64
KERNELS = {"index_select", "index_copy_", "copy_", "zero_"}


class OperationCounter(TorchDispatchMode):
    """Count what torch is asked to do, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def make_context(count: int, max_slots: int = 2 * MANY) -> SimpleNamespace:
    """Make a context whose first ``count`` requests compute prompts of three whole blocks and a token."""
    context = SimpleNamespace(
        prefix_cache_lru_clock=0,
        prefix_caching_eviction_policy="lru",
        max_requests=MANY,
        block_size_tokens=4,
        mamba_chunk_size=2,
        request_to_kv_block_ids=torch.arange(4 * MANY, dtype=torch.int32).view(MANY, 4),
        paused_request_count=0,
        batch_dimensions=SimpleNamespace(prefill_req_count=count, decode_req_count=0),
        mamba_metadata=SimpleNamespace(
            request_to_mamba_state_idx=torch.arange(MANY).flip(0),
            intermediate_count=2 * count,
            per_request_intermediate_counts=[2] * count,
        ),
        mamba_conv_states=torch.rand(3, MANY, 5),
        mamba_ssm_states=torch.rand(3, MANY, 2, 2),
    )
    kv = context.kv_block_allocator = KVBlockAllocator(context, 4 * MANY + 1)
    blocks = kv.allocate_memory_blocks(4 * MANY)
    kv.register_kv_block_hashes(blocks, [block + 1 for block in range(4 * MANY)], [0] * 4 * MANY)
    context.slots = MambaSlotAllocator(context, max_slots, 3, (5,), (2, 2), torch.float32, torch.float32)
    for row in range(count):
        req = SimpleNamespace(prompt_tokens=range(12), finished_chunk_token_count=0)
        context.slots.compute_and_store_offsets(req, row, 0, 12, 1, [], 3)
    return context


def evict_for(context: Any, count: int) -> None:
    context.slots.allocate_slots_batch(range(count))
    context.kv_block_allocator.release_memory_blocks(range(count))
    context.slots.allocate_slots_batch(range(3 * MANY, 3 * MANY + count))


# What is done for `count` blocks, requests or rows, and how many kernels it may take.
ACTS: dict[str, tuple[Callable[[Any, int], object], int]] = {
    "get_intermediate_gpu_data": (lambda context, count: context.slots.get_intermediate_gpu_data(), 1),
    "store_from_live_batch": (
        lambda context, count: context.slots.store_from_live_batch(range(count), range(count)),
        2 + 4,
    ),
    "_copy_intermediate_to_cache": (
        lambda context, count: context.slots._copy_intermediate_to_cache(range(count), range(count)),
        2 + 4,
    ),
    "commit_intermediate_states": (lambda context, count: context.slots.commit_intermediate_states(), 4 + 8),
    "allocate_slots_batch": (lambda context, count: context.slots.allocate_slots_batch(range(count)), 0),
    "invalidate and evict": (evict_for, 0),
    "_invalidate_blocks_batch": (
        lambda context, count: context.slots._invalidate_blocks_batch(range(count)),
        0,
    ),
    "reset": (lambda context, count: context.slots.reset(), 5),
}


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies states by torch's kernels, as on a device; on the host NumPy copies them."""
    monkeypatch.setattr(Buffers, "of", classmethod(lambda cls, conv, ssm: cls((conv, ssm), None)))


@pytest.mark.usefixtures("by_torch")
@pytest.mark.parametrize("act", ACTS)
def test_the_number_of_kernels_does_not_grow(act: str) -> None:
    """C7: batched copies are a constant number of launches, and what Python reads is no device's."""
    run, most = ACTS[act]
    counts = []
    for count in (1, 2, MANY):
        context = make_context(count, max_slots=count if act == "invalidate and evict" else 3 * MANY)
        with OperationCounter() as counter:
            run(context, count)
        counts.append(counter.seen)
    assert counts[0] == counts[1] == counts[2]
    assert sum(counts[0][name] for name in KERNELS) <= most
    assert "_local_scalar_dense" not in counts[0], "nothing is read number by number"


@pytest.mark.usefixtures("by_torch")
def test_a_restore_is_two_gathers_and_two_writes() -> None:
    """C7: however many layers there are."""
    context = make_context(1)
    context.slots.allocate_slots_batch([3])
    with OperationCounter() as counter:
        assert context.slots.restore_to_live(5, 3)
    found = {name: counter.seen[name] for name in KERNELS}
    assert found == {"index_select": 2, "index_copy_": 2, "copy_": 2, "zero_": 0}


def serve(device: str, seed: int, policy: PrefixCachingEvictionPolicy) -> list[Any]:
    """Run random requests with states on a device, and return what the trackers said after each act."""
    draw = random.Random(seed)
    context = DynamicInferenceContext(
        max_requests=5,
        num_blocks=17,
        max_blocks_per_request=6,
        block_size_tokens=4,
        mamba_chunk_size=2,
        mamba_slots=4,
        num_mamba_layers=2,
        conv_states_shape=(3,),
        ssm_states_shape=(2, 2),
        prefix_caching_eviction_policy=policy,
        paused_limit=6,
        device=device,
    )
    slots = context.mamba_slot_allocator
    assert slots is not None
    log: list[Any] = []
    for _ in range(150):
        match draw.choice(["add", "step", "step", "release"]):
            case "add":
                tokens = [draw.randint(1, 2) for _ in range(draw.randint(1, 20))]
                req = SimpleNamespace(prompt_tokens=tokens, finished_chunk_token_count=0)
                log.append(context.add_request(req, draw.choice([None, 4, 6])))
            case "step":
                for req in context.waiting_requests:
                    context.schedule_chunk(req)
                shapes: list[Any] = []

                def forward(batch: Any, shapes: list[Any] = shapes) -> list[int]:
                    offsets, counts = slots.get_intermediate_gpu_data()
                    shapes += [] if offsets is None or counts is None else [offsets.shape, counts.shape]
                    return [1] * len(batch)

                try:
                    log.append([step.start for step in context.step(forward).requests])
                except CapacityError:
                    context.release(context.requests[-1])
                log.append(shapes)
            case "release" if context.requests:
                context.release(draw.choice(context.requests))
        for req in [live.req for live in context._rows if live.computed > 19]:
            context.release(req)
        check_dynamic_context(context)
        log.append((slots.block_to_slot.tolist(), dict(slots.hash_to_block_id), slots.free_count))
    slots.reset()
    context.reset()
    return log


@pytest.mark.parametrize("policy", list(PrefixCachingEvictionPolicy), ids=lambda policy: policy.value)
def test_no_decision_reads_the_device(
    policy: PrefixCachingEvictionPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole requests on a device without memory, where reading is an error, go as on the CPU."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    on_cpu, on_meta = serve("cpu", 3, policy), serve("meta", 3, policy)
    assert on_meta == on_cpu
    assert any(
        shapes for shapes in on_cpu if isinstance(shapes, list) and shapes and not isinstance(shapes[0], int)
    )


def test_reading_such_a_device_is_an_error() -> None:
    """So that the test above can fail."""
    table = torch.zeros(3, device="meta")
    for read in (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu):
        with pytest.raises((RuntimeError, NotImplementedError)):
            read(table[0])
