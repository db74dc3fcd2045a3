"""How many operations a second does a search carry out, write down and judge, and where does the time go?

A seeded driver plays each machine on each of our adapters, with the judge in the loop, and with a walk from
inside after every 64th operation. One round is one program. `extra_info` is in CPU time of this process, so
that it stands still while others run: operations a second without and with walks, and of the time without
them the shares of the adapter (with the implementation), of the judge, and of everything else: drawing,
deriving, looking at the form of answers, writing down. Each run must find nothing and test something.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from pymllm.adapters.registry import OWN, load_adapter, make_adapter
from pymllm.conformance.acting import ActingMachine, drive, make_machine
from pymllm.conformance.machines import MachineEntry, load_machine, machines_for
from pymllm.oracle.history import Config, History
from pymllm.oracle.judge import make_judge

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


class Walks:
    """Has a machine look inside after every so many of its operations."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.made = 0

    def over(self, machine: type[ActingMachine]) -> type[ActingMachine]:
        walks, do = self, machine.do

        def do_and_walk(self: ActingMachine, *operation: object) -> object:
            outcome = do(self, *operation)  # type: ignore[arg-type]
            if self.examiner.next_step % walks.every == 0:
                self.examiner.look_inside()
                walks.made += 1
            return outcome

        return type(f"{machine.__name__}_walking", (machine,), {"do": do_and_walk})


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    """Keep what was imported out of collections, as a long search does; what a search makes is in them."""
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


def applying(history: History) -> float:
    """Return the seconds in which a new adapter carries a program out again."""
    adapter = make_adapter(history.header.adapter, dict(history.header.config))
    return cpu_seconds(lambda: [adapter.apply(step.number, step.operation) for step in history.steps])


def judging(history: History) -> float:
    """Return the seconds in which a new judge judges a program again."""
    judge = make_judge(history.header)
    outcomes = [(step.number, step.operation, step.outcome) for step in history.steps]
    return cpu_seconds(lambda: [judge.judge(*each) for each in outcomes if each[2] is not None])  # type: ignore[arg-type]


@pytest.mark.parametrize(("adapter", "config", "entry"), [*cases()])
def test_judged_operations(
    benchmark: BenchmarkFixture, adapter: str, config: Config, entry: MachineEntry
) -> None:
    """Operations a second of one process, judged."""
    timed = benchmark.enabled
    machine = machine_of(entry, adapter, config)
    full = ENGINE_ACTS if entry.needs else ACTS
    acts, rounds = (full, ROUNDS) if timed else (full // 20, 1)
    walks = Walks(WALK_EVERY)
    walking = walks.over(machine_of(entry, adapter, config))
    plain: list[float] = []
    runs: list[ActingMachine] = []

    def play() -> None:
        plain.append(cpu_seconds(lambda: runs.append(drive(machine, SEED, acts))))

    benchmark.pedantic(play, rounds=rounds, warmup_rounds=1 if timed else 0)
    walked = [cpu_seconds(lambda: drive(walking, SEED, acts)) for _ in range(rounds)]

    assert machine.found is None
    assert walking.found is None
    history = runs[-1].examiner.history
    assert all(run.examiner.judge.evidence.exercised for run in runs)
    assert walks.made >= len(history.steps) // WALK_EVERY
    if timed:
        count = len(history.steps)
        applied = min(applying(history) for _ in range(rounds))
        judged = min(judging(history) for _ in range(rounds))
        best = min(plain)
        benchmark.extra_info.update(
            operations=count,
            per_second=round(count / best),
            per_second_walking=round(count / min(walked)),
            us=round(best / count * 1e6, 1),
            adapter_us=round(applied / count * 1e6, 1),
            judge_us=round(judged / count * 1e6, 1),
            adapter_share=round(applied / best, 3),
            judge_share=round(judged / best, 3),
        )
