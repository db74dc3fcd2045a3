"""The adapter of `ReqToTokenPool`: what was asked arrives, and what came back is told."""

from __future__ import annotations

import pytest

from pymllm.adapters.own_pools import Rows
from pymllm.errors import InvariantViolation
from pymllm.history.operations import (
    AllocRows,
    Clear,
    FreeRow,
    Operation,
    ReadRows,
    Span,
    WriteEntries,
    WriteRow,
)
from pymllm.history.outcomes import Done, Failed, NoRoom, Outcome, Slots, Table

FIRST, PADDING = Span(1, 0, 1), Span(0, 0, 1)


def make() -> Rows:
    return Rows("x", {"max_reqs": 2, "max_context_len": 3})


def play(adapter: Rows, *operations: Operation) -> list[Outcome]:
    return [adapter.apply(step, operation) for step, operation in enumerate(operations, 1)]


def test_rows_are_told_with_what_is_available() -> None:
    """P1, X4: rows as the pool chose them, and `None` as no room."""
    taken, failed = play(make(), AllocRows(1), AllocRows(2))
    assert taken == Outcome(Slots((1,)), (), {"size": 2, "available_size": 1})
    assert failed == Outcome(NoRoom(), (), {"size": 2, "available_size": 1})


@pytest.mark.parametrize("form", ["int32", "int64", "uint8", "int16 strided"])
def test_writes_land_in_the_table(form: str) -> None:
    """P3, E5: a stretch, and entries with padding, in every form."""
    *_, read = play(
        make(),
        AllocRows(1),
        WriteRow(FIRST, 1, 3, (4, 5), form),
        WriteEntries((FIRST, PADDING), (0, 2), (6, 7), form),
        ReadRows(),
    )
    assert read.result == Table(((0, 0, 7), (6, 4, 5), (0, 0, 0)))


def test_a_row_is_given_back_and_everything_with_a_clear() -> None:
    """P2, X7: the table is blank again."""
    adapter = make()
    write = WriteRow(FIRST, 0, 1, (4,))
    _, _, freed, twice = play(adapter, AllocRows(1), write, FreeRow(FIRST), FreeRow(FIRST))
    assert freed == Outcome(Done(), (), {"size": 2, "available_size": 2})
    assert isinstance(twice.result, Failed)
    assert twice.result.error == "OwnershipError"
    *_, cleared, read = play(adapter, AllocRows(2), write, Clear(), ReadRows())
    assert cleared == Outcome(Done(), (), {"size": 2, "available_size": 2})
    assert read.result == Table(((0, 0, 0),) * 3)


def test_the_audit_looks_inside() -> None:
    """P2: what no operation shows yet."""
    adapter = make()
    assert set(adapter.audit()) == {"P1", "P2", "X3"}
    adapter.pool.req_to_token[2, 0] = 1
    with pytest.raises(InvariantViolation, match="P2"):
        adapter.audit()
