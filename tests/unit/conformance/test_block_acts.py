"""Acts on blocks alone: what they choose makes sense, and what is wrong with an allocator is found."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.malformed import MALFORMED_BLOCKS
from pymllm.adapters.own_blocks import Blocks
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.block_acts import BlockActs, pick
from pymllm.errors import InvariantViolation
from pymllm.history.operations import Fault, Inspect, RegisterBlocks, Span
from pymllm.history.outcomes import Done
from pymllm.oracle.situations import expected_situations

CONFIG = {**Blocks.CONFIGURATIONS[0], "slots": None}


class BlackBoxBlocks(Blocks):
    """Not looked into: what is wrong must show outside."""

    def audit(self) -> tuple[str, ...]:
        return ()


class Unstamped(BlackBoxBlocks):
    """Forgets the stamp of the last block that is named."""

    def do_stamp_blocks(self, step: int, operation: Any) -> Done:
        blocks = self.numbers(operation.blocks)[:-1]
        self.pool.update_timestamps(blocks)
        return Done()


class Doubled(BlackBoxBlocks):
    """Counts references twice."""

    def do_retain_blocks(self, step: int, operation: Any) -> Done:
        super().do_retain_blocks(step, operation)
        return super().do_retain_blocks(step, operation)


def machine_of(adapter_class: type[Blocks]) -> type[BlockActs]:
    build = {"make_adapter": classmethod(lambda cls: adapter_class("x", CONFIG))}
    made: type[BlockActs] = type(
        adapter_class.__name__, (make_machine(BlockActs, "blocks", dict(CONFIG)),), build
    )
    return made


@pytest.mark.parametrize(("adapter_class", "laws"), [(Unstamped, {"C1", "X1"}), (Doubled, {"C1"})])
@pytest.mark.parametrize("seed", range(2))
def test_a_wrong_allocator_breaks_its_law(adapter_class: type[Blocks], laws: set[str], seed: int) -> None:
    """C1: found from each of two seeds, without a look inside."""
    with pytest.raises(InvariantViolation) as caught:
        drive(machine_of(adapter_class), seed, 400)
    assert caught.value.law in laws


def test_everything_is_looked_at_while_it_is_new_and_after_each_act() -> None:
    """C9: a reset is compared with that; and no act hides behind the next."""
    machine = drive(make_machine(BlockActs, "blocks", dict(CONFIG)), 3, 60)
    operations = [step.operation for step in machine.examiner.history.steps]
    assert isinstance(operations[0], Inspect)
    assert sum(isinstance(operation, Inspect) for operation in operations) > len(operations) / 4


def test_the_acts_know_every_malformed_call_of_the_adapter() -> None:
    """X1: and no other, so that none is passed over in silence."""
    assert {(call.call, call.wrong) for call in BlockActs.MALFORMED} == set(MALFORMED_BLOCKS)


def test_an_allocator_without_claims_is_driven_as_its_callers_may() -> None:
    """X1, X2: no misuse and no faults where they have no meaning."""

    class Plain(BlackBoxBlocks):
        def claim(self) -> frozenset[str]:
            return frozenset({"callbacks", "inspect"})

    machine = drive(machine_of(Plain), 5, 300)
    steps = machine.examiner.history.steps
    assert not any(isinstance(step.operation, Fault) for step in steps)
    header = machine.examiner.history.header
    assert set(machine.examiner.judge.evidence.reached) <= expected_situations(header)


def test_a_parent_never_stands_after_its_child() -> None:
    """C3: such a call has no meaning, so the chain is registered as one instead."""
    machine = make_machine(BlockActs, "blocks", dict(CONFIG))()
    taken = machine.take_chain(2, 0, 1, 0)
    machine._register(taken, [5, 6], [6, 0])
    (*_, step) = machine.examiner.history.steps
    assert step.operation == RegisterBlocks((Span(2, 0, 1), Span(2, 1, 2)), (5, 6))


def test_some_are_picked_from_anywhere() -> None:
    """Round the end, forwards or backwards, each once."""
    assert pick([4, 5, 6], 5, 2) == [6, 4]
    assert pick([4, 5, 6], 2, 9) == [5, 4, 6]
    assert pick([], 3, 2) == []
