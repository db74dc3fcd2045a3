"""What a judge has seen: how often each law was really tested, and which situations were met."""

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
    """Counts registered situations only; it is asked once for each name, so that counting stays cheap."""

    def __missing__(self, name: str) -> int:
        if name not in NAMES:
            raise ValueError(f"no situation {name!r}; register it where pymllm.oracle.coverage finds it")
        return 0


class Evidence:
    """Counts tests of laws and refuses what breaks one."""

    def __init__(self) -> None:
        self.exercised: Counter[str] = Counter()  # by law: tests that could have failed and did not
        self.reached: Counter[str] = _Reached()  # by situation: how often it was met

    def meet(self, situation: str, met: object = True) -> None:
        """Count a situation, if it was met; a `ValueError` where nobody has registered it."""
        if met:
            self.reached[situation] += 1

    def meet_each(self, situations: Mapping[str, object]) -> None:
        """Count those situations that were met, as of `meet`; several at once, since it is done so often."""
        reached = self.reached
        for situation, met in situations.items():
            if met:
                reached[situation] += 1

    def count(self, *laws: str) -> None:
        """Count a test that was made elsewhere and passed."""
        for law in laws:
            self.exercised[law] += 1

    def refuse(self, law: str, what: str, expected: object, observed: object) -> NoReturn:
        """Say that a law is broken."""
        raise InvariantViolation(law, cut(what, _MOST), expected=_shown(expected), observed=_shown(observed))


def _shown(value: object) -> str:
    return cut(value if isinstance(value, str) else repr(value), _MOST)
