"""What an adapter answers is looked at after every step, so that its faults are its own."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.conformance.examiner import find_wrong_answer
from pymllm.history.operations import Alloc, Key, Malformed, Match
from pymllm.history.outcomes import Done, Effect, Failed, Matched, NoRoom, Outcome, Slots, Unsupported

MATCH = Match(Key((1,)))


@pytest.mark.parametrize(
    ("operation", "outcome"),
    [
        (MATCH, Outcome(Matched((), 0))),
        (MATCH, Outcome(Failed("KeyError", "1"))),
        (MATCH, Outcome(Unsupported("match"))),
        (Alloc(1), Outcome(NoRoom())),
        (Alloc(1), Outcome(Slots((1,)), (Effect("free", (1,)),), {"available_size": 3})),
        (Malformed("free", "a list"), Outcome(Done())),
    ],
)
def test_an_answer_is_let_through(operation: Any, outcome: Outcome) -> None:
    """Wrong or right: that is for the judge to say."""
    assert find_wrong_answer(operation, outcome) is None


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (None, "answered None, which is no Outcome"),
        (Outcome(7), "answered 7, which is no result"),  # type: ignore[arg-type]
        (Outcome(Done()), "answered Done(); it must be Matched"),
        (Outcome(Matched([], 0)), "matched has a field of another type"),  # type: ignore[arg-type]
        (Outcome(Matched((), 0), []), "effects are []"),  # type: ignore[arg-type]
        (Outcome(Matched((), 0), (Effect("free", [1]),)), "effects are (Effect("),  # type: ignore[arg-type]
        (Outcome(Matched((), 0), (), {"total_size": None}), "sizes are {'total_size': None}"),  # type: ignore[dict-item]
        (
            Outcome(Matched((), 0), (), {"total_size": 0, "totl_size": 0}),
            "sizes have 'totl_size', which nobody knows; a size is available_size, ",
        ),
    ],
)
def test_what_is_no_answer_is_named(outcome: Any, says: str) -> None:
    """Another kind of result, a container or a size of another type: nothing that a law speaks of."""
    wrong = find_wrong_answer(MATCH, outcome)
    assert wrong is not None
    assert says in wrong
