"""A program that a run found, made small enough to be read."""

from __future__ import annotations

from pymllm.conformance.acting import FoundViolation
from pymllm.conformance.finding import Finding, make_finding
from pymllm.conformance.shrinker import shrink

__all__ = ["make_short"]

_SECONDS = 60.0
"""What a failure may cost a campaign; `pymllm shrink` goes on from the best so far."""


def make_short(found: FoundViolation) -> Finding:
    """Make the program of a violation small, and try in which ways it can be seen again."""
    return make_finding(shrink(found, seconds=_SECONDS))
