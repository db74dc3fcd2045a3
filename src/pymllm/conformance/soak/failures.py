"""A program that a run found, made small enough to be read."""

from __future__ import annotations

from pymllm.conformance.acting import FoundViolation
from pymllm.conformance.finding import Finding, make_finding
from pymllm.conformance.shortening import shorten

__all__ = ["make_short"]

_PLAYED_MOST = 400_000
"""Operations to carry out while steps are dropped: of a long program only a few parts can be tried."""


def make_short(found: FoundViolation) -> Finding:
    """Make the program of a violation small, and try in which ways it can be seen again."""
    plays = max(30, _PLAYED_MOST // max(1, len(found.history)))
    return make_finding(shorten(found, plays))
