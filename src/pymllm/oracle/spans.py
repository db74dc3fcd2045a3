"""How an operation names numbers that an implementation chose: by the step that gave them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pymllm.oracle.slot_init import built_through_slots

__all__ = ["SPAN_LIMIT", "Span"]

SPAN_LIMIT: Final = 1_000_000
"""Most numbers that the spans of one list may stand for; who needs more has a broken hand."""


@built_through_slots
@dataclass(frozen=True, slots=True)
class Span:
    """Some of the numbers (slots, rows, blocks) that a step gave, by their place in its answer.

    Parameters
    ----------
    step : int
        Number of the step. Step 0 stands for the numbers themselves: ``Span(0, 4, 8)`` is 4, 5, 6, 7,
        whoever they belong to.
    start, stop : int
        Half-open range of places, ``0 <= start <= stop``.
    """

    step: int
    start: int
    stop: int
