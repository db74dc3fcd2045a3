"""E1-E5: an engine lives over each prefix cache and each context of ours, and every exit is met."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pymllm.adapters.registry import find_adapter, load_adapter, make_adapter
from pymllm.history.files import Config
from pymllm.machines.acting import ActingMachine, drive, make_machine
from pymllm.machines.registry import MACHINES, load_machine
from pymllm.oracle.coverage import expected_goals
from pymllm.oracle.laws import laws_of

CONFIGURATIONS = [
    (adapter, config)
    for adapter in ("radix", "radix-window", "mamba", "chunk", "requests")
    for config in load_adapter(find_adapter(adapter)).CONFIGURATIONS
    if "engine" in make_adapter(adapter, dict(config)).capabilities
]
SEEDS, ACTS = 30, 120

every_configuration = pytest.mark.parametrize(
    ("adapter", "config"),
    CONFIGURATIONS,
    ids=[f"{adapter}-{'-'.join(map(str, config.values()))}" for adapter, config in CONFIGURATIONS],
)


def lives_of(adapter: str, config: Config, **changes: bool) -> type[ActingMachine]:
    """Make the machine of an engine over an adapter."""
    kind = load_adapter(find_adapter(adapter)).KIND
    (entry,) = (each for each in MACHINES[kind] if each.has_engine)
    return make_machine(load_machine(entry), adapter, config, **changes)


def unmet(machine: ActingMachine, reached: set[str]) -> frozenset[str]:
    """Add the goals that a machine has reached, and return the goals that are still missing."""
    reached.update(machine.examiner.judge.evidence.reached)
    return expected_goals(machine.examiner.history.header, of_engine=True) - reached


@every_configuration
def test_searched_lives_break_no_law(adapter: str, config: Config) -> None:
    """E1-E5: short lives, chosen and shrunk by Hypothesis."""
    machine = lives_of(adapter, config)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=4, stateful_step_count=20, deadline=None)
    )


@every_configuration
def test_driven_lives_meet_every_exit(adapter: str, config: Config) -> None:
    """E3, E4: a search that never retracts, aborts or runs short says nothing of it."""
    machine_class = lives_of(adapter, config)
    reached: set[str] = set()
    tested: set[str] = set()
    for seed in range(SEEDS):
        machine = drive(machine_class, seed, ACTS)
        tested |= set(machine.examiner.judge.evidence.exercised)
        if not unmet(machine, reached):
            break
    assert unmet(machine, reached) == frozenset()
    assert {law.id for law in laws_of(machine.examiner.adapter.kind) if law.id.startswith("E")} <= tested


@pytest.mark.slow
@every_configuration
def test_long_lives_break_no_law(adapter: str, config: Config) -> None:
    """E1-E5: at least 20,000 operations for each cache."""
    machine_class = lives_of(adapter, config, audit=False)
    reached: set[str] = set()
    seed = SEEDS
    while machine_class.steps_run < 20_000:
        missing = unmet(drive(machine_class, seed, 600), reached)
        seed += 1
    assert missing == frozenset()
