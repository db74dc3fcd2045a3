"""The slot allocators before their judge: twenty-four configurations, both free lists."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from pymllm.adapters.own_slots import SWASlots, TokenSlots
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.slot_machine import SlotMachine
from pymllm.mem_cache import host_store
from pymllm.oracle.situations import expected_situations

MACHINES = [
    make_machine(SlotMachine, name, config)
    for name, adapter in (("token-slots", TokenSlots), ("swa-slots", SWASlots))
    for config in adapter.CONFIGURATIONS
]
each_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host store search 4 pages at a time, at most 8, so that tiny pools have several chunks."""
    monkeypatch.setattr(host_store, "_CHUNK_BITS", 2)
    monkeypatch.setattr(host_store, "_WINDOW", 2)


@each_machine
def test_hypothesis_finds_no_program_that_breaks_a_law(machine: type[SlotMachine]) -> None:
    """A1-A7, X1, X3, X4, X7: outcomes are judged from outside, the free lists walked from inside."""
    run_state_machine_as_test(machine)


@each_machine
def test_a_short_run_meets_every_situation(machine: type[SlotMachine]) -> None:
    """A1-A7, X1, X3, X4, X7: silence about a situation that never arose would mean nothing."""
    assert_everything_met(drive(machine, seed=1, steps=900))


@pytest.mark.slow
@each_machine
def test_twenty_thousand_steps_break_no_law(machine: type[SlotMachine]) -> None:
    """A1-A7, X1, X3, X4, X7: the long run, the same everywhere."""
    assert_everything_met(drive(machine, seed=20_000, steps=20_000))


def assert_everything_met(machine: SlotMachine) -> None:
    """Every situation that the configuration can reach was reached, and no other."""
    header = machine.examiner.history.header
    assert set(machine.examiner.judge.evidence.reached) == expected_situations(header)
