"""One owner for each slot."""

from __future__ import annotations

import pytest

from pymllm.errors import ProgramError
from pymllm.history.operations import Span
from pymllm.oracle.prefix_pages import Path, Space
from pymllm.oracle.slot_ledger import Owner, SlotLedger
from pymllm.oracle.slot_model import WindowModel


def path(*tokens: int) -> Path:
    return Path(Space(), tokens)


@pytest.fixture
def ledger() -> SlotLedger:
    """Two pages of two in the caller's hands, one of them cached; one page of three has no SWA page."""
    ledger = SlotLedger("swa", 2, 6, 4)
    ledger.record(1, (2, 3, 4, 5))
    ledger.hand_out([1, 2], [2, 1])
    ledger.adopt(path(1, 2), (4, 5))
    return ledger


def test_each_slot_has_one_owner(ledger: SlotLedger) -> None:
    """A1, A2: page 0 is nobody's."""
    owners = [ledger.owner(slot) for slot in (0, 2, 4, 6, 8)]
    assert owners == [Owner.NOBODY, Owner.CALLER, Owner.CACHE, Owner.POOL, Owner.NOBODY]
    assert (ledger.place(5), ledger.place(3)) == (path(1, 2), None)
    assert ledger.callers_slots() == [2, 3]


def test_sizes_count_what_is_free(ledger: SlotLedger) -> None:
    """A2, A7: in tokens, and the smaller of both halves."""
    assert ledger.sizes() == {"available_size": 0, "full_available_size": 2, "swa_available_size": 0}
    assert ledger.room() == 0
    ledger.give_back_halves([4])
    assert ledger.sizes()["available_size"] == 2
    assert [ledger.has_half(slot) for slot in (2, 4, 5)] == [True, False, False]


def test_a_page_comes_back_with_what_is_left_of_it(ledger: SlotLedger) -> None:
    """A5, A7: whoever had it."""
    ledger.give_back([4, 5, 2])
    assert ledger.sizes() == {"available_size": 4, "full_available_size": 6, "swa_available_size": 4}
    assert ledger.place(4) is None


def test_what_no_pool_took_is_the_callers(ledger: SlotLedger) -> None:
    """X7: a refused reset leaves its slots to the caller."""
    ledger.disown([4, 5])
    assert ledger.callers_slots() == [2, 3, 4, 5]


def test_halves_move_between_pages(ledger: SlotLedger) -> None:
    """A7: each target takes the half of its source, content included."""
    ledger.give_back_halves([4, 5])
    ledger.write(path(1, 2), (2, 3))
    ledger.move_halves({2: 4, 3: 5})
    assert [ledger.has_half(slot) for slot in (2, 4)] == [False, True]
    assert isinstance(ledger.pool, WindowModel)
    assert ledger.pool.half == {2: 2}


def test_spans_name_slots_by_the_step_that_gave_them(ledger: SlotLedger) -> None:
    """A program names slots by place, so that it runs on any pool."""
    assert ledger.name((3, 4)) == (Span(1, 1, 3),)
    assert ledger.resolve((Span(1, 0, 2), Span(0, 9, 10))) == [2, 3, 9]
    with pytest.raises(ProgramError):
        ledger.resolve((Span(1, 0, 5),))


def test_a_forward_pass_writes_what_is_the_callers_only(ledger: SlotLedger) -> None:
    """E1: rows that the cache owns keep what they have."""
    ledger.write(path(1, 2, 3, 4), (2, 3, 4, 5))
    assert ledger.content.first_wrong(path(1, 2), (2, 3), 2) is None
    assert ledger.content.first_wrong(path(1, 2, 3, 4), (2, 3, 4, 5), None) is not None


def test_a_pool_of_one_kind_has_one_size() -> None:
    """A2: without SWA halves there is nothing else to count."""
    ledger = SlotLedger("token", 1, 4)
    ledger.hand_out([1, 3])
    ledger.give_back_halves([1])
    ledger.move_halves({1: 3})
    assert (ledger.sizes(), ledger.room(), ledger.has_half(1)) == ({"available_size": 2}, 2, False)
    assert ledger.callers_slots() == [1, 3]


def test_without_a_pool_slots_are_numbers() -> None:
    """R1: nobody owns them, and nothing is counted."""
    ledger = SlotLedger("none", 1)
    ledger.adopt(path(1), (5,))
    ledger.give_back((5,))
    ledger.write(path(1), (5,))
    assert (ledger.sizes(), ledger.room(), ledger.callers_slots(), ledger.place(5)) == ({}, 0, [], None)
    assert ledger.content.first_wrong(path(1), (5,), None) is None
