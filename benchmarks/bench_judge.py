"""The rate at which a search carries out, writes down and judges operations, and the shares of its time.

A seeded driver plays each machine on each of our adapters, with the judge in the loop, and with a walk from
inside after every 64th operation. One round is one program. `extra_info` is in CPU time of this process, so
that it stands still while others run: operations a second without and with walks, and of the time without
them the shares of the adapter (with the implementation), of the judge, and of everything else: drawing,
deriving, looking at the form of answers, writing down. Each run must find nothing and test something.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from pymllm.adapters.registry import OWN, load_adapter, make_adapter
from pymllm.history.files import Config
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Outcome
from pymllm.machines.acting import ActingMachine, drive, make_machine
from pymllm.machines.examiner import Examiner
from pymllm.machines.registry import MachineEntry, load_machine, machines_for

T = TypeVar("T")

SEED = 7
ACTS = 1_000
ENGINE_ACTS = 200  # each is a step of the engine, and many operations
ROUNDS = 2
WALK_EVERY = 64


def cases() -> Iterator[object]:
    """Yield each machine that can run on the first and the last configuration of each of our adapters."""
    for entry in OWN:
        configurations = load_adapter(entry).CONFIGURATIONS
        for config in configurations[:: max(1, len(configurations) - 1)]:
            adapter = make_adapter(entry.name, dict(config))
            for machine in machines_for(adapter.kind, adapter.capabilities):
                place = list(configurations).index(config)
                yield pytest.param(entry.name, config, machine, id=f"{entry.name}-{place}-{machine.name}")


def with_walks(machine: type[ActingMachine], every: int) -> type[ActingMachine]:
    """Make a machine that looks inside after every so many of its operations."""

    class Walking(machine):  # type: ignore[misc,valid-type]
        def do(self, operation: Operation) -> Outcome:
            outcome: Outcome = super().do(operation)
            if self.examiner.next_step % every == 0:
                self._watched(self.examiner.look_inside)
            return outcome

    return Walking


class Clock:
    """Adds up the CPU time of calls, made where they belong: by themselves they would find warm caches."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def over(self, call: Callable[..., T]) -> Callable[..., T]:
        def timed(*arguments: object) -> T:
            start = time.thread_time()
            try:
                return call(*arguments)
            finally:
                self.seconds += time.thread_time() - start

        return timed


def with_clocks(machine: type[ActingMachine], adapter: Clock, judge: Clock) -> type[ActingMachine]:
    """Make a machine whose adapter and judge are timed."""

    class Timed(machine):  # type: ignore[misc,valid-type]
        def begin(self) -> None:
            examiner = self.examiner
            examiner.adapter.apply = adapter.over(examiner.adapter.apply)
            examiner.judge.judge = judge.over(examiner.judge.judge)
            super().begin()

    return Timed


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    """Keep imported objects out of collections, as a long search does; objects of the search stay in them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


def machine_of(entry: MachineEntry, adapter: str, config: Config) -> type[ActingMachine]:
    """Make a machine that neither walks nor runs a program again by itself."""
    machine = make_machine(load_machine(entry), adapter, config, seed=SEED, audit=False)
    machine.REPLAY_EVERY, machine.runs = 1 << 30, 1
    return machine


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.parametrize(("adapter", "config", "entry"), [*cases()])
def test_judged_operations(
    benchmark: BenchmarkFixture, adapter: str, config: Config, entry: MachineEntry
) -> None:
    """Operations a second of one process, judged."""
    timed, full = benchmark.enabled, ENGINE_ACTS if entry.needs else ACTS
    acts, rounds = (full, ROUNDS) if timed else (full // 50, 1)
    machine = machine_of(entry, adapter, config)
    walking = with_walks(machine_of(entry, adapter, config), WALK_EVERY)
    applying, judging = Clock(), Clock()
    clocked = with_clocks(machine_of(entry, adapter, config), applying, judging)

    def seconds(played: type[ActingMachine]) -> float:
        return cpu_seconds(lambda: drive(played, SEED, acts))

    examined: dict[type[ActingMachine], Examiner] = {}
    for played in (machine, walking, clocked):
        played.on_end = functools.partial(examined.__setitem__, played)
    plain: list[float] = []
    benchmark.pedantic(lambda: plain.append(seconds(machine)), rounds=rounds)
    walked = min(seconds(walking) for _ in range(rounds))
    whole = sum(seconds(clocked) for _ in range(rounds))

    assert all(played.found is None for played in examined)
    assert all(examiner.judge.evidence.exercised for examiner in examined.values())
    assert len({len(examiner.history) for examiner in examined.values()}) == 1
    looked = examined[walking]
    assert looked.audited or len(looked.history) < 8 * WALK_EVERY or not looked.adapter.audit()
    if timed:
        count = len(examined[machine].history)
        benchmark.extra_info.update(
            operations=count,
            us=round(min(plain) / count * 1e6, 1),
            per_second=round(count / min(plain)),
            per_second_walking=round(count / walked),
            adapter_share=round(applying.seconds / whole, 3),
            judge_share=round(judging.seconds / whole, 3),
        )
