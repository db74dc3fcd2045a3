"""The outcomes of one kind of results, for feeds: a headline, tables, test cases and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pymllm.instrument.openmetrics import Family
from pymllm.report.blocks import Part
from pymllm.report.quantities import count_of


@dataclass(frozen=True, slots=True)
class Case:
    """A test case: ``"failure"``, ``"error"``, ``"skipped"`` or (if passed) ``None``, with the reason."""

    subject: str
    name: str
    outcome: str | None = None
    message: str = ""
    text: str = ""  # all of it; the message where there is none


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite of test cases about one subject."""

    name: str
    seconds: float
    cases: Sequence[Case]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the results of one kind, empty if there are none.

    The headline has what is ``bad``, then what is ``unknown``; else what is ``good`` of the first kind that
    has something. ``short`` follows, and makes good results unknown.
    """

    bad: Sequence[str] = ()
    unknown: str = ""
    good: str = ""
    short: str = ""
    parts: Sequence[Part] = ()  # for a summary
    suites: Sequence[Suite] = ()
    families: Sequence[Family] = ()


def counted(count: int, one: str, several: str) -> Sequence[str]:
    """Return a count with its noun, or an empty text for zero."""
    return [count_of(count, one, several)] if count else []
