"""The data pools against their model, by Hypothesis and from fixed seeds."""

from __future__ import annotations

import pytest

from tests.properties.pool_machine import SITUATIONS, PagedPoolMachine, PoolMachine, drive

MACHINES = [PoolMachine, PagedPoolMachine]

TestPools = PoolMachine.TestCase
TestPagedPools = PagedPoolMachine.TestCase


@pytest.mark.parametrize("machine_class", MACHINES)
def test_a_seeded_run_finds_nothing_and_reaches_every_situation(machine_class: type[PoolMachine]) -> None:
    """P1-P5, X1, X4, X7, E2, E5: silence about a situation that never arose means nothing."""
    machine = drive(machine_class, seed=2, steps=1_500)
    assert {name for name, count in machine.reached.items() if count} == SITUATIONS


@pytest.mark.slow
@pytest.mark.parametrize("machine_class", MACHINES)
def test_twenty_thousand_steps_find_nothing(machine_class: type[PoolMachine]) -> None:
    """P1-P5, X1, X4, X7, E2, E5: the long run, the same everywhere."""
    machine = drive(machine_class, seed=20_000, steps=20_000)
    assert {name for name, count in machine.reached.items() if count} == SITUATIONS
