"""The slot allocators at size, on each device, against a plain table of owners."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from pymllm.invariants.slots import check_token_allocator
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.slots import SlotMachine
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator
from tests.stress.card import Rounds

SIZE = 1 << 17
STEPS = 400


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("check_ownership", [False, True])
def test_the_machine_breaks_no_law_on_any_device(
    kv_device: torch.device, window: bool, page_size: int, check_ownership: bool
) -> None:
    """A1-A7, X1, X4, X7: the device store where it belongs."""
    sizes = {"page_size": page_size, "pages": 12, **({"swa_pages": 8} if window else {})}
    checks = {"need_sort": True, "check_ownership": check_ownership, "store": "device"}
    config = {**sizes, **checks, "device": kv_device.type}
    machine = make_machine(SlotMachine, "swa-slots" if window else "token-slots", config)
    assert drive(machine, seed=3, steps=300).examiner.judge.evidence.exercised["A2"]


@pytest.mark.gpu_memory_limit("64 MiB")
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("check_ownership", [False, True])
def test_no_slot_ever_has_two_owners(
    kv_device: torch.device, rounds: Rounds, seed: int, page_size: int, check_ownership: bool
) -> None:
    """A2, A3, bug B100: totals that balance prove nothing, so each slot has its owner written down."""
    draw = random.Random(seed + page_size)
    allocator = TokenToKVPoolAllocator(SIZE, kv_device, page_size, check_ownership=check_ownership)
    owner = np.zeros(SIZE + page_size, np.int64)
    held: dict[int, torch.Tensor] = {}
    for number in (turn + 1 for turn in rounds(STEPS)):
        count = draw.choice((1, 100, 3_000, 20_000)) // page_size * page_size or page_size
        slots = allocator.alloc(count)
        if slots is None:
            assert allocator.available_size() < count
        else:
            rows = slots.cpu().numpy()
            assert not owner[rows].any()
            owner[rows] = number
            held[number] = slots
        allocator.free_group_begin()
        for name in draw.sample(sorted(held), k=min(len(held), draw.randrange(4))):
            slots = held.pop(name)
            assert (owner[slots.cpu().numpy()] == name).all()
            owner[slots.cpu().numpy()] = 0
            allocator.free(slots.long() if draw.random() < 0.5 else slots)
        allocator.free_group_end()
        assert allocator.available_size() == SIZE - np.count_nonzero(owner)
    check_token_allocator(allocator)
    assert held
