"""Tests of the slots of a `TokenToKVPoolAllocator`, with either free list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pymllm.errors import OwnershipError
from pymllm.invariants import check_token_allocator
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator

Make = Callable[..., TokenToKVPoolAllocator]


@pytest.fixture(
    params=[("cpu", "host"), ("cpu", "device"), pytest.param(("cuda", "device"), marks=pytest.mark.gpu)],
    ids="-".join,
)
def make(request: pytest.FixtureRequest) -> Make:
    """A constructor for each free list on each device; ownership is checked unless a test says otherwise."""
    device, store = request.param

    def build(
        size: int = 8, page_size: int = 1, need_sort: bool = True, **options: Any
    ) -> TokenToKVPoolAllocator:
        options = {"check_ownership": True, "store": store, **options}
        return TokenToKVPoolAllocator(size, device, page_size, need_sort, **options)

    return build


def alloc(allocator: TokenToKVPoolAllocator, count: int) -> torch.Tensor:
    slots = allocator.alloc(count)
    assert slots is not None
    return slots


def drain(allocator: TokenToKVPoolAllocator) -> list[int]:
    """Take everything that is left, page by page."""
    taken = iter(lambda: allocator.alloc(allocator.page_size), None)
    return [slot for slots in taken for slot in slots.tolist()]


# -- what it hands out -------------------------------------------------------------------------------


def test_slot_0_is_never_handed_out(make: Make) -> None:
    """A1: slots are 1..size, lowest first."""
    allocator = make()
    assert alloc(allocator, 8).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert allocator.alloc(1) is None


def test_slots_are_int32_on_the_device_in_memory_of_their_own(make: Make) -> None:
    """Index dtypes; X5: what a caller writes into a result reaches nobody else."""
    allocator = make()
    first = alloc(allocator, 3)
    assert first.dtype is torch.int32
    assert first.device.type == allocator.device.type
    first.fill_(7)
    assert alloc(allocator, 3).tolist() == [4, 5, 6]


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_result_does_not_keep_the_free_list_alive(make: Make, page_size: int) -> None:
    """X5: holding one slot pins no more than the memory of its page."""
    slots = alloc(make(64, page_size), 1)
    assert slots.untyped_storage().nbytes() <= 4 * page_size


def test_nothing_wanted_is_an_empty_tensor(make: Make) -> None:
    """A3: alloc(0) is met, even when nothing is free."""
    allocator = make(4, 4)
    for _ in range(2):
        nothing = alloc(allocator, 0)
        assert nothing.dtype is torch.int32
        assert nothing.shape == (0,)
        allocator.alloc(4)


@pytest.mark.notices("B100")
def test_pages_are_handed_out_whole(make: Make) -> None:
    """A3: ceil(n / page_size) pages, their first n slots; the rest of the last page is the caller's too."""
    allocator = make(12, 4)
    assert alloc(allocator, 5).tolist() == [4, 5, 6, 7, 8]
    assert allocator.available_size() == 4
    assert alloc(allocator, 1).tolist() == [12]
    assert allocator.alloc(1) is None


# -- the order of what it hands out --------------------------------------------------------------------


# -- what it takes back ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint64]
)
def test_any_integer_dtype_is_taken_back(make: Make, dtype: torch.dtype) -> None:
    """Index dtypes: an int64 passed to free does not turn later allocs int64."""
    allocator = make()
    allocator.free(alloc(allocator, 8).to(dtype))
    again = alloc(allocator, 8)
    assert again.dtype is torch.int32
    assert again.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_any_shape_is_taken_back(make: Make) -> None:
    """Indices are read as one dimension: matrices, strided views, single elements."""
    allocator = make()
    slots = alloc(allocator, 8)
    allocator.free(slots[:4].reshape(2, 2).T)
    allocator.free(slots[4::2])
    allocator.free(slots[5])
    assert allocator.is_handed_out(slots).tolist() == [False] * 7 + [True]


@pytest.mark.parametrize(
    "nothing", [torch.tensor([]), torch.empty(0, dtype=torch.int32), torch.empty(2, 0).int()]
)
def test_an_empty_tensor_frees_nothing(make: Make, nothing: torch.Tensor) -> None:
    """X1: also the float one that torch makes of an empty list."""
    allocator = make(page_size=4)
    alloc(allocator, 4)
    allocator.free(nothing)
    assert allocator.available_size() == 4


def test_what_is_freed_is_copied(make: Make) -> None:
    """X5: a caller may write over the indices that it has given back."""
    allocator = make()
    slots = alloc(allocator, 8)
    for indices in (slots[:2], slots[2:4].long()):
        allocator.free(indices)
        indices.fill_(8)
    allocator.free_group_begin()
    for indices in (slots[4:6], slots[6:].long()):
        allocator.free(indices)
        indices.fill_(8)
    allocator.free_group_end()
    assert drain(allocator) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("page_size", [1, 3, 4])
@pytest.mark.parametrize("need_sort", [True, False])
def test_whole_pages_go_back_by_their_first_slots(
    make: Make, page_size: int, checked: bool, need_sort: bool
) -> None:
    """A2, A6: the same pages are free as if all their slots had been named, inside a group and out of one."""
    allocators = [
        make(6 * page_size, page_size, need_sort=need_sort, check_ownership=checked) for _ in range(2)
    ]
    for allocator, step in zip(allocators, (page_size, 1), strict=True):
        slots = alloc(allocator, 6 * page_size)
        release = allocator.free_pages if step > 1 else allocator.free
        release(slots[: 2 * page_size : step])
        allocator.free_group_begin()
        release(slots[4 * page_size :: step].long())
        assert allocator.available_size() == 2 * page_size
        allocator.free_group_end()
        release(slots[:0])
        check_token_allocator(allocator)
    assert drain(allocators[0]) == drain(allocators[1])


def test_page_that_is_nobodys_is_refused_by_its_first_slot_too(make: Make) -> None:
    """A5, X1: where ownership is checked, all or none."""
    allocator = make(16, 4)
    slots = alloc(allocator, 8)
    with pytest.raises(OwnershipError, match="not handed out"):
        allocator.free_pages(torch.tensor([4, 12]))
    allocator.free_pages(slots[::4])
    assert allocator.available_size() == 16


# -- ownership -------------------------------------------------------------------------------------------


def test_ownership_is_checked_by_default_on_cpu_only() -> None:
    """A5: and the attribute says what was decided."""
    assert TokenToKVPoolAllocator(4, "cpu").check_ownership is True
    assert TokenToKVPoolAllocator(4, "cpu", store="device").check_ownership is True
    assert TokenToKVPoolAllocator(4, "cpu", check_ownership=False).check_ownership is False


@pytest.mark.gpu
def test_ownership_is_not_checked_by_default_on_cuda() -> None:
    """A5: a check synchronises there."""
    assert TokenToKVPoolAllocator(4).check_ownership is False


@pytest.mark.parametrize("sorted_and_checked", [True, False])
@pytest.mark.parametrize("page_size", [1, 2])
def test_what_is_outside_is_handed_out_to_nobody(
    make: Make, page_size: int, sorted_and_checked: bool
) -> None:
    """A2: however far outside, in a pool that is all taken."""
    options = {"need_sort": sorted_and_checked, "check_ownership": sorted_and_checked}
    allocator = make(8, page_size, **options)
    alloc(allocator, 8)
    far = [-(2**62), -1, 0, page_size - 1, 8 + page_size, 2**31, 2**62]
    assert not allocator.is_handed_out(torch.tensor(far)).any()
    assert allocator.is_handed_out(torch.tensor([page_size, 7 + page_size])).all()
    assert allocator.is_handed_out(torch.empty(0, dtype=torch.int64)).tolist() == []


def test_is_handed_out_keeps_the_shape(make: Make) -> None:
    """A2: slots outside the pool are in nobody's hands."""
    allocator = make(8, 4)
    alloc(allocator, 1)
    answer = allocator.is_handed_out(torch.tensor([[-1, 3, 4], [7, 8, 12]]))
    assert answer.dtype is torch.bool
    assert answer.tolist() == [[False, False, True], [True, False, False]]


# -- groups ------------------------------------------------------------------------------------------------


# -- clear, construction -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_cleared_pool_is_as_new(make: Make, page_size: int) -> None:
    """X7, A6: whatever was held, pending or waiting; and the group is closed."""
    allocator = make(4 * page_size, page_size)
    slots = alloc(allocator, 3 * page_size)
    allocator.free(slots[:1])
    allocator.free_group_begin()
    allocator.free(slots[-1:])
    allocator.clear()
    with pytest.raises(RuntimeError, match="no free group is open"):
        allocator.free_group_end()
    with pytest.raises(OwnershipError, match="not handed out"):
        allocator.free(slots[page_size : page_size + 1])
    assert drain(allocator) == list(range(page_size, 5 * page_size))


def test_a_million_slots_come_back(make: Make) -> None:
    """A2, A4: the free list is right across all its parts, not only in the first."""
    size = 1 << 20
    allocator = make(size)
    slots = alloc(allocator, size)
    mixed = slots[torch.randperm(size, generator=torch.Generator().manual_seed(0))]
    for part in mixed[: size // 2].split(1 << 16):
        allocator.free(part)
    assert torch.equal(alloc(allocator, size // 2), mixed[: size // 2].sort().values)
    assert allocator.available_size() == 0


def test_attributes_say_how_it_was_built(make: Make) -> None:
    """The documented attributes, and a repr that names them."""
    allocator = make(8, 4, False)
    assert (allocator.size, allocator.page_size, allocator.need_sort) == (8, 4, False)
    assert isinstance(allocator.device, torch.device)
    alloc(allocator, 1)
    assert repr(allocator) == (
        f"TokenToKVPoolAllocator(size=8, page_size=4, device='{allocator.device}', available=4)"
    )


@pytest.mark.gpu
def test_indices_of_the_other_device_are_taken_back() -> None:
    """Every consumer takes indices wherever they are: copied over, both ways."""
    for device, other in (("cpu", "cuda"), ("cuda", "cpu")):
        allocator = TokenToKVPoolAllocator(4, device, check_ownership=True)
        allocator.free(alloc(allocator, 3).to(other))
        assert allocator.available_size() == 4


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_pool_from_inference_mode_works_outside(make: Make, page_size: int, checked: bool) -> None:
    """A3, X7: it is often built, and cleared, where a model is loaded."""
    with torch.inference_mode():
        allocator = make(8, page_size, check_ownership=checked)
    slots = alloc(allocator, 4)
    allocator.free(slots)
    with torch.inference_mode():
        allocator.clear()
        slots = alloc(allocator, 8)
    allocator.free(slots)
    assert allocator.available_size() == 8
