"""Cached states: what the copies write, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pymllm.core.inference.contexts.mamba_slot_allocator import MambaSlotAllocator
from pymllm.errors import UsageError
from tests.far_device import Apart
from tests.unit.mem_cache.plain_kernel import PlainKernel

# On a GPU, where there is Triton, one launch moves both buffers; the promises are the same.
pytestmark = pytest.mark.usefixtures("on_the_cpu")

MakeContext = Callable[..., Any]
ReadBits = Callable[[torch.Tensor], torch.Tensor]


def all_bits(context: Any, read: ReadBits) -> list[torch.Tensor]:
    slots = context.slots
    return [
        read(states)
        for states in (
            context.mamba_conv_states,
            context.mamba_ssm_states,
            slots.conv_states,
            slots.ssm_states,
            slots.intermediate_conv_out,
            slots.intermediate_ssm_out,
        )
    ]


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_one_launch_moves_both_states(make_context: MakeContext, plain_kernel: PlainKernel) -> None:
    """C7: into the cache and back, a row or more; none where there is nothing to move."""
    context = make_context()
    slots = MambaSlotAllocator(context, 3, 2, (3,), (2, 2), torch.float16, torch.float32, fused=True)
    assert slots.is_fused
    assert {(clears, is_ordered) for _, clears, is_ordered, _ in plain_kernel.compiled} == {(False, False)}
    first, second = slots.allocate_slots_batch([1, 2])
    for moved, move in (
        (1, lambda: slots.store_from_live_batch([first, second], [0, 1])),
        (1, lambda: slots.restore_to_live(3, 1)),
        (1, lambda: slots._copy_intermediate_to_cache([4], [second])),
        (0, lambda: slots.store_from_live_batch([], [])),
    ):
        plain_kernel.launches.clear()
        move()
        assert len(plain_kernel.launches) == moved


def test_states_have_a_row_for_each_slot(make_context: MakeContext, device: torch.device) -> None:
    """Reference: [layers, slots, ...] in the given dtypes, on the context's device."""
    slots = make_context(max_slots=3, max_requests=4, device=device).slots
    assert slots.conv_states.shape == (2, 3, 3)
    assert slots.ssm_states.shape == (2, 3, 2, 2)
    assert slots.intermediate_conv_out.shape == (2, 12, 3)
    assert slots.intermediate_ssm_out.shape == (2, 12, 2, 2)
    assert (slots.conv_states.dtype, slots.ssm_states.dtype) == (torch.float16, torch.float32)
    assert slots.ssm_states.device.type == device.type
    assert slots.max_intermediate_count == 12
    assert slots.mem_bytes() == (3 + 12) * 2 * (3 * 2 + 4 * 4)


def test_given_states_are_written_to_one_layer_of_one_slot(
    make_context: MakeContext, read_bits: ReadBits, device: torch.device
) -> None:
    """C7: bit for bit, the payload of a NaN included; nothing else changes."""
    context = make_context(device=device)
    slot = context.slots.allocate_slots_batch([5, 1, 2])[0]
    assert slot == 0, "a slot like any other"
    expected = all_bits(context, read_bits)
    ssm = torch.tensor([[1, 2], [3, 2143289345]], dtype=torch.int32).view(torch.float32)
    conv = torch.tensor([7, 8, 32001], dtype=torch.int16).view(torch.float16)
    context.slots.store_from_tensors(5, 1, ssm, conv)
    expected[2][1, slot] = conv.view(torch.uint8)
    expected[3][1, slot] = ssm.reshape(-1).view(torch.uint8)
    assert_same(all_bits(context, read_bits), expected)


@pytest.mark.parametrize(("slots", "requests"), [([2, 0], [1, 3]), ([1], [0]), ([], []), ([0, 1], [2, 2])])
def test_live_states_are_copied_to_slots(
    make_context: MakeContext,
    read_bits: ReadBits,
    device: torch.device,
    slots: list[int],
    requests: list[int],
) -> None:
    """C7: of every named request and not only of the first, through its row of the live buffers."""
    context = make_context(device=device)
    expected = all_bits(context, read_bits)
    live = [3 - request for request in requests]
    for at in (2, 3):
        expected[at][:, slots] = expected[at - 2][:, live]
    context.slots.store_from_live_batch(slots, requests)
    assert_same(all_bits(context, read_bits), expected)


def test_a_cached_state_is_restored_into_one_request(
    make_context: MakeContext, read_bits: ReadBits, device: torch.device
) -> None:
    """C7: all layers, bit for bit; no other request, and not the slot."""
    context = make_context(device=device)
    slot = context.slots.allocate_slots_batch([6, 1, 2])[0]
    assert slot == 0, "a slot like any other"
    expected = all_bits(context, read_bits)
    for at in (0, 1):
        expected[at][:, 2] = expected[at + 2][:, slot]
    assert context.slots.restore_to_live(1, 6) is True
    assert_same(all_bits(context, read_bits), expected)


@pytest.mark.notices("B88")
def test_where_nothing_is_cached_the_live_state_stays(make_context: MakeContext, read_bits: ReadBits) -> None:
    """C7: False, and nothing was written."""
    context = make_context()
    before = all_bits(context, read_bits)
    assert context.slots.restore_to_live(1, 6) is False
    with pytest.raises(IndexError):
        context.slots.restore_to_live(4, 6)
    with pytest.raises(IndexError):
        context.slots.restore_to_live(1, -1)
    context.mamba_metadata.request_to_mamba_state_idx = [0, -1, 2, 3]
    context.slots.allocate_slots_batch([6])
    with pytest.raises(UsageError):
        context.slots.restore_to_live(1, 6)
    context.mamba_ssm_states = context.mamba_ssm_states.double()
    with pytest.raises(ValueError, match="only the rows may differ"):
        context.slots.restore_to_live(0, 6)
    found = all_bits(context, read_bits)
    assert_same([found[0], *found[2:]], [before[0], *before[2:]])


def test_live_states_may_lie_apart(
    make_context: MakeContext, read_bits: ReadBits, device: torch.device
) -> None:
    """C7: a context may keep its states in any order of memory; a copy goes by rows, not by addresses."""
    context = make_context(device=device)
    live = context.mamba_ssm_states
    context.mamba_ssm_states = live.transpose(2, 3).contiguous().transpose(2, 3)
    slots = context.slots.allocate_slots_batch([5, 6])
    expected = all_bits(context, read_bits)
    context.slots.store_from_live_batch(slots, [1, 3])
    for cached, states in ((expected[2], expected[0]), (expected[3], expected[1])):
        cached[:, slots] = states[:, [2, 0]]
    assert_same(all_bits(context, read_bits), expected)
    assert context.slots.restore_to_live(2, 6)
    for states in expected[:2]:
        states[:, 1] = states[:, 0]
    assert_same(all_bits(context, read_bits), expected)


def test_states_on_a_device_are_copied_there(
    make_context: MakeContext, read_bits: ReadBits, apart: Apart
) -> None:
    """C7: the same copies, and nothing waits for the device."""
    device, count = apart
    context = make_context(device=device)
    slots = context.slots.allocate_slots_batch([5, 6])
    expected = all_bits(context, read_bits)
    context.slots.store_from_live_batch(slots, [1, 3])  # a GPU's first pinned memory is mapped here
    with count() as waits:
        context.slots.store_from_live_batch(slots, [1, 3])
        context.slots._copy_intermediate_to_cache([7], slots[:1])
    assert waits == []
    for cached, live, output in zip(expected[2:4], expected[:2], expected[4:], strict=True):
        cached[:, slots] = live[:, [2, 0]]
        cached[:, slots[0]] = output[:, 7]
    assert_same(all_bits(context, read_bits), expected)


@pytest.mark.gpu
def test_no_copy_waits_for_the_gpu(make_context: MakeContext) -> None:
    """What Python reads is on the host, so not one call synchronises."""
    context = make_context(device="cuda")
    context.slots.allocate_slots_batch([5])
    context.slots.store_from_live_batch([0], [1])  # the first pinned memory is mapped here
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        slots = context.slots.allocate_slots_batch([6, 7])
        context.slots.store_from_live_batch(slots, [2, 3])
        context.slots._copy_intermediate_to_cache([1, 2], slots)
        assert context.slots.restore_to_live(0, 6)
        context.slots._invalidate_blocks_batch([6, 7])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert context.slots.free_count == 2
