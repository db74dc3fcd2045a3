"""The evidence of a judge: how often each law was really tested, and which coverage goals were met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NoReturn

from pymllm.errors import InvariantViolation
from pymllm.oracle.coverage import NAMES
from pymllm.text_file import cut

_MOST = 400
"""Characters of each part of a violation: what is too long to be read is cut."""


class _Reached(Counter[str]):
    """The counts of registered coverage goals; each name is checked once, so that counting stays cheap."""

    def __missing__(self, name: str) -> int:
        if name not in NAMES:
            raise ValueError(f"no coverage goal {name!r}; register it where pymllm.oracle.coverage finds it")
        return 0


class Evidence:
    """The counts of tests of laws and of goals; a broken law is refused."""

    def __init__(self) -> None:
        self.exercised: Counter[str] = Counter()  # by law: tests that could have failed and did not
        self.left_out: set[str] = set()  # laws of which something was not told, or not done
        self.reached: Counter[str] = _Reached()  # by coverage goal: how often it was met
        self.known: Counter[str] = Counter()  # by the name of a deviation: how often it was met
        self.passed_over: Counter[str] = Counter()  # by law: violations that nobody was looking for
        # as of `pymllm.oracle.answers`: steps that were not done, by what it tells of them, and the first of
        # each; steps of these operations that were done
        self.not_done: Counter[str] = Counter()
        self.first_not_done: dict[str, int] = {}
        self.done: Counter[str] = Counter()

    def meet(self, goal: str, met: object = True) -> None:
        """Count a coverage goal if it was met; raise `ValueError` for an unregistered goal."""
        if met:
            self.reached[goal] += 1

    def meet_each(self, goals: Mapping[str, object]) -> None:
        """Count the goals that were met, as of `meet`, several in one call to save time."""
        reached = self.reached
        for goal, met in goals.items():
            if met:
                reached[goal] += 1

    def count(self, *laws: str) -> None:
        """Count a test that was made elsewhere and passed."""
        for law in laws:
            self.exercised[law] += 1

    def refuse(self, law: str, what: str, expected: object, observed: object) -> NoReturn:
        """Say that a law is broken."""
        raise InvariantViolation(law, cut(what, _MOST), expected=_shown(expected), observed=_shown(observed))


def _shown(value: object) -> str:
    return cut(value if isinstance(value, str) else repr(value), _MOST)
