"""A check that containers passed between an implementation and its caller keep their numbers (X5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, MutableSequence
from contextlib import contextmanager
from typing import Any

from pymllm.errors import InvariantViolation
from pymllm.text_file import shown

_MOST = 16
"""The number of results kept, since checking more of them would take longer than a step."""
_LONGEST = 1024
"""The greatest length of a kept container; reuse of memory shows in short results, too."""


class KeptNumbers:
    """The last containers that a class returned or received, kept for a later comparison.

    What was answered is its caller's own: it must stay as it was, whatever the class does later. What is lent
    stays its owner's, and must come back as it was. Only what can change is kept: lists, arrays, tensors.
    """

    def __init__(self) -> None:
        self._answers: deque[tuple[str, Any, tuple[int, ...]]] = deque(maxlen=_MOST)
        self._lent: list[tuple[str, Any, tuple[int, ...]]] = []
        self._spoiled: list[tuple[str, str, str]] = []
        self._is_lending = self._has_lent = False

    def answered(self, what: str, container: Any, numbers: tuple[int, ...]) -> None:
        """Keep a returned container with a copy of its numbers."""
        if _can_change(container, numbers):
            told = f"the {type(container).__name__} that {what} returned, which changed in a later step"
            self._answers.append((told, container, numbers))

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Keep the containers passed to `lend` in a ``with`` block, and compare them at its end."""
        self._is_lending = True
        try:
            yield
        finally:
            self._is_lending = False
            self._has_lent |= bool(self._lent)
            self._spoiled += _find_changed(self._lent)
            self._lent.clear()

    def lend(self, what: str, container: Any, numbers: tuple[int, ...]) -> None:
        """Keep a container that a caller is about to pass, with a copy of its numbers."""
        if self._is_lending and _can_change(container, numbers):
            told = f"the {type(container).__name__} that was passed to {what}, which the call changed"
            self._lent.append((told, container, numbers))

    def look(self) -> tuple[str, ...]:
        """Compare kept containers with the copies of their numbers, and return the tested laws.

        `InvariantViolation`: an answer has changed, or something that was lent (X5).
        """
        for what, expected, observed in (*self._spoiled, *_find_changed(self._answers)):
            raise InvariantViolation("X5", what, expected=expected, observed=observed)
        is_any, self._has_lent = self._has_lent or bool(self._answers), False
        return ("X5",) if is_any else ()


def _find_changed(kept: Iterable[tuple[str, Any, tuple[int, ...]]]) -> list[tuple[str, str, str]]:
    """Return each container whose numbers changed, with its earlier and present numbers."""
    seen = [(what, numbers, _read(container)) for what, container, numbers in kept]
    return [(what, shown(numbers), shown(now)) for what, numbers, now in seen if now != numbers]


def _can_change(container: Any, numbers: tuple[int, ...]) -> bool:
    if len(numbers) > _LONGEST:
        return False
    return isinstance(container, MutableSequence) or bool(
        hasattr(container, "tolist") and getattr(container, "shape", ())
    )


def _read(container: Any) -> object:
    """Return the numbers of a container as a tuple, or the error that reading them raised."""
    try:
        return tuple(container.tolist() if hasattr(container, "tolist") else container)
    except Exception as error:  # such as a tensor whose memory is gone
        return error
