"""The operations of kind prefix."""

from __future__ import annotations

import pytest

from pymllm.history.operations import (
    Evict,
    Insert,
    Key,
    Operation,
    Span,
    Unlock,
    operation_from_plain,
    operation_to_plain,
)


@pytest.mark.parametrize(
    ("operation", "plain"),
    [
        (Insert(Key((1,))), {"op": "insert", "key": {"tokens": [1]}}),
        (Insert(Key((1,)), ()), {"op": "insert", "key": {"tokens": [1]}, "slots": []}),
        (
            Insert(Key((1,)), (Span(1, 0, 1),), 2, 3, "int32", Span(4, 0, 1)),
            {
                "op": "insert",
                "key": {"tokens": [1]},
                "slots": [{"step": 1, "start": 0, "stop": 1}],
                "prev_prefix_len": 2,
                "swa_evicted_seqlen": 3,
                "form": "int32",
                "state": {"step": 4, "start": 0, "stop": 1},
            },
        ),
        (Evict(0, 5), {"op": "evict", "tokens": 0, "secondary": 5}),
        (Unlock(3, token=0), {"op": "unlock", "lock": 3, "token": 0}),
    ],
)
def test_what_is_left_out_is_told_from_what_is_empty(operation: Operation, plain: dict[str, object]) -> None:
    """R1, R6: no slots is not zero slots, and a hold without a token is not one whose token is its own."""
    assert operation_to_plain(operation) == plain
    assert operation_from_plain(plain) == operation
