"""The books of a pool that hands out numbers: what is free and what is held must be everything, once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from pymllm.errors import InvariantViolation

__all__ = ["check_free_numbers"]


def check_free_numbers(
    law: str, name: str, expected: range, free: Sequence[int], held: Iterable[int]
) -> None:
    """Raise unless free and held numbers partition ``expected`` and the lowest free one comes next.

    Parameters
    ----------
    law : str
        Id of the law that gives out these numbers.
    name : str
        What the numbers are called in the message.
    expected : range
        All numbers that the pool may hand out.
    free : sequence of int
        The free ones, as a heap.
    held : iterable of int
        The ones that are handed out.

    Raises
    ------
    InvariantViolation
        ``law``, with the numbers that are lost, doubled or foreign; X3 if the heap is out of order.

    Notes
    -----
    Cost: O(n log n) for n numbers. Laws: P1, P5, X3.
    """
    numbers = sorted([*free, *held])
    if numbers != list(expected):
        lost = sorted(set(expected) - set(numbers))
        foreign = sorted(set(numbers) - set(expected))
        doubled = sorted({a for a, b in itertools.pairwise(numbers) if a == b})
        raise InvariantViolation(
            law, f"{name}s are not free or held once each: lost {lost}, twice {doubled}, foreign {foreign}"
        )
    for position in range(1, len(free)):
        parent = (position - 1) // 2
        if free[parent] > free[position]:
            raise InvariantViolation(
                "X3",
                f"free {name} {free[position]} lies below {free[parent]}: the lowest would not come first",
            )
