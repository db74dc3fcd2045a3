"""The machine lets an engine live over an adapter's context, and reports whatever either of the two finds."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from pymllm.adapters.own_requests import Requests
from pymllm.errors import AdapterError, CapacityError, InvariantViolation, UsageError
from pymllm.history import operations as ops
from pymllm.history.outcomes import Done, NoRoom, Ran
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.block_lifecycle import BlockLifecycleMachine
from pymllm.machines.registry import machines_for
from pymllm.oracle.coverage import expected_goals
from pymllm.oracle.judge import judge_steps
from pymllm.workloads.block_engine import BlockEngine
from pymllm.workloads.live_request import BlockRequest
from pymllm.workloads.request import Request

CONFIG = dict(Requests.CONFIGURATIONS[0])


def machine_class() -> Any:
    """Make the machine class of a small context, which is not looked into."""
    return make_machine(BlockLifecycleMachine, "requests", CONFIG, seed=0, audit=False)


@pytest.fixture
def machine() -> Any:
    return machine_class()()


def push(machine: Any, number: int, prompt: int, output: int) -> None:
    """Let a request arrive whose prompt is its own."""
    machine.source.push(Request(number, 0.0, prompt, output, (100 * number,), prompt))


def operations_of(machine: Any) -> list[Any]:
    return [type(step.operation) for step in machine.examiner.history.steps]


# -- lives ---------------------------------------------------------------------------------------------------


@pytest.mark.notices("B64-engine")
@pytest.mark.notices("B79-engine")
@pytest.mark.notices("B98-engine")
@pytest.mark.notices("B104-engine")
@pytest.mark.notices("B109-engine")
@pytest.mark.notices("B134-engine")
@pytest.mark.notices("B152-engine")
@pytest.mark.notices("B157-engine")
def test_an_engine_lives_over_a_context() -> None:
    """E1-E6: all goals are reached, and every law of engines is tested."""
    reached: set[str] = set()
    tested: set[str] = set()
    made = machine_class()
    for seed in range(12):
        machine = drive(made, seed, 80)
        evidence = machine.examiner.judge.evidence
        reached, tested = reached | {*evidence.reached}, tested | {*evidence.exercised}
    assert expected_goals(machine.examiner.history.header, of_engine=True) - reached == set()
    assert {"E1", "E2", "E3", "E4", "E5", "E6"} <= tested


def test_what_the_engine_does_is_an_ordinary_history(machine: Any) -> None:
    """X3: requests are admitted, computed and released by operations, which the judge accepts alone."""
    push(machine, 0, 9, 3)
    machine.settle(0)
    names = operations_of(machine)
    assert names == [ops.AddRequest, ops.RunStep, ops.RunStep, ops.RunStep, ops.Release]
    assert machine.examiner.history.steps[0].operation.tokens[:2] == (1, 2)
    machine.teardown()
    history = machine.examiner.history
    assert judge_steps(history.header, history.steps)[1] is None


def test_who_runs_short_is_set_aside(machine: Any) -> None:
    """E4: what the context answers to a step without room is what its own class raises."""
    for number in range(3):
        push(machine, number, 15, 12)
    machine.settle(0)
    assert {ops.Pause, ops.Resume} <= {*operations_of(machine)}
    results = [step.outcome.result for step in machine.examiner.history.steps]
    assert any(getattr(result, "error", "") == "CapacityError" for result in results)
    assert machine.examiner.judge.evidence.reached["a request that was set aside goes on"]


def test_requests_that_are_set_aside_are_aborted_as_such(machine: Any) -> None:
    """E3: the act is offered while there is one."""
    assert not machine.has_aside
    for number in range(3):
        push(machine, number, 15, 12)
    while not machine.has_aside:
        machine.step(1)
    machine.abort_aside(0)
    machine.step(1)
    assert machine.examiner.judge.evidence.reached["a request is aborted while it is set aside"] == 1


def test_another_engine_may_begin(machine: Any) -> None:
    """E3: the one before is drained, and the context is empty."""
    push(machine, 0, 9, 3)
    machine.step(1)
    before = machine.engine
    machine.start_again(0, 2)
    assert machine.engine is not before
    assert machine.engine.config.decode_headroom == 6
    assert operations_of(machine)[-2:] == [ops.Release, ops.Reset]


def test_lengths_grow_with_the_blocks(machine: Any) -> None:
    """C1: one request grows from block to block beside another that leaves it no room."""
    assert machine.crowd_sizes(0) == ((8, 21), 28)
    assert (machine.scale, machine.chunk_unit, machine.block_tokens) == (2, 1, 5)
    large: Any = make_machine(BlockLifecycleMachine, "requests", dict(Requests.CONFIGURATIONS[5]))()
    assert (large.scale, large.chunk_unit, large.crowd_sizes(3)) == (11, 5, ((36, 24), 147))
    large.teardown()


@pytest.mark.parametrize(("number", "is_driven"), [(0, True), (6, False)])
def test_an_engine_is_for_short_blocks(number: int, is_driven: bool) -> None:
    """E1-E5: with blocks of 256 tokens no output would ever reach the next."""
    claims = Requests("x", Requests.CONFIGURATIONS[number]).capabilities
    assert ("engine" in claims) == is_driven


# -- who can be driven ---------------------------------------------------------------------------------------


class Bare(Requests):
    CONFIGURATIONS: ClassVar = (CONFIG,)

    def claim(self) -> frozenset[str]:
        return super().claim() - {"reserve"}


def test_an_engine_needs_contexts_that_can_be_told_what_to_keep_back() -> None:
    """E4: without `reserve` it has no rule of admission."""
    made = type("made", (machine_class(),), {"make_adapter": classmethod(lambda cls: Bare("x", CONFIG))})
    with pytest.raises(AdapterError, match="an engine needs a context that claims reserve"):
        made()
    names = [entry.name for entry in machines_for("requests", {"pool", "engine", "reserve"})]
    assert names == ["RequestMachine", "BlockLifecycleMachine"]
    assert len(machines_for("requests", {"pool", "engine"})) == 1


# -- the driven context --------------------------------------------------------------------------------------


def live(number: int = 0) -> BlockRequest:
    return BlockRequest(Request(number, 0.0, 9, 3, (5,), 9), place=1)


def test_a_driven_context_answers_as_its_class_does(machine: Any) -> None:
    """C1, E4: sizes, blocks and hits are those of a context of ours."""
    context, request = machine._context, live()
    assert context.add_request(request, 4, reserve=0)
    assert (context.room(), context.total_blocks, context.blocks_of(request)) == (11, 12, 1)
    assert (context.missing_blocks(request), context.scheduled_tokens(request)) == (2, 4)
    batch = context.begin_step()
    assert [step.kv_slots.tolist() for step in batch.requests] == [
        [4 * batch.requests[0].blocks[0] + at for at in range(4)]
    ]
    assert batch.requests[0].tokens.tolist() == request.tokens[:4].tolist()
    assert context.pause(request)
    context.resume(request)
    assert context.schedule_chunk(request, 5)
    context.release(request)
    assert context.requests == []


def test_what_the_engine_may_not_do_is_told(machine: Any) -> None:
    """E2, E3: requests that were never there, and those that are gone."""
    context, request = machine._context, live()
    with pytest.raises(UsageError, match="request 0 was never added"):
        context.pause(request)
    assert context.add_request(request, reserve=0)
    context.release(request)
    with pytest.raises(UsageError, match="request 0 was released"):
        context.blocks_of(request)


def test_a_step_is_carried_out_with_the_tokens_of_a_cold_run(machine: Any) -> None:
    """E1: an engine that hands other tokens over gives a request another's continuation."""
    context, request = machine._context, live()
    assert context.add_request(request, reserve=0)
    [step] = context.begin_step().requests
    context.commit_step([request.token_after(9)])
    assert step.is_sampled
    with pytest.raises(InvariantViolation, match="E1: request 0 of the step gets another next token"):
        context.commit_step([request.token_after(9) + 1])


def test_blocks_may_be_refused_whatever_is_free(machine: Any) -> None:
    """X4: for a sweep, in which each allocation fails in turn."""
    context, request = machine.allocating, live()
    assert context.add_request(request, 4, reserve=0)
    context.refuses = lambda: True
    with pytest.raises(CapacityError):
        context.begin_step()
    assert not context.schedule_chunk(request, 4)
    assert operations_of(machine) == [ops.AddRequest]


def test_an_engine_that_empties_the_cache_breaks_c9(machine: Any) -> None:
    """C9: nobody has asked for it."""
    with pytest.raises(InvariantViolation, match="C9: the engine emptied the cache"):
        machine.checked(machine._context.empty)
    assert isinstance(machine.examiner.history.steps[-1].outcome.result, Done)


def test_answers_are_read_by_what_they_are(machine: Any) -> None:
    """E4: no room is False, and a step that computes nothing is empty."""
    context = machine._context
    assert len(context.begin_step()) == 0
    assert isinstance(machine.examiner.history.steps[-1].outcome.result, Ran)
    assert not context.add_request(live(), reserve=12)
    assert isinstance(machine.examiner.history.steps[-1].outcome.result, NoRoom)


# -- what the engine itself keeps ----------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [-1, 1])
def test_what_is_kept_back_is_counted_again(
    blocks: int, machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E4: a block more is memory out of reach, a block less is promised twice."""
    reserve = BlockEngine._reserve
    monkeypatch.setattr(BlockEngine, "_reserve", lambda self: reserve(self) + blocks)
    push(machine, 0, 9, 3)
    with pytest.raises(InvariantViolation, match=r"E4: request 0 is to leave -?1 blocks to 0 running"):
        machine.step(1)


def test_a_request_that_the_engine_forgets_is_named(machine: Any) -> None:
    """E3: at the end of the iteration, not when everything is over."""
    push(machine, 0, 9, 9)
    machine.step(1)
    machine.engine.running.clear()
    push(machine, 1, 9, 9)
    with pytest.raises(InvariantViolation, match=r"E3: requests \[0, 1\] are in the context, .* has \[1\]"):
        machine.step(1)
