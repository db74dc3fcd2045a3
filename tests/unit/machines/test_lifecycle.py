"""The machine lets an engine live over an adapter, and reports whatever either of the two finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pymllm.adapters.own_caches import WindowedRadix
from pymllm.errors import AdapterError, InvariantViolation
from pymllm.faults.plant import Edit, planted
from pymllm.history import operations as ops
from pymllm.history.files import Config
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Outcome, Slots
from pymllm.machines.acting import ActingMachine, drive, make_machine
from pymllm.machines.lifecycle import LifecycleMachine
from pymllm.oracle.judge import judge_steps
from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_memory import EngineMemory, EngineStates
from pymllm.workloads.live_request import LiveRequest

CONFIG: Config = {"page_size": 4, "window": 6, "pool": "swa", "slots": 48, "swa_slots": 36}
HYBRID: Config = {**CONFIG, "window": None, "pool": "token", "track_slots": 3}


def machine_of(**changes: int | str | None) -> Any:
    """Make the machine class of a windowed radix cache."""
    return make_machine(LifecycleMachine, "radix-window", {**CONFIG, **changes}, seed=1)


def machine_on(adapter_class: type[WindowedRadix]) -> Any:
    """Make the machine class of an adapter of this file."""
    build = {"make_adapter": classmethod(lambda cls: adapter_class("x", CONFIG))}
    return type(adapter_class.__name__, (machine_of(),), build)


def operations_of(machine: ActingMachine) -> list[Operation]:
    return [step.operation for step in machine.examiner.history.steps]


def live_often(make: Callable[[], type[ActingMachine]], acts: int) -> None:
    """Drive a life from each of twenty seeds, until one breaks a law."""
    for seed in range(20):
        drive(make(), seed, acts)


# -- acts ----------------------------------------------------------------------------------------------------


def test_prompts_share_what_their_small_numbers_share() -> None:
    """K1: a trunk, branches, pages cut short, and namespaces."""
    machine = machine_of()()
    for arguments in (
        (4, 0, 5, 0, 0, 0),
        (4, 0, 2, 0, 0, 0),
        (4, 0, 2, 1, 0, 3),
        (4, 4, 5, 0, 0, 4),
        (1, 4, 0, 0, 9, 0),
    ):
        machine.ask(*arguments)
    requests = [machine.source.next_request() for _ in range(5)]
    assert [request.prompt_length for request in requests] == [20, 20, 20, 16, 4]
    assert [request.namespace for request in requests] == [None, None, "a", 1, None]
    assert requests[0].block_ids[:2] == requests[1].block_ids[:2] == requests[2].block_ids[:2]
    assert len({request.block_ids[2:] for request in requests[:3]}) == 3
    assert [request.output_length for request in requests] == [1, 1, 1, 1, 18]
    assert [request.request_id for request in requests] == list(range(5))


def test_queue_is_bounded() -> None:
    """An act that would let too many wait is not offered."""
    machine = machine_of()()
    for _ in range(6):
        assert machine.may_ask
        machine.ask(2, 0, 0, 0, 0, 0)
    assert not machine.may_ask


def test_chunks_and_victims_are_the_sources() -> None:
    """X3: standing orders, until the end, where everything may finish."""
    machine = machine_of()()
    machine.limit_chunks(3)
    machine.choose_victims(2)
    assert (machine.source.chunk, machine.source.victim) == (3, 2)
    machine.teardown()
    assert (machine.source.chunk, machine.source.victim) == (0, 0)


def test_states_are_evicted_one_by_one() -> None:
    """M5: whatever the page size; only tokens come in pages."""
    machine: Any = make_machine(LifecycleMachine, "mamba", HYBRID)()
    machine.evict(1, 2)
    assert operations_of(machine)[-1] == ops.Evict(2, 2)
    machine.teardown()


def test_rare_acts_are_rare() -> None:
    """A search that settled in every other step would never build up pressure."""
    machine = machine_of()()
    machine.ask(2, 0, 0, 0, 9, 0)
    machine.step(1)
    machine.settle(3)
    machine.start_again(2, 0, 0)
    assert machine.may_abort


# -- what comes of it ----------------------------------------------------------------------------------------
def test_driven_program_is_a_history_like_any_other() -> None:
    """X3: it is judged again without the implementation, and replayed on another."""
    cls = machine_of()
    machine = drive(cls, 0, 60)
    examiner = machine.examiner
    assert cls.steps_run == len(examiner.history) > 200
    evidence, found = judge_steps(examiner.history.header, examiner.history.steps)
    assert found is None
    exercised = examiner.judge.evidence.exercised
    assert set(exercised) - set(evidence.exercised) == {"E2", "E3", "E4", "E5", "E6"}
    assert exercised["X3"] == evidence.exercised["X3"] + 1
    assert examiner.audited["R9"] > 0
    assert operations_of(drive(machine_of(), 0, 60)) == operations_of(machine)


def test_driven_hybrid_is_a_history_with_its_states() -> None:
    """E1, M1: snapshots are written, handed over, evicted and read before they are resumed from."""
    machine = drive(make_machine(LifecycleMachine, "mamba", {**HYBRID, "track_slots": 1}), 0, 60)
    operations, header = operations_of(machine), machine.examiner.history.header
    kinds = {type(operation) for operation in operations}
    assert {ops.AllocTrack, ops.WriteState, ops.ReadStates} <= kinds
    assert any(isinstance(operation, ops.Insert) and operation.state is not None for operation in operations)
    evidence, found = judge_steps(header, machine.examiner.history.steps)
    assert found is None
    exercised = machine.examiner.judge.evidence.exercised
    assert set(exercised) - set(evidence.exercised) == {"E2", "E3", "E4", "E5", "E6"}
    assert {f"M{number}" for number in (1, 2, 4, 5, 6, 7)} <= set(exercised)


def test_adapter_without_a_pool_cannot_be_driven() -> None:
    """An engine needs slots; the smoke test and the registry keep such adapters away from it."""
    with pytest.raises(AdapterError, match="needs a prefix cache that claims it can be driven"):
        machine_of(pool="none")()


class Nameless(WindowedRadix):
    """Does not claim namespaces."""

    def claim(self) -> frozenset[str]:
        """Claim less."""
        return super().claim() - {"extra_key"}


def test_namespaces_are_used_only_where_they_are_claimed() -> None:
    """K1: an adapter is not asked for what it does not have."""

    machine: Any = machine_on(Nameless)()
    machine.ask(2, 0, 0, 0, 0, 3)
    request = machine.source.next_request()
    assert request is not None
    assert request.namespace is None


# -- violations ----------------------------------------------------------------------------------------------
def test_what_the_engine_finds_is_kept_with_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """E3: here an engine that gives nothing back; the cache is sound, so no operation is to blame."""
    cls = machine_of()
    monkeypatch.setattr(EngineMemory, "give_back", lambda self, live, adopted=(): live.forget_memory())
    machine = cls()
    machine.ask(2, 0, 5, 0, 9, 0)
    with pytest.raises(InvariantViolation, match="E3"):
        machine.settle(0)
    assert cls.found.violation.law == "E3"
    assert len(cls.found.history) > 0
    assert judge_steps(cls.found.history.header, cls.found.history.steps)[1] is None


def begin_from_nothing(states: EngineStates, live: LiveRequest) -> None:
    """Forget that the prefix has a state."""
    states._pool.reset_states(live.row)
    states._watch.note_reset(live.row)


def lose_the_track_slot(states: EngineStates, live: LiveRequest, end: int) -> None:
    """Take a track slot and forget it."""
    states._pool.alloc_track_slot()


@pytest.mark.parametrize(
    ("method", "wrong", "law"), [("begin", begin_from_nothing, "E1"), ("reserve", lose_the_track_slot, "E3")]
)
def test_what_the_engine_does_wrong_with_states_is_found(
    monkeypatch: pytest.MonkeyPatch, method: str, wrong: Callable[..., None], law: str
) -> None:
    """E1, E3: the engine's own audits see it, and no operation is to blame."""
    cls: Any = make_machine(LifecycleMachine, "mamba", HYBRID)
    monkeypatch.setattr(EngineStates, method, wrong)
    with pytest.raises(InvariantViolation, match=law):
        drive(cls, 0, 60)
    assert cls.found.violation.law == law
    assert judge_steps(cls.found.history.header, cls.found.history.steps)[1] is None


class Forgetful(WindowedRadix):
    """Hands slots out twice."""

    def apply(self, step: int, operation: Operation) -> Outcome:
        """Give the second allocation the slots of the first."""
        outcome = super().apply(step, operation)
        if isinstance(outcome.result, Slots) and len(outcome.result.slots) == 4:
            result = Slots((4, 5, 6, 7), outcome.result.swa_slots)
            return Outcome(result, outcome.effects, outcome.sizes)
        return outcome


def test_what_the_judge_finds_ends_the_engine() -> None:
    """A2: the history ends with the step that broke the law, and the engine is not asked to go on."""

    cls = machine_on(Forgetful)
    with pytest.raises(InvariantViolation, match="A2") as caught:
        drive(cls, 0, 60)
    found = cls.found
    assert found is not None
    assert found.violation is caught.value
    _, again = judge_steps(found.history.header, found.history.steps)
    assert again is not None
    assert (again[0], again[1].law) == (found.history.steps[-1], "A2")


def test_engine_that_broke_down_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is no violation must not be taken for one in the clearing up."""
    machine = machine_of()()
    machine.ask(2, 0, 0, 0, 9, 0)

    def fail(engine: Engine) -> bool:
        raise RuntimeError("nothing goes")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", fail)
        with pytest.raises(RuntimeError):
            machine.step(1)
    machine.teardown()
    assert operations_of(machine) == []


def test_an_engine_that_frees_a_state_twice_answers_for_its_exit() -> None:
    """E3, and not E2: it gives back what it has given back already."""
    edit = Edit(
        "pymllm.workloads.engine_memory:EngineStates.give_back",
        "self._pool.free_track_slot(live.track_slot)",
        "self._pool.free_track_slot(live.track_slot)\nself._pool.free_track_slot(live.track_slot)",
    )
    with planted([edit]), pytest.raises(InvariantViolation, match="E3: the engine made"):
        live_often(lambda: make_machine(LifecycleMachine, "mamba", HYBRID), 60)


@pytest.mark.parametrize(
    ("target", "old", "new", "law"),
    [
        ("give_back", "allocator.free(own)", "allocator.free(own)\nself.pools.allocator.free(own)", "E3"),
        ("match_and_hold", "lock(match.last_node", "lock(match.last_node + 99", "E2"),
        ("take_row", "self.pools.rows.alloc(1)", "self.pools.rows.free(9)", "E2"),
        (
            "share",
            "aligned = self.whole_pages",
            "self.pools.kind.cache.reset()\naligned = self.whole_pages",
            "R3",
        ),
    ],
)
def test_an_engine_answers_for_what_no_caller_may_do(target: str, old: str, new: str, law: str) -> None:
    """E2, E3: nobody else has chosen what to ask for."""
    edit = Edit(f"pymllm.workloads.engine_memory:EngineMemory.{target}", old, new)
    with planted([edit]), pytest.raises(InvariantViolation, match=f"{law}: the engine (made|emptied)"):
        live_often(machine_of, 40)


@pytest.mark.parametrize("slots", [1, 2, 6, 16])
@pytest.mark.parametrize("pool", ["token", "swa"])
def test_a_pool_of_a_few_tokens_is_driven_like_any_other(pool: str, slots: int) -> None:
    """A share of so little is a request of one token, and never one of none."""
    config: Config = {"page_size": 1, "window": None, "pool": pool, "slots": slots, "swa_slots": slots}
    made = make_machine(LifecycleMachine, "radix", config)
    assert len(drive(made, 0, 60).examiner.history) > 60
    assert made.found is None
