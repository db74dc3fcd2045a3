"""What the machines of rows, buffers, states and hashes have in common."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

from pymllm.conformance.acting import ActingMachine, act
from pymllm.conformance.twins import check_twins
from pymllm.history.operations import Malformed

__all__ = ["INDEX_FORMS", "SEED", "PoolMachine", "index_form"]

SEED = (0, 9_999)
INDEX_FORMS = ("int64", "int32", "int16", "uint8", "int64 strided", "int32 strided")
"""One-dimensional index tensors of every signed dtype that holds a small number, and the unsigned one."""


def index_form(source: random.Random, numbers: Sequence[int]) -> str:
    """Choose a form that can hold the numbers."""
    low, high = min(numbers, default=0), max(numbers, default=0)
    forms = INDEX_FORMS if high < 256 else INDEX_FORMS[:2]
    return source.choice([form for form in forms if low >= 0 or form != "uint8"])


class PoolMachine(ActingMachine):
    """Misuse, and twins at the end: refused calls leave no trace, and what was cleared is as good as new.

    Attributes
    ----------
    MALFORMED : sequence of Malformed
        Calls that no caller may make; an adapter passes over those that it cannot make.
    """

    MALFORMED: ClassVar[Sequence[Malformed]] = ()

    @property
    def can_refuse(self) -> bool:
        """Whether misuse is refused, so that it can be tried."""
        return "refusals" in self.examiner.adapter.capabilities

    def observe(self) -> None:
        """Read everything that the last operation could have changed."""

    @act(needs="can_refuse", which=(0, 63))
    def call_malformed(self, which: int) -> None:
        """Make a call that no caller may make."""
        self.do(self.MALFORMED[which % len(self.MALFORMED)])
        self.observe()

    def end(self) -> None:
        """Run parts of the program on new adapters, now and then."""
        if self.is_replayed:
            self._watched(lambda: check_twins(self.examiner, self.make_adapter))
