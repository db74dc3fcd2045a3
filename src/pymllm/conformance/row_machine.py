"""The machine of request rows: requests come and go, write stretches and next tokens, and misuse both."""

from __future__ import annotations

import random
from typing import ClassVar

from pymllm.conformance.acting import act
from pymllm.conformance.pool_machine import SEED, PoolMachine, index_form
from pymllm.history.operations import (
    AllocRows,
    Clear,
    FreeRow,
    Malformed,
    ReadRows,
    Span,
    WriteEntries,
    WriteRow,
)
from pymllm.oracle.row_judge import RowJudge

__all__ = ["RowMachine"]

_LARGEST = 2**31 - 1


class RowMachine(PoolMachine):
    """Drives a table of request rows (P1, P2, P3, X1, X4, X7, E5)."""

    MALFORMED: ClassVar[tuple[Malformed, ...]] = (
        *(Malformed("alloc_rows", wrong) for wrong in ("a float count", "a bool count", "no count")),
        *(Malformed("free_row", wrong) for wrong in ("a float row", "a bool row", "a list of rows")),
        *(
            Malformed("write_row", wrong)
            for wrong in ("a float row", "a bool row", "a float end", "no index")
        ),
        *(Malformed("write_row", f"{kind} values") for kind in ("float", "bool")),
        *(Malformed("write_row", wrong) for wrong in ("values of two dimensions", "a stepped slice")),
        *(Malformed("write_entries", f"{kind} rows") for kind in ("float", "bool")),
        *(Malformed("write_entries", f"float {what}") for what in ("positions", "values")),
        Malformed("write_entries", "three indices"),
    )

    @property
    def judge(self) -> RowJudge:
        """The judge, who knows which rows are handed out."""
        judge = self.examiner.judge
        assert isinstance(judge, RowJudge)  # adapters of kind rows are judged by no other
        return judge

    @property
    def has_rows(self) -> bool:
        """Whether a row is handed out."""
        return bool(self.judge.held)

    def observe(self) -> None:
        """Read the table."""
        self.do(ReadRows())

    # -- requests come and go ------------------------------------------------------------------------------

    @act(count=(0, 4), weight=2)
    def admit(self, count: int) -> None:
        """Take rows."""
        self.do(AllocRows(count))
        self.observe()

    @act(needs="has_rows", pick=(0, 7))
    def finish(self, pick: int) -> None:
        """Give a row back."""
        self.do(FreeRow(self._held_row(pick)))
        self.observe()

    @act(needs="can_refuse", row=(-1, 7))
    def free_badly(self, row: int) -> None:
        """Give back a row that is nobody's."""
        bound = self.judge.max_reqs + 2
        row = row if row < bound else row % bound
        if row not in self.judge.held:
            self.do(FreeRow(_literal(row)))
            self.observe()

    @act(needs="can_refuse")
    def admit_fewer_than_none(self) -> None:
        """Ask for a negative number of rows."""
        self.do(AllocRows(-1))
        self.observe()

    @act(chance=(0, 2))
    def clear(self, chance: int) -> None:
        """Take everything back, now and then."""
        if not chance:
            self.do(Clear())
            self.observe()

    # -- the table -----------------------------------------------------------------------------------------

    @act(needs="has_rows", weight=3, pick=(0, 7), start=(0, 7), length=(0, 7), seed=SEED)
    def write_stretch(self, pick: int, start: int, length: int, seed: int) -> None:
        """Write where a request's tokens are."""
        start %= self.judge.context + 1
        stop = min(start + length, self.judge.context)
        self._write_row(self._held_row(pick), start, stop, _values(stop - start, seed), seed)

    @act(needs="can_refuse", weight=2, pick=(0, 7), twist=(0, 8), seed=SEED)
    def write_stretch_badly(self, pick: int, twist: int, seed: int) -> None:
        """Write a stretch with one thing wrong, somewhere near a legal one."""
        context = self.judge.context
        row = self._held_row(pick) if self.has_rows else _literal(1)
        start, stop = sorted(random.Random(seed).choices(range(context + 1), k=2))
        surplus = 0
        if twist < 4:
            row = _literal((0, -1, self.judge.max_reqs + 1, min(self.judge.free, default=0))[twist])
        elif twist == 4:
            stop = context + 1
        elif twist == 5:
            start = -1
        elif twist == 6:
            start, stop = 1, 0
        else:
            surplus = 1
        values = _values(max(stop - start, 0) + surplus, seed)
        if twist == 8:
            stop, values = min(start + 1, context), (-1,)
            start = stop - 1
        self._write_row(row, start, stop, values, seed)

    def _write_row(self, row: Span, start: int, stop: int, values: tuple[int, ...], seed: int) -> None:
        self.do(WriteRow(row, start, stop, values, index_form(random.Random(seed), values)))
        self.observe()

    @act(weight=2, padding=(0, 3), seed=SEED)
    def decode(self, padding: int, seed: int) -> None:
        """Write the next token of every request, in a batch that is padded with row 0."""
        self._write_entries(*self._batch(padding, seed), seed)

    @act(needs="can_refuse", padding=(0, 1), twist=(0, 6), seed=SEED)
    def decode_badly(self, padding: int, twist: int, seed: int) -> None:
        """Write a batch whose last entry is wrong: a write that starts before it has checked shows."""
        rows, positions, values = self._batch(padding, seed)
        wrong_rows = (-1, self.judge.max_reqs + 1, min(self.judge.free, default=-1))
        if twist < 3:
            rows.append(wrong_rows[twist])
        else:
            rows.append(0)
        positions.append({3: self.judge.context, 4: -1}.get(twist, 0))
        values.append(-1 if twist == 5 else 1)
        if twist == 6:
            values.append(1)
        self._write_entries(rows, positions, values, seed)

    def _batch(self, padding: int, seed: int) -> tuple[list[int], list[int], list[int]]:
        source = random.Random(seed)
        rows = [*sorted(self.judge.held), *[0] * padding]
        source.shuffle(rows)
        positions = [source.randrange(self.judge.context) if row else 0 for row in rows]
        return rows, positions, list(_values(len(rows), seed))

    def _write_entries(self, rows: list[int], positions: list[int], values: list[int], seed: int) -> None:
        form = index_form(random.Random(seed), [*rows, *positions, *values])
        spans = tuple(span for row in rows for span in self._name(row))
        self.do(WriteEntries(spans, tuple(positions), tuple(values), form))
        self.observe()

    # -- names ---------------------------------------------------------------------------------------------

    def _held_row(self, pick: int) -> Span:
        held = sorted(self.judge.held)
        (span,) = self._name(held[pick % len(held)])
        return span

    def _name(self, row: int) -> tuple[Span, ...]:
        return self.judge.given.name((row,)) if row in self.judge.held else (_literal(row),)


def _literal(row: int) -> Span:
    return Span(0, row, row + 1)


def _values(count: int, seed: int) -> tuple[int, ...]:
    """Return slots as an allocator gives them, small ones and now and then the largest."""
    source = random.Random(seed)
    return tuple(_LARGEST if source.random() < 0.05 else source.randrange(9) for _ in range(count))
