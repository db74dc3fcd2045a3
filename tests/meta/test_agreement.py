"""Where the oracle and the walks through our own objects speak of the same thing, they agree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faulty_table import class_of, machine_for

from pymllm.adapters.registry import OWN, find_adapter, load_adapter, make_adapter
from pymllm.errors import InvariantViolation
from pymllm.faults.adapters import FAULTY
from pymllm.faults.plant import planted
from pymllm.history.files import Config, History
from pymllm.machines.acting import ActingMachine, drive, make_machine
from pymllm.machines.registry import load_machine, machines_for
from pymllm.oracle.laws import LAWS, Way

INSIDE: dict[str, tuple[str, ...]] = {
    "faulty-double-free": ("A1", "A2", "A5"),  # by what was given back: padding, a free page, a pending one
    "faulty-forgotten-halves": ("A7",),
    "faulty-shared-halves": ("A7",),
    "faulty-forgotten-ring": ("A2",),  # pages that stand twice in the ring
    "faulty-dirty-rows": ("P2",),
    "faulty-working-snapshots": ("P5",),
    "faulty-locked-victims": ("R6", "R7"),  # the victim is gone, and its tokens were counted as protected
    "faulty-lost-ancestors": ("R6",),
    "faulty-shared-pages": ("R9",),  # slots that stand in two nodes
    "faulty-empty-nodes": ("R9",),
    "faulty-young-halves": ("R11",),
    "faulty-old-ranks": ("R11",),
    "faulty-last-priorities": ("R11",),
    "faulty-restless-snapshots": ("X3",),  # what is free is no longer in order
    "faulty-held-slots-lost": ("X5",),  # the old root still names its tree
    "faulty-leaves-only": ("R7",),
    "faulty-idle-inserts": ("R8",),
    "faulty-short-holds": ("S5", "S6"),  # where the hold's window ends, and how often its nodes are locked
    "faulty-low-boundaries": ("S5",),
    "faulty-followed-holds": ("S5", "S6"),
    "faulty-twice-protected": ("S6",),
    "faulty-dead-leaves": ("S4",),
    "faulty-living-tombstones": ("S6",),  # what seems alive is missing from the sizes
    "faulty-copied-states": ("M6", "M7"),  # a state more than was counted, or than is in the pool
    "faulty-stolen-locks": ("M4",),
    "faulty-tokens-as-states": ("M6",),
    "faulty-untouched-lists": ("M8",),
    "faulty-oldest-blocks": ("C1",),
    "faulty-last-registrations": ("C3",),
    "faulty-stale-index": ("C3",),  # hashes of blocks that are as new
    "faulty-open-observer": ("C6", "C4"),  # what the observer was told is no longer so
    "faulty-unsettled-errors": ("C1",),
    "faulty-stale-slots": ("C2",),
    "faulty-kept-names": ("C4",),
    "faulty-foreign-names": ("C4",),
    "faulty-leaking-batches": ("C2",),  # slots that are neither free nor anybody's
    "faulty-bare-hashes": ("C3",),
    "faulty-unheld-hits": ("E2", "E3"),  # a row has a block twice, or one that nobody holds
    "faulty-transfer-frees-owned": ("A2",),
    "faulty-late-transfers": ("A2",),
    "faulty-evicted-transfers": ("C1",),
    "faulty-stolen-transfers": ("C1",),
    "faulty-kept-tails": ("E3",),
    "faulty-twice-given-tails": ("E3",),
    "faulty-lasting-states": ("C4",),
    "faulty-long-tails": ("C1",),
    "faulty-uncut-rows": ("E3",),
    "faulty-leaky-admissions": ("E3",),
    "faulty-shared-releases": ("E3",),
    "faulty-long-rows": ("E2",),
    "faulty-locked-parents": ("R5", "R6"),
    "faulty-lone-holds": ("R6",),
    "faulty-free-uppers": ("R6",),
    "faulty-held-children": ("R6",),
    "faulty-counted-holds": ("R7",),
    "faulty-evictable-holds": ("R7",),
    "faulty-late-parents": ("R5",),
    "faulty-first-tokens": ("R6",),
    "faulty-newer-slots": ("R9",),
    "faulty-counted-resets": ("R7",),
    "faulty-unbounded-pauses": ("C1",),
}
"""The laws that a walk names where a fault can be seen from inside; the others only show outside."""

WALKED = {law.id for law in LAWS if Way.STRUCTURE in law.ways}
"""What a walk may name."""


def machines_of_own() -> Iterator[object]:
    """The last configuration of each adapter of ours, with each machine that can run on it."""
    for entry in OWN:
        config = load_adapter(entry).CONFIGURATIONS[-1]
        adapter = make_adapter(entry.name, dict(config))
        for machine in machines_for(adapter.kind, adapter.capabilities):
            yield pytest.param(entry.name, config, load_machine(machine), id=f"{entry.name}-{machine.name}")


each_machine_of_own = pytest.mark.parametrize(("name", "config", "machine"), [*machines_of_own()])


def failing_histories(name: str) -> Iterator[History]:
    """Driven programs that break some law, which the oracle alone has seen; one at least."""
    config = dict(load_adapter(find_adapter(name)).CONFIGURATIONS[0])
    made = make_machine(machine_for(name), name, config, audit=False)
    for seed in range(20):
        try:
            drive(made, seed, steps=300)
        except InvariantViolation:
            assert made.found is not None
            yield made.found.history


def law_seen_inside(name: str, history: History) -> str | None:
    """Return the law that a walk after each step names first, while no judge looks at the outcomes."""
    with planted(class_of(name).FAULT.edits):
        adapter = make_adapter(class_of(name).SOUND, dict(history.header.config))
        try:
            for step in history.steps:
                adapter.apply(step.number, step.operation)
                adapter.audit()
        except InvariantViolation as violation:
            return violation.law
    return None


@pytest.mark.parametrize("name", [entry.name for entry in FAULTY])
def test_walks_see_what_can_be_seen_from_inside(name: str) -> None:
    """A walk sees each recorded fault by a law that is recorded for the fault, and sees no other fault."""
    seen = (law_seen_inside(name, history) for history in failing_histories(name))
    if name in INSIDE:
        assert next(filter(None, seen)) in INSIDE[name]  # not every program that breaks a law shows it inside
    else:
        assert next(seen) is None


def test_what_walks_see_goes_by_one_name() -> None:
    """Walks and the oracle name the same law for all but a few faults, and walks name only their own laws."""
    differ = {name for name, laws in INSIDE.items() if class_of(name).BREAKS not in laws}
    assert differ == {
        *(
            "faulty-forgotten-ring",
            "faulty-held-slots-lost",
            "faulty-shared-pages",
            "faulty-restless-snapshots",
        ),
        *("faulty-living-tombstones", "faulty-copied-states"),
        *("faulty-unheld-hits", "faulty-leaky-admissions"),
        *("faulty-stale-index", "faulty-open-observer", "faulty-unsettled-errors", "faulty-leaking-batches"),
        *("faulty-counted-holds", "faulty-evictable-holds", "faulty-counted-resets"),
        *("faulty-first-tokens", "faulty-newer-slots"),
        *("faulty-long-tails", "faulty-kept-tails", "faulty-lasting-states", "faulty-uncut-rows"),
        *("faulty-twice-given-tails", "faulty-late-transfers"),
    }
    assert {law for laws in INSIDE.values() for law in laws} <= WALKED


@each_machine_of_own
def test_neither_accuses_our_own_classes(name: str, config: Config, machine: type[ActingMachine]) -> None:
    """A driven run of our classes passes both ways, and the registry says which laws a walk checks.

    tests/properties plays all other configurations both ways.
    """
    examiner = drive(make_machine(machine, name, config), seed=11, steps=60).examiner
    assert set(examiner.audited) <= WALKED
    assert +examiner.judge.evidence.exercised
