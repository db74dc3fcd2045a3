"""The machine of state pools finds what is wrong with a pool, and knows the calls of its adapter."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.own_states import GDNStates
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.row_machine import StateMachine
from pymllm.errors import InvariantViolation, OwnershipError
from pymllm.history.outcomes import Done, NoRoom, Slots
from pymllm.oracle.situations import expected_situations

CONFIG = GDNStates.CONFIGURATIONS[0]


class BlackBoxStates(GDNStates):
    """Not looked into: what is wrong must show outside."""

    def audit(self) -> tuple[str, ...]:
        return ()


class FirstLayerOnly(BlackBoxStates):
    """Copies one layer of several."""

    def do_copy_states(self, step: int, operation: Any) -> Done:
        kept = self.pool.recurrent_state[1:].clone()
        done = super().do_copy_states(step, operation)
        self.pool.recurrent_state[1:] = kept
        return done


class Quieting(BlackBoxStates):
    """Copies numbers instead of bits."""

    def do_copy_states(self, step: int, operation: Any) -> Done:
        done = super().do_copy_states(step, operation)
        self.pool.conv_state.nan_to_num_(1.0)
        return done


class ResetsTooMuch(BlackBoxStates):
    """Zeroes the row after the last one that was named, too."""

    def do_reset_states(self, step: int, operation: Any) -> Done:
        done = super().do_reset_states(step, operation)
        for row in self.numbers(operation.rows)[-1:]:
            self.pool.conv_state[:, row + 1 :] = 0
        return done


class GivesTwice(BlackBoxStates):
    """Forgets that a slot was handed out."""

    def do_alloc_track(self, step: int, operation: Any) -> Slots | NoRoom:
        result = super().do_alloc_track(step, operation)
        if isinstance(result, Slots):
            self.pool._free_track_slots.insert(0, result.slots[0])
        return result


class TakesTwice(BlackBoxStates):
    """Does nothing where it must refuse."""

    def do_free_track(self, step: int, operation: Any) -> Done:
        try:
            return super().do_free_track(step, operation)
        except OwnershipError:
            return Done()


class Transposed(BlackBoxStates):
    """Lays the state matrix the other way round."""

    def do_read_states(self, step: int, operation: Any) -> Any:
        self.pool.recurrent_state = self.pool.recurrent_state.transpose(-1, -2).contiguous()
        return super().do_read_states(step, operation)


class Narrow(BlackBoxStates):
    """Keeps recurrent states in the convolution's dtype."""

    def make_pool(self) -> Any:
        pool = super().make_pool()
        pool.recurrent_state = pool.recurrent_state.to(pool.dtype)
        return pool


class Tagging(BlackBoxStates):
    """Marks row 0 when the track slots are gone."""

    def do_alloc_track(self, step: int, operation: Any) -> Slots | NoRoom:
        result = super().do_alloc_track(step, operation)
        if isinstance(result, NoRoom):
            self.pool.conv_state[:, 0] += 1
        return result


class Dusty(BlackBoxStates):
    """Leaves a working row as it was."""

    def do_clear(self, step: int, operation: Any) -> Done:
        kept = self.pool.conv_state[:, 1].clone()
        done = super().do_clear(step, operation)
        self.pool.conv_state[:, 1] = kept
        return done


def machine_of(adapter_class: type[GDNStates]) -> type[StateMachine]:
    build = {"make_adapter": classmethod(lambda cls: adapter_class("x", CONFIG))}
    base = make_machine(StateMachine, "gdn-states", CONFIG)
    made: type[StateMachine] = type(adapter_class.__name__, (base,), build)
    return made


@pytest.mark.parametrize(
    ("adapter_class", "laws"),
    [
        (FirstLayerOnly, {"P5"}),
        (Quieting, {"P5"}),
        (ResetsTooMuch, {"P5"}),
        (GivesTwice, {"P5"}),
        (TakesTwice, {"P5", "X1"}),
        (Transposed, {"P4"}),
        (Narrow, {"P4"}),
        (Tagging, {"X4"}),
        (Dusty, {"X7"}),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_pool_breaks_its_law(adapter_class: type[GDNStates], laws: set[str], seed: int) -> None:
    """P4, P5, X1, X4, X7: found from each of three seeds, without a look inside."""
    with pytest.raises(InvariantViolation) as caught:
        drive(machine_of(adapter_class), seed, 600)
    assert caught.value.law in laws


def test_the_machine_knows_every_malformed_call_of_the_adapter() -> None:
    """X1: and no other, so that none is passed over in silence."""
    assert {(call.call, call.wrong) for call in StateMachine.MALFORMED} == set(GDNStates.MALFORMED)


@pytest.mark.parametrize(
    "sizes",
    [
        {"max_reqs": 1, "layers": 1, "k_dim": 1, "conv_dim": 1, "kernel": 1, "track_slots": 0},
        {"max_reqs": 12, "layers": 4, "k_dim": 16, "conv_dim": 6, "kernel": 4, "track_slots": 9},
    ],
)
def test_the_machine_fits_itself_to_every_size(sizes: dict[str, int]) -> None:
    """P4, P5: the least pool, and one larger than what is drawn."""
    machine = drive(make_machine(StateMachine, "gdn-states", {**CONFIG, **sizes}), 5, 200)
    assert set(machine.examiner.judge.evidence.reached) <= expected_situations(
        machine.examiner.history.header
    )
