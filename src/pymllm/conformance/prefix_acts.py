"""What the acts on prefix caches share: what they draw, and that the nodes are looked at after each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from pymllm.conformance.acting import act
from pymllm.conformance.prefix_caller import PrefixCaller
from pymllm.conformance.prefix_keys import STYLES

__all__ = ["NTH", "PAGES", "PICK", "RARE", "STYLE", "TOKENS", "amount", "looked_at", "picked"]

T = TypeVar("T")

PAGES = (0, 12)  # pages of a key where a page is one token; paged machines take half
STYLE = (0, STYLES - 1)
PICK = (0, 30)
TOKENS = (-1, 12)  # to evict; the largest means everything
RARE = (0, 3)  # only 0 acts
NTH = (1, 2)

EVERYTHING = 1000


def looked_at(
    needs: str | None = None, weight: int = 1, **ranges: tuple[int, int]
) -> Callable[[Callable[..., None]], Any]:
    """Make a method an act after which the nodes are looked at; arguments as of `act`."""
    mark = act(needs, weight, **ranges)

    def wrap(method: Callable[..., None]) -> Any:
        @functools.wraps(method)
        def with_a_look(machine: PrefixCaller, **drawn: int) -> None:
            method(machine, **drawn)
            machine.look()

        return mark(with_a_look)

    return wrap


def amount(drawn: int) -> int:
    """Return how much to evict; the largest draw means everything."""
    return drawn if drawn < TOKENS[1] else EVERYTHING


def picked(choices: list[T], pick: int) -> T:
    """Return one of some choices."""
    return choices[pick % len(choices)]
