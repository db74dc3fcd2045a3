"""Who has which slot of a `TokenToKVPoolAllocator`, with either free list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pymllm.errors import OwnershipError
from pymllm.invariants import check_token_allocator
from pymllm.mem_cache.token_allocator import TokenToKVPoolAllocator

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


@pytest.mark.parametrize("page_size", [3, 4])
def test_no_slot_of_page_0_is_handed_out(make: Make, page_size: int) -> None:
    """A1: pages are aligned and start at page 1, so the last slot is size + page_size - 1."""
    allocator = make(2 * page_size, page_size)
    assert alloc(allocator, 2 * page_size).tolist() == list(range(page_size, 3 * page_size))


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


def test_pages_need_not_be_neighbours(make: Make) -> None:
    """A3: after fragmentation, slots are in order within each page."""
    allocator = make(12, 4)
    alloc(allocator, 12)
    allocator.free(torch.tensor([12, 4]))
    assert alloc(allocator, 7).tolist() == [4, 5, 6, 7, 12, 13, 14]


@pytest.mark.parametrize("wanted", [9, 10**6, 2**40])
def test_an_alloc_that_cannot_be_met_changes_nothing(make: Make, wanted: int) -> None:
    """X4: not even whether what was freed waits."""
    allocator = make()
    slots = alloc(allocator, 6)
    allocator.free(slots[:2])
    assert allocator.alloc(wanted) is None
    assert allocator.available_size() == 4
    assert alloc(allocator, 2).tolist() == [7, 8]
    assert alloc(allocator, 2).tolist() == [1, 2]


# -- the order of what it hands out --------------------------------------------------------------------


@pytest.mark.parametrize("need_sort", [True, False])
def test_freed_slots_wait_while_older_ones_suffice(make: Make, need_sort: bool) -> None:
    """A4: what was freed since the last merge comes after what was free before."""
    allocator = make(need_sort=need_sort)
    allocator.free(alloc(allocator, 4))
    assert sorted(alloc(allocator, 4).tolist()) == [5, 6, 7, 8]
    assert sorted(alloc(allocator, 4).tolist()) == [1, 2, 3, 4]


def test_need_merges_and_the_lowest_go_first(make: Make) -> None:
    """A4: one more than the older slots can serve, and all free slots count alike."""
    allocator = make()
    slots = alloc(allocator, 7)
    allocator.free(slots[[5, 1, 3]])
    assert alloc(allocator, 2).tolist() == [2, 4]
    assert alloc(allocator, 2).tolist() == [6, 8]


def test_a_merge_by_request_lets_the_lowest_go_first(make: Make) -> None:
    """A4: merge_and_sort_free puts old and new together; a second one changes nothing."""
    allocator = make()
    slots = alloc(allocator, 4)
    allocator.free(slots[[3, 0]])
    for _ in range(2):
        allocator.merge_and_sort_free()
    assert drain(allocator) == [1, 4, 5, 6, 7, 8]


def test_an_unsorted_pool_merges_by_request_too(make: Make) -> None:
    """A4: without need_sort the order is free, but nothing is lost."""
    allocator = make(need_sort=False)
    slots = alloc(allocator, 4)
    allocator.free(slots[[3, 0]])
    allocator.merge_and_sort_free()
    assert sorted(drain(allocator)) == [1, 4, 5, 6, 7, 8]


def test_two_runs_hand_out_the_same(make: Make) -> None:
    """X3: what comes next depends on nothing but the calls before."""

    def run() -> list[int]:
        allocator = make(16, need_sort=False)
        slots = alloc(allocator, 10)
        allocator.free(slots[[8, 2, 5]])
        return drain(allocator)

    assert run() == run()


# -- what it takes back ----------------------------------------------------------------------------------


def test_available_size_counts_tokens(make: Make) -> None:
    """A2: free pages times the page size."""
    allocator = make(12, 4)
    assert allocator.available_size() == 12
    slots = alloc(allocator, 6)
    assert allocator.available_size() == 4
    allocator.free(slots[:1])
    assert allocator.available_size() == 8


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


@pytest.mark.parametrize("naming", [[8], [11], [8, 9, 10, 11], [11, 8], [9, 9]])
def test_a_page_is_freed_whole_and_once(make: Make, naming: list[int]) -> None:
    """A5: however many of its slots are named."""
    allocator = make(12, 4)
    alloc(allocator, 12)
    allocator.free(torch.tensor(naming))
    assert allocator.available_size() == 4
    assert alloc(allocator, 4).tolist() == [8, 9, 10, 11]


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


@pytest.mark.parametrize("page_size", [3, 4])
def test_pages_may_be_named_in_any_order(make: Make, page_size: int) -> None:
    """A5: slots of different pages, mixed."""
    allocator = make(4 * page_size, page_size)
    slots = alloc(allocator, 4 * page_size)
    mixed = torch.cat([slots[::2], slots[1::2]])[: 3 * page_size]
    allocator.free(mixed)
    freed = len({int(slot) // page_size for slot in mixed})
    assert allocator.available_size() == freed * page_size


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


@pytest.mark.parametrize("page_size", [1, 4])
def test_unchecked_pools_do_the_same(make: Make, page_size: int) -> None:
    """A2-A5: for callers that keep the rules, checks change nothing."""
    outcomes = []
    for checked in (True, False):
        allocator = make(8 * page_size, page_size, check_ownership=checked)
        slots = alloc(allocator, 6 * page_size)
        allocator.free(slots[: 2 * page_size])
        allocator.free_group_begin()
        allocator.free(slots[2 * page_size : 3 * page_size])
        allocator.free(slots[5 * page_size :])
        pending = allocator.is_handed_out(slots).tolist()
        allocator.free_group_end()
        outcomes.append((pending, allocator.available_size(), drain(allocator)))
    assert outcomes[0] == outcomes[1]


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


@pytest.mark.parametrize("page_size", [1, 4])
def test_pending_pages_are_neither_free_nor_handed_out(make: Make, page_size: int) -> None:
    """A2: between free and free_group_end they are nobody's."""
    allocator = make(2 * page_size, page_size)
    slots = alloc(allocator, 2 * page_size)
    allocator.free_group_begin()
    allocator.free(slots[:page_size])
    assert allocator.available_size() == 0
    assert allocator.alloc(1) is None
    assert allocator.is_handed_out(slots).tolist() == [False] * page_size + [True] * page_size
    allocator.free_group_end()
    assert allocator.available_size() == page_size
    assert alloc(allocator, page_size).tolist() == slots[:page_size].tolist()


@pytest.mark.parametrize("checked", [True, False])
def test_an_empty_group_changes_nothing(make: Make, checked: bool) -> None:
    """A6: also one in which only empty tensors were freed."""
    allocator = make(8, 4, check_ownership=checked)
    alloc(allocator, 8)
    allocator.free_group_begin()
    allocator.free_group_end()
    allocator.free_group_begin()
    allocator.free(torch.tensor([]))
    allocator.free_group_end()
    assert allocator.available_size() == 0


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
