"""The invariants that users ask for by name, tested on our classes and seen to fail on wrong ones."""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from pymllm.adapters.entry import AdapterEntry
from pymllm.adapters.registry import OWN, load_adapter, make_adapter
from pymllm.machines.acting import ActingMachine, drive, make_machine
from pymllm.machines.registry import load_machine, machines_for
from pymllm.oracle.laws import INVARIANTS, find_law

each_invariant = pytest.mark.parametrize("name", INVARIANTS)


def machines_of(entry: AdapterEntry) -> list[type[ActingMachine]]:
    """A machine for each configuration of an adapter: the first that can run on it."""
    made = []
    for config in load_adapter(entry).CONFIGURATIONS:
        adapter = make_adapter(entry.name, dict(config))
        first = machines_for(adapter.kind, adapter.capabilities)[0]
        made.append(make_machine(load_machine(first), entry.name, dict(config)))
    return made


@functools.cache
def evidence_of(entry: AdapterEntry) -> Counter[str]:
    """How often each law was tested by one driven program on each configuration."""
    tested: Counter[str] = Counter()
    for machine in machines_of(entry):
        tested += drive(machine, seed=3, steps=120).examiner.judge.evidence.exercised
    return tested


def test_they_are_the_ones_that_the_project_promises() -> None:
    """R6 and S6; A1, P1 and P5; S1, S4 and S5; M4: under the names that users know."""
    assert list(INVARIANTS) == [
        "lock references balance",
        "slot 0 is never handed out",
        "windows are valid",
        "full_lock_ref >= mamba_lock_ref",
    ]


@each_invariant
def test_the_invariant_holds_for_our_classes(name: str) -> None:
    """Each of its laws is really tested by driven programs, and none of them is broken."""
    laws = INVARIANTS[name]
    kinds = {kind for law in laws for kind in find_law(law).kinds}
    tested: Counter[str] = Counter()
    for entry in OWN:
        if load_adapter(entry).KIND in kinds:
            tested += evidence_of(entry)
    assert [law for law in laws if not tested[law]] == []
