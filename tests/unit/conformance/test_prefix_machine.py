"""What callers do with a prefix cache."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.own_caches import WindowedRadix
from pymllm.conformance.acting import acts_of, drive, make_machine
from pymllm.conformance.prefix_machine import PrefixMachine
from pymllm.history.operations import (
    Alloc,
    AllocTrack,
    Evict,
    Fault,
    Free,
    FreeSWA,
    FreeTrack,
    Hash,
    Insert,
    Inspect,
    Lock,
    Malformed,
    Match,
    ReadHalves,
    Reset,
    Unlock,
)
from pymllm.history.outcomes import Matched, Unsupported

CONFIG = {"page_size": 1, "window": 4, "pool": "swa", "slots": 24, "swa_slots": 18}


class Modest(WindowedRadix):
    """The same cache, of which nothing is claimed that can be left away."""

    def claim(self) -> frozenset[str]:
        return frozenset({"pool", "swa", "exact_lru"})


def modest_machine() -> Any:
    """Make the machine of a class that no import path leads to."""
    base = make_machine(PrefixMachine, "modest", CONFIG)
    return type("ModestMachine", (base,), {"make_adapter": classmethod(lambda cls: Modest("modest", CONFIG))})


def test_every_act_is_there() -> None:
    """Each way of using a cache, and of misusing one, is an act."""
    assert len(acts_of(PrefixMachine)) == 41


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
    machine = make_machine(PrefixMachine, adapter, {**CONFIG, **changes})
    steps = drive(machine, seed=3, steps=800).examiner.history.steps
    expected = {Match, Insert, Evict, Lock, Unlock, Reset, Alloc, Free}
    expected |= {AllocTrack, FreeTrack} if adapter == "mamba" else {FreeSWA, ReadHalves}
    if adapter != "chunk":
        expected |= {Hash, Inspect, Fault, Malformed}
    assert {type(step.operation) for step in steps} == expected
    unsupported = [step for step in steps if isinstance(step.outcome.result, Unsupported)]
    assert {type(step.operation) for step in unsupported} <= {Malformed}


def test_a_modest_adapter_is_not_asked_for_more() -> None:
    """X1: what is not claimed is not tested; the run finds nothing all the same."""
    steps = drive(modest_machine(), seed=1, steps=400).examiner.history.steps
    assert not [step for step in steps if isinstance(step.operation, Hash | Inspect | Fault | Malformed)]
    assert not [step for step in steps if isinstance(step.outcome.result, Unsupported)]
    assert {step.operation.key.extra_key for step in steps if isinstance(step.operation, Match)} == {None}
    unlocks = [step.operation for step in steps if isinstance(step.operation, Unlock)]
    assert unlocks
    assert all(unlock.at is None and unlock.token is None for unlock in unlocks)


def test_a_run_is_the_same_twice() -> None:
    """X3: two runs of one seed agree to the last node id."""
    machine = make_machine(PrefixMachine, "radix-window", CONFIG)
    runs = [drive(machine, seed=5, steps=200).examiner for _ in range(2)]
    assert runs[0].history == runs[1].history
    assert runs[0].judge.evidence.reached == runs[1].judge.evidence.reached


def test_a_hole_leaves_pieces_that_are_shorter_than_a_window() -> None:
    """S1: alive, dead, alive; what ends in the last piece cannot be used before it is as long as a window."""
    machine = make_machine(PrefixMachine, "radix-window", {**CONFIG, "page_size": 1, "window": 4})()
    machine.punch_hole(10, 1, 0, 2, 2)
    pages = sorted(machine.model.pages.items(), key=lambda entry: len(entry[0].tokens))
    assert [page.alive for _, page in pages] == [True] * 2 + [False] * 2 + [True] * 6
    results = [step.outcome.result for step in machine.examiner.history.steps]
    matched = [result.prefix_len for result in results if isinstance(result, Matched)]
    assert matched[-7:] == [2, 2, 2, 2, 8, 9, 10]
