"""What the machines of rows, buffers, states and hashes do alike, seen on the one of rows."""

from __future__ import annotations

import random

import pytest

from pymllm.adapters.key_forms import make_indices
from pymllm.adapters.own_pools import Rows
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.pool_machine import INDEX_FORMS, PoolMachine, index_form
from pymllm.conformance.row_machine import RowMachine
from pymllm.errors import InvariantViolation
from pymllm.history.operations import Clear, Malformed
from pymllm.history.outcomes import Done, Failed, NoRoom, Unsupported

CONFIG = {"max_reqs": 2, "max_context_len": 2}


def machine_of(adapter_class: type[Rows]) -> type[PoolMachine]:
    build = {"make_adapter": classmethod(lambda cls: adapter_class("x", CONFIG))}
    made: type[PoolMachine] = type(adapter_class.__name__, (make_machine(RowMachine, "rows", CONFIG),), build)
    return made


class CarefreeRows(Rows):
    """Claims to refuse nothing."""

    def claim(self) -> frozenset[str]:
        return frozenset({"pool"})


class LaxRows(Rows):
    """Takes a malformed call for a wish to do nothing."""

    def do_malformed(self, step: int, operation: Malformed) -> Done:
        return Done()


class AgingRows(Rows):
    """Hands out the other end first, once it was cleared."""

    def do_clear(self, step: int, operation: Clear) -> Done:
        done = super().do_clear(step, operation)
        self.pool._free_rows.reverse()
        return done

    def audit(self) -> tuple[str, ...]:
        return ()


@pytest.mark.parametrize("numbers", [(), (0, 255), (-1, 3), (300,), (-1, 2**31 - 1)])
def test_a_form_is_one_that_holds_the_numbers(numbers: tuple[int, ...]) -> None:
    """P3, P5: any integer dtype may carry an index, as far as it goes."""
    chosen = {index_form(random.Random(seed), numbers) for seed in range(60)}
    assert chosen <= set(INDEX_FORMS)
    assert len(chosen) >= 2
    for form in chosen:
        assert make_indices(numbers, form).tolist() == list(numbers)


def test_misuse_is_tried_only_where_it_is_refused() -> None:
    """X1: an adapter that claims no refusals is not judged by them."""
    results = [
        step.outcome.result
        for step in drive(machine_of(CarefreeRows), 1, 300).examiner.history.steps
        if step.outcome is not None
    ]
    assert any(isinstance(result, NoRoom) for result in results)
    assert not any(isinstance(result, Failed | Unsupported) for result in results)


def test_a_malformed_call_that_passes_is_found() -> None:
    """X1: the list of calls is really played."""
    with pytest.raises(InvariantViolation, match=r"X1: .* with "):
        drive(machine_of(LaxRows), 1, 100)


def test_an_end_runs_the_twins() -> None:
    """X7: what no single step shows is found by running a part again, and the machine keeps it."""
    machine_class = machine_of(AgingRows)
    with pytest.raises(InvariantViolation, match=r"X7: .* on a new one"):
        drive(machine_class, 1, 100)
    assert machine_class.found is not None
    assert machine_class.found.violation.law == "X7"


def test_twins_run_now_and_then_and_always_once_something_was_found() -> None:
    """X1, X4, X7: a shrinker must meet the violation in each run."""
    machine_class = machine_of(AgingRows)
    machine_class.runs = 1
    drive(machine_class, 1, 100)
    machine_class.runs = 0
    for _ in range(2):
        with pytest.raises(InvariantViolation, match="X7"):
            drive(machine_class, 1, 100)
