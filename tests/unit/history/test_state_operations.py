"""The operations of kind states."""

from __future__ import annotations

import pytest

from pymllm.history.operations import (
    AllocTrack,
    CopyStates,
    Operation,
    ResetStates,
    Span,
    WriteState,
    operation_from_plain,
    operation_to_plain,
)


@pytest.mark.parametrize(
    ("operation", "plain"),
    [
        (AllocTrack(), {"op": "alloc_track"}),
        (
            WriteState(0, Span(1, 0, 1), 5, -6),
            {
                "op": "write_state",
                "layer": 0,
                "slot": {"step": 1, "start": 0, "stop": 1},
                "recurrent": 5,
                "conv": -6,
            },
        ),
        (
            WriteState(0, Span(1, 0, 1), 5, 6, ramp=3),
            {
                "op": "write_state",
                "layer": 0,
                "slot": {"step": 1, "start": 0, "stop": 1},
                "recurrent": 5,
                "conv": 6,
                "ramp": 3,
            },
        ),
        (CopyStates((), ()), {"op": "copy_states", "source": [], "target": []}),
        (ResetStates((), "int32"), {"op": "reset_states", "rows": [], "form": "int32"}),
    ],
)
def test_a_program_of_states_is_read_as_it_was_written(
    operation: Operation, plain: dict[str, object]
) -> None:
    """P5: a state whose elements are all alike is written without its ramp."""
    assert operation_to_plain(operation) == plain
    assert operation_from_plain(plain) == operation
