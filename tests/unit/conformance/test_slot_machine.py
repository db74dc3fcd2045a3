"""The machine of slot allocators: it finds what is wrong, and fits itself to what is claimed."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.own_slots import SWASlots, TokenSlots
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.slot_machine import SlotMachine, pick
from pymllm.errors import InvariantViolation, OwnershipError
from pymllm.history.operations import Alloc, Clear, Free, FreeSWA, Merge, MoveSWA
from pymllm.history.outcomes import Done, NoRoom, Slots, Unsupported
from pymllm.oracle.situations import expected_situations


def machine_of(adapter_class: type[TokenSlots], **changes: Any) -> type[SlotMachine]:
    """Make a machine that drives a class of this file."""
    config = {**adapter_class.CONFIGURATIONS[0], **changes}
    made = make_machine(SlotMachine, "token-slots", config)
    build = {"make_adapter": classmethod(lambda cls: adapter_class("x", config))}
    return type(f"{adapter_class.__name__}_{made.__name__}", (made,), build)


class ClaimsOrder(TokenSlots):
    """Sorts nothing and claims to."""

    def claim(self) -> frozenset[str]:
        return super().claim() | {"sorted"}


class FailsLoudly(TokenSlots):
    """Merges where it finds no room."""

    def do_alloc(self, step: int, operation: Alloc) -> Slots | NoRoom:
        result = super().do_alloc(step, operation)
        if isinstance(result, NoRoom):
            self.pool.merge_and_sort_free()
        return result


class FailsAndTurns(TokenSlots):
    """Turns its unsorted free list round where it finds no room."""

    def do_alloc(self, step: int, operation: Alloc) -> Slots | NoRoom:
        result, store = super().do_alloc(step, operation), self.pool._store
        if isinstance(result, NoRoom):
            store._main, store._main_from = store._main[store._main_from :].flip(0), 0
        return result


class RefusesLoudly(TokenSlots):
    """Merges where it refuses."""

    def do_free(self, step: int, operation: Free) -> Done:
        try:
            return super().do_free(step, operation)
        except OwnershipError:
            self.pool.merge_and_sort_free()
            raise


class ClearsLoudly(TokenSlots):
    """Lets a page wait after a clear."""

    def do_clear(self, step: int, operation: Clear) -> Done:
        super().do_clear(step, operation)
        self.pool.free(self.pool.alloc(self.page_size))
        return Done()


class FreesTwice(TokenSlots):
    """Takes no notice of a double free."""

    def do_free(self, step: int, operation: Free) -> Done:
        try:
            return super().do_free(step, operation)
        except OwnershipError:
            return Done()


class KeepsHalves(SWASlots):
    """Forgets to give halves back."""

    def do_free_swa(self, step: int, operation: FreeSWA) -> Done:
        return Done()


class MovesNothing(SWASlots):
    """Moves halves back again."""

    def do_move_swa(self, step: int, operation: MoveSWA) -> Done:
        super().do_move_swa(step, operation)
        return super().do_move_swa(step, MoveSWA(operation.target, operation.source))


@pytest.mark.parametrize(
    ("adapter_class", "changes", "law"),
    [
        (ClaimsOrder, {"store": "device", "need_sort": False}, "A4"),
        (FailsLoudly, {}, "X4"),
        (FailsAndTurns, {"store": "device", "need_sort": False}, "X4"),
        (RefusesLoudly, {}, "X1"),
        (ClearsLoudly, {}, "X7"),
        (FreesTwice, {}, "A5"),
        (KeepsHalves, {}, "A7"),
        (MovesNothing, {}, "A7"),
    ],
)
def test_a_wrong_allocator_is_caught_by_the_law_it_breaks(
    adapter_class: type[TokenSlots], changes: dict[str, Any], law: str
) -> None:
    """A4, A5, A7, X1, X4, X7: within a short run, on the judge's word alone."""
    machine = machine_of(adapter_class, **changes)
    machine.AUDIT = False
    with pytest.raises(InvariantViolation) as caught:
        drive(machine, seed=1, steps=300)
    assert caught.value.law == law
    assert machine.found is not None
    assert machine.found.violation is caught.value


class Plain(TokenSlots):
    """An allocator of which nothing is known but that it allocates: no order, no groups, no refusals."""

    def claim(self) -> frozenset[str]:
        return frozenset({"pool"})

    do_begin_group = do_end_group = do_merge = do_malformed = None  # type: ignore[assignment]


def test_a_machine_asks_for_what_is_claimed() -> None:
    """Misuse and groups are left out where they are undefined, and the rest is still reached."""
    machine = drive(machine_of(Plain), seed=1, steps=600)
    evidence, steps = machine.examiner.judge.evidence, machine.examiner.history.steps
    assert expected_situations(machine.examiner.history.header) <= set(evidence.reached)
    assert {"A4", "A5", "A6", "A7", "X1"}.isdisjoint(evidence.exercised)
    assert {type(step.operation) for step in steps} == {Alloc, Free, Merge, Clear}


def test_the_end_empties_the_pool_twice() -> None:
    """A2: what is free shows only when it is taken."""
    machine = drive(machine_of(SWASlots), seed=2, steps=40)
    assert machine.judge.full.held == set()
    last = [step.outcome.result for step in machine.examiner.history.steps[-6:] if step.outcome is not None]
    taken = [slot for result in last if isinstance(result, Slots) for slot in result.slots]
    assert sorted(taken) == list(range(1, 13))


@pytest.mark.parametrize("large", [False, True])
def test_bytes_name_slots_only_where_they_fit(large: bool) -> None:
    """A form that cannot hold a slot would be refused by torch, not by the allocator."""
    machine = drive(machine_of(TokenSlots, pages=300 if large else 12), seed=3, steps=200)
    frees = [step for step in machine.examiner.history.steps if isinstance(step.operation, Free)]
    assert ("uint8" in {step.operation.form for step in frees}) is not large
    assert not any(isinstance(step.outcome.result, Unsupported) for step in frees)


def test_pick_goes_round_the_end() -> None:
    """Distinct ones, forwards from an odd place and backwards from an even one."""
    assert pick([1, 2, 3], 5, 2) == [3, 1]
    assert pick([1, 2, 3], 2, 2) == [1, 3]
    assert pick([1, 2, 3], 1, 9) == [2, 3, 1]
    assert pick([], 4, 2) == []
