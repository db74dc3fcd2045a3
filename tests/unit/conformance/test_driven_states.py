"""An engine's states over an adapter: rows are its own, and track slots the adapter's."""

from __future__ import annotations

import pytest
import torch

from pymllm.adapters.registry import make_adapter
from pymllm.conformance.driven_cache import Carrier, DrivenCache, DrivenStates
from pymllm.conformance.examiner import Examiner
from pymllm.history.files import Config
from pymllm.history.operations import (
    Alloc,
    AllocTrack,
    Evict,
    FreeTrack,
    Insert,
    Key,
    Match,
    Operation,
    ReadStates,
    Span,
    WriteState,
)
from pymllm.history.outcomes import Outcome, Slots, Unsupported
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.oracle.prefix_judge import PrefixJudge

CONFIG: Config = {
    **{"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18},
    "track_slots": 3,
}
ROWS = 2


class Driven:
    """An examined hybrid cache with an engine's states over it: two working rows, three track slots."""

    def __init__(self) -> None:
        self.examiner = Examiner(make_adapter("mamba", CONFIG))
        judge = self.examiner.judge
        assert isinstance(judge, PrefixJudge)
        assert judge.books.tracks is not None
        self.tracks = judge.books.tracks
        self.carrier = Carrier(self.examiner.do, judge)
        self.states = DrivenStates(self.carrier, ROWS, self.tracks)
        self.cache = DrivenCache(self.carrier, self.states)

    def save(self, token: int, working: int = 1) -> int:
        """Cache a token and the state of a working row, and return the row that the state is in."""
        row = self.states.alloc_track_slot()
        assert row is not None
        self.states.copy_states(working, row)
        slots = torch.tensor(self.carrier.do(Alloc(1), Slots).slots)
        self.cache.insert(RadixKey([token]), slots, mamba_value=torch.tensor([row]))
        return row

    def operations(self) -> list[Operation]:
        """List all that was done."""
        return [step.operation for step in self.examiner.history.steps]


@pytest.fixture
def driven() -> Driven:
    """Nothing was done yet."""
    return Driven()


def test_a_snapshot_goes_into_the_adapters_memory_and_comes_from_there(driven: Driven) -> None:
    """E1, M1: written before it is handed over, read before it is restored, named by the steps."""
    states = driven.states
    states.recurrent_state[:, 1] = 70
    states.conv_state[:, 1] = -3
    row = driven.save(9)
    assert row == ROWS + 1
    found = driven.cache.match_prefix(RadixKey([9, 8]))
    assert driven.cache.state_of(found.last_node) == row
    states.copy_states(row, 2)
    assert driven.operations() == [
        AllocTrack(),
        WriteState(0, Span(1, 0, 1), 8 * 70 % 256 - 128, 4 * -3 % 256 - 128),
        Alloc(1),
        Insert(Key((1,)), (Span(3, 0, 1),), state=Span(1, 0, 1)),
        Match(Key((1, 2))),
        ReadStates(0),
    ]
    assert torch.equal(states.recurrent_state[:, 2], states.recurrent_state[:, 1])
    assert torch.equal(states.conv_state[:, 2], states.conv_state[:, 1])


def test_track_slots_are_counted_and_given_back_as_the_adapter_has_them(driven: Driven) -> None:
    """M7, X4: handed out until there are none; a row is free again with the track slot behind it."""
    states = driven.states
    rows = [states.alloc_track_slot() for _ in range(4)]
    assert rows == [3, 4, 5, None]
    assert (states.max_track_slots, states.available_track_slots()) == (3, 0)
    states.free_track_slot(4)
    assert driven.operations()[-1] == FreeTrack(Span(2, 0, 1))
    assert states.available_track_slots() == 1
    assert states.alloc_track_slot() == 4


def test_rows_of_states_that_the_cache_evicted_are_used_again(driven: Driven) -> None:
    """M7: whoever frees a track slot, its row goes to the next; those of others stay."""
    first, second = driven.save(7), driven.save(8)
    assert sorted(driven.states.cached_rows()) == [first, second]
    driven.carrier.do(Evict(0, 1), object)
    assert driven.states.cached_rows() == [second]
    assert driven.states.alloc_track_slot() not in (None, second)
    assert driven.states.alloc_track_slot() not in (None, second)
    assert driven.states.alloc_track_slot() is None


def test_track_slots_of_ever_new_numbers_find_rows(driven: Driven) -> None:
    """M7: no number is promised, so none may be relied on."""
    states, seen = driven.states, []
    for slot in (50, 70, 60, 90):
        driven.carrier._do = lambda operation, slot=slot: Outcome(Slots((slot,)))  # type: ignore[misc]
        driven.tracks.hand_out(slot, slot)
        seen.append(states.alloc_track_slot())
        driven.tracks.take_back(slot)
    assert seen == [3, 3, 3, 3]
    assert states.row_of(90) == 3


def test_working_states_are_nobodys_business(driven: Driven) -> None:
    """E1: they are reset and copied without an operation."""
    states = driven.states
    states.recurrent_state[:, 1] = 5
    states.copy_states(1, 2)
    states.reset_states(1)
    assert states.recurrent_state[:, 1].count_nonzero() == 0
    assert bool((states.recurrent_state[:, 2] == 5).all())
    assert driven.operations() == []


def test_adapter_that_shows_no_contents_is_driven_all_the_same(driven: Driven) -> None:
    """E1: then only where a state lies is judged."""
    row = driven.states.alloc_track_slot()
    assert row is not None
    driven.carrier._do = lambda operation: Outcome(Unsupported("no contents"))
    driven.states.copy_states(1, row)
    driven.states.copy_states(row, 2)
