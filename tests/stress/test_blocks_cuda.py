"""What only a CUDA device can show of block contexts: no synchronisation, fixed addresses, launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from pymllm.core.inference.contexts import DynamicInferenceContext, ForwardBatch, MambaSlotAllocator
from pymllm.invariants.blocks import check_dynamic_context

pytestmark = pytest.mark.gpu

BLOCK_SIZE, ROWS = 4, 64


@pytest.fixture
def forbid_synchronisation() -> Iterator[Callable[[], None]]:
    """A switch that makes every synchronising call an error for the rest of the test."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


def make_context() -> tuple[DynamicInferenceContext, MambaSlotAllocator]:
    context = DynamicInferenceContext(
        max_requests=ROWS,
        num_blocks=8 * ROWS + 1,
        max_blocks_per_request=8,
        block_size_tokens=BLOCK_SIZE,
        mamba_chunk_size=2,
        mamba_slots=2 * ROWS,
        num_mamba_layers=3,
        conv_states_shape=(6, 3),
        ssm_states_shape=(2, 4, 4),
        conv_states_dtype=torch.bfloat16,
        paused_limit=8,
        device="cuda",
    )
    assert context.mamba_slot_allocator is not None
    return context, context.mamba_slot_allocator


def add(context: DynamicInferenceContext, count: int, stem: int, length: int = 13) -> list[SimpleNamespace]:
    """Add requests whose prompts differ from the first token on."""
    reqs = [
        SimpleNamespace(prompt_tokens=[stem + n, *range(1, length)], finished_chunk_token_count=0)
        for n in range(count)
    ]
    assert all(context.add_request(req) for req in reqs)
    return reqs


def kernels_of(work: Callable[[], object]) -> int:
    """Count what is launched on the device: kernels, copies and fills."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    return sum(1 for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA)


def launch_forward(
    context: DynamicInferenceContext, slots: MambaSlotAllocator
) -> Callable[[ForwardBatch], list[int]]:
    """Stand in for a model without waiting: states are what the offsets on the device say."""

    def forward(batch: ForwardBatch) -> list[int]:
        offsets, _ = slots.get_intermediate_gpu_data()
        if offsets is not None:
            slots.intermediate_ssm_out[:, : offsets.shape[0]] = offsets[:, :1, None, None].float()
        assert context.mamba_conv_states is not None
        context.mamba_conv_states += 1
        return [7] * len(batch)

    return forward


def test_whole_requests_do_not_synchronise(forbid_synchronisation: Callable[[], None]) -> None:
    """Issue 5: matches, restores, offsets, commits, evictions, pauses and releases never wait."""
    context, slots = make_context()
    forward = launch_forward(context, slots)

    def serve(stem: int) -> None:
        reqs = add(context, ROWS // 2, stem)
        context.step(forward)
        assert context.pause(reqs[0])
        context.step(forward)
        context.resume(reqs[0])
        for req in reqs:
            context.release(req)

    serve(0)  # the first pinned memory is mapped here
    torch.cuda.synchronize()
    forbid_synchronisation()
    for stem in (0, 1000, 2000, 3000, 0):
        serve(stem)
    context.reset()
    torch.cuda.set_sync_debug_mode("default")
    check_dynamic_context(context)


@pytest.mark.parametrize(
    "act", ["store_from_live_batch", "_copy_intermediate_to_cache", "commit", "restore", "offsets"]
)
def test_launches_do_not_depend_on_the_batch(act: str) -> None:
    """Issue 5, C7: counted by the profiler, for two requests and for all of them; one can need fewer."""
    counts = []
    for count in (1, 2, ROWS):
        context, slots = make_context()
        add(context, count, 0)
        numbers = list(range(count))
        if act in ("commit", "restore", "offsets"):
            batch = context.begin_step()
            context.kv_block_allocator.register_kv_block_hashes(
                [step.blocks[2] for step in batch.requests], [n + 1 for n in numbers], [0] * count
            )
        if act == "restore":
            slots.commit_intermediate_states()
        work: dict[str, Callable[[], object]] = {
            "store_from_live_batch": lambda s=slots, n=numbers: s.store_from_live_batch(n, n),
            "_copy_intermediate_to_cache": lambda s=slots, n=numbers: s._copy_intermediate_to_cache(n, n),
            "commit": slots.commit_intermediate_states,
            "restore": lambda s=slots, c=context: s.restore_to_live(0, int(c.request_to_kv_block_ids[0, 2])),
            "offsets": slots.get_intermediate_gpu_data,
        }
        counts.append(kernels_of(work[act]))
    assert counts[1] == counts[2] >= counts[0] > 0


def test_offsets_stay_where_a_graph_has_seen_them() -> None:
    """Issue 5: addresses are those of the first step, through commits, resets and batches of any size."""
    context, slots = make_context()
    seen = set()
    for stem, count in enumerate((1, 5, ROWS, 2)):
        add(context, count, 100 * stem)
        context.begin_step()
        offsets, counts = slots.get_intermediate_gpu_data()
        assert offsets is not None
        assert counts is not None
        assert (offsets.shape, counts.shape) == ((count, 3), (count,))
        seen.add((offsets.data_ptr(), counts.data_ptr()))
        context.commit_step([7] * count)
        context.reset()
    assert len(seen) == 1


def test_a_captured_forward_pass_extracts_where_each_step_says() -> None:
    """Issue 5, C7, C8: one graph for every step; the states it extracts are what is cached afterwards."""
    context, slots = make_context()
    add(context, 2, 0)
    context.begin_step()
    offsets, _ = slots.get_intermediate_gpu_data()
    assert offsets is not None
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        slots.intermediate_ssm_out[:, :2].copy_(
            offsets[:, 0].float()[None, :, None, None, None].expand(3, 2, 2, 4, 4)
        )
    context.abort_step()
    for req in context.requests:
        context.release(req)
    for length in (9, 13, 17, 21):
        reqs = add(context, 2, 1000 * length, length)
        batch = context.begin_step()
        slots.get_intermediate_gpu_data()
        graph.replay()
        context.commit_step([7, 7])
        for step in batch.requests:
            (offset,) = step.offsets
            slot = slots.get_slot(step.blocks[offset // BLOCK_SIZE - 1])
            assert (slots.ssm_states[:, slot] == float(offset)).all()
        for req in reqs:
            context.release(req)
    check_dynamic_context(context)
