"""Keys and hashes against their judge, by Hypothesis and from fixed seeds."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from pymllm.adapters.own_hashes import KeysAndHashes
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.pool_machine import HashMachine
from pymllm.oracle.situations import expected_situations

MACHINES = [make_machine(HashMachine, "hashes", dict(config)) for config in KeysAndHashes.CONFIGURATIONS]
each_machine = pytest.mark.parametrize("machine_class", MACHINES, ids=lambda machine: machine.__name__)


@each_machine
def test_nothing_is_found_by_hypothesis(machine_class: type[HashMachine]) -> None:
    """K1, H1, X1, X3: as long as the profile says."""
    run_state_machine_as_test(machine_class)
    assert machine_class.steps_run > 0


@each_machine
def test_a_seeded_run_finds_nothing_and_reaches_every_situation(machine_class: type[HashMachine]) -> None:
    """K1, H1, X1, X3: silence about a situation that never arose means nothing."""
    machine = drive(machine_class, seed=2, steps=1_000)
    header = machine.examiner.history.header
    assert set(machine.examiner.judge.evidence.reached) == expected_situations(header)


@pytest.mark.slow
@each_machine
def test_twenty_thousand_steps_find_nothing(machine_class: type[HashMachine]) -> None:
    """K1, H1, X1, X3: the long run, the same everywhere."""
    machine = drive(machine_class, seed=20_000, steps=20_000)
    header = machine.examiner.history.header
    assert set(machine.examiner.judge.evidence.reached) == expected_situations(header)
