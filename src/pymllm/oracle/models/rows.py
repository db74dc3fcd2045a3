"""The model of request rows: which rows are handed out, and the expected contents of their table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import AllocRows, Clear, FreeRow, Operation, ReadRows, WriteEntries, WriteRow
from pymllm.history.outcomes import Outcome, Table
from pymllm.oracle.models.expected_cells import BlankCells, Content, ExpectedCells, SeenCells
from pymllm.oracle.models.kind_model import DONE, MALFORMED_ERRORS, NO_ROOM, KindModel, Misuse, Seen
from pymllm.oracle.models.slot_model import Remainder

_SLOT_STOP = 2**31
"""The first number that does not fit in the table, which holds int32 slots."""
_OWNED = ("OwnershipError",)
_BEYOND = ("IndexError", "ValueError")
_ROW_0_FREED = Misuse("row 0 is freed", "P1", _OWNED, needs="refuses_foreign")
_FREED_TWICE = Misuse("a row is freed twice", "P2", _OWNED, needs="refuses_double_free")
_OUTSIDE_FREED = Misuse("a row outside is freed", "X1", _OWNED, needs="refuses_foreign")
_WRONG_WRITES = {
    "in a free row": Misuse("", "X1", _OWNED, needs="refuses_double_free"),
    "in row 0": Misuse("", "P1", _OWNED, needs="refuses_foreign"),
    "in no row": Misuse("", "X1", ("IndexError", *_OWNED), needs="refuses_foreign"),
    "outside its row": Misuse("", "P2", _BEYOND),
    "backwards": Misuse("", "P2", _BEYOND),
    "of another length": Misuse("", "P2", ("ValueError",)),
    "of different lengths": Misuse("", "P2", ("ValueError",)),
    "with a value that is no slot": Misuse("", "X1", (*_BEYOND, "TypeError")),
}
"""Possible mistakes in a write, with the errors that may refuse each."""

Cell = tuple[int, int]
"""A cell of the table: a row, and a position in it."""


@dataclass(slots=True, kw_only=True)
class SeenWrite(Seen):
    """A write: the cells that it names, in order."""

    cells: Sequence[Cell]


class RowModel(KindModel):
    """The model of a table of request rows; it copies the implementation's choice of free rows.

    The configuration has ``max_reqs`` and ``max_context_len``.
    """

    KIND: ClassVar[str] = "rows"

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        self.max_reqs = self.number("max_reqs")
        self.context = self.number("max_context_len")  # positions of a row
        self.form = (self.max_reqs + 1, {self.context})
        self.zeroes = "zeroed_rows" in self.claims
        self.table: ExpectedCells[Cell] = ExpectedCells(
            "row {}, position {}",
            "P2",
            BlankCells(dict.fromkeys(range(self.max_reqs + 1), (0,)), self.context),
            lambda content: content[0] < 0,  # such as -1 for an entry that is not in use
        )
        if not self.zeroes:
            self.table.release_all()
        self._forget_rows()

    def _forget_rows(self) -> None:
        self.held: set[int] = set()
        self.free = Remainder(range(1, self.max_reqs + 1), self.held)
        self.used: set[int] = set()  # rows that were given back with something in them

    def sizes(self) -> dict[str, int]:
        """Return ``size`` and ``available_size``, in rows."""
        return {"size": self.max_reqs, "available_size": self.max_reqs - len(self.held)}

    def suspect(self, law: str) -> None:
        """Suspect an operation of any content of the table that no known operation has written."""
        self.table.suspect(law)

    def has_entry(self, cell: Cell) -> bool:
        """Tell whether the model knows the content of a cell."""
        return self.table.holds(cell) not in ((), ((0,),))

    # -- handing out ---------------------------------------------------------------------------------------

    def read_alloc_rows(self, operation: AllocRows, outcome: Outcome) -> Seen:
        """Work out whether an allocation has room, and read the rows that it handed out."""
        count = operation.count
        if count < 0:
            return self.refused(outcome, Misuse("", "X1", MALFORMED_ERRORS, name=f"{count} rows"))
        return Seen(outcome.result, NO_ROOM if count > len(self.free) else DONE)

    def follow_alloc_rows(self, step: int, operation: AllocRows, seen: Seen) -> None:
        """Hand out the rows, or record a failure as suspect."""
        if seen.fate == NO_ROOM:
            self.suspect("X4" if "pool" in self.claims else "P1")
            return
        rows = seen.result.slots
        self.given.record(step, rows)
        self.held.update(rows)
        self.used.difference_update(rows)
        self.suspect("P2" if self.zeroes else "P1")

    def read_free_row(self, operation: FreeRow, outcome: Outcome) -> Seen:
        """Read a free of a row, which must be held."""
        row = self.one(operation.row)
        if row in self.held:
            return Seen(outcome.result)
        if row == 0:
            return self.refused(outcome, _ROW_0_FREED)
        return self.refused(outcome, _FREED_TWICE if row in self.free else _OUTSIDE_FREED)

    def follow_free_row(self, step: int, operation: FreeRow, seen: Seen) -> None:
        """Take back the row, which becomes zero, or unknown where rows are not zeroed."""
        row = self.one(operation.row)
        cells = [(row, at) for at in range(self.context)]
        self.held.remove(row)
        if any(map(self.has_entry, cells)):
            self.used.add(row)
        self.suspect("P2" if self.zeroes else "P1")
        for cell in cells:
            if self.zeroes:
                self.table.put("P2", cell, (0,))
            else:
                self.table.release(cell)

    def follow_clear(self, step: int, operation: Clear, seen: Seen) -> None:
        """Make every row free, whether held or not."""
        if self.zeroes:
            self.table.wipe("X7")
        else:
            self.suspect("X7")
            self.table.release_all()
        self._forget_rows()

    # -- the table -----------------------------------------------------------------------------------------

    def read_write_row(self, operation: WriteRow, outcome: Outcome) -> SeenWrite | Seen:
        """Read a write of a stretch of cells, which must lie in a held row."""
        row, start, stop, values = self.one(operation.row), operation.start, operation.stop, operation.values
        wrong = [] if row in self.held else [self._wrong_row(row)]
        if start < 0 or stop < 0 or stop > self.context:
            wrong.append("outside its row")
        if stop < start:
            wrong.append("backwards")
        elif len(values) != stop - start:
            wrong.append("of another length")
        wrong += _wrong_values(values)
        if wrong:
            return self.refused(outcome, *[_misuse("a stretch", each) for each in wrong])
        return SeenWrite(outcome.result, cells=[(row, at) for at in range(start, stop)])

    def follow_write_row(self, step: int, operation: WriteRow, seen: SeenWrite) -> None:
        """Record the written stretch in the table."""
        self._put(seen.cells, operation.values)

    def read_write_entries(self, operation: WriteEntries, outcome: Outcome) -> SeenWrite | Seen:
        """Read a write of single cells, each in a held row or in the padding row."""
        rows, positions, values = self.given.resolve(operation.rows), operation.positions, operation.values
        wrong = [] if len(rows) == len(positions) == len(values) else ["of different lengths"]
        wrong += [self._wrong_row(row) for row in rows if row != 0 and row not in self.held]
        if positions and not (min(positions) >= 0 and max(positions) < self.context):
            wrong.append("outside its row")
        wrong += _wrong_values(values)
        if wrong:
            return self.refused(outcome, *[_misuse("an entry", each) for each in dict.fromkeys(wrong)])
        cells = list(zip(rows, positions, strict=True))
        own = [cell for cell in cells if cell[0] != 0]
        if len(own) != len({*own}):
            raise ProgramError(f"entries {own} name one twice; only row 0 may repeat")
        return SeenWrite(outcome.result, cells=cells)

    def follow_write_entries(self, step: int, operation: WriteEntries, seen: SeenWrite) -> None:
        """Record the written cells; of several writes to one padding cell, any may have come last."""
        padding: dict[Cell, dict[tuple[int], None]] = {}
        for cell, value in zip(seen.cells, operation.values, strict=True):
            if cell[0] == 0:
                padding.setdefault(cell, {})[(value,)] = None
        for cell, contents in padding.items():
            self.table.put("E5", cell, *contents)
        self._put(seen.cells, operation.values)

    def follow_refused(self, step: int, operation: Operation, seen: Seen) -> None:
        """Record a refused write; its values must not turn up in the table later."""
        super().follow_refused(step, operation, seen)
        if isinstance(operation, WriteRow | WriteEntries):
            self.table.bring("X1", [(value,) for value in operation.values])

    def _put(self, cells: Iterable[Cell], values: Iterable[int]) -> None:
        self.suspect("P3")
        for cell, value in zip(cells, values, strict=True):
            if cell[0] != 0:
                self.table.put("P3", cell, (value,))

    def _wrong_row(self, row: int) -> str:
        """Return the description of a row that is not held."""
        if row in self.free:
            return "in a free row"
        return "in row 0" if row == 0 else "in no row"

    def read_read_rows(self, operation: ReadRows, outcome: Outcome) -> SeenCells:
        """Read the contents of every cell."""
        rows = outcome.result.rows if isinstance(outcome.result, Table) else ()
        cells: dict[Cell, Content] = {
            (row, at): (value,) for row, values in enumerate(rows) for at, value in enumerate(values)
        }
        form = len(rows), {*map(len, rows)}
        return SeenCells(outcome.result, memory=self.table, cells=cells, form=form)

    def follow_read_rows(self, step: int, operation: ReadRows, seen: SeenCells) -> None:
        """Accept the observed contents of the table as the expected ones from now on."""
        self.table.settle(seen.cells)


def _wrong_values(values: Sequence[int]) -> list[str]:
    are_slots = not values or (min(values) >= 0 and max(values) < _SLOT_STOP)
    return [] if are_slots else ["with a value that is no slot"]


@cache
def _misuse(what: str, wrong: str) -> Misuse:
    return _WRONG_WRITES[wrong]._replace(goal=f"{what} {wrong} is refused")
