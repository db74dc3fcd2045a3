"""Names of numbers by the steps that returned them, so that implementations may choose other numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymllm.history.codec import encode
from pymllm.history.operations import AllocSlots, AllocTrack, EvictSlots, Operation
from pymllm.history.outcomes import Matched, Outcome, Slots
from pymllm.history.spans import GivenNumbers


class Names:
    """The names of slots, rows, blocks, states and halves, by the steps that returned them."""

    def __init__(self) -> None:
        self._given = {space: GivenNumbers() for space in ("slots", "states", "halves")}
        self.slots: set[int] = set()

    def record(self, number: int, operation: Operation, outcome: Outcome) -> None:
        """Record the numbers in the outcome of a step."""
        result = outcome.result
        if isinstance(result, Slots | Matched):
            space = space_of(operation)
            self._given[space].record(number, result.slots)
            if space == "slots":
                self.slots.update(result.slots)
        if isinstance(result, Slots) and 0 not in result.swa_slots:
            self._given["halves"].record(number, result.swa_slots)

    def knows(self, number: int, space: str = "slots") -> bool:
        """Tell whether a step returned a number."""
        return self._given[space].origin(number) != 0

    def of(self, numbers: Sequence[int], space: str = "slots") -> Any:
        """Return the names of numbers as spans."""
        form = "$halves" if space == "halves" else "$of"
        return {form: [encode(span) for span in self._given[space].name(numbers)]}

    def of_or_plain(self, numbers: Sequence[int], space: str = "slots") -> Any:
        """Return the names of numbers, or the numbers themselves if no step returned them."""
        is_named = any(self.knows(it, space) for it in numbers)
        return self.of(numbers, space) if is_named else list(numbers)


def space_of(operation: Operation) -> str:
    """Return the kind of numbers in an operation's result."""
    return "states" if isinstance(operation, AllocTrack | AllocSlots | EvictSlots) else "slots"
