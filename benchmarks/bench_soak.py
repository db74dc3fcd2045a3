"""The rate at which a soak plays, judges and walks through operations.

One run of a campaign for each adapter and machine, in this process, as `pymllm soak` plays it: acts switched
off and phases, a walk from inside now and then. `extra_info` has the operations, and how many there were in a
second of this process's own time. Each run must find nothing.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pymllm.adapters.registry import OWN, load_adapter, make_adapter
from pymllm.machines.registry import machines_for
from pymllm.soak.ledger import Place
from pymllm.soak.player import play_run
from pymllm.soak.schedule import RunTask

SEED, LIMIT, WALK_EVERY = 6, 4_000, 256


@dataclass(frozen=True)
class Played:
    operations: int
    cpu_seconds: float


def places() -> Iterator[object]:
    """Yield each machine that can run on the first configuration of each of our adapters."""
    for entry in OWN:
        config = dict(load_adapter(entry).CONFIGURATIONS[0])
        adapter = make_adapter(entry.name, config)
        for machine in machines_for(adapter.kind, adapter.capabilities):
            place = Place(entry.name, adapter.kind, config, machine.name)
            yield pytest.param(place, id=f"{entry.name}-{machine.name}")


def play(place: Place, limit: int) -> Played:
    begun = time.process_time()
    record = play_run(RunTask(0, "benchmark", place, SEED, limit, WALK_EVERY)).record
    assert record.failure is None, record.failure
    return Played(record.operations, time.process_time() - begun)


@pytest.mark.parametrize("place", [*places()])
def test_a_run(benchmark: BenchmarkFixture, place: Place) -> None:
    """Operations a second, audited."""
    limit = LIMIT if benchmark.enabled else 50
    played = benchmark.pedantic(play, args=(place, limit), rounds=1)
    gc.collect()
    assert played.operations >= limit
    benchmark.extra_info.update(
        operations=played.operations, per_cpu_second=round(played.operations / played.cpu_seconds)
    )
