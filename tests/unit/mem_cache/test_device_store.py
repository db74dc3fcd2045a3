"""The device store: its lists, its late counts, and when it waits for its device."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from pymllm.errors import OwnershipError
from pymllm.invariants.slots import check_slot_store, check_swa_allocator
from pymllm.mem_cache.slots.device_store import DeviceSlotStore, LateCount, Whereabouts
from pymllm.mem_cache.slots.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator
from tests.far_device import Apart


def make(device: torch.device, page_size: int = 1, need_sort: bool = True) -> DeviceSlotStore:
    return DeviceSlotStore(12 * page_size, page_size, device, need_sort, check_ownership=False)


def take(store: DeviceSlotStore, count: int) -> torch.Tensor:
    pages = store.take(count)
    assert pages is not None
    return pages


def test_a_merge_sorts_without_a_sort(device: torch.device) -> None:
    """A4: marks are read in order, whatever order pages came back in."""
    store = make(device)
    pages = take(store, 12)
    for part in (pages[7:9].clone(), pages[[4, 1]], pages[11:].clone()):
        store.give(part)
    store.merge()
    check_slot_store(store)
    assert take(store, 5).tolist() == [2, 5, 8, 9, 12]


def test_an_unchecked_paged_group_tells_pages_apart_at_its_end(device: torch.device) -> None:
    """A5, A6: until then the slots are only noted down, and nobody has them."""
    store = make(device, page_size=4)
    take(store, 12)
    store.begin_group()
    store.free(torch.tensor([4, 5, 8, 7], device=device))
    store.free(torch.tensor([16, 17], device=device))
    assert (store.free_pages, store.pending_pages) == (0, 0)
    assert store.is_handed_out(torch.tensor([4, 8, 12, 16])).tolist() == [False, False, True, False]
    check_slot_store(store)
    store.end_group()
    assert store.free_pages == 3
    assert take(store, 3).tolist() == [1, 2, 4]


@pytest.mark.parametrize("page_size", [1, 4])
def test_slots_are_counted_out_on_the_device(page_size: int) -> None:
    """A3: a device without memory stands in for a GPU."""
    store = DeviceSlotStore(8, page_size, torch.device("meta"), need_sort=False, check_ownership=False)
    assert (pages := store.take(1)) is not None
    assert store.slots_of(pages, page_size).device.type == "meta"
    none = TokenToKVPoolAllocator(8, "meta", page_size, check_ownership=False).alloc(0)
    assert none is not None
    assert none.device.type == "meta"


def test_numbers_from_the_host_go_to_the_device() -> None:
    """X4: a device without memory stands in for a GPU; nothing is read back."""
    store = DeviceSlotStore(8, 1, torch.device("meta"), need_sort=False, check_ownership=False)
    assert store.take(4) is not None
    store.free(torch.tensor([3, 1], dtype=torch.int32))
    assert store.free_pages == 6
    pages, _ = store.locate(torch.tensor([3]))
    for numbers in (*store._released, pages):
        assert (numbers.device.type, numbers.dtype) == ("meta", torch.int64)


@pytest.mark.parametrize("page_size", [2, 3, 4])
def test_a_page_may_come_back_in_parts_within_an_unchecked_group(
    device: torch.device, page_size: int
) -> None:
    """A5, A6: it is free once, whatever the size of a page."""
    store = make(device, page_size=page_size)
    take(store, 12)
    store.begin_group()
    store.free(torch.tensor([page_size], device=device))
    store.free(torch.tensor([2 * page_size - 1, 2 * page_size], device=device))
    store.end_group()
    assert store.free_pages == 2
    assert take(store, 2).tolist() == [1, 2]


@pytest.mark.parametrize("need_sort", [True, False])
def test_single_slots_never_wait_for_the_device(apart: Apart, need_sort: bool) -> None:
    """Alloc, free, merges by need and by request, and groups, with checks off."""
    device, synchronisations = apart
    allocator = TokenToKVPoolAllocator(64, device, 1, need_sort)
    first = torch.arange(1, 17)  # on the host
    with synchronisations() as waits:
        slots = allocator.alloc(48)
        allocator.free(first)
        allocator.free(slots[16:32].long())
        allocator.alloc(32)
        allocator.free_group_begin()
        allocator.free(slots[32:40])
        allocator.free(slots[40:])
        allocator.free_group_end()
        allocator.merge_and_sort_free()
        assert allocator.alloc(65) is None
        assert allocator.available_size() == 32
    assert waits == []


def free_once(allocator: TokenToKVPoolAllocator, slots: torch.Tensor) -> None:
    allocator.free(slots[:16])


def free_in_a_group(allocator: TokenToKVPoolAllocator, slots: torch.Tensor) -> None:
    allocator.free_group_begin()
    for part in slots[:48].split(16):
        allocator.free(part)
    allocator.free_group_end()


@pytest.mark.parametrize("release", [free_once, free_in_a_group])
def test_pages_wait_once_per_free_or_group(
    apart: Apart, release: Callable[[TokenToKVPoolAllocator, torch.Tensor], None]
) -> None:
    """The one wait tells how many pages the slots are of; alloc has none."""
    device, synchronisations = apart
    allocator = TokenToKVPoolAllocator(64, device, 16)
    with synchronisations() as waits:
        slots = allocator.alloc(64)
    assert waits == []
    with synchronisations() as waits:
        release(allocator, slots)
    assert len(waits) == 1


def test_pages_are_told_apart_with_what_a_table_has_for_them(device: torch.device) -> None:
    """A5, A7: each page once, however it is named; a zero is nothing, and nothing named is nothing."""
    store = make(device, page_size=4)
    take(store, 12)
    table = store.new_table()
    table[[2, 5, 7]] = torch.tensor([12, 15, 17], dtype=table.dtype, device=device)
    pages, found, _ = store.claim_with(torch.tensor([23, 9, 20, 8, 13], device=device), table, whole=False)
    assert (pages.tolist(), found.tolist()) == ([2, 3, 5], [12, 15])
    assert pages.dtype == found.dtype == table.dtype
    pages, found, _ = store.claim_with(torch.tensor([20, 8, 9], device=device), table, whole=True)
    assert (pages.tolist(), found.tolist()) == ([2, 5], [12, 15])
    pages, found, _ = store.claim_with(torch.tensor([], dtype=torch.int32, device=device), table, whole=False)
    assert (pages.tolist(), found.tolist()) == ([], [])


@pytest.mark.parametrize("is_apart", [False, True])
def test_pages_are_told_apart_alike_near_the_host_and_far_from_it(
    device: torch.device, is_apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A5: by one call where nothing waits, otherwise by several with one wait."""
    store = make(device, page_size=4)
    monkeypatch.setattr(store, "_is_apart", is_apart)
    take(store, 12)
    for named, pages in [([23, 9, 20, 8, 13], [2, 3, 5]), ([4, 5], [1]), ([47], [11])]:
        assert store.claim(torch.tensor(named, device=device)).tolist() == pages


def test_pages_named_by_their_first_slots_do_not_wait(apart: Apart) -> None:
    """A5: what a cache gives back is known to be distinct; inside a group, too."""
    device, synchronisations = apart
    allocator = TokenToKVPoolAllocator(64, device, 16)
    slots = allocator.alloc(64)
    with synchronisations() as waits:
        allocator.free_pages(slots[:32:16])
        allocator.free_group_begin()
        allocator.free_pages(slots[32::16])
        allocator.free_group_end()
    assert waits == []
    assert allocator.available_size() == 64


def test_paged_windows_wait_once_per_free(apart: Apart) -> None:
    """For pages and halves together, whether halves are gone or not."""
    device, synchronisations = apart
    allocator = SWATokenToKVPoolAllocator(64, 64, device, 4)
    slots = allocator.alloc(64)
    for release, named in [
        (allocator.free, slots[:16]),
        (allocator.free_swa, slots[18:23]),
        (allocator.free, slots[16:31]),
    ]:
        with synchronisations() as waits:
            release(named)
        assert len(waits) == 1
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (32, 32)
    check_swa_allocator(allocator)


def test_pages_of_windows_named_by_their_first_slots_do_not_wait(apart: Apart) -> None:
    """A7: whole pages and pages without halves, alone and in a group; their count follows."""
    device, synchronisations = apart
    allocator = SWATokenToKVPoolAllocator(64, 64, device, 4)
    slots = allocator.alloc(64)
    with synchronisations() as waits:
        allocator.free_pages(slots[:8:4])
        allocator.free_swa_pages(slots[8:16:4])
        allocator.free_pages(slots[12:24:4])
        allocator.free_group_begin()
        allocator.free_swa_pages(slots[24:32:4])
        allocator.free_pages(slots[28:36:4])
        allocator.free_group_end()
    assert waits == []
    check_swa_allocator(allocator)
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (28, 36)
    assert set(allocator.alloc(28).tolist()).isdisjoint(slots[8:12].tolist() + slots[36:].tolist())


@pytest.mark.parametrize("watches", [True, False])
def test_pages_of_windows_are_checked_where_ownership_is(device: torch.device, watches: bool) -> None:
    """A5, A7: by their first slots as by any other; where no caches are watched, on a CPU."""
    where, checks = (device, True) if watches else ("cpu", None)
    allocator = SWATokenToKVPoolAllocator(16, 16, where, 4, check_ownership=checks, store="device")
    slots = allocator.alloc(16)
    allocator.free_swa_pages(slots[:4:4])
    allocator.free_pages(slots[:8:4].cpu().numpy().astype("int64"))
    with pytest.raises(OwnershipError, match="page 1 of slot 4 is not handed out"):
        allocator.free_pages(slots[:4:4])
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (8, 8)


@pytest.mark.parametrize("seed", range(4))
def test_late_counts_of_pages_change_nothing(device: torch.device, seed: int) -> None:
    """A1-A7, X4: whole pages by their first slots or by any of their slots, as on the host."""
    draw = random.Random(seed)
    late = SWATokenToKVPoolAllocator(80, 60, device, 4, True, check_ownership=False, store="device")
    plain = SWATokenToKVPoolAllocator(80, 60, "cpu", 4, True, check_ownership=False, store="host")
    held: dict[int, bool] = {}  # first slots of pages, and whether the half is there
    grouped = False
    for _ in range(200):
        act = draw.choice(
            ("alloc", "alloc", "free", "free_pages", "free_swa", "free_swa_pages", "group", "ask")
        )
        if act == "alloc":
            count = draw.randrange(1, 6) * 4
            found = [each.alloc(count) for each in (late, plain)]
            numbers = [None if slots is None else slots.tolist() for slots in found]
            assert numbers[0] == numbers[1]
            held.update(dict.fromkeys((numbers[1] or [])[::4], True))
        elif act == "group":
            for each in (late, plain):
                (each.free_group_end if grouped else each.free_group_begin)()
            grouped = not grouped
        elif act == "ask":
            assert late.available_size() == plain.available_size() or grouped
        else:
            among = [page for page, whole in held.items() if whole or "swa" not in act]
            gone = draw.sample(among, min(draw.randrange(5), len(among)))
            for each in (late, plain):
                getattr(each, act)(torch.tensor(gone, dtype=torch.int64, device=each.device))
            for page in gone:
                held[page] = False
                if "swa" not in act:
                    del held[page]
        check_swa_allocator(late)
    if grouped:
        late.free_group_end()
        plain.free_group_end()
    assert (late.full_available_size(), late.swa_available_size()) == (
        plain.full_available_size(),
        plain.swa_available_size(),
    )


@pytest.mark.parametrize("frees", ["both", "slots", "halves"])
def test_paged_windows_wait_once_per_group(apart: Apart, frees: str) -> None:
    """A5, A7: at its end, for all that was freed in it, however its pages are named."""
    device, synchronisations = apart
    allocator = SWATokenToKVPoolAllocator(64, 64, device, 4)
    slots = allocator.alloc(64)
    allocator.free_swa(slots[60:])
    allocator.free_group_begin()
    with synchronisations() as waits:
        if frees != "slots":
            allocator.free_swa(slots[18:23])
            allocator.free_swa(slots[30:31])
        if frees != "halves":
            allocator.free(slots[:9])
            allocator.free(slots[16:31])
            allocator.free(slots[59:])
    assert waits == []
    assert not allocator.translate_to_swa(slots[28:32] if frees != "slots" else slots[:12]).any()
    assert allocator.full_available_size() == 0
    check_swa_allocator(allocator)
    with synchronisations() as waits:
        allocator.free_group_end()
    # Where single slots were freed, their halves are told apart by the same wait.
    assert len(waits) == 1
    full, halves = {"both": (36, 36), "slots": (36, 36), "halves": (0, 16)}[frees]
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (full, halves)
    check_swa_allocator(allocator)


def test_windows_of_single_slots_never_wait(apart: Apart) -> None:
    """A7: alloc, and free whether halves are gone or not, alone and in a group."""
    device, synchronisations = apart
    allocator = SWATokenToKVPoolAllocator(64, 64, device)
    with synchronisations() as waits:
        slots = allocator.alloc(48)
        allocator.free(slots[:8])
        allocator.translate_to_swa(slots)
        allocator.free_swa(slots[16:32])
        allocator.move_swa(slots[32:40], slots[16:24])
        allocator.free(slots[8:20])
        allocator.free(slots[:0])
        allocator.free_group_begin()
        allocator.free(slots[20:26])
        allocator.free_swa(slots[41:42])
        allocator.free(slots[40:44])
        allocator.free_group_end()
        again = allocator.alloc(30)
        allocator.merge_and_sort_free()
    assert waits == []
    check_swa_allocator(allocator)
    # Of the first 48 slots 18 are held, 26 to 39 without halves, which they lost or moved away.
    assert allocator.available_size() == 16
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (16, 30)
    assert not set(again.tolist()) & set(slots[26:40].tolist() + slots[44:].tolist())


def test_what_is_certain_is_handed_out_without_asking(apart: Apart) -> None:
    """A3: a count that is late is waited for where it decides, and only there."""
    device, synchronisations = apart
    allocator = SWATokenToKVPoolAllocator(16, 12, device)
    first = allocator.alloc(12)
    allocator.free_swa(first[:3])
    allocator.free(first[:6])
    with synchronisations() as waits:
        assert allocator.alloc(3) is not None
    assert waits == []
    assert (allocator.available_size(), allocator.alloc(4)) == (3, None)
    assert allocator.alloc(3) is not None
    check_swa_allocator(allocator)


@pytest.mark.parametrize("need_sort", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_counts_that_are_late_change_nothing(device: torch.device, need_sort: bool, seed: int) -> None:
    """A1-A4, A6, A7, X4: asked for often, seldom or at the end alone, slots are as on the host."""
    draw = random.Random(seed)
    late = SWATokenToKVPoolAllocator(40, 30, device, 1, need_sort, check_ownership=False, store="device")
    plain = SWATokenToKVPoolAllocator(40, 30, "cpu", 1, need_sort, check_ownership=False, store="host")
    both = (late, plain)
    held: list[int] = []
    whole: set[int] = set()
    grouped = False

    def named(most: int, among: list[int]) -> list[int]:
        return draw.sample(among, min(draw.randrange(most + 1), len(among)))

    for _ in range(400):
        act = draw.choice(("alloc", "alloc", "free", "free", "swa", "group", "merge", "ask"))
        if act == "alloc":
            count = draw.randrange(1, 9)
            found = [each.alloc(count) for each in both]
            numbers = [None if slots is None else slots.tolist() for slots in found]
            assert numbers[0] == numbers[1]
            held += numbers[1] or []
            whole |= set(numbers[1] or [])
        elif act == "free":
            gone = named(7, held)
            held = [slot for slot in held if slot not in gone]
            whole -= set(gone)
            late.free(torch.tensor(gone, dtype=torch.int64, device=device))
            plain.free(torch.tensor(gone, dtype=torch.int64))
        elif act == "swa":
            gone = named(5, sorted(whole))
            whole -= set(gone)
            late.free_swa(torch.tensor(gone, dtype=torch.int64, device=device))
            plain.free_swa(torch.tensor(gone, dtype=torch.int64))
        elif act == "group":
            for each in both:
                (each.free_group_end if grouped else each.free_group_begin)()
            grouped = not grouped
        elif act == "merge":
            for each in both:
                each.merge_and_sort_free()
        elif draw.random() < (seed % 3) / 2:
            assert late.available_size() == plain.available_size()
            assert late.swa_available_size() == plain.swa_available_size()
        check_swa_allocator(late)
    assert late.available_size() == plain.available_size()
    assert late.translate_to_swa(torch.arange(41, device=device)).count_nonzero() == len(whole)


def test_pages_are_counted_and_zeros_are_none(device: torch.device) -> None:
    """A2: as they are when it is asked for, whatever is written there afterwards."""
    pages = torch.tensor([3, 0, 7, 0, 1], device=device)
    late = LateCount(pages, Whereabouts.RELEASED)
    pages.zero_()
    assert (late.read(), late.read(), late.where) == (3, 3, Whereabouts.RELEASED)


def test_a_number_that_was_not_sent_is_not_here() -> None:
    """On a device without events nobody knows when it could be read without waiting."""
    late = LateCount(torch.tensor([3, 0]), Whereabouts.PENDING)
    assert not late.is_here()
    assert late.read() == 1
    assert not late.is_here()


@pytest.mark.gpu
def test_a_sent_number_is_here_when_its_stream_is_done() -> None:
    """And nothing that was launched later is waited for."""
    pages = torch.tensor([3, 0, 7], device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        late = LateCount(pages, Whereabouts.MAIN)
        late.is_here()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert late.is_here()
    torch.cuda._sleep(200_000_000)
    assert late.read() == 2
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
