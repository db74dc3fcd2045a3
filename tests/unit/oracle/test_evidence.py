"""Evidence: what passed is counted, what failed is refused with both sides."""

from __future__ import annotations

import pytest

from pymllm.errors import InvariantViolation
from pymllm.history.outcomes import Done, Failed, Outcome
from pymllm.oracle.evidence import Evidence


@pytest.fixture
def evidence() -> Evidence:
    return Evidence()


def test_a_test_that_passes_is_counted(evidence: Evidence) -> None:
    """A law is known to hold only as often as it was tested."""
    evidence.expect("R2", "length", 4, 4)
    evidence.demand("R2", True, "closed", "closed", lambda: pytest.fail("nobody asked"))
    evidence.expect_error("X1", "free", Outcome(Failed("OwnershipError", "slot 3")), "OwnershipError")
    evidence.count("R2", "E1")
    assert evidence.exercised == {"R2": 3, "X1": 1, "E1": 1}


def test_what_differs_is_refused_with_both_sides(evidence: Evidence) -> None:
    """A violation says what the law demands and what there was."""
    with pytest.raises(InvariantViolation) as caught:
        evidence.expect("R2", "length", 4, [1, 2])
    violation = caught.value
    assert (violation.law, violation.message, violation.expected, violation.observed) == (
        "R2",
        "length",
        "4",
        "[1, 2]",
    )
    assert not evidence.exercised


def test_what_is_not_true_is_refused(evidence: Evidence) -> None:
    """The observation is asked for only then."""
    with pytest.raises(InvariantViolation, match="R5: eviction: expected enough, observed 3 of 4"):
        evidence.demand("R5", False, "eviction", "enough", lambda: "3 of 4")


@pytest.mark.parametrize(
    ("outcome", "observed"),
    [(Outcome(Done()), "no error, Done()"), (Outcome(Failed("KeyError", "x")), "KeyError")],
)
def test_a_call_that_is_not_refused_as_it_must_is(
    evidence: Evidence, outcome: Outcome, observed: str
) -> None:
    """X1: neither success nor another error will do."""
    with pytest.raises(InvariantViolation) as caught:
        evidence.expect_error("X1", "free", outcome, "OwnershipError", "LockError")
    assert caught.value.expected == "OwnershipError or LockError"
    assert caught.value.observed == observed


def test_a_long_value_is_shortened(evidence: Evidence) -> None:
    """A violation can be read on a screen."""
    with pytest.raises(InvariantViolation) as caught:
        evidence.expect("R2", "slots", list(range(1000)), [])
    assert caught.value.expected is not None
    assert len(caught.value.expected) == 400


def test_a_situation_counts_only_when_it_was_met(evidence: Evidence) -> None:
    """The condition may be any truth value."""
    evidence.meet("halves move")
    evidence.meet("halves move", [1])
    evidence.meet("memory runs out", 0)
    assert evidence.reached == {"halves move": 2}


def test_a_situation_that_is_not_registered_is_not_counted(evidence: Evidence) -> None:
    """A name with a slip in it would stay at zero for ever, and nobody would wonder."""
    with pytest.raises(ValueError, match="no situation 'halfs move'; register it"):
        evidence.meet("halfs move")
    assert not evidence.reached


def test_a_long_name_of_what_was_looked_at_is_shortened(evidence: Evidence) -> None:
    """A call may name a million slots."""
    with pytest.raises(InvariantViolation) as caught:
        evidence.refuse("A2", "x" * 10_000, 1, 2)
    assert len(caught.value.message) == 400
