"""The queue of free pages: first freed, first handed out, around the end of its ring and in groups."""

from __future__ import annotations

import random

import pytest
import torch

from pymllm.errors import OwnershipError
from pymllm.invariants.slots import check_slot_store
from pymllm.mem_cache.host_queue import HostQueueStore


def make(pages: int = 4, page_size: int = 1) -> HostQueueStore:
    return HostQueueStore(pages * page_size, page_size, torch.device("cpu"), False, False)


def taken(store: HostQueueStore, count: int) -> list[int]:
    pages = store.take(count)
    assert pages is not None
    return pages.tolist()


def test_what_was_freed_first_goes_first() -> None:
    """A4: also around the end of the ring, and whether or not somebody merges."""
    store = make()
    assert taken(store, 3) == [1, 2, 3]
    store.free(torch.tensor([3, 1]))
    store.merge()
    assert taken(store, 2) == [4, 3]
    store.free(torch.tensor([2, 4, 3]))
    check_slot_store(store)
    assert taken(store, 4) == [1, 2, 4, 3]
    check_slot_store(store)
    assert store.take(0) is not None
    assert store.take(1) is None


def test_what_was_taken_stays_as_it_is() -> None:
    """X5: whatever is given back meanwhile, it is no view of the ring."""
    store = make()
    pages = store.take(4)
    assert pages is not None
    store.free(torch.tensor([3, 4]))
    assert pages.tolist() == [1, 2, 3, 4]


def test_a_group_is_one_free_at_its_end() -> None:
    """A2, A6: pending pages are neither free nor anybody's, and come in the order of their calls."""
    store = make()
    taken(store, 4)
    store.begin_group()
    store.free(torch.tensor([4, 2]))
    store.free(torch.tensor([1]))
    assert (store.free_pages, store.pending_pages, store.held_pages) == (0, 3, 1)
    assert store.is_handed_out(torch.tensor([0, 1, 2, 3, 4, 5, -1])).tolist() == [0, 0, 0, 1, 0, 0, 0]
    check_slot_store(store)
    assert store.take(1) is None
    store.end_group()
    assert taken(store, 3) == [4, 2, 1]


def test_a_page_is_freed_once_however_many_of_its_slots_are_named() -> None:
    """A5: in any order, without an owner's label."""
    store = make(4, page_size=2)
    taken(store, 3)
    store.free(torch.tensor([6, 2, 7, 3, 2]))
    assert store.free_pages == 3
    check_slot_store(store)
    store.free(torch.tensor([], dtype=torch.int64))
    assert sorted(taken(store, 3)) == [1, 3, 4]


def test_many_pages_are_written_in_the_order_of_the_queue() -> None:
    """A3: each as its slots, the last page cut."""
    store = make(400, page_size=2)
    taken(store, 400)
    for first, end in ((300, 400), (1, 3), (100, 250)):
        store.free(torch.arange(first * 2, end * 2))
    pages = store.take(252)
    assert pages is not None
    expected = [2 * page + offset for page in pages.tolist() for offset in range(2)][:-1]
    assert store.slots_of(pages, 503).tolist() == expected


@pytest.mark.parametrize("page_size", [1, 2])
def test_more_than_was_handed_out_is_refused(page_size: int) -> None:
    """X1: it would overwrite the queue; nothing has changed."""
    store = make(4, page_size)
    taken(store, 1)
    with pytest.raises(OwnershipError, match="2 pages are given back and 1 are handed out"):
        store.free(torch.tensor([1, 2]) * page_size)
    assert taken(store, 3) == [2, 3, 4]


def test_clear_forgets_everything() -> None:
    """X7: as in a new store."""
    store = make()
    taken(store, 3)
    store.begin_group()
    store.free(torch.tensor([2]))
    store.clear()
    assert not store.group_open
    assert taken(store, 4) == [1, 2, 3, 4]


@pytest.mark.parametrize("page_size", [1, 3])
def test_any_order_of_calls_keeps_the_partition(page_size: int) -> None:
    """A2: through many turns of the ring; what is handed out is nobody else's."""
    source = random.Random(3)
    store = make(17, page_size)
    held: list[int] = []
    for _ in range(400):
        if held and source.random() < 0.5:
            source.shuffle(held)
            count = source.randint(1, len(held))
            given, held = held[:count], held[count:]
            store.free(torch.tensor(given) * page_size + source.randrange(page_size))
        else:
            count = source.randint(0, store.free_pages)
            new = taken(store, count)
            assert not set(new) & set(held)
            held += new
        assert check_slot_store(store).nonzero()[0].tolist() == sorted(held)


@pytest.mark.parametrize("page_size", [1, 4, 5])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_one_page_goes_back_by_any_of_its_slots(page_size: int, dtype: torch.dtype) -> None:
    """A4, A5: at the end of the queue, also around the end of the ring, once for all its slots."""
    store = make(4, page_size)
    assert taken(store, 4) == [1, 2, 3, 4]
    for page in (3, 1, 4):
        first = page * page_size
        store.free(torch.arange(first + page_size // 2, first + page_size, dtype=dtype))
        check_slot_store(store)
    assert taken(store, 3) == [3, 1, 4]


def test_few_slots_of_two_pages_are_two_pages() -> None:
    """A5: though they are no more than one page has."""
    store = make(4, 4)
    taken(store, 4)
    store.free(torch.tensor([7, 8]))
    assert taken(store, 2) == [1, 2]


@pytest.mark.parametrize("call", ["free", "free_starts"])
def test_no_more_pages_come_back_than_went_out(call: str) -> None:
    """X1: what would overwrite the queue is refused, one page or several, slot by slot or by pages."""
    store = make(4, 4)
    taken(store, 1)
    for slots in (torch.tensor([4, 8]), torch.tensor([4, 8, 12])):
        with pytest.raises(OwnershipError, match="1 are handed out"):
            getattr(store, call)(slots)
    getattr(store, call)(torch.tensor([4]))
    with pytest.raises(OwnershipError, match="0 are handed out"):
        getattr(store, call)(torch.tensor([4]))
    check_slot_store(store)


@pytest.mark.parametrize(
    "wrong", [torch.tensor([1.5]), [4], torch.tensor([[4]]), torch.tensor([0]), torch.tensor([99])]
)
def test_what_is_not_simply_one_page_takes_the_long_way(wrong: object) -> None:
    """X1: which reads other shapes, and refuses what are no integers; who has what is not known here."""
    store = make(4, 4)
    taken(store, 4)
    if isinstance(wrong, torch.Tensor) and not wrong.is_floating_point():
        store.free(wrong)
        assert store.free_pages == 1
    else:
        with pytest.raises(TypeError, match="integers"):
            store.free(wrong)  # type: ignore[arg-type]
