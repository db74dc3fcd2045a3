"""The choices of a searcher for an engine, and each event of one as the coverage goal that it is."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.history.files import Config
from pymllm.history.operations import Alloc, AllocTrack, Evict, FreeSWA
from pymllm.history.outcomes import Done, Evicted, NoRoom, Outcome, Slots
from pymllm.machines.acting import make_machine
from pymllm.machines.lifecycle import DrawnSource, LifecycleMachine, LifecycleNotes
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request
from pymllm.workloads.source import Stage


def test_doomed_request_is_aborted_once_and_at_its_stage_only() -> None:
    """E3: the stage is remembered for whoever counts exits."""
    source = DrawnSource()
    source.doom(3, Stage.HELD)
    assert not source.abort(3, Stage.QUEUED)
    assert not source.abort(4, Stage.HELD)
    assert source.aborting is None
    assert source.abort(3, Stage.HELD)
    assert source.aborting is Stage.HELD
    assert not source.abort(3, Stage.HELD)


def test_chunks_and_victims_stay_within_what_is_allowed() -> None:
    """X1: the engine refuses anything else."""
    source = DrawnSource()
    source.chunk, source.victim = 4, 4
    assert [source.chunk_limit(0, limit) for limit in (3, 4, 5)] == [3, 4, 4]
    assert [source.retract_victim(range(count)) for count in (1, 2, 3)] == [0, 1, 1]


WINDOWED: Config = {"page_size": 1, "window": 4, "pool": "swa", "slots": 24, "swa_slots": 18}


@pytest.fixture
def machine() -> Any:
    """Make a machine over a windowed cache; its engine has done nothing yet."""
    return make_machine(LifecycleMachine, "radix-window", WINDOWED)()


@pytest.fixture
def notes(machine: Any) -> LifecycleNotes:
    """Give the onlooker of that engine."""
    taken: LifecycleNotes = machine._notes
    return taken


def reached(machine: Any) -> set[str]:
    """Name what was met so far."""
    return set(machine.examiner.judge.evidence.reached)


def live(number: int = 0, prompt: int = 8, output: int = 5, length: int = 0) -> LiveRequest:
    """Make a request that has come some way."""
    made = LiveRequest(Request(number, 0.0, prompt, output, tuple(range(prompt)), 1), place=number)
    made.length = length
    return made


@pytest.mark.parametrize(
    ("event", "goal"),
    [
        (Event.REJECTED, "a request can never fit"),
        (Event.REFUSED, "an admission fails"),
        (Event.DUPLICATED, "duplicates are given back"),
        (Event.UNCACHED, "the cache takes nothing of what was computed"),
        (Event.SNAPSHOT_SKIPPED, "a snapshot is left out for want of a track slot"),
        (Event.STATE_DUPLICATED, "the track slot of a state that is cached meanwhile is given back"),
    ],
)
def test_some_events_are_goals_by_themselves(
    event: Event, goal: str, machine: Any, notes: LifecycleNotes
) -> None:
    """E3, E4: whatever else is so."""
    notes(event, live())
    assert reached(machine) == {goal}


def test_refusal_with_no_row_left_is_told_apart(machine: Any, notes: LifecycleNotes) -> None:
    """E4: memory is not the only thing that may be short."""
    machine.engine.memory.pools.rows.alloc(3)
    notes(Event.REFUSED, live())
    assert "an admission fails for want of a row" in reached(machine)


@pytest.mark.parametrize(
    ("stage", "goal"),
    [
        (Stage.QUEUED, "a waiting request is aborted"),
        (Stage.HELD, "a request is aborted while its prefix is held"),
        (Stage.PREFILL, "a request is aborted between two chunks"),
        (Stage.DECODE, "a request is aborted in decode"),
    ],
)
def test_aborts_differ_by_their_stage(stage: Stage, goal: str, machine: Any, notes: LifecycleNotes) -> None:
    """E3: what nobody asked for is the draining of the engine."""
    machine.source.doom(0, stage)
    machine.source.abort(0, stage)
    notes(Event.ABORTED, live())
    assert reached(machine) == {goal}
    notes(Event.ABORTED, live(1))
    assert reached(machine) == {goal, "the engine is drained with requests in it"}


def test_retraction_and_return_are_told_apart(machine: Any, notes: LifecycleNotes) -> None:
    """E3: in prefill, in decode, and whether it comes back."""
    notes(Event.RETRACTED, live(0, length=3))
    notes(Event.ADMITTED, live(1))
    assert reached(machine) == {"a request is retracted between two chunks"}
    notes(Event.RETRACTED, live(1, length=9))
    notes(Event.ADMITTED, live(0))
    assert reached(machine) == {
        "a request is retracted between two chunks",
        "a request is retracted in decode",
        "a retracted request is admitted again",
    }
    notes(Event.RETRACTED, live(0, length=9))
    assert "a request is retracted twice" in reached(machine)


def test_finishing_differs_by_where_it_happens(machine: Any, notes: LifecycleNotes) -> None:
    """E3: inside the first chunk, in decode, or with a later chunk, which is nothing special."""
    notes(Event.FINISHED, live(0, output=1))
    assert reached(machine) == set()
    notes(Event.ADMITTED, live(1, output=1))
    notes(Event.FINISHED, live(1, output=1))
    assert reached(machine) == {"a request finishes inside its first chunk"}
    notes(Event.ADMITTED, live(2))
    notes.begin_iteration()
    notes(Event.FINISHED, live(2))
    assert reached(machine) == {"a request finishes inside its first chunk", "a request finishes in decode"}
    notes(Event.FINISHED, live(3, prompt=24, output=1))
    assert "a request that just fits finishes" in reached(machine)


def test_admission_tells_what_was_found(machine: Any, notes: LifecycleNotes) -> None:
    """E4: a full hit, and one that others hold too."""
    machine.ask(4, 0, 5, 0, 0, 0)
    machine.ask(4, 0, 5, 0, 9, 0)
    machine.ask(4, 0, 5, 0, 9, 0)
    machine.step(3)
    assert {"a full hit leaves a token to compute", "two requests hold one prefix"} <= reached(machine)


def test_who_leaves_and_what_others_share_with_it_is_told(machine: Any, notes: LifecycleNotes) -> None:
    """E2: the first page is held by both; one without a row holds nothing."""
    for _ in range(2):
        machine.ask(4, 0, 5, 0, 9, 0)
    machine.step(2)
    one, _ = machine.engine.decoding.requests
    name = "a request is aborted while another holds part of its prefix"
    notes(Event.ABORTED, live(7))
    assert name not in reached(machine)
    notes(Event.ABORTED, one)
    assert name in reached(machine)


def test_what_a_retracted_request_finds_is_told(machine: Any, notes: LifecycleNotes) -> None:
    """E1: it comes back to what it had; who was never retracted finds what others had."""
    machine.ask(4, 0, 5, 0, 9, 0)
    machine.step(2)
    (holder,) = machine.engine.decoding.requests
    notes(Event.ABORTED, holder)
    assert "a request is aborted while another holds part of its prefix" not in reached(machine)
    name = "a retracted request finds cached what it had"
    notes(Event.ADMITTED, holder)
    assert name not in reached(machine)
    notes(Event.RETRACTED, holder)
    notes(Event.ADMITTED, holder)
    assert name in reached(machine)


def test_dead_window_is_seen_at_the_admission_that_suffers(machine: Any, notes: LifecycleNotes) -> None:
    """S1: two prompts part after a trunk whose window dies; a third finds the trunk and may not use it."""
    machine.start_again(0, 0, 0)  # an engine that keeps its windows until what they are of is cached
    for branch in (0, 1):
        machine.ask(5, 0, 4, branch, 0, 0)
        machine.step(2)
    for tokens in (6, 4):
        machine.evict(0, tokens)
    assert "cached tokens lie behind a dead window" not in reached(machine)
    machine.ask(5, 0, 4, 0, 0, 0)
    machine.step(1)
    assert "cached tokens lie behind a dead window" in reached(machine)


def test_operations_tell_of_room(machine: Any, notes: LifecycleNotes) -> None:
    """E4: what evicting brought, for whom, and when it was in vain."""
    notes.note_operation(Evict(3), Outcome(Evicted(0)))
    notes.note_operation(Alloc(3), Outcome(Slots((1, 2, 3))))
    assert reached(machine) == set()
    notes.note_operation(Evict(3), Outcome(Evicted(0, 2)))
    assert reached(machine) == {"an eviction makes room"}
    notes.note_operation(Alloc(3), Outcome(NoRoom()))
    assert "evicting is not enough" in reached(machine)
    notes(Event.ADMITTED, live())
    notes.note_operation(Evict(3), Outcome(Evicted(3)))
    assert "an eviction makes room for a prompt just admitted" in reached(machine)
    notes.note_operation(FreeSWA(()), Outcome(Done()))
    assert "halves behind a window are returned" in reached(machine)


def test_first_shortage_is_not_the_last_word(machine: Any, notes: LifecycleNotes) -> None:
    """E4: an allocation that fails before anything was evicted."""
    notes.note_operation(Alloc(3), Outcome(NoRoom()))
    notes.note_operation(Alloc(3), Outcome(NoRoom()))
    assert reached(machine) == set()


# -- states --------------------------------------------------------------------------------------------------
@pytest.fixture
def hybrid() -> Any:
    """Make a machine over a hybrid cache with three track slots."""
    config: Config = {**WINDOWED, "window": None, "pool": "token", "track_slots": 3}
    return make_machine(LifecycleMachine, "mamba", config)()


def test_what_an_admission_finds_beyond_a_state_is_lost(hybrid: Any) -> None:
    """M2: two prompts part after a trunk without a state there; a third finds one, taken by the second."""
    lost, parting = "cached tokens lie beyond the last state", "a snapshot is taken where prompts part"
    resumed = "a request resumes from a state"
    hybrid.ask(4, 0, 5, 0, 0, 0)
    hybrid.step(2)
    assert not {lost, parting, resumed} & reached(hybrid)
    hybrid.ask(4, 0, 2, 0, 0, 0)
    hybrid.step(1)
    assert {lost, parting} <= reached(hybrid)
    assert resumed not in reached(hybrid)
    hybrid.ask(4, 0, 2, 1, 0, 0)
    hybrid.step(1)
    assert resumed in reached(hybrid)
    hybrid.teardown()


def test_who_leaves_with_a_state_is_told_apart(hybrid: Any) -> None:
    """E3, M4: by the prefix that it holds, and by the track slot that it has not handed over."""
    hybrid.ask(2, 0, 5, 0, 9, 0)
    hybrid.step(2)
    (holder,) = hybrid.engine.decoding.requests
    notes = hybrid._notes
    notes(Event.RETRACTED, holder)
    assert "a request is retracted while it holds a state" in reached(hybrid)
    assert "a request is retracted with a track slot in its hands" not in reached(hybrid)
    hybrid.source.doom(0, Stage.PREFILL)
    hybrid.source.abort(0, Stage.PREFILL)
    notes(Event.ABORTED, holder)
    assert "a request is aborted between two chunks while it holds a state" in reached(hybrid)
    other = live(1, length=3)
    other.track_slot = 4
    notes(Event.RETRACTED, other)
    assert "a request is retracted with a track slot in its hands" in reached(hybrid)


def test_evictions_of_states_tell_what_they_are_for(hybrid: Any) -> None:
    """M5: for slots, which cost a state its place, or for a track slot, which is no want of room for KV."""
    notes = hybrid._notes
    notes.note_operation(Evict(3), Outcome(Evicted(0)))
    notes.note_operation(AllocTrack(), Outcome(NoRoom()))
    assert reached(hybrid) == set()
    notes.note_operation(Evict(3, 0), Outcome(Evicted(3, 0, 1)))
    notes.note_operation(Alloc(3), Outcome(Slots((1, 2, 3))))
    assert reached(hybrid) == {"an eviction makes room", "an eviction for slots takes a state along"}
    notes.note_operation(Evict(0, 1), Outcome(Evicted(0, 0, 1)))
    notes.note_operation(AllocTrack(), Outcome(Slots((3,))))
    assert "an eviction makes room for a snapshot" in reached(hybrid)
