"""What callers do with a prefix cache and its states."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pymllm.adapters.own_caches import WindowedRadix
from pymllm.conformance.acting import acts_of, drive, make_machine
from pymllm.conformance.prefix_caller import TOKENS, PrefixCaller, amount, looked_at, picked
from pymllm.conformance.prefix_machine import PrefixMachine, StateActs
from pymllm.history import operations as ops
from pymllm.history.outcomes import Failed, Inserted, Matched, Unsupported

CONFIG = {"page_size": 1, "window": None, "pool": "none", "slots": 8, "swa_slots": 8}


class _Resetting(PrefixCaller):
    @looked_at(needs="holds", weight=3, times=(1, 2))
    def reset(self, times: int) -> None:
        """Reset once or twice."""
        for _ in range(times):
            self.do(ops.Reset())


def test_nodes_are_looked_at_after_an_act() -> None:
    """R9: whatever the act did, once."""
    machine: Any = make_machine(_Resetting, "radix", CONFIG)()
    _Resetting.reset(machine, times=2)
    done = [type(step.operation) for step in machine.examiner.history.steps]
    machine.teardown()
    assert done == [ops.Reset, ops.Reset, ops.Inspect]


def test_what_is_drawn_and_needed_is_kept() -> None:
    """X3: `drive` and Hypothesis read it off the method."""
    method: Any = _Resetting.reset
    assert (method.act_needs, method.act_ranges, method.act_weight) == ("holds", {"times": (1, 2)}, 3)


def test_small_draws_mean_what_there_is() -> None:
    """R5: an amount is what was drawn, the largest one everything; any draw picks something."""
    assert [amount(drawn) for drawn in (-1, 0, 11)] == [-1, 0, 11]
    assert amount(TOKENS[1]) > 32 * TOKENS[1]
    assert [picked(["a", "b"], pick) for pick in range(4)] == ["a", "b", "a", "b"]


HYBRID = {"page_size": 2, "window": None, "pool": "token", "slots": 24, "track_slots": 2}


@pytest.fixture
def machine() -> Any:
    made: Any = make_machine(PrefixMachine, "mamba", HYBRID)()
    yield made
    made.teardown()


def types(machine: Any) -> Counter[type]:
    return Counter(type(step.operation) for step in machine.examiner.history.steps)


def inserts(machine: Any) -> list[tuple[ops.Insert, Any]]:
    steps = machine.examiner.history.steps
    return [(step.operation, step.outcome.result) for step in steps if isinstance(step.operation, ops.Insert)]


def serve(machine: Any, pages: int = 4, keep: int = 1) -> None:
    PrefixMachine.serve(machine, pages=pages, turn=1, other=1, style=0, keep=keep)


@pytest.mark.parametrize("name", acts_of(StateActs))
def test_they_are_acts_only_where_there_are_states(name: str) -> None:
    """M1: the machine of another cache never plays them."""
    assert acts_of(PrefixMachine)[name].act_needs in ("has_states", "can_fail_states")
    other: Any = make_machine(PrefixMachine, "radix", {**HYBRID, "swa_slots": 0})()
    assert (other.has_states, other.can_fail_states) == (False, False)
    other.teardown()


def test_a_request_is_matched_held_computed_and_handed_over(machine: Any) -> None:
    """M1, M2: the second finds the state of the first."""
    serve(machine, pages=4)
    serve(machine, pages=8)
    assert [operation.state is not None for operation, _ in inserts(machine)] == [True, True]
    assert types(machine)[ops.Lock] == 3
    assert machine.judge.books.tracks.ends.slots.keys() == {
        path for path in machine.model.pages if len(path.tokens) in (4, 8)
    }


def test_a_request_without_a_track_slot_caches_kv_only(machine: Any) -> None:
    """M1: a state is a bonus."""
    PrefixMachine.hoard_track_slots(machine, quarters=4)
    serve(machine, keep=0)
    ((operation, result),) = inserts(machine)
    assert operation.state is None
    assert isinstance(result, Inserted)


def test_a_request_may_evict_a_state_for_its_own(machine: Any) -> None:
    """M5: the least recent one."""
    for pages in (4, 6, 8):
        serve(machine, pages=pages, keep=2)
    assert [operation.state is not None for operation, _ in inserts(machine)] == [True, True, True]
    assert types(machine)[ops.Evict] == 1


def test_a_state_may_come_later(machine: Any) -> None:
    """M1, M4: to KV that is stored, and to a node that is held."""
    PrefixMachine.add_state_to_stored(machine, pages=4, turn=1, other=1, style=0)
    PrefixMachine.add_state_under_hold(machine, pick=0, style=0)
    assert not inserts(machine)
    PrefixMachine.insert_fresh(machine, pages=4, turn=1, other=1, style=0)
    machine.lock(machine.live[-1].step)
    PrefixMachine.add_state_under_hold(machine, pick=0, style=0)
    PrefixMachine.add_state_to_stored(machine, pages=4, turn=1, other=1, style=0)
    assert [result.state_exists for _, result in inserts(machine)] == [False, False, True]
    assert machine.model.sizes()["mamba_protected_size"] == 1
    assert types(machine)[ops.AllocTrack] == 2


def test_a_state_comes_under_several_holds(machine: Any) -> None:
    """M4: the last hold still protects it; where there is no key or no room nothing is done."""
    PrefixMachine.add_state_under_holds(machine, pages=0, turn=1, style=0, keep=0)
    assert not inserts(machine)
    PrefixMachine.add_state_under_holds(machine, pages=4, turn=1, style=0, keep=3)
    assert [operation.state is not None for operation, _ in inserts(machine)] == [False, True]
    assert len(machine.model.holds) == 3
    assert machine.model.sizes()["mamba_protected_size"] == 1
    PrefixMachine.add_state_under_holds(machine, pages=2, turn=0, style=0, keep=1)
    assert len(machine.model.holds) == 3


def test_fresh_slots_bring_a_state_unmatched(machine: Any) -> None:
    """M1: an empty key brings none."""
    PrefixMachine.insert_with_state(machine, pages=0, turn=1, other=1, style=0)
    PrefixMachine.insert_with_state(machine, pages=4, turn=1, other=1, style=0)
    assert [operation.state is not None for operation, _ in inserts(machine)] == [False, True]
    assert not types(machine)[ops.Match]


@pytest.mark.parametrize("pages", [0, 4])
def test_a_bad_state_is_refused(machine: Any, pages: int) -> None:
    """M1, X1: and its track slot goes back."""
    PrefixMachine.insert_state_badly(machine, pages=pages, turn=1, style=0)
    ((operation, result),) = inserts(machine)
    assert operation.state is not None
    assert isinstance(result, Failed)
    assert types(machine)[ops.FreeTrack] == 1


def test_hoarded_track_slots_go_back(machine: Any) -> None:
    """M7: those of the caller's only."""
    serve(machine)
    PrefixMachine.hoard_track_slots(machine, quarters=1)
    assert machine.judge.books.tracks.room() == 0
    PrefixMachine.give_hoarded_tracks_back(machine)
    assert machine.judge.books.tracks.room() == 1


def test_the_pool_of_states_is_let_fail(machine: Any) -> None:
    """X2, X7: in an eviction, and now and then in a reset."""
    serve(machine, keep=2)
    PrefixMachine.evict_refused_by_state_pool(machine, tokens=0, states=1, nth=1)
    assert machine.examiner.judge.evidence.reached["the state pool refuses an eviction"] == 1
    PrefixMachine.reset_refused_by_state_pool(machine, rare=1, nth=1)
    assert not types(machine)[ops.Reset]
    PrefixMachine.reset_refused_by_state_pool(machine, rare=0, nth=1)
    assert machine.examiner.judge.evidence.reached["the state pool refuses a reset"] == 1
    assert types(machine)[ops.Fault] == 2


WINDOWED = {"page_size": 1, "window": 4, "pool": "swa", "slots": 24, "swa_slots": 18}


class Modest(WindowedRadix):
    """The same cache, of which nothing is claimed that can be left away."""

    def claim(self) -> frozenset[str]:
        return frozenset({"pool", "swa", "exact_lru"})


def modest_machine() -> Any:
    """Make the machine of a class that no import path leads to."""
    base = make_machine(PrefixMachine, "modest", WINDOWED)
    return type(
        "ModestMachine", (base,), {"make_adapter": classmethod(lambda cls: Modest("modest", WINDOWED))}
    )


@pytest.mark.parametrize(
    ("adapter", "changes"),
    [
        ("radix", {"window": None}),
        ("radix-window", {}),
        ("mamba", {"window": None, "pool": "token", "track_slots": 3}),
        ("chunk", {"window": None, "retains": False}),
    ],
)
def test_runs_use_every_operation_that_is_carried_out(adapter: str, changes: dict[str, Any]) -> None:
    """No act is idle: what an adapter can do is asked of it, and nothing else."""
    machine = make_machine(PrefixMachine, adapter, {**WINDOWED, **changes})
    steps = drive(machine, seed=3, steps=800).examiner.history.steps
    expected = {ops.Match, ops.Insert, ops.Evict, ops.Lock, ops.Unlock, ops.Reset, ops.Alloc, ops.Free}
    expected |= {ops.AllocTrack, ops.FreeTrack} if adapter == "mamba" else {ops.FreeSWA, ops.ReadHalves}
    if adapter != "chunk":
        expected |= {ops.Hash, ops.Inspect, ops.Fault, ops.Malformed}
    assert {type(step.operation) for step in steps} == expected
    unsupported = [step for step in steps if isinstance(step.outcome.result, Unsupported)]
    assert {type(step.operation) for step in unsupported} <= {ops.Malformed}


def test_a_modest_adapter_is_not_asked_for_more() -> None:
    """X1: what is not claimed is not tested; the run finds nothing all the same."""
    steps = drive(modest_machine(), seed=1, steps=400).examiner.history.steps
    assert not [
        step
        for step in steps
        if isinstance(step.operation, ops.Hash | ops.Inspect | ops.Fault | ops.Malformed)
    ]
    assert not [step for step in steps if isinstance(step.outcome.result, Unsupported)]
    assert {step.operation.key.extra_key for step in steps if isinstance(step.operation, ops.Match)} == {None}
    unlocks = [step.operation for step in steps if isinstance(step.operation, ops.Unlock)]
    assert unlocks
    assert all(unlock.at is None and unlock.token is None for unlock in unlocks)


def test_a_hole_leaves_pieces_that_are_shorter_than_a_window() -> None:
    """S1: alive, dead, alive; what ends in the last piece cannot be used before it is as long as a window."""
    machine = make_machine(PrefixMachine, "radix-window", {**WINDOWED, "page_size": 1, "window": 4})()
    machine.punch_hole(10, 1, 0, 2, 2)
    pages = sorted(machine.model.pages.items(), key=lambda entry: len(entry[0].tokens))
    assert [page.alive for _, page in pages] == [True] * 2 + [False] * 2 + [True] * 6
    results = [step.outcome.result for step in machine.examiner.history.steps]
    matched = [result.prefix_len for result in results if isinstance(result, Matched)]
    assert matched[-7:] == [2, 2, 2, 2, 8, 9, 10]
