"""The operations of kind blocks."""

from __future__ import annotations

import pytest

from pymllm.oracle import block_operations
from pymllm.oracle.block_operations import BLOCK_OPERATIONS, DropStates, RegisterBlocks
from pymllm.oracle.operations import OPERATIONS_OF, Span, operation_from_plain, operation_to_plain


def test_every_operation_is_of_the_kind_and_of_no_other() -> None:
    """A program of blocks runs on block allocators only."""
    assert set(BLOCK_OPERATIONS) <= set(OPERATIONS_OF["blocks"])
    others = {op for kind, group in OPERATIONS_OF.items() if kind != "blocks" for op in group}
    assert not others & set(BLOCK_OPERATIONS)


def test_every_operation_is_offered() -> None:
    """Nothing stands in the module that is no operation, but the list of them."""
    offered = {getattr(block_operations, name) for name in block_operations.__all__ if not name.isupper()}
    assert offered == set(BLOCK_OPERATIONS)


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
    operation: block_operations.RegisterBlocks | DropStates, plain: dict[str, object]
) -> None:
    """C3, C4: no parents at all is something else than no parents to name."""
    wanted = plain if isinstance(operation, RegisterBlocks) else {**plain, "how": "deregistered"}
    assert operation_to_plain(operation) == wanted
    assert operation_from_plain(wanted) == operation
