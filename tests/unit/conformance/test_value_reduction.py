"""Plainer operations."""

from __future__ import annotations

from pymllm.conformance.record_reduction import lower_numbers, make_usual
from pymllm.history.operations import (
    AddRequest,
    AllocBlocks,
    Evict,
    Fault,
    Free,
    Key,
    Lock,
    Match,
    RegisterBlocks,
    Span,
    Unlock,
)
from tests.unit.tiny_player import reduction_of


def test_forms_and_namespaces_become_the_usual_ones() -> None:
    """In all operations at once where that does, else where it does."""
    keys = [Match(Key((1,), "a", "array")), Match(Key((2,), "b", "array"))]
    reduction = reduction_of(
        keys, lambda them: {it.key.extra_key for it in them} in ({"a", "b"}, {None, "b"})
    )
    make_usual(reduction)
    assert reduction.operations == (Match(Key((1,))), Match(Key((2,), "b")))


def test_another_token_or_node_is_not_passed_without_need() -> None:
    """A field that names a step and need not be there."""
    operations = [Match(Key((1,))), Lock(1), Unlock(2, at=1, token=0)]
    reduction = reduction_of(operations, lambda them: len(them) == 3 and them[2].token == 0)
    make_usual(reduction)
    assert reduction.operations[2] == Unlock(2, token=0)


def test_numbers_go_down_as_far_as_they_can() -> None:
    """To nothing, or to the last that does."""
    reduction = reduction_of([Evict(100, 7), Fault("free", 9)], lambda them: them[0].tokens >= 37)
    lower_numbers(reduction)
    assert reduction.operations == (Evict(37), Fault("free", 0))


def test_negative_numbers_go_up() -> None:
    """The sign may be what matters."""
    reduction = reduction_of([Evict(-100)], lambda them: them[0].tokens < 0)
    lower_numbers(reduction)
    assert reduction.operations == (Evict(-1),)


def test_rows_lose_items_together() -> None:
    """Blocks and their hashes stay pairs."""
    blocks = tuple(Span(1, place, place + 1) for place in range(9))
    operations = [AllocBlocks(9), RegisterBlocks(blocks, tuple(range(101, 110)))]
    reduction = reduction_of(
        operations,
        lambda them: len(them) == 2 and Span(1, 4, 5) in them[1].blocks and len(them[1].hashes) > 0,
    )
    lower_numbers(reduction)
    assert reduction.operations[1] == RegisterBlocks((Span(1, 4, 5),), (1,))


def test_prompts_get_short_and_plain() -> None:
    """Few tokens, of few kinds."""
    reduction = reduction_of([AddRequest((9, 8, 9, 7))], lambda them: len(set(them[0].tokens)) >= 2)
    lower_numbers(reduction)
    assert len(reduction.operations[0].tokens) == 2
    assert sorted(reduction.operations[0].tokens) == [1, 2]


def test_references_are_no_numbers() -> None:
    """A hold of another step is another hold."""
    operations = [Match(Key((1,))), Match(Key((2,))), Lock(2), Free((Span(0, 1, 2),))]
    reduction = reduction_of(operations, lambda them: len(them) == 4)
    lower_numbers(reduction)
    assert reduction.operations[2] == Lock(2)
