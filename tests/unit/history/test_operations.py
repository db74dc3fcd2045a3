"""The language between the rooms: every operation can be written, read, and is somebody's."""

from __future__ import annotations

import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymllm.history import operations
from pymllm.history.operations import (
    KINDS,
    OPERATIONS,
    OPERATIONS_OF,
    Insert,
    Key,
    Operation,
    Span,
    operation_from_plain,
    operation_to_plain,
)

any_operation = st.sampled_from(OPERATIONS).flatmap(st.from_type)


@given(any_operation)
def test_every_operation_survives_the_way_through_json(operation: Operation) -> None:
    """What can be generated can be stored and run again."""
    assert operation_from_plain(json.loads(json.dumps(operation_to_plain(operation)))) == operation


@given(any_operation)
def test_an_operation_is_its_own_source_text(operation: Operation) -> None:
    """A program can be pasted as it is printed."""
    assert eval(repr(operation), vars(operations)) == operation


def test_bigrams_stay_tuples() -> None:
    """K1: a token that is a tuple comes back as one, so that keys can be compared."""
    insert = Insert(Key(((1, 2), (3, 4)), "a"), (Span(1, 0, 2),))
    assert operation_from_plain(json.loads(json.dumps(operation_to_plain(insert)))) == insert


def test_every_operation_belongs_to_a_kind() -> None:
    """No operation is in the language that nobody understands, and none is missing from the union."""
    assert set(typing.get_args(Operation)) == set(OPERATIONS)
    assert tuple(OPERATIONS_OF) == KINDS
    listed = {getattr(operations, name) for name in operations.__all__ if not name.isupper()}
    assert set(OPERATIONS) <= listed


@pytest.mark.parametrize("plain", [{"op": "jump"}, [], {"op": "alloc"}, {"op": "alloc", "tokens": "4"}])
def test_what_is_no_operation_is_refused(plain: object) -> None:
    """X1: with a message that begins with the place."""
    with pytest.raises(ValueError, match=r"^op"):
        operation_from_plain(plain)
