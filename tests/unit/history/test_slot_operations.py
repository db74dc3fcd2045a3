"""The operations of kind slots."""

from __future__ import annotations

import pytest

from pymllm.history.operations import (
    EndGroup,
    Free,
    FreeSWA,
    MoveSWA,
    Operation,
    Span,
    operation_from_plain,
    operation_to_plain,
)


@pytest.mark.parametrize(
    ("operation", "plain"),
    [
        (Free((Span(1, 0, 2),)), {"op": "free", "slots": [{"step": 1, "start": 0, "stop": 2}]}),
        (Free((), "int64 2d"), {"op": "free", "slots": [], "form": "int64 2d"}),
        (FreeSWA((), "int64"), {"op": "free_swa", "slots": [], "form": "int64"}),
        (
            MoveSWA((), (Span(0, 4, 5),)),
            {"op": "move_swa", "source": [], "target": [{"step": 0, "start": 4, "stop": 5}]},
        ),
        (EndGroup(), {"op": "end_group"}),
    ],
)
def test_a_program_of_frees_is_read_as_it_was_written(operation: Operation, plain: dict[str, object]) -> None:
    """A5, A7: int32 goes without saying, and slots that nobody gave may be named."""
    assert operation_to_plain(operation) == plain
    assert operation_from_plain(plain) == operation
