"""Every pool call, callback and allocation of a corpus of programs fails once, and nothing is lost by it."""

from __future__ import annotations

from collections import Counter

import pytest

from pymllm.adapters.registry import OWN, load_adapter, make_adapter
from pymllm.history.files import Config
from pymllm.machines.acting import make_machine
from pymllm.machines.registry import MachineEntry, load_machine, machines_for
from pymllm.search.sweep import CORPUS_ACTS, CORPUS_SEEDS, sweep

SHORT_ACTS = 10


def places() -> list[tuple[str, Config, MachineEntry]]:
    """Every configuration of every own adapter with each machine that can run on it."""
    found = []
    for entry in OWN:
        for config in load_adapter(entry).CONFIGURATIONS:
            made = make_adapter(entry.name, dict(config))
            found += [
                (entry.name, dict(config), machine) for machine in machines_for(made.kind, made.capabilities)
            ]
    return found


PLACES = places()


def test_a_short_corpus_meets_every_failure_and_loses_nothing() -> None:
    """X2, X4, X6, E3: the last configuration of each adapter and machine, audited after each failure."""
    last = {(adapter, machine.name): (adapter, config, machine) for adapter, config, machine in PLACES}
    exercised: Counter[str] = Counter()
    failures = 0
    for adapter, config, entry in last.values():
        report = sweep(make_machine(load_machine(entry), adapter, config, seed=0), (1,), SHORT_ACTS)
        exercised += report.exercised
        failures += report.failures
    assert failures > 50
    assert min(exercised[law] for law in ("X2", "X4", "X6", "E3")) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adapter", "config", "entry"),
    PLACES,
    ids=[f"{it[0]}-{it[2].name}-{'-'.join(map(str, it[1].values()))}" for it in PLACES],
)
def test_the_whole_corpus_loses_nothing(adapter: str, config: Config, entry: MachineEntry) -> None:
    """X2, X4, X6, E3: every configuration, every machine, every call."""
    machine = make_machine(load_machine(entry), adapter, config, seed=0)
    assert sweep(machine, CORPUS_SEEDS, CORPUS_ACTS).programs == len(CORPUS_SEEDS)
