"""The cost of the recorder and of the timer for an operation.

One program of a prefix cache (the life of short prompts: match, insert, lock, unlock, evict), run again on
`RadixCache` behind its adapter: bare, under each instrument, and under both in either order. Timed is the
whole program; `extra_info` has the operations in it and microseconds for each, so that what an instrument
adds is the difference to `bare`. The recorder writes to the folder of temporary files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pymllm.adapters.base import Adapter
from pymllm.adapters.recorder import Recorder
from pymllm.adapters.registry import make_adapter
from pymllm.history.files import Step
from pymllm.instrument.timing import Histogram, Timing
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.prefix import PrefixMachine

STEPS = 2000
SEED = 9

STACKS: dict[str, Callable[[Adapter, Path], Adapter]] = {
    "bare": lambda adapter, path: adapter,
    "timing": lambda adapter, path: Timing(adapter),
    "recorder": lambda adapter, path: Recorder(adapter, path),
    "recorder(timing)": lambda adapter, path: Recorder(Timing(adapter), path),
    "timing(recorder)": lambda adapter, path: Timing(Recorder(adapter, path)),
}


@pytest.fixture(scope="module")
def program() -> list[Step]:
    """Return the steps that the state machine of prefix caches played with a cache."""
    adapter = make_adapter("radix")
    machine = drive(make_machine(PrefixMachine, "radix", adapter.config), SEED, STEPS)
    return machine.examiner.history.steps


@pytest.mark.benchmark(group="instruments: a program of a prefix cache")
@pytest.mark.parametrize("stack", STACKS)
def test_a_program(benchmark: BenchmarkFixture, program: list[Step], stack: str, tmp_path: Path) -> None:
    """Build the stack anew for each round, untimed."""

    def build() -> tuple[tuple[Adapter], dict[str, object]]:
        return (STACKS[stack](make_adapter("radix"), tmp_path / "run.jsonl"),), {}

    def play(adapter: Adapter) -> Adapter:
        for step in program:
            adapter.apply(step.number, step.operation)
        return adapter

    last = benchmark.pedantic(play, setup=build, rounds=5, warmup_rounds=1)
    last.close()
    benchmark.extra_info["operations"] = len(program)
    if benchmark.stats is not None:
        benchmark.extra_info["us_per_operation"] = benchmark.stats.stats.median / len(program) * 1e6


@pytest.mark.benchmark(group="instruments: one duration into a histogram")
def test_a_histogram(benchmark: BenchmarkFixture) -> None:
    """Time the work of a timer beside its two readings of the clock."""
    histogram = Histogram()
    durations = [1000 + 37 * n for n in range(1000)]

    def count() -> None:
        for duration in durations:
            histogram.add(duration)

    benchmark(count)
    assert histogram.count % 1000 == 0
