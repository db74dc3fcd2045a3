"""The slot allocators against their model: twenty-four configurations, both free lists."""

from __future__ import annotations

import pytest
from allocator_machine import CONFIGURATIONS, AllocatorConfig, allocator_machine, drive
from hypothesis.stateful import run_state_machine_as_test

from pymllm.mem_cache import host_store

each_configuration = pytest.mark.parametrize("config", CONFIGURATIONS, ids=lambda config: config.name)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host store search 4 pages at a time, at most 8, so that tiny pools have several chunks."""
    monkeypatch.setattr(host_store, "_CHUNK_BITS", 2)
    monkeypatch.setattr(host_store, "_WINDOW", 2)


@each_configuration
def test_allocator_agrees_with_its_model(config: AllocatorConfig) -> None:
    """A1-A7, X1, X4, X7: Hypothesis finds no program after which allocator and model differ."""
    run_state_machine_as_test(allocator_machine(config))


@each_configuration
def test_short_run_meets_every_situation(config: AllocatorConfig) -> None:
    """A1-A7, X1, X4, X7: silence about a situation that never arose would mean nothing."""
    machine = drive(allocator_machine(config), seed=1, steps=1_200)
    assert {name for name, count in machine.reached.items() if count} == config.situations


@pytest.mark.slow
@each_configuration
def test_twenty_thousand_steps_find_nothing(config: AllocatorConfig) -> None:
    """A1-A7, X1, X4, X7: the long run, the same everywhere."""
    machine = drive(allocator_machine(config), seed=20_000, steps=20_000)
    assert {name for name, count in machine.reached.items() if count} == config.situations
