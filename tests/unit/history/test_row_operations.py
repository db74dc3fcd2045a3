"""The operations of kind rows."""

from __future__ import annotations

import pytest

from pymllm.history.operations import (
    AllocRows,
    Operation,
    ReadRows,
    Span,
    WriteEntries,
    WriteRow,
    operation_from_plain,
    operation_to_plain,
)


@pytest.mark.parametrize(
    ("operation", "plain"),
    [
        (AllocRows(2), {"op": "alloc_rows", "count": 2}),
        (
            WriteRow(Span(1, 0, 1), 3, 5, (7, 8)),
            {
                "op": "write_row",
                "row": {"step": 1, "start": 0, "stop": 1},
                "start": 3,
                "stop": 5,
                "values": [7, 8],
            },
        ),
        (
            WriteEntries((Span(0, 0, 1),), (4,), (9,), "int64"),
            {
                "op": "write_entries",
                "rows": [{"step": 0, "start": 0, "stop": 1}],
                "positions": [4],
                "values": [9],
                "form": "int64",
            },
        ),
        (ReadRows(), {"op": "read_rows"}),
    ],
)
def test_a_program_of_writes_is_read_as_it_was_written(
    operation: Operation, plain: dict[str, object]
) -> None:
    """P2, P3: the padding row can be named like any other."""
    assert operation_to_plain(operation) == plain
    assert operation_from_plain(plain) == operation
