"""The machine of request rows finds what is wrong with a pool, and knows the calls of its adapter."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.own_pools import Rows
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.row_machine import RowMachine
from pymllm.errors import InvariantViolation, OwnershipError
from pymllm.history.outcomes import Done, NoRoom
from pymllm.oracle.situations import expected_situations

CONFIG = Rows.CONFIGURATIONS[0]


class BlackBoxRows(Rows):
    """Not looked into: what is wrong must show outside."""

    def audit(self) -> tuple[str, ...]:
        return ()


class ZeroRows(BlackBoxRows):
    """Hands out row 0."""

    def sizes(self) -> dict[str, int]:
        self.pool._free_rows = [row - 1 if row == 1 else row for row in self.pool._free_rows]
        return super().sizes()


class DirtyRows(BlackBoxRows):
    """Leaves a row as its request left it."""

    def do_free_row(self, step: int, operation: Any) -> Any:
        table = self.pool.req_to_token
        kept, done = table.clone(), super().do_free_row(step, operation)
        table.copy_(kept)
        return done


class TwiceFreeRows(BlackBoxRows):
    """Does nothing where it must refuse."""

    def do_free_row(self, step: int, operation: Any) -> Any:
        try:
            return super().do_free_row(step, operation)
        except OwnershipError:
            return Done()


class SpillingRows(BlackBoxRows):
    """Zeroes the rest of a row that it writes."""

    def do_write_row(self, step: int, operation: Any) -> Any:
        done = super().do_write_row(step, operation)
        self.pool.req_to_token[self.one(operation.row), operation.stop :] = 0
        return done


class PaddedElsewhereRows(BlackBoxRows):
    """Pads with the last row."""

    def do_write_entries(self, step: int, operation: Any) -> Any:
        done = super().do_write_entries(step, operation)
        if 0 in self.numbers(operation.rows):
            self.pool.req_to_token[-1].copy_(self.pool.req_to_token[0])
            self.pool.req_to_token[0] = 0
        return done


class HalfWrittenRows(BlackBoxRows):
    """Begins to write before it has checked."""

    def do_write_row(self, step: int, operation: Any) -> Any:
        row = self.one(operation.row)
        if row in range(1, self.pool.size + 1) and 0 <= operation.start < self.pool.max_context_len:
            self.pool.req_to_token[row, operation.start] = 1
        return super().do_write_row(step, operation)


class MarkingRows(BlackBoxRows):
    """Marks row 0 when it has no room."""

    def do_alloc_rows(self, step: int, operation: Any) -> Any:
        result = super().do_alloc_rows(step, operation)
        if isinstance(result, NoRoom):
            self.pool.req_to_token[0, 0] += 1
        return result


class DustyRows(BlackBoxRows):
    """Leaves the padding where it was."""

    def do_clear(self, step: int, operation: Any) -> Any:
        kept = self.pool.req_to_token.clone()
        done = super().do_clear(step, operation)
        self.pool.req_to_token[0].copy_(kept[0])
        return done


def machine_of(adapter_class: type[Rows]) -> type[RowMachine]:
    build = {"make_adapter": classmethod(lambda cls: adapter_class("x", CONFIG))}
    made: type[RowMachine] = type(adapter_class.__name__, (make_machine(RowMachine, "rows", CONFIG),), build)
    return made


@pytest.mark.parametrize(
    ("adapter_class", "laws"),
    [
        (ZeroRows, {"P1"}),
        (DirtyRows, {"P2"}),
        (TwiceFreeRows, {"P1", "P2", "X1"}),
        (SpillingRows, {"P3"}),
        (PaddedElsewhereRows, {"E5"}),
        (HalfWrittenRows, {"X1"}),
        (MarkingRows, {"X4"}),
        (DustyRows, {"X7"}),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_pool_breaks_its_law(adapter_class: type[Rows], laws: set[str], seed: int) -> None:
    """P1, P2, P3, E5, X1, X4, X7: found from each of three seeds, without a look inside."""
    with pytest.raises(InvariantViolation) as caught:
        drive(machine_of(adapter_class), seed, 600)
    assert caught.value.law in laws


def test_the_machine_knows_every_malformed_call_of_the_adapter() -> None:
    """X1: and no other, so that none is passed over in silence."""
    assert {(call.call, call.wrong) for call in RowMachine.MALFORMED} == set(Rows.MALFORMED)


@pytest.mark.parametrize(
    "config", [{"max_reqs": 1, "max_context_len": 1}, {"max_reqs": 9, "max_context_len": 40}]
)
def test_the_machine_fits_itself_to_every_size(config: dict[str, int]) -> None:
    """P1, P2, P3: the least pool, and one larger than what is drawn."""
    machine = drive(make_machine(RowMachine, "rows", dict(config)), 5, 300)
    assert set(machine.examiner.judge.evidence.reached) <= expected_situations(
        machine.examiner.history.header
    )
