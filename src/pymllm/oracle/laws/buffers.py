"""Laws of buffers of keys and values: a write changes the rows that it names, and no others."""

from __future__ import annotations

from functools import partial

from pymllm.history.operations import SHAPES, MoveKV, ReadKV, ReadRows, WriteKV
from pymllm.history.outcomes import Buffers, Done
from pymllm.oracle.laws.goal import Met, make_goals
from pymllm.oracle.laws.law import Asked, Found, KindLaws, law, same, same_cells
from pymllm.oracle.models.buffers import BufferModel
from pymllm.oracle.models.expected_cells import SeenCells
from pymllm.oracle.models.kind_model import DONE, Seen
from pymllm.oracle.models.rows import RowModel


@law("P3", ReadKV, page="rows-states-buffers", ways="sop", kinds="rows buffers")
def a_write_changes_what_it_names(before: BufferModel, operation: ReadKV, seen: SeenCells) -> Found:
    """A write changes the named rows, exactly.

    **Rows.** `write_row` sets the entries `start` to `stop` - 1 of one row to `values`, in order;
    `write_entries` sets one entry for each triple of row, position and value. All other entries stay. Nothing
    is cast or cut: values up to 2<sup>31</sup> - 1 come back unchanged. An empty stretch and an empty list of
    entries are allowed, and change nothing.

    **Buffers.** Each layer has a buffer of keys and one of values, with `size` + `page_size` rows: page 0 and
    the pages that an allocator hands out (A1). Rows after these are the implementation's own padding, which
    is not compared, except with the claim `tight_buffers`. A row of keys has `k_heads` `k_dim` elements, a
    row of values `v_heads` `v_dim`; all are 0 at the start. `write_kv` writes row *i* of `keys` and of
    `values` to slot `slots[i]` of one layer; no other slot, layer or part changes, and every bit is written
    exactly. The memory layout of the rows (`shape`) makes no difference. `move_kv` copies rows of a layer to
    other rows of that layer; all are read before any is written, so ranges may overlap.

    **Padding.** Row 0 of the table and slot 0 of the buffers may be named several times in one write.
    Afterwards each of their elements has the value of any one of these writes, which may differ from element
    to element. Any other row or slot is named once; naming one twice is the caller's error, and is never
    tested.

    **Refused**, with the claim `refusals`, with any error of X1: a layer that does not exist (also by
    `read_kv`), a slot below 0 or beyond the last row, more or fewer keys or values than slots, rows of
    another width, another dtype, a shape that would have to be broadcast. If one slot of a batch is wrong,
    nothing is written. P2's table has the refused calls of rows.

    Why
    ---
    A write beyond the end of a buffer changes another layer, or another tensor. A cast from one 16 bit type
    to the other changes every value a little, and answers become worse without an error; one value that is
    broadcast to all heads makes them nonsense. Padding with slot -1 is a valid index in many languages: 64
    padded rows overwrote the last slot of a server, which was in use.

    Choices
    -------
    Layout in memory. A Python buffer is documented as `[rows, heads, dim]`, contiguous. On an accelerator the
    values of index tensors may be checked only on request (`check_bounds`): then the configuration decides,
    and `refusals` is claimed where they are checked.

    Caller
    ------
    To name each slot once, padding aside, and to pass rows of the buffer's own dtype.

    Engines
    -------
    - sglang: the same rows and layout (`memory_pool.py`, `MHATokenToKVPool`). Another dtype is scaled and
      cast (`set_kv_buffer`), and indices are checked in a debug mode only: different.
    - vLLM, Megatron Core 0.16.1: not read for this law.
    """
    return same("rows of each part and their widths", before.forms, seen.form) and same_cells(seen)


@a_write_changes_what_it_names.on(ReadRows, kinds="rows")
def _rows_hold_what_was_written(before: RowModel, operation: ReadRows, seen: SeenCells) -> Found:
    return same_cells(seen)


# -- coverage goals ------------------------------------------------------------------------------------------

_goals = partial(make_goals, "buffers")

GOALS = (
    *_goals(
        ("padded tokens share slot 0", "E5", "B148 B149"),
        ("padding stands beside tokens", "E5 P3", "B149"),
        ("no token is written", "P3"),
        ("the last slot is written", "P3", "B95 B148"),
        ("rows move onto rows that move", "P3"),
        ("rows are written in shape heads", "P3"),
    ),
    *_goals(
        *((f"rows are written in shape {shape}", "P3") for shape in SHAPES if shape != "heads"),
        needs="forms",
    ),
    *_goals(
        ("a layer that is not there is asked for", "P3"),
        ("a write with a layer that is not there is refused", "P3"),
        *((f"a write with too many or too few {part}s is refused", "P3") for part in ("key", "value")),
        *((f"a write with {part}s of another width is refused", "P3") for part in ("key", "value")),
        needs="refuses_bad_arguments",
    ),
    *_goals(("a malformed call is refused", "X1"), needs="refuses_malformed"),
    *_goals(("a write with a slot outside the buffers is refused", "P3", "B148"), needs="refuses_foreign"),
)
"""Coverage goals that a search for violations must reach on KV buffers."""


def _met_by_write(buffers: BufferModel, operation: WriteKV, seen: Seen) -> Met:
    slots = operation.slots
    return {
        "padded tokens share slot 0": slots.count(0) > 1,
        "padding stands beside tokens": 0 in slots and any(slots),
        "no token is written": not slots,
        "the last slot is written": buffers.rows - 1 in slots,
        f"rows are written in shape {operation.shape}": slots,
    }


def _met_by_move(buffers: BufferModel, operation: MoveKV, seen: Seen) -> Met:
    distance = abs(operation.source - operation.target)
    return {"rows move onto rows that move": 0 < distance < operation.count}


BUFFERS = KindLaws(
    order="P3",
    asked={
        WriteKV: Asked(Done, "P3"),
        MoveKV: Asked(Done, "P3"),
        ReadKV: Asked(Buffers, "P3"),
    },
    sizes_law="P3",
    met={(WriteKV, DONE): _met_by_write, (MoveKV, DONE): _met_by_move},
    counts_all=False,
)
