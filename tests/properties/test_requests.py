"""Whole requests against their judge: by Hypothesis, from fixed seeds, and with each allocation failing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from pairwise import missing_pairs

from pymllm.adapters.failing_calls import FAILING_CALLS
from pymllm.adapters.own_requests import Requests
from pymllm.history import operations as ops
from pymllm.history.files import Config
from pymllm.history.operations import Operation
from pymllm.history.outcomes import RequestView
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.examiner import Examiner
from pymllm.machines.requests import RequestMachine
from pymllm.oracle.coverage import expected_goals

CONFIGURATIONS = [dict(config) for config in Requests.CONFIGURATIONS]
MACHINES = [make_machine(RequestMachine, "requests", config) for config in CONFIGURATIONS]
QUICK = [
    make_machine(RequestMachine, "requests", config, seed=0, audit=False) for config in CONFIGURATIONS[:5]
]
PAIRS: list[Config] = [
    {**CONFIGURATIONS[-1], "chunk_size": 128, "policy": "ref_zero", "hash_digits": 2},
    {**CONFIGURATIONS[0], "mamba_slots": 1, "policy": "ref_zero", "hash_digits": 2},
    {**CONFIGURATIONS[0], "mamba_slots": 64, "policy": "ref_zero"},
]
"""Settings that meet in no configuration of the adapter; for the long runs."""
LONG = [*MACHINES, *(make_machine(RequestMachine, "requests", config) for config in PAIRS)]
each_machine = pytest.mark.parametrize("machine_class", MACHINES, ids=lambda machine: machine.__name__)


@each_machine
def test_nothing_is_found_by_hypothesis(machine_class: type[RequestMachine]) -> None:
    """C1 to C9, E1 to E5, X1 to X4, X7: a few programs, since each act is several steps."""
    run_state_machine_as_test(
        machine_class, settings=settings(max_examples=max(1, settings.default.max_examples // 5))
    )
    assert machine_class.steps_run > 0


@pytest.mark.parametrize("machine_class", QUICK, ids=lambda machine: machine.__name__)
def test_a_seeded_run_finds_nothing_and_reaches_every_goal(machine_class: type[RequestMachine]) -> None:
    """C1 to C9, E1 to E5: silence about a coverage goal that never arose means nothing."""
    machine_class.runs = 1  # one long run is not played again; the short ones are
    missing: set[str] | None = None
    for seed in range(2, 8):  # one may draw few kinds of tokens
        examiner = drive(machine_class, seed=seed, steps=600).examiner
        goals = expected_goals(examiner.history.header) if missing is None else missing
        missing = set(goals) - set(examiner.judge.evidence.reached)
        if not missing:
            break
    assert missing == set()


def test_any_two_settings_meet_in_a_long_run() -> None:
    """C1 to C9: sizes of blocks and chunks, slots, policies, and hashes of 8 bits beside whole ones."""
    settings = {
        "block_size": (4, 256),
        "chunk_size": (2, 128),
        "mamba_slots": (1, 3, 64),
        "policy": ("lru", "ref_zero"),
        "hash_digits": (None, 2),
    }
    assert missing_pairs(CONFIGURATIONS, settings)
    assert missing_pairs([*CONFIGURATIONS, *PAIRS], settings) == set()
    assert any(config.get("caching") is False for config in CONFIGURATIONS)


@pytest.mark.slow
@pytest.mark.parametrize("machine_class", LONG, ids=lambda machine: machine.__name__)
def test_twenty_thousand_steps_find_nothing(machine_class: type[RequestMachine]) -> None:
    """C1 to C9, E1 to E5: the long run, the same everywhere."""
    machine_class.runs = 1
    machine = drive(machine_class, seed=20_000, steps=7_000)
    assert len(machine.examiner.history) >= 20_000
    header = machine.examiner.history.header
    assert set(machine.examiner.judge.evidence.reached) >= expected_goals(header)


@pytest.mark.gpu
@pytest.mark.gpu_memory_limit("64 MiB")
@pytest.mark.parametrize("config", [*CONFIGURATIONS, *PAIRS])
def test_a_seeded_run_on_cuda_finds_nothing(config: Config) -> None:
    """E1, C7, C8: warm equals cold with the states on the device, for every request of each batch."""
    machine_class = make_machine(RequestMachine, "requests", {**config, "device": "cuda"})
    machine_class.runs = 1
    machine = drive(machine_class, seed=2, steps=60)
    assert machine.examiner.judge.evidence.exercised["E1"] > 0


# -- every allocation fails once -----------------------------------------------------------------------------
class SoundMachine(RequestMachine):
    """A machine without misuse and faults: its operations make sense even if later operations fail."""

    LEFT_OUT = frozenset({"refusals", "faults"})


def corpus_program(config: Config, seed: int) -> list[tuple[int, Operation]]:
    """The operations of a driven program that ask for something, with the numbers of their steps."""
    machine = drive(make_machine(SoundMachine, "requests", config, audit=False), seed, 9)
    wanted = (ops.AddRequest, ops.ScheduleChunk, ops.RunStep, ops.Pause, ops.Resume, ops.Release)
    return [
        (step.number, step.operation)
        for step in machine.examiner.history.steps
        if isinstance(step.operation, wanted)
    ]


class Sweep:
    """One program, played with one call failing, and judged and walked through after every step."""

    def __init__(self, config: Config, audit: bool = True) -> None:
        self.adapter = Requests("requests", config)
        self.examiner = Examiner(self.adapter, audit=audit)
        self.model = self.examiner.judge.model.context
        self.named: dict[int, int] = {}
        self.calls_made: list[Counter[str]] = []

    def play(
        self, program: list[tuple[int, Operation]], at: int = -1, fault: ops.Fault | None = None
    ) -> None:
        """Play it, with the fault before one operation, and let go of every request at the end."""
        for place, (number, operation) in enumerate(program):
            before = self.adapter.calls.made.copy()
            told = self._renamed(operation)
            if told is not None:
                if place == at and fault is not None:
                    self.examiner.do(fault)
                result = self.examiner.do(told).result
                if isinstance(result, RequestView) and isinstance(told, ops.AddRequest):
                    self.named[number] = result.request
                self._let_go([each.step for each in self.model.served.values() if each.is_spoiled])
            self.calls_made.append(self.adapter.calls.made - before)
        self._let_go(list(self.model.served))
        assert self.model.room() == self.model.blocks.usable

    def _let_go(self, steps: list[int]) -> None:
        for step in steps:
            self.examiner.do(ops.Release(step))

    def _renamed(self, operation: Operation) -> Operation | None:
        """The operation with the request as it is called here; nothing where it makes no sense any more."""
        if isinstance(operation, ops.AddRequest | ops.RunStep):
            return operation
        assert isinstance(operation, ops.ScheduleChunk | ops.Pause | ops.Resume | ops.Release)
        request = self.model.served.get(self.named.get(operation.request, 0))
        able = {
            ops.ScheduleChunk: {"waiting"},
            ops.Resume: {"paused"},
            ops.Pause: {"waiting", "decode", "prefill"},
        }
        if request is None or request.region not in able.get(type(operation), {request.region}):
            return None
        return replace(operation, request=request.step)


@pytest.mark.parametrize("seed", [10, 12])  # of programs that make each kind of call
@pytest.mark.parametrize("policy", ["lru", "ref_zero"])
def test_whichever_allocation_fails_what_was_asked_is_done_or_undone(policy: str, seed: int) -> None:
    """X2, X4, E1, E3: the n-th call of each kind, for every n; checks pass after each step, then all goes."""
    config: Config = {**CONFIGURATIONS[0], "policy": policy}
    program = corpus_program(config, seed)
    sound = Sweep(config, audit=False)
    sound.play(program)
    met = Counter[str]()
    for place, calls in enumerate(sound.calls_made):
        for call, times in calls.items():
            for nth in range(1, times + 1):
                Sweep(config).play(program, place, ops.Fault(call, nth))
                met[call] += 1
    assert set(met) == set(FAILING_CALLS)
