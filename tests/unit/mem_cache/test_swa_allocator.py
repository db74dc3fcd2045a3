"""Full slots and their SWA halves, with either free list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pymllm.invariants.slots import check_swa_allocator
from pymllm.mem_cache.slots.swa_allocator import SWATokenToKVPoolAllocator

Make = Callable[..., SWATokenToKVPoolAllocator]
Sizes = tuple[int, int]


@pytest.fixture(
    params=[("cpu", "host"), ("cpu", "device"), pytest.param(("cuda", "device"), marks=pytest.mark.gpu)],
    ids="-".join,
)
def make(request: pytest.FixtureRequest) -> Make:
    """A constructor for each free list on each device; ownership is checked unless a test says otherwise."""
    device, store = request.param

    def build(
        size: int = 8, swa_size: int = 6, page_size: int = 1, need_sort: bool = True, **options: Any
    ) -> SWATokenToKVPoolAllocator:
        options = {"check_ownership": True, "store": store, **options}
        return SWATokenToKVPoolAllocator(size, swa_size, device, page_size, need_sort, **options)

    return build


def alloc(allocator: SWATokenToKVPoolAllocator, count: int) -> torch.Tensor:
    slots = allocator.alloc(count)
    assert slots is not None
    return slots


def sizes(allocator: SWATokenToKVPoolAllocator) -> Sizes:
    check_swa_allocator(allocator)
    full, swa = allocator.full_available_size(), allocator.swa_available_size()
    assert allocator.available_size() == min(full, swa)
    return full, swa


def halves(allocator: SWATokenToKVPoolAllocator, slots: list[int]) -> list[int]:
    return allocator.translate_to_swa(torch.tensor(slots)).tolist()


def test_slots_come_back_in_the_order_of_release(make: Make) -> None:
    """A4: where nobody sorts, also once some have lost their halves."""
    allocator = make(need_sort=False, check_ownership=False, swa_size=8)
    device = alloc(allocator, 8).device
    for lost in ([], [2], [5]):
        allocator.free_swa(torch.tensor(lost, dtype=torch.int64, device=device))
        allocator.free(torch.tensor([5, 2, 7], device=device))
        allocator.merge_and_sort_free()
        assert alloc(allocator, 3).tolist() == [5, 2, 7]


# -- alloc -----------------------------------------------------------------------------------------------


def test_each_slot_has_a_half(make: Make) -> None:
    """A7, A1: a full and an SWA slot per token, neither of them 0."""
    allocator = make()
    slots = alloc(allocator, 3)
    assert slots.dtype is torch.int32
    assert slots.tolist() == [1, 2, 3]
    assert halves(allocator, [1, 2, 3]) == [1, 2, 3]
    assert sizes(allocator) == (5, 3)


@pytest.mark.notices("B182")
@pytest.mark.parametrize("page_size", [3, 4])
def test_the_halves_of_a_page_are_a_page(make: Make, page_size: int) -> None:
    """A7, A3: whole pages in both pools, also where fewer slots are asked for."""
    allocator = make(4 * page_size, 3 * page_size, page_size)
    first = alloc(allocator, page_size + 1)
    allocator.free(first[:1])
    second = alloc(allocator, 2 * page_size - 1)
    assert second.tolist() == list(range(3 * page_size, 5 * page_size - 1))
    third = [3 * page_size + place for place in range(page_size - 1)]
    assert halves(allocator, second.tolist()) == [*range(page_size, 2 * page_size), *third]
    assert sizes(allocator) == (page_size, 0)


# -- free and free_swa -----------------------------------------------------------------------------------


@pytest.mark.notices("B169", "B92")
@pytest.mark.parametrize("checked", [True, False])
def test_free_returns_what_is_left_of_both(make: Make, checked: bool) -> None:
    """A7: full slots all, halves where there are any."""
    allocator = make(check_ownership=checked)
    slots = alloc(allocator, 6)
    allocator.free_swa(slots[1:3])
    assert sizes(allocator) == (2, 2)
    allocator.free(slots[:4].long())
    assert sizes(allocator) == (6, 4)
    allocator.free(slots[4:])
    assert sizes(allocator) == (8, 6)
    assert halves(allocator, [1, 2, 3, 4, 5, 6]) == [0] * 6


@pytest.mark.notices("B167")
def test_freeing_a_half_keeps_the_full_slot(make: Make) -> None:
    """A7, S2: the slot is still handed out; its half can be another's at once."""
    allocator = make(8, 2)
    slots = alloc(allocator, 2)
    allocator.free_swa(slots[:1])
    assert allocator.is_handed_out(slots).tolist() == [True, True]
    assert halves(allocator, [1, 2]) == [0, 2]
    again = alloc(allocator, 1)
    assert halves(allocator, again.tolist()) == [1]


NOTHING = pytest.mark.parametrize(
    "nothing", [torch.tensor([]), torch.empty(0, dtype=torch.int32), torch.empty(2, 0).long()]
)


@NOTHING
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("name", ["free", "free_swa"])
def test_an_empty_tensor_frees_nothing(make: Make, name: str, checked: bool, nothing: torch.Tensor) -> None:
    """X1: in both pools, and where a half is gone."""
    allocator = make(check_ownership=checked)
    slots = alloc(allocator, 3)
    getattr(allocator, name)(nothing)
    assert sizes(allocator) == (5, 3)
    allocator.free_swa(slots[1:2])
    getattr(allocator, name)(nothing)
    assert sizes(allocator) == (5, 4)


@pytest.mark.notices("B94")
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("checked", [True, False])
def test_groups_hold_both_halves_back(make: Make, page_size: int, checked: bool) -> None:
    """A2, A6, A7: a page whose full slot is pending does not lend its half to another."""
    allocator = make(4 * page_size, 4 * page_size, page_size, check_ownership=checked)
    slots = alloc(allocator, 4 * page_size)
    allocator.free_group_begin()
    allocator.free(slots[:page_size])
    allocator.free_swa(slots[page_size : 2 * page_size])
    assert sizes(allocator) == (0, 0)
    assert allocator.alloc(1) is None
    allocator.free(slots[page_size : 2 * page_size])
    allocator.free_group_end()
    assert sizes(allocator) == (2 * page_size, 2 * page_size)


# -- translate_to_swa --------------------------------------------------------------------------------------


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_translation_keeps_the_shape(make: Make, checked: bool, dtype: torch.dtype) -> None:
    """A7: int32 of the same shape; 0 for padding, for what is gone, and for what nobody has."""
    allocator = make(16, 8, 4, check_ownership=checked)
    allocator.free_swa(alloc(allocator, 8)[:4])
    told = allocator.translate_to_swa(torch.tensor([[0, 4, 8], [11, 9, 12]], dtype=dtype))
    assert told.dtype is torch.int32
    assert told.tolist() == [[0, 0, 8], [11, 9, 0]]


@NOTHING
def test_nothing_is_translated_to_nothing(make: Make, nothing: torch.Tensor) -> None:
    """A7: of the same shape, and int32."""
    found = make(4, 4).translate_to_swa(nothing)
    assert (found.dtype, found.shape) == (torch.int32, nothing.shape)


def test_a_translation_is_not_a_view_of_the_table(make: Make) -> None:
    """X5: writing into it changes nothing."""
    allocator = make()
    slots = alloc(allocator, 3)
    allocator.translate_to_swa(slots).zero_()
    assert halves(allocator, [1, 2, 3]) == [1, 2, 3]


@pytest.mark.parametrize("indices", [[1], torch.tensor([1.0])])
def test_only_integer_tensors_are_translated(make: Make, indices: Any) -> None:
    """X1: anything else is a TypeError."""
    with pytest.raises(TypeError, match="indices must be"):
        make().translate_to_swa(indices)


# -- move_swa ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("page_size", [1, 4])
def test_halves_move_from_slot_to_slot(make: Make, page_size: int, checked: bool) -> None:
    """A7, S7: no slot becomes free or taken by it."""
    allocator = make(6 * page_size, 6 * page_size, page_size, check_ownership=checked)
    slots = alloc(allocator, 4 * page_size)
    alive, dead = slots[: 2 * page_size], slots[2 * page_size :]
    allocator.free_swa(dead)
    before = sizes(allocator)
    expected = halves(allocator, alive.tolist())
    allocator.move_swa(alive, dead.long())
    assert halves(allocator, dead.tolist()) == expected
    assert halves(allocator, alive.tolist()) == [0] * (2 * page_size)
    assert sizes(allocator) == before
    allocator.free(slots)
    assert sizes(allocator) == (6 * page_size, 6 * page_size)


@NOTHING
def test_nothing_moves_by_an_empty_call(make: Make, nothing: torch.Tensor) -> None:
    """A7: two empty tensors pair."""
    allocator = make()
    alloc(allocator, 2)
    allocator.move_swa(nothing, torch.empty(0, dtype=torch.int32))
    assert halves(allocator, [1, 2]) == [1, 2]


# -- clear, construction -----------------------------------------------------------------------------------


def test_attributes_say_how_it_was_built(make: Make) -> None:
    """The attributes of the plain allocator, the second size, and a repr that names them."""
    allocator = make(8, 4, 4, False)
    built = (allocator.size, allocator.swa_size, allocator.page_size, allocator.need_sort)
    assert built == (8, 4, 4, False)
    assert allocator.check_ownership is True
    assert repr(allocator) == (
        "SWATokenToKVPoolAllocator(size=8, swa_size=4, page_size=4, "
        f"device='{allocator.device}', available=8+4)"
    )


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_pool_from_inference_mode_works_outside(make: Make, page_size: int, checked: bool) -> None:
    """A3, X7: it is often built, and cleared, where a model is loaded."""
    with torch.inference_mode():
        allocator = make(8, 8, page_size, check_ownership=checked)
    slots = alloc(allocator, 4)
    allocator.free(slots)
    with torch.inference_mode():
        allocator.clear()
        slots = alloc(allocator, 8)
    allocator.free(slots)
    assert allocator.available_size() == 8
