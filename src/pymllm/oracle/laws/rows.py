"""Laws of the table that has a row for each request."""

from __future__ import annotations

from functools import partial

from pymllm.history.operations import AllocRows, Clear, FreeRow, ReadRows, WriteEntries, WriteRow
from pymllm.history.outcomes import Done, NoRoom, Slots, Table
from pymllm.oracle.laws.every_class import what_cannot_be_met_changes_nothing
from pymllm.oracle.laws.goal import Met, make_goals
from pymllm.oracle.laws.law import Asked, Broken, Found, KindLaws, law, same
from pymllm.oracle.models.expected_cells import SeenCells
from pymllm.oracle.models.kind_model import DONE, NO_ROOM, Seen
from pymllm.oracle.models.rows import RowModel, SeenWrite


@law("P1", AllocRows, page="rows-states-buffers", ways="sop", kinds="rows")
def rows_are_handed_out_but_row_0(before: RowModel, operation: AllocRows, seen: Seen) -> Found:
    """Rows 1 to max_reqs are handed out, row 0 is padding.

    The table has `max_reqs` + 1 rows of `max_context_len` entries. `alloc_rows(count)` answers `count`
    different free rows, each in 1 to `max_reqs`, or `no_room` and none (X4). A batch of requests gets all of
    its rows or none. `alloc_rows(0)` returns no rows. A handed-out row is the caller's until it is freed, or
    the table is cleared.

    Row 0 is reserved: it is never handed out, cannot be freed, and takes the writes of padded entries (P3,
    E5). To free it, or to write a stretch to it, is refused with `OwnershipError`.

    | size | rows |
    | --- | --- |
    | `size` | `max_reqs`, always: row 0 is not counted |
    | `available_size` | rows that are free |

    At the start all entries are 0. `read_rows` returns the whole table, row 0 first, each row
    with `max_context_len` numbers.

    Why
    ---
    Batches are padded to a fixed size, and the empty places have request 0. If row 0 is a real request, each
    padded step writes into its table. Where the pool of states counted from 1 and the table from 0, row 0 was
    a live request in the table and padding in the pool.

    Choices
    -------
    Which free rows, and in which order.

    Caller
    ------
    To keep a request's row for as long as the request runs, between its chunks, too.

    Engines
    -------
    - sglang: the same (`sglang/srt/mem_cache/memory_pool.py`, `ReqToTokenPool`): `size` + 1 rows, from
      1 on, the last freed first.
    - vLLM: not read for this law; padded slots are -1 (`v1/attention/backends/utils.py`, `PAD_SLOT_ID`).
    - Megatron Core 0.16.1: requests count from 0; states of padding have index -1
      (`core/inference/contexts/attention_context/mamba_metadata.py`).
    """
    rows, count = seen.result.slots, operation.count
    if len(rows) == count == len(before.free.intersection(rows)):
        return True
    return Broken("rows handed out", f"{count} different ones of {before.free}", rows)


@rows_are_handed_out_but_row_0.on(ReadRows)
def _the_table_has_its_form(before: RowModel, operation: ReadRows, seen: SeenCells) -> Found:
    """Demand that the table has the same form at each reading, without counting this as a test of a law."""
    return same("rows and their lengths", before.form, seen.form) and None


@rows_are_handed_out_but_row_0.on(AllocRows, fate=NO_ROOM)
def _no_rows_are_handed_out(before: RowModel, operation: AllocRows, seen: Seen) -> Found:
    """Demand a refusal if too few rows are free, of tables without the `pool` claim; X4 judges the others."""
    return None if "pool" in before.claims else _there_is_no_room(before, operation, seen)


@what_cannot_be_met_changes_nothing.on(AllocRows, fate=NO_ROOM, kinds="rows")
def _there_is_no_room(before: RowModel, operation: AllocRows, seen: Seen) -> Found:
    return same(f"{operation.count} rows of {len(before.free)} free ones", NoRoom(), seen.result)


@law("P2", page="rows-states-buffers", ways="sop", kinds="rows", needs="zeroed_rows")
def a_freed_row_is_zero(before: RowModel, operation: FreeRow, seen: Seen) -> Found:
    """A freed row is zero, and is freed once.

    `free_row` gives one row back. All of its entries are 0 from then on, before and after it is handed
    out again; no other row changes. After `clear` every row is zero, row 0 included.

    With the claim `refusals` these are refused, and change nothing (X1):

    | misuse | error |
    | --- | --- |
    | to free row 0, a row that is free, or one beyond the table | `OwnershipError` |
    | `write_row` or `write_entries` in a row that is free | `OwnershipError` |
    | `write_row` in row 0 | `OwnershipError` |
    | either in a row below 0 or beyond the table | `IndexError` or `OwnershipError` |
    | positions below 0 or beyond the row; `stop` before `start` | `IndexError` or `ValueError` |
    | unequal numbers of values and positions, and of rows where there are several | `ValueError` |
    | a value below 0, or from 2<sup>31</sup> on | `IndexError`, `ValueError`, `TypeError` |

    Negative positions do not count from the end. The law is claimed with `zeroed_rows`. Without it, an
    implementation must still hand out rows (P1) and write exactly (P3): the content of a freed row is then
    undefined until it is read. From then on only writes change it.

    Why
    ---
    A row names slots. If the slots of a finished request are still there, a shorter request that gets the row
    has a tail of foreign slots behind its own end, and a kernel that reads too far attends to them. A row
    that was freed between two chunks, and handed to another request, was overwritten while the last step
    still read it.

    Choices
    -------
    When it zeroes a row, as long as every read returns zeros.

    Caller
    ------
    To write before it reads, and to free a row once, after the last step that reads it.

    Engines
    -------
    - sglang keeps the entries of freed and of cleared rows (`ReqToTokenPool.free_rows`, `clear`), since rows
      are read only as far as they were written: different. It does not check indices.
    - vLLM, Megatron Core 0.16.1: not read for this law. An older Megatron left the blocks of finished
      requests in its table.
    """


def _law_of_free(before: RowModel, operation: FreeRow, seen: Seen) -> str:
    return "P2" if before.zeroes else "P1"


# -- coverage goals ------------------------------------------------------------------------------------------

_goals = partial(make_goals, "rows")
_WRITES = ("a stretch", "an entry")
_WHERE = ("outside its row", "with a value that is no slot")

GOALS = (
    *_goals(
        ("a batch finds too few rows", "X4"),
        ("a used row is handed out again", "P2", "B107"),
        ("a clear takes rows from their holders", "X7"),
        ("an empty stretch is written", "P3"),
        ("a stretch reaches the end of its row", "P2 P3"),
        ("a stretch overwrites entries", "P3"),
        ("padded entries share row 0", "E5 P1", "B116 B152"),
        ("every request writes its next token", "P3"),
    ),
    *_goals(
        ("row 0 is freed", "P1", "B116"),
        ("a row outside is freed", "X1"),
        ("a stretch in row 0 is refused", "P1"),
        *((f"{what} in no row is refused", "P2 X1") for what in _WRITES),
        needs="refuses_foreign",
    ),
    *_goals(
        ("a row is freed twice", "P2"),
        *((f"{what} in a free row is refused", "P2 X1") for what in _WRITES),
        needs="refuses_double_free",
    ),
    *_goals(("a malformed call is refused", "X1"), needs="refuses_malformed"),
    *_goals(
        ("an entry of different lengths is refused", "P2"),
        ("a stretch of another length is refused", "P2"),
        ("a stretch backwards is refused", "P2"),
        *((f"{what} {where} is refused", "P2 X1") for what in _WRITES for where in _WHERE),
        needs="refuses_bad_arguments",
    ),
)
"""Coverage goals that a search for violations must reach on request rows."""


def _met_by_alloc(table: RowModel, operation: AllocRows, seen: Seen) -> Met:
    return {"a used row is handed out again": table.used.intersection(seen.result.slots)}


def _met_by_failure(table: RowModel, operation: AllocRows, seen: Seen) -> Met:
    return {"a batch finds too few rows": True}


def _met_by_clear(table: RowModel, operation: Clear, seen: Seen) -> Met:
    return {"a clear takes rows from their holders": table.held}


def _met_by_stretch(table: RowModel, operation: WriteRow, seen: SeenWrite) -> Met:
    return {
        "an empty stretch is written": not seen.cells,
        "a stretch reaches the end of its row": seen.cells and operation.stop == table.context,
        "a stretch overwrites entries": any(map(table.has_entry, seen.cells)),
    }


def _met_by_entries(table: RowModel, operation: WriteEntries, seen: SeenWrite) -> Met:
    rows = {row for row, _ in seen.cells}
    return {
        "padded entries share row 0": len(seen.cells) > len({*seen.cells}),
        "every request writes its next token": table.held and table.held == rows - {0},
    }


ROWS = KindLaws(
    order="X4 P1 P3",
    asked={
        AllocRows: Asked(Slots, "P1"),
        FreeRow: Asked(Done, _law_of_free),
        Clear: Asked(Done, "X7"),
        WriteRow: Asked(Done, "P3"),
        WriteEntries: Asked(Done, "P3"),
        ReadRows: Asked(Table, "P1"),
    },
    sizes_law="P1",
    met={
        (AllocRows, DONE): _met_by_alloc,
        (AllocRows, NO_ROOM): _met_by_failure,
        (Clear, DONE): _met_by_clear,
        (WriteRow, DONE): _met_by_stretch,
        (WriteEntries, DONE): _met_by_entries,
    },
    counts_all=False,
)
