"""The operations of kind blocks."""

from __future__ import annotations

import pytest

from pymllm.history.operations import (
    DropStates,
    RegisterBlocks,
    Span,
    operation_from_plain,
    operation_to_plain,
)


@pytest.mark.parametrize(
    ("operation", "plain"),
    [
        (
            RegisterBlocks((Span(1, 0, 2),), (7, 9)),
            {"op": "register_blocks", "blocks": [{"step": 1, "start": 0, "stop": 2}], "hashes": [7, 9]},
        ),
        (
            RegisterBlocks((), (), (0,), "tensor32"),
            {"op": "register_blocks", "blocks": [], "hashes": [], "parents": [0], "form": "tensor32"},
        ),
        (DropStates((), "deregistered", (4,)), {"op": "drop_states", "blocks": [], "hashes": [4]}),
    ],
)
def test_a_call_with_and_without_what_may_be_left_out(
    operation: RegisterBlocks | DropStates, plain: dict[str, object]
) -> None:
    """C3, C4: no parents at all is something else than no parents to name."""
    wanted = plain if isinstance(operation, RegisterBlocks) else {**plain, "how": "deregistered"}
    assert operation_to_plain(operation) == wanted
    assert operation_from_plain(wanted) == operation
