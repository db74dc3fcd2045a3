"""A program that a run found, made small enough to be read."""

from __future__ import annotations

from pymllm.conformance.acting import FoundViolation
from pymllm.conformance.finding import Finding, make_finding
from pymllm.conformance.shortening import shorten
from pymllm.conformance.soak.records import Failure
from pymllm.errors import InvariantViolation
from pymllm.oracle.history import History

__all__ = ["make_short"]

_PLAYED_MOST = 400_000
"""Operations to carry out while steps are dropped: of a long program only a few parts can be tried."""


def make_short(history: History, failure: Failure) -> Finding:
    """Make the program of a failure small, and try in which ways it can be seen again.

    Parameters
    ----------
    history : History
        As it was played.
    failure : Failure
        With the law that it breaks.
    """
    assert failure.law is not None  # an adapter's problem is nothing to make small
    violation = InvariantViolation(
        failure.law, failure.message, expected=failure.expected, observed=failure.observed
    )
    plays = max(30, _PLAYED_MOST // max(1, len(history)))
    return make_finding(shorten(FoundViolation(history, violation), plays))
