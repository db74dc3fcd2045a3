"""Who owns each track slot."""

from __future__ import annotations

import pytest

from pymllm.errors import ProgramError
from pymllm.history.operations import Span, WriteState
from pymllm.oracle.prefix_pages import Path, Space
from pymllm.oracle.slot_ledger import Owner
from pymllm.oracle.state_ends import StateEnds
from pymllm.oracle.track_ledger import TrackLedger

ONE = Path(Space(), (1,))


@pytest.fixture
def ledger() -> TrackLedger:
    """Three track slots, of which step 1 gave number 5 to the caller."""
    made = TrackLedger(3, StateEnds())
    made.hand_out(1, 5)
    return made


def test_a_track_slot_has_one_owner_at_a_time(ledger: TrackLedger) -> None:
    """M7: the pool, the caller, the cache, and the pool again."""
    assert (ledger.owner(5), ledger.owner(6)) == (Owner.CALLER, Owner.POOL)
    ledger.adopt(ONE, 5)
    assert (ledger.owner(5), ledger.place(5), ledger.callers) == (Owner.CACHE, ONE, set())
    ledger.ends.remove([ONE])
    assert (ledger.owner(5), ledger.place(5)) == (Owner.POOL, None)


def test_what_is_not_handed_out_is_free(ledger: TrackLedger) -> None:
    """M7: the caller's and the cache's are not."""
    assert ledger.sizes() == {"available_track_slots": 2}
    ledger.hand_out(2, 6)
    ledger.adopt(ONE, 5)
    assert ledger.room() == 1
    ledger.take_back(6)
    assert ledger.room() == 2


def test_what_the_cache_dropped_is_the_callers(ledger: TrackLedger) -> None:
    """X7: a refused reset leaves it in somebody's hands."""
    ledger.take_back(5)
    ledger.disown([5])
    assert ledger.owner(5) is Owner.CALLER
    assert ledger.callers_slot(Span(1, 0, 1)) == 5


def test_the_content_is_the_last_that_was_written(ledger: TrackLedger) -> None:
    """E1: the whole prefix after which the state was taken."""
    assert ledger.content(5) is None
    ledger.write(5, Path(Space("a"), (1,)))
    ledger.write(5, ONE)
    assert ledger.content(5) == ONE


def test_what_stands_in_a_track_slot_is_known_until_it_is_handed_out_again(ledger: TrackLedger) -> None:
    """E1: layer by layer, whoever has it; nothing is said of one that is free."""
    first, last, other = (
        WriteState(layer, Span(1, 0, 1), number, 0) for layer, number in ((0, 1), (0, 2), (1, 3))
    )
    for operation in (first, last, other):
        ledger.fill(5, operation)
    assert [*ledger.filled(0)] == [(5, last)]
    assert [*ledger.filled(1)] == [(5, other)]
    ledger.adopt(ONE, 5)
    assert [*ledger.filled(0)] == [(5, last)]
    ledger.ends.remove([ONE])
    assert [*ledger.filled(0)] == []
    ledger.hand_out(2, 5)
    assert [*ledger.filled(0)] == [*ledger.filled(1)] == []


@pytest.mark.parametrize("span", [Span(1, 0, 0), Span(0, 6, 7), Span(0, 5, 7), Span(2, 0, 1)])
def test_only_one_of_the_callers_can_be_named(ledger: TrackLedger, span: Span) -> None:
    """M7: nothing, the pool's, two at once, or what no step gave has no meaning."""
    with pytest.raises(ProgramError):
        ledger.callers_slot(span)
