"""The simulated model writes what a cold run writes, and notices whatever else is read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pymllm.errors import InvariantViolation
from pymllm.mem_cache.memory_pool import KVPool, SWATokenToKVPoolAllocator
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_forward import SimulatedForward, padded
from pymllm.workloads.fingerprint import prefix_fingerprints

PREFIXES = prefix_fingerprints(np.arange(10, dtype=np.uint32))
SLOTS = torch.arange(3, 13, dtype=torch.int32)


@pytest.fixture
def full() -> SimulatedForward:
    """Make a model of full attention over 16 slots."""
    return SimulatedForward(EngineConfig(capacity=16).rounded(), None)


@pytest.fixture
def windowed() -> tuple[SimulatedForward, SWATokenToKVPoolAllocator, torch.Tensor]:
    """Make a model with a window of 4, and ten slots of it."""
    config = EngineConfig(capacity=16, sliding_window_size=4).rounded()
    allocator = SWATokenToKVPoolAllocator(16, 16, "cpu")
    slots = allocator.alloc(12)
    assert slots is not None
    allocator.free(slots[:2])
    return SimulatedForward(config, allocator), allocator, slots[2:]


def test_batch_is_padded_with_slot_and_row_zero() -> None:
    """E5: padding names what is reserved for it."""
    assert padded(np.array([5, 6, 7])).tolist() == [5, 6, 7, 0, 0, 0, 0, 0]
    assert padded(np.arange(8)).tolist() == list(range(8))


def test_row_reads_back_as_written(full: SimulatedForward) -> None:
    """E1: written in two batches, read in one, counted once per row."""
    full.write(SLOTS[:3], PREFIXES[:3])
    full.write(SLOTS[3:], PREFIXES[3:])
    full.check_row(7, SLOTS, PREFIXES)
    assert full.checked_tokens == 10
    full.check_untouched()


@pytest.mark.parametrize("wrong", [[4, 3, *range(5, 13)], [3, 4, 5, 6, 7, 8, 9, 10, 11, 2]])
def test_foreign_slot_in_a_row_is_noticed(full: SimulatedForward, wrong: list[int]) -> None:
    """E1: the message names request, position, slot, layer, and both values."""
    full.write(SLOTS, PREFIXES)
    with pytest.raises(
        InvariantViolation,
        match=r"E1: request 7: position \d, slot \d, layer 0, FULL_K: expected -?\d+, .* found",
    ):
        full.check_row(7, torch.tensor(wrong), PREFIXES)


def test_other_prefix_of_the_same_token_is_noticed(full: SimulatedForward) -> None:
    """E1: KV of the same token behind another prefix is other KV."""
    full.write(SLOTS[:2], prefix_fingerprints(np.array([9, 1], dtype=np.uint32)))
    with pytest.raises(InvariantViolation, match="position 0"):
        full.check_row(7, SLOTS[:2], PREFIXES[:2])


def test_window_is_read_through_its_half(
    windowed: tuple[SimulatedForward, SWATokenToKVPoolAllocator, torch.Tensor],
) -> None:
    """S1: halves behind the window may be gone, those inside it are read and compared."""
    forward, allocator, slots = windowed
    forward.write(slots, PREFIXES)
    allocator.free_swa(slots[:6])
    forward.check_row(7, slots, PREFIXES)
    assert forward.checked_tokens == 14
    with pytest.raises(InvariantViolation, match=r"S1: request 7: position 5, slot 8 has no SWA half"):
        forward.check_row(7, slots[:9], PREFIXES[:9])


def test_moved_half_with_other_content_is_noticed(
    windowed: tuple[SimulatedForward, SWATokenToKVPoolAllocator, torch.Tensor],
) -> None:
    """E1: the full half being right does not excuse the SWA half."""
    forward, allocator, slots = windowed
    forward.write(slots, PREFIXES)
    allocator.free_swa(slots[9:])
    allocator.move_swa(slots[:1], slots[9:])
    with pytest.raises(InvariantViolation, match=r"E1: .* position 9, .* SWA_K"):
        forward.check_row(7, slots, PREFIXES)


def test_padding_that_lands_in_a_live_slot_is_noticed(
    full: SimulatedForward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E5: planted as the bug of -1 used as a padding index, which hits the last slot."""
    write: Callable[..., None] = KVPool.set_kv_buffer

    def astray(pool: KVPool, layer: int, indices: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        write(pool, layer, torch.where(indices == 0, 16, indices), k, v)

    full.write(SLOTS[:3], PREFIXES[:3])
    full.check_untouched()
    monkeypatch.setattr(KVPool, "set_kv_buffer", astray)
    full.write(SLOTS[3:6], PREFIXES[3:6])
    full.check_row(7, SLOTS[:6], PREFIXES[:6])
    with pytest.raises(InvariantViolation, match="E5: slot 16, layer 0, FULL_K holds"):
        full.check_untouched()


def test_slots_may_have_higher_numbers_than_there_are_in_use() -> None:
    """E1: where the other half is the smaller one, not all slots can be handed out at one time."""
    forward = SimulatedForward(EngineConfig(capacity=8).rounded(), None, slots=16)
    forward.write(SLOTS[-2:], PREFIXES[:2])
    forward.check_row(7, SLOTS[-2:], PREFIXES[:2])
    assert forward.unchecked_writes == 1
    forward.check_untouched()
    assert forward.unchecked_writes == 0


@pytest.mark.parametrize("stray", [-1, 3])
def test_padding_that_names_another_slot_is_noticed(
    full: SimulatedForward, monkeypatch: pytest.MonkeyPatch, stray: int
) -> None:
    """E5: before anything is written."""

    def pad(values: np.ndarray, padding: int = 0) -> np.ndarray:
        return np.concatenate([values, [stray]])

    monkeypatch.setattr("pymllm.workloads.engine_forward.padded", pad)
    with pytest.raises(InvariantViolation, match=f"E5: the padding of a batch names slot {stray}"):
        full.write(SLOTS[:3], PREFIXES[:3])
