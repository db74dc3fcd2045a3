"""The machine of blocks finds what is wrong with slots and states, and fits itself to every size."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.own_blocks import Blocks
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.block_machine import BlockMachine
from pymllm.errors import InvariantViolation
from pymllm.history.operations import AllocSlots, EvictSlots
from pymllm.history.outcomes import BlockBooks, Done, FoundSlots, Number, Slots, Unsupported
from pymllm.oracle.situations import expected_situations

CONFIG = Blocks.CONFIGURATIONS[0]


class BlackBoxBlocks(Blocks):
    """Not looked into: what is wrong must show outside."""

    def audit(self) -> tuple[str, ...]:
        return ()


class Blind(BlackBoxBlocks):
    """Finds no state where a slot is."""

    def do_find_slots(self, step: int, operation: Any) -> FoundSlots:
        found = super().do_find_slots(step, operation)
        return FoundSlots(found.slots, (False,) * len(found.slots))


class Swapped(BlackBoxBlocks):
    """Gives the slots of a batch in the opposite order."""

    def do_alloc_slots(self, step: int, operation: Any) -> Slots:
        return Slots(super().do_alloc_slots(step, operation).slots[::-1])


class Smearing(BlackBoxBlocks):
    """Restores a state to the next request, too."""

    def do_restore_live(self, step: int, operation: Any) -> Number:
        answer = super().do_restore_live(step, operation)
        ssm = self.context.mamba_ssm_states
        if answer.value and ssm is not None:
            ssm[:, -1] = ssm[:, self.context.live_rows[operation.request]]
        return answer


class Quieting(BlackBoxBlocks):
    """Saves numbers instead of bits."""

    def do_save_live(self, step: int, operation: Any) -> Done:
        done = super().do_save_live(step, operation)
        self.slots.conv_states.nan_to_num_(1.0)
        return done


class Fresh(BlackBoxBlocks):
    """Turns the free slots round at each look."""

    def do_inspect(self, step: int, operation: Any) -> BlockBooks:
        if step > 1:
            self.slots._books._free[:] = self.slots._books._free[::-1].copy()
        return super().do_inspect(step, operation)


def machine_of(adapter_class: type[Blocks]) -> type[BlockMachine]:
    build = {"make_adapter": classmethod(lambda cls: adapter_class("x", CONFIG))}
    made: type[BlockMachine] = type(
        adapter_class.__name__, (make_machine(BlockMachine, "blocks", dict(CONFIG)),), build
    )
    return made


@pytest.mark.parametrize(
    ("adapter_class", "laws"),
    [
        (Blind, {"C2"}),
        (Swapped, {"C2", "C5"}),
        (Smearing, {"C7"}),
        (Quieting, {"C7"}),
        (Fresh, {"C2", "C9"}),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_a_wrong_allocator_breaks_its_law(adapter_class: type[Blocks], laws: set[str], seed: int) -> None:
    """C2, C5, C7, C9: found from each of two seeds, without a look inside."""
    with pytest.raises(InvariantViolation) as caught:
        drive(machine_of(adapter_class), seed, 600)
    assert caught.value.law in laws


@pytest.mark.parametrize(
    "sizes",
    [
        {"blocks": 1, "slots": 1, "layers": 1, "requests": 1, "ssm_dim": 1, "conv_dim": 1, "conv_width": 1},
        {"blocks": 20, "slots": 20, "layers": 3, "requests": 9},
        {"slots": None},
    ],
)
def test_the_machine_fits_itself_to_every_size(sizes: dict[str, int]) -> None:
    """C1 to C7: the least pools, one where no request is live, and none of slots at all."""
    machine = drive(make_machine(BlockMachine, "blocks", {**CONFIG, **sizes}), 5, 200)
    header = machine.examiner.history.header
    assert set(machine.examiner.judge.evidence.reached) <= expected_situations(header)


def test_hoarding_ends_where_it_gets_nowhere() -> None:
    """C2: an adapter that cannot take slots into hand does not hold the machine up."""

    class NoHands(BlackBoxBlocks):
        def do_evict_slots(self, step: int, operation: Any) -> Any:
            return Unsupported("hands")

    machine = machine_of(NoHands)()
    machine.take_chain(2, 0, 1, 0)
    machine.release_all(but=0)
    machine.hoard_slots(often=0)
    operations = [step.operation for step in machine.examiner.history.steps]
    assert sum(isinstance(operation, EvictSlots) for operation in operations) == 3
    assert sum(isinstance(operation, AllocSlots) for operation in operations) == 4


def test_an_older_slot_goes_before_a_younger_one() -> None:
    """C6: two that may go, and one that must."""
    machine = make_machine(BlockMachine, "blocks", {**CONFIG, "blocks": 12})()
    for seed in range(3):
        machine.outlive(1, seed)
    assert machine.examiner.judge.evidence.reached["a slot is evicted for want of room"] >= 1
