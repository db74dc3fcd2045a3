"""The operations of kind hashes."""

from __future__ import annotations

import pytest

from pymllm.history.operations import (
    HashBytes,
    HashPage,
    Key,
    Operation,
    SliceKey,
    operation_from_plain,
    operation_to_plain,
)


@pytest.mark.parametrize(
    ("operation", "plain"),
    [
        (
            SliceKey(Key((1, 2)), None, 2),
            {"op": "slice_key", "key": {"tokens": [1, 2]}, "start": None, "stop": 2},
        ),
        (HashPage(Key((1,))), {"op": "hash_page", "key": {"tokens": [1]}}),
        (HashPage(Key((1,)), "00ff"), {"op": "hash_page", "key": {"tokens": [1]}, "prior": "00ff"}),
        (HashBytes(""), {"op": "hash_bytes", "data": ""}),
    ],
)
def test_a_program_of_hashes_is_read_as_it_was_written(
    operation: Operation, plain: dict[str, object]
) -> None:
    """K1, H1: an open end is told from none, and no prior hash from an empty one."""
    assert operation_to_plain(operation) == plain
    assert operation_from_plain(plain) == operation
