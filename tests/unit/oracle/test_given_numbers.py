"""Numbers by the steps that gave them, and back."""

from __future__ import annotations

import pytest

from pymllm.errors import ProgramError
from pymllm.history.operations import Span
from pymllm.oracle.given_numbers import GivenNumbers


@pytest.fixture
def given() -> GivenNumbers:
    """Step 1 gave 5, 6, 7; step 3 gave 6 again and 9."""
    made = GivenNumbers()
    made.record(1, (5, 6, 7))
    made.record(3, (6, 9))
    return made


def test_spans_name_places_of_an_answer(given: GivenNumbers) -> None:
    """A step's numbers stay what they were, whoever has them now."""
    assert given.resolve([Span(1, 1, 3), Span(3, 0, 2), Span(1, 0, 0)]) == [6, 7, 6, 9]


def test_step_0_names_the_numbers_themselves(given: GivenNumbers) -> None:
    """So that a program can name what nobody was given, negative ones too."""
    assert given.resolve([Span(0, -1, 2)]) == [-1, 0, 1]


@pytest.mark.parametrize("span", [Span(1, 0, 4), Span(1, 2, 1), Span(2, 0, 1), Span(1, -1, 1)])
def test_a_place_that_a_step_did_not_give_makes_no_sense(given: GivenNumbers, span: Span) -> None:
    """The message says how many there were."""
    with pytest.raises(ProgramError, match=f"gave {3 if span.step == 1 else 0} numbers"):
        given.resolve([span])


def test_names_are_as_few_spans_as_possible(given: GivenNumbers) -> None:
    """The latest step that gave a number names it; one that none gave is its own name."""
    numbers = [5, 6, 9, 7, 5, 40, 41]
    spans = given.name(numbers)
    assert spans == (Span(1, 0, 1), Span(3, 0, 2), Span(1, 2, 3), Span(1, 0, 1), Span(0, 40, 42))
    assert given.resolve(spans) == numbers


def test_the_origin_is_the_step_that_gave_a_number_last(given: GivenNumbers) -> None:
    """0 stands for none."""
    assert [given.origin(number) for number in (5, 6, 40)] == [1, 3, 0]


def test_a_span_without_end_is_refused() -> None:
    """X1: a spoiled file takes no memory."""
    with pytest.raises(ProgramError, match="makes more than 1,000,000 numbers of one list"):
        GivenNumbers().resolve([Span(0, 0, 10**12)])


def test_many_spans_are_refused_as_one_is() -> None:
    """X1: a line of them takes no memory either."""
    with pytest.raises(ProgramError, match="makes more than 1,000,000 numbers of one list"):
        GivenNumbers().resolve([Span(0, 0, 600_000)] * 2)
