"""Verdicts on laws, and how the verdicts of several runs are merged into one."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Verdict(enum.Enum):
    """The verdict on one law."""

    VIOLATED = "violated"
    """At least one run broke the law."""
    UNKNOWN = "unknown"
    """The law applies, but no run tested it."""
    HOLDS = "holds"
    """The law was tested and never broken."""
    NOT_CLAIMED = "not claimed"
    """The adapter lacks a capability that the law is about."""

    @property
    def weight(self) -> int:
        """The weight of the verdict in a merge, where the heavier verdict prevails."""
        return (Verdict.NOT_CLAIMED, Verdict.HOLDS, Verdict.UNKNOWN, Verdict.VIOLATED).index(self)

    @property
    def exit_status(self) -> int:
        """The exit status of a command that ends with this verdict."""
        return {Verdict.VIOLATED: 1, Verdict.UNKNOWN: 3}.get(self, 0)


def merge_verdicts(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the heaviest verdict of several runs: violated, then unknown, then holds, else not claimed.

    For one law over several configurations use `pymllm.search.results`, where a configuration that never
    met a law does not outweigh another that tested it.
    """
    return max(verdicts, key=lambda verdict: verdict.weight, default=Verdict.NOT_CLAIMED)
