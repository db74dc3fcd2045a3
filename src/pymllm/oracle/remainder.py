"""The numbers of a range that are left: all but those that are gone, which alone are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import islice

__all__ = ["Remainder"]

_SHOWN = 200
"""Of so many numbers the text is longer than any message shows."""


class Remainder(Set[int]):
    """What is free of many: it costs what was taken, and not what there is.

    Parameters
    ----------
    whole : range
        In steps of 1.
    gone : set of int
        Numbers of it that are not left; this very set is kept.
    """

    __slots__ = ("gone", "whole")

    def __init__(self, whole: range, gone: set[int] | None = None) -> None:
        self.whole = whole
        self.gone: set[int] = set() if gone is None else gone

    @classmethod
    def _from_iterable(cls, numbers: Iterable[int]) -> Set[int]:  # type: ignore[override]
        """Make what comes of two sets."""
        return set(numbers)

    def __contains__(self, number: object) -> bool:
        return number in self.whole and number not in self.gone

    def __iter__(self) -> Iterator[int]:
        """Ascending."""
        gone = self.gone
        return (number for number in self.whole if number not in gone)

    def __reversed__(self) -> Iterator[int]:
        """Descending."""
        gone = self.gone
        return (number for number in reversed(self.whole) if number not in gone)

    def __len__(self) -> int:
        return len(self.whole) - len(self.gone)

    def __str__(self) -> str:
        return str([*islice(self, _SHOWN)])

    def issuperset(self, numbers: Sequence[int]) -> bool:
        """Tell whether all of some numbers are left."""
        if not numbers:
            return True
        whole = self.whole
        is_inside = whole.start <= min(numbers) and max(numbers) < whole.stop
        return is_inside and self.gone.isdisjoint(numbers)

    def intersection(self, numbers: Iterable[int]) -> set[int]:
        """Return those of some numbers that are left."""
        return {number for number in numbers if number in self}

    def take(self, numbers: Iterable[int]) -> None:
        """Let numbers of the range go."""
        self.gone.update(numbers)

    def give(self, numbers: Iterable[int]) -> None:
        """Let numbers be there again."""
        self.gone.difference_update(numbers)
