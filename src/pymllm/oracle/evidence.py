"""The evidence of a judge: how often each law was tested, and which coverage goals were reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NoReturn

from pymllm.errors import InvariantViolation
from pymllm.oracle.coverage import NAMES
from pymllm.text_file import cut

_MOST = 400
"""The greatest number of characters of each part of a violation's text; longer parts are cut."""


class _Reached(Counter[str]):
    """A counter of registered coverage goals, which checks each name only once to stay cheap."""

    def __missing__(self, name: str) -> int:
        if name not in NAMES:
            raise ValueError(f"no coverage goal {name!r}; register it where pymllm.oracle.coverage finds it")
        return 0


class Evidence:
    """The counts of tests of each law and of coverage goals; a broken law raises an error."""

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
        """Count a coverage goal if it was reached; raise `ValueError` for an unregistered goal."""
        if met:
            self.reached[goal] += 1

    def meet_each(self, goals: Mapping[str, object]) -> None:
        """Count several coverage goals, as `meet` does, in one call to save time."""
        reached = self.reached
        for goal, met in goals.items():
            if met:
                reached[goal] += 1

    def count(self, *laws: str) -> None:
        """Count a test of a law that another part of the judge has made and that passed."""
        for law in laws:
            self.exercised[law] += 1

    def refuse(self, law: str, what: str, expected: object, observed: object) -> NoReturn:
        """Raise `InvariantViolation` for a broken law."""
        raise InvariantViolation(law, cut(what, _MOST), expected=_shown(expected), observed=_shown(observed))


def _shown(value: object) -> str:
    return cut(value if isinstance(value, str) else repr(value), _MOST)
