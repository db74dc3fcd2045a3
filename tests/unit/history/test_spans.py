"""How numbers are named by the step that gave them."""

from __future__ import annotations

from pymllm.history import operations
from pymllm.history.operations import SPAN_LIMIT, Span
from pymllm.history.records import decode, encode


def test_a_span_is_plain_data() -> None:
    """So that a program can be stored."""
    assert encode(Span(3, 0, 2)) == {"step": 3, "start": 0, "stop": 2}
    assert decode(Span, {"step": 0, "start": -1, "stop": 4}) == Span(0, -1, 4)


def test_it_is_a_word_of_the_language() -> None:
    """Whoever writes programs finds it beside the operations, with its limit."""
    assert (operations.Span, operations.SPAN_LIMIT) == (Span, SPAN_LIMIT)
