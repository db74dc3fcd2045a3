"""The judge of request rows: which are handed out, and what stands in the table."""

from __future__ import annotations

from collections.abc import Iterable

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import AllocRows, Clear, FreeRow, ReadRows, WriteEntries, WriteRow
from pymllm.history.outcomes import Done, NoRoom, Outcome, Slots, Table
from pymllm.oracle.models.expected_cells import BlankCells, ExpectedCells
from pymllm.oracle.models.slot_model import Remainder
from pymllm.oracle.pool_judge import MALFORMED_ERRORS, PoolJudge

_SLOT_STOP = 2**31
"""The table holds int32 slots."""
_OUTSIDE = ("IndexError", "OwnershipError")

Wrong = dict[str, tuple[str, tuple[str, ...]]]
"""What is wrong with a write, the law that it breaks, and how it may be refused."""


class RowJudge(PoolJudge):
    """Judges a table of request rows (P1, P2, P3, X1, X4, X7, E5).

    Which free row is handed out is free; that two runs of one program agree is X3's business.
    """

    KIND = "rows"
    SIZES_LAW = "P1"

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        self.max_reqs = self.number("max_reqs")
        self.context = self.number("max_context_len")  # positions of a row
        self._table = ExpectedCells(
            "row {}, position {}",
            "P2",
            BlankCells(dict.fromkeys(range(self.max_reqs + 1), (0,)), self.context),
            lambda content: content[0] < 0,  # such as -1 for an entry that is not in use
        )
        self._was_dirty: set[int] = set()
        self._zeroes = "zeroed_rows" in header.capabilities
        if not self._zeroes:
            self._table.release_all()
        self._forget_rows()

    def _forget_rows(self) -> None:
        self.held: set[int] = set()
        self.free = Remainder(range(1, self.max_reqs + 1), self.held)
        self._was_dirty.clear()

    def sizes(self) -> dict[str, int]:
        """Return ``size`` and ``available_size``, in rows."""
        return {"size": self.max_reqs, "available_size": len(self.free)}

    @property
    def _free_law(self) -> str:
        return "P2" if self._zeroes else "P1"

    def refused(self) -> None:
        """Follow a refused operation, which must not have touched the table."""
        self._table.suspect("X1")

    # -- handing out ---------------------------------------------------------------------------------------

    def _judge_alloc_rows(self, step: int, operation: AllocRows, outcome: Outcome) -> str:
        count = operation.count
        if count < 0:
            return self.expect_refusal("X1", f"{count} rows", outcome, *MALFORMED_ERRORS)
        if count > len(self.free):
            self.answer(NoRoom, self.room_law, f"{count} rows of {len(self.free)} free ones", outcome)
            self.evidence.count(self.room_law)
            self._table.suspect(self.room_law)
            self.evidence.meet("a batch finds too few rows")
            return self.room_law
        rows = self.answer(Slots, "P1", f"{count} rows of {len(self.free)} free ones", outcome).slots
        self.evidence.demand(
            "P1",
            len(rows) == count == len(self.free.intersection(rows)),
            "rows handed out",
            f"{count} different ones of {self.free}",
            lambda: rows,
        )
        self.given.record(step, rows)
        self.held.update(rows)
        self.evidence.meet("a used row is handed out again", self._was_dirty.intersection(rows))
        self._was_dirty.difference_update(rows)
        self._table.suspect(self._free_law)
        return "P1"

    def _judge_free_row(self, step: int, operation: FreeRow, outcome: Outcome) -> str:
        row = self.one(operation.row)
        if row not in self.held:
            return self._judge_bad_free(row, outcome)
        self.answer(Done, self._free_law, f"free of row {row}", outcome)
        self.held.remove(row)
        if any(self._has_entry((row, at)) for at in range(self.context)):
            self._was_dirty.add(row)
        self._table.suspect(self._free_law)
        for at in range(self.context):
            if self._zeroes:
                self._table.put("P2", (row, at), (0,))
            else:
                self._table.release((row, at))
        return self._free_law

    def _has_entry(self, cell: tuple[int, int]) -> bool:
        """Tell whether something is known to stand in a cell."""
        return self._table.holds(cell) not in ((), ((0,),))

    def _judge_bad_free(self, row: int, outcome: Outcome) -> str:
        if row == 0:
            law, situation = "P1", "row 0 is freed"
        elif row in self.free:
            law, situation = "P2", "a row is freed twice"
        else:
            law, situation = "X1", "a row outside is freed"
        self.evidence.meet(situation)
        return self.expect_refusal(law, f"free of row {row}", outcome, "OwnershipError")

    def _judge_clear(self, step: int, operation: Clear, outcome: Outcome) -> str:
        self.answer(Done, "X7", "clear", outcome)
        self.evidence.meet("a clear takes rows from their holders", self.held)
        if self._zeroes:
            self._table.wipe("X7")
        else:
            self._table.suspect("X7")
            self._table.release_all()
        self._forget_rows()
        return "X7"

    # -- the table -----------------------------------------------------------------------------------------

    def _judge_write_row(self, step: int, operation: WriteRow, outcome: Outcome) -> str:
        row, start, stop, values = self.one(operation.row), operation.start, operation.stop, operation.values
        wrong = self._wrong_row(row, may_be_padding=False)
        if start < 0 or stop < 0 or stop > self.context:
            wrong["outside its row"] = ("P2", ("IndexError", "ValueError"))
        if stop < start:
            wrong["backwards"] = ("P2", ("IndexError", "ValueError"))
        elif len(values) != stop - start:
            wrong["of another length"] = ("P2", ("ValueError",))
        wrong |= _wrong_values(values)
        if wrong:
            return self._judge_bad_write("a stretch", wrong, values, outcome)
        self.answer(Done, "P3", f"write of row {row}, {start}..{stop}", outcome)
        cells = [(row, at) for at in range(start, stop)]
        self._note_stretch(cells, stop)
        self._put(cells, values)
        return "P3"

    def _note_stretch(self, cells: list[tuple[int, int]], stop: int) -> None:
        self.evidence.meet("an empty stretch is written", not cells)
        self.evidence.meet("a stretch reaches the end of its row", cells and stop == self.context)
        overwritten = [cell for cell in cells if self._has_entry(cell)]
        self.evidence.meet("a stretch overwrites entries", overwritten)

    def _judge_write_entries(self, step: int, operation: WriteEntries, outcome: Outcome) -> str:
        rows, positions, values = self.given.resolve(operation.rows), operation.positions, operation.values
        wrong: Wrong = {}
        if not len(rows) == len(positions) == len(values):
            wrong["of different lengths"] = ("P2", ("ValueError",))
        for row in rows:
            wrong |= self._wrong_row(row, may_be_padding=True)
        if any(not 0 <= at < self.context for at in positions):
            wrong["outside its row"] = ("P2", ("IndexError", "ValueError"))
        wrong |= _wrong_values(values)
        if wrong:
            return self._judge_bad_write("an entry", wrong, values, outcome)
        cells = list(zip(rows, positions, strict=True))
        self._demand_single(cells)
        self.answer(Done, "P3", f"write of {len(cells)} entries", outcome)
        self._put_padding(cells, values)
        self._put(cells, values)
        self.evidence.meet("padded entries share row 0", len(cells) - len({*cells}))
        self.evidence.meet("every request writes its next token", self.held and self.held == {*rows} - {0})
        return "P3"

    def _demand_single(self, cells: list[tuple[int, int]]) -> None:
        own = [cell for cell in cells if cell[0] != 0]
        if len(own) != len({*own}):
            raise ProgramError(f"entries {own} name one twice; only row 0 may repeat")

    def _put(self, cells: Iterable[tuple[int, int]], values: Iterable[int]) -> None:
        self._table.suspect("P3")
        for cell, value in zip(cells, values, strict=True):
            if cell[0] != 0:
                self._table.put("P3", cell, (value,))

    def _put_padding(self, cells: list[tuple[int, int]], values: tuple[int, ...]) -> None:
        written: dict[tuple[int, int], dict[tuple[int, ...], None]] = {}
        for cell, value in zip(cells, values, strict=True):
            if cell[0] == 0:
                written.setdefault(cell, {})[(value,)] = None
        for cell, contents in written.items():
            self._table.put("E5", cell, *contents)

    def _wrong_row(self, row: int, *, may_be_padding: bool) -> Wrong:
        if row in self.held or (row == 0 and may_be_padding):
            return {}
        if row in self.free:
            return {"in a free row": ("X1", ("OwnershipError",))}
        if row == 0:
            return {"in row 0": ("P1", ("OwnershipError",))}
        return {"in no row": ("X1", _OUTSIDE)}

    def _judge_bad_write(
        self,
        name: str,
        wrong: Wrong,
        values: Iterable[int],
        outcome: Outcome,
    ) -> str:
        """Judge a write with one or several things wrong: the law is the first one's, any may be named."""
        for how in wrong:
            self.evidence.meet(f"{name} {how} is refused")
        law = next(iter(wrong.values()))[0]
        errors = [error for _, expected in wrong.values() for error in expected]
        what = f"{name} {' and '.join(wrong)}"
        left = self.expect_refusal(law, what, outcome, *dict.fromkeys(errors))
        self._table.bring(left, [(value,) for value in values])
        return left

    def _judge_read_rows(self, step: int, operation: ReadRows, outcome: Outcome) -> str:
        rows = self.answer(Table, "P1", "reading the table", outcome).rows
        shape = (self.max_reqs + 1, {self.context})
        self.require_shape("P1", "rows and their lengths", shape, (len(rows), {len(row) for row in rows}))
        self._table.test(
            self.evidence,
            {(row, at): (value,) for row, values in enumerate(rows) for at, value in enumerate(values)},
        )
        return "P1"


def _wrong_values(values: tuple[int, ...]) -> Wrong:
    if all(0 <= value < _SLOT_STOP for value in values):
        return {}
    return {"with a value that is no slot": ("X1", ("IndexError", "ValueError", "TypeError"))}
