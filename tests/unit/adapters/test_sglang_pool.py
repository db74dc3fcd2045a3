"""What a cache gives back to an allocator is written down, once, and what the caller does is not."""

from __future__ import annotations

import torch

from pymllm.adapters.sglang.pools import SglangPool
from pymllm.history.outcomes import Effect


class Allocator:
    """A little like sglang's: a segment is freed by a call of its own, which calls the general one."""

    page_size = 4

    def __init__(self) -> None:
        self.freed: list[int] = []
        self.asked: list[int] = []

    def alloc(self, need_size: int) -> torch.Tensor | None:
        self.asked.append(need_size)
        return torch.arange(4, 4 + need_size) if need_size <= 8 else None

    def free(self, free_index: torch.Tensor) -> None:
        self.freed += free_index.tolist()

    def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
        self.free(free_index)

    def available_size(self) -> int:
        return 8 - len(self.freed)


class Halves(Allocator):
    """The same with a table of halves."""

    def __init__(self) -> None:
        super().__init__()
        self.full_to_swa_index_mapping = torch.tensor([0, 0, 0, 0, 1, 0])
        self.bare: list[int] = []

    def free_full(self, free_index: torch.Tensor) -> None:
        self.bare += free_index.tolist()

    def free_swa(self, free_index: torch.Tensor) -> None:
        self.full_to_swa_index_mapping[free_index] = 0

    def full_available_size(self) -> int:
        return 3

    def swa_available_size(self) -> int:
        return 2


def test_a_call_of_the_cache_is_one_effect() -> None:
    """However many further calls it makes; an empty one is none."""
    effects: list[Effect] = []
    allocator = Allocator()
    SglangPool(allocator, effects.append)
    allocator.free_segment(torch.tensor([4, 5]), start_pos=0)
    allocator.free(torch.tensor([], dtype=torch.int64))
    assert effects == [Effect("free", (4, 5))]
    assert allocator.freed == [4, 5]


def test_the_callers_own_calls_are_no_effects() -> None:
    """Whole pages are asked for, and as many slots answered as were wanted (A3)."""
    effects: list[Effect] = []
    pool = SglangPool(Allocator(), effects.append)
    assert pool.alloc(6) == (4, 5, 6, 7, 8, 9)
    assert pool.alloc(9) is None
    assert pool.allocator.asked == [8, 12]
    pool.free([4, 5])
    assert (effects, pool.sizes(), pool.halves([4])) == ([], {"available_size": 6}, ())


def test_slots_are_freed_as_their_halves_demand() -> None:
    """A7: sglang's caller knows which of its slots have lost theirs."""
    effects: list[Effect] = []
    pool = SglangPool(Halves(), effects.append)
    assert pool.halves([4, 5]) == (1, 0)
    pool.free([4, 5])
    assert (pool.allocator.freed, pool.allocator.bare, effects) == ([4], [5], [])
    pool.allocator.free_swa(torch.tensor([4]))
    pool.free_swa([4])
    assert effects == [Effect("free_swa", (4,))]
    assert pool.sizes() == {"available_size": 7, "full_available_size": 3, "swa_available_size": 2}
