"""The operations of kind buffers."""

from __future__ import annotations

import pytest

from pymllm.history.operations import MoveKV, Operation, WriteKV, operation_from_plain, operation_to_plain


@pytest.mark.parametrize(
    ("operation", "plain"),
    [
        (
            WriteKV(0, (3,), ((1, -128),), ((127, 0),)),
            {"op": "write_kv", "layer": 0, "slots": [3], "keys": [[1, -128]], "values": [[127, 0]]},
        ),
        (
            WriteKV(1, (), (), (), "batch", "int32"),
            {
                "op": "write_kv",
                "layer": 1,
                "slots": [],
                "keys": [],
                "values": [],
                "shape": "batch",
                "form": "int32",
            },
        ),
        (MoveKV(0, 4, 5, 2), {"op": "move_kv", "layer": 0, "source": 4, "target": 5, "count": 2}),
    ],
)
def test_a_program_of_rows_is_read_as_it_was_written(operation: Operation, plain: dict[str, object]) -> None:
    """P3: what a buffer holds is written as the integers that go in."""
    assert operation_to_plain(operation) == plain
    assert operation_from_plain(plain) == operation
