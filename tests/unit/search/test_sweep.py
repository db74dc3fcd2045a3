"""Every call of a program fails once, and nothing is lost by it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pymllm.adapters.own_blocks import Blocks
from pymllm.adapters.own_requests import Requests
from pymllm.errors import InvariantViolation
from pymllm.faults.plant import Edit, planted
from pymllm.history import operations as ops
from pymllm.history.files import Config, Header, History, Step
from pymllm.history.outcomes import Effect, Evicted, Failed, NoRoom, Outcome, Slots
from pymllm.machines.acting import ActingMachine, make_machine
from pymllm.machines.blocks import BlockMachine
from pymllm.machines.lifecycle import LifecycleMachine
from pymllm.machines.prefix import PrefixMachine
from pymllm.machines.requests import RequestMachine
from pymllm.machines.rows import RowMachine, StateMachine
from pymllm.search.sweep import Failure, failures_of, inner_calls_of, sweep, sweep_runs

PREFIX: Config = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18}
ROWS: Config = {"max_reqs": 3, "max_context_len": 4}
STATES: Config = {
    "max_reqs": 2, "layers": 2, "v_heads": 2, "k_dim": 2, "v_dim": 3, "conv_dim": 3, "kernel": 3,
    "dtype": "float32", "track_slots": 3,
}  # fmt: skip


def machine_of(base: type[ActingMachine], adapter: str, config: Config) -> Any:
    return make_machine(base, adapter, config, seed=0)


def test_every_call_and_every_allocation_of_a_program_can_fail() -> None:
    """X2, X4, X6: each once, a callback in two ways, and what finds no room by itself not at all."""
    effects = (Effect("free", (3,)), Effect("callback", node=1), Effect("callback", node=2))
    steps = [
        Step(1, ops.Alloc(4), Outcome(Slots((1, 2, 3, 4)))),
        Step(2, ops.Alloc(4), Outcome(NoRoom())),
        Step(3, ops.Evict(1), Outcome(Evicted(1, 1), effects)),
    ]
    history = History(Header("radix", "prefix", {}, ("faults", "callbacks", "pool")), steps)
    assert list(failures_of(history)) == [
        Failure(1, "alloc", 1),
        Failure(3, "free", 1),
        Failure(3, "callback", 1),
        Failure(3, "callback", 2),
        Failure(3, "reenter", 1),
        Failure(3, "reenter", 2),
    ]
    assert list(failures_of(History(Header("radix", "prefix", {}), steps))) == []


def test_a_cache_that_meets_every_failure_loses_nothing() -> None:
    """X2, X6: each call of the corpus fails in a program of its own, which is judged to its end."""
    report = sweep(machine_of(PrefixMachine, "radix", PREFIX), (0, 1), 12)
    assert report.programs == 2
    assert report.failures > 10
    assert report.operations > report.failures
    assert min(report.exercised["X2"], report.exercised["X4"], report.exercised["X6"]) > 0
    assert report.audited["R7"] > 0


def test_a_failing_program_ends_with_its_failure_and_what_is_given_back() -> None:
    """X2: the operation before the last ones is the one that was told to fail."""
    machine = machine_of(PrefixMachine, "radix", PREFIX)
    runs = [examiner.history for examiner in sweep_runs(machine, (0,), 12)]
    armed = [
        [at for at, step in enumerate(history.steps) if isinstance(step.operation, ops.Fault)]
        for history in runs
    ]
    assert all(len(places) <= 1 for places in armed)
    assert sum(map(len, armed)) > 5


@pytest.mark.parametrize(
    ("base", "adapter", "config"), [(RowMachine, "rows", ROWS), (StateMachine, "gdn-states", STATES)]
)
def test_an_allocation_that_finds_nothing_changes_nothing(
    base: type[ActingMachine], adapter: str, config: Config
) -> None:
    """X4: somebody else has taken everything just before."""
    report = sweep(machine_of(base, adapter, config), (0, 1, 2), 25)
    assert report.failures > 0
    assert report.exercised["X4"] >= report.failures


def test_blocks_and_their_slots_run_out_in_turn() -> None:
    """X4, C5: every block is somebody's, and every slot is a held block's."""
    machine = machine_of(BlockMachine, "blocks", dict(Blocks.CONFIGURATIONS[0]))
    seen = Counter[type]()
    for examiner in sweep_runs(machine, (0, 1, 2), 30):
        last = [step for step in examiner.history.steps if isinstance(step.outcome.result, NoRoom | Failed)]
        seen.update(type(step.operation) for step in last)
    assert min(seen[ops.AllocBlocks], seen[ops.AllocSlots]) > 0


def test_every_call_inside_a_context_fails_in_turn() -> None:
    """X2, C7: the allocations, the copies and the forward pass, each where it is made and nowhere else."""
    machine = machine_of(RequestMachine, "requests", dict(Requests.CONFIGURATIONS[6]))
    struck = Counter[tuple[str, int]]()
    for examiner in sweep_runs(machine, (1,), 5):
        struck.update((it.operation.call, it.operation.nth) for it in examiner.history.steps if is_fault(it))
    assert {call for call, _ in struck} >= {"allocate_blocks", "no_blocks", "forward"}
    assert {nth for _, nth in struck} >= {1, 2}
    assert all(nth < 10 for _, nth in struck)


def is_fault(step: Step) -> bool:
    return isinstance(step.operation, ops.Fault)


def test_calls_inside_a_context_are_looked_for_where_they_can_be_made() -> None:
    """X2: by operation, and those on states only where there are states."""
    steps = [Step(1, ops.AddRequest((1, 2))), Step(2, ops.Inspect()), Step(3, ops.ScheduleChunk(1))]
    plain = History(Header("requests", "requests", {}, ("faults",)), steps)
    blocks = ["allocate_blocks", "no_blocks"]
    assert list(inner_calls_of(plain)) == [(1, blocks), (3, blocks)]
    hybrid = History(Header("requests", "requests", {}, ("faults", "mamba")), steps[:1])
    assert list(inner_calls_of(hybrid)) == [(1, [*blocks, "restore_state"])]
    assert list(inner_calls_of(History(Header("requests", "requests", {}), steps))) == []


def test_an_engine_that_is_refused_memory_gives_everything_back() -> None:
    """E3, E4: each allocation finds nothing, once and twice."""
    machine = machine_of(LifecycleMachine, "radix", PREFIX)
    report = sweep(machine, (3,), 20)
    assert report.failures > 4
    assert report.failures % 2 == 0
    assert report.exercised["E3"] > report.failures


def test_what_a_failure_loses_is_found() -> None:
    """X2: victims that the pool did not take are not put back among those that can be evicted."""
    edits = [Edit("pymllm.mem_cache.tree.tree_cache:TreeCache._evict", "plan.call_off()", "pass")]
    machine = machine_of(PrefixMachine, "radix", PREFIX)
    with planted(edits), pytest.raises(InvariantViolation) as caught:
        sweep(machine, range(4), 20)
    assert machine.found.violation is caught.value
