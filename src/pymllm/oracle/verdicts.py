"""Verdicts on laws: how evidence of several runs becomes one line of a table."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Verdict(enum.Enum):
    """The verdict on one law."""

    VIOLATED = "violated"
    """A run broke it."""
    UNKNOWN = "unknown"
    """It applies, but no run really tested it."""
    HOLDS = "holds"
    """It was tested and never broken."""
    NOT_CLAIMED = "not claimed"
    """The adapter lacks a capability that the law is about."""

    @property
    def weight(self) -> int:
        """Which verdict prevails where two meet: the heavier."""
        return (Verdict.NOT_CLAIMED, Verdict.HOLDS, Verdict.UNKNOWN, Verdict.VIOLATED).index(self)

    @property
    def exit_status(self) -> int:
        """Exit status of a command that ends with this verdict."""
        return {Verdict.VIOLATED: 1, Verdict.UNKNOWN: 3}.get(self, 0)


def merge_verdicts(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the heaviest verdict on a whole run: violated, then unknown, then holds; else not claimed.

    For one law over several configurations use `pymllm.search.results`, where a configuration that never
    met a law does not outweigh another that tested it.
    """
    return max(verdicts, key=lambda verdict: verdict.weight, default=Verdict.NOT_CLAIMED)
