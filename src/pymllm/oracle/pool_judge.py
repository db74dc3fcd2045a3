"""What the judges of rows, buffers, states and hashes have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, TypeVar

from pymllm.errors import ProgramError
from pymllm.history.codec import name_of
from pymllm.history.config_limits import read_number
from pymllm.history.files import Header
from pymllm.history.operations import OPERATIONS_OF, Malformed, Operation, Span
from pymllm.history.outcomes import Outcome, Unsupported
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.models.slot_model import GivenNumbers

R = TypeVar("R")

_Method = Callable[[int, Any, Outcome], str]
"""Judges an operation of one class, and returns the law that a wrong size breaks afterwards."""

MALFORMED_ERRORS = (
    "TypeError",
    "ValueError",
    "IndexError",
    "UsageError",
    "OwnershipError",
    "LockError",
    "StaleNodeError",
)
"""What an argument that no caller may pass may be refused with (X1)."""

_METHODS = {
    kind: {operation: f"_judge_{name_of(operation)}" for operation in operations}
    for kind, operations in OPERATIONS_OF.items()
}


class PoolJudge:
    """Judges one step after the other; a subclass has one method per operation of its kind.

    The method is named like the operation (``_judge_free_row``), takes step, operation and outcome, and
    returns the law that is broken where a size differs afterwards.
    """

    KIND: ClassVar[str]
    SIZES_LAW: ClassVar[str] = "X1"  # blamed where a size changes although the adapter did nothing

    def __init__(self, header: Header) -> None:
        self.evidence = Evidence()
        self.given = GivenNumbers()  # the rows or slots that each step gave
        self.config = header.config
        self.can_refuse = "refusals" in header.capabilities  # else a program with misuse has no meaning
        self.room_law = "X4" if "pool" in header.capabilities else self.SIZES_LAW
        self._sizes: dict[str, int] | None = None
        self._methods: dict[type[Operation], _Method] = {}

    def judge(self, step: int, operation: Operation, outcome: Outcome) -> None:
        """Judge one step and follow it in the model; see `pymllm.oracle.judge.Judge`."""
        method = self._methods.get(type(operation))
        if method is None:
            method = self._methods[type(operation)] = self._method_for(type(operation))
        before = self.sizes() if self._sizes is None else self._sizes
        law = self.SIZES_LAW
        if not isinstance(outcome.result, Unsupported):
            law = method(step, operation, outcome)
        now = self.sizes()
        self._test_sizes(law, before, now, outcome.sizes)
        self._sizes = now

    def _method_for(self, operation: type[Operation]) -> _Method:
        name = _METHODS[self.KIND].get(operation)
        if name is None:
            raise ProgramError(f"{name_of(operation)} is no operation of kind {self.KIND}")
        method: _Method = getattr(self, name)
        return method

    def check_end(self) -> None:
        """Judge what is left at the end: nothing, since what these hold is compared wherever it is read."""

    def sizes(self) -> dict[str, int]:
        """Return every size that the model knows, by its documented name."""
        return {}

    def refused(self) -> None:
        """Follow a refused operation, which changed nothing."""

    def number(self, key: str, least: int = 1) -> int:
        """Return a number of the configuration; `ProgramError` where it is missing, or too small."""
        return read_number(self.config, key, least)

    def one(self, span: Span) -> int:
        """Return the only number that a span names; `ProgramError` where it names none, or several."""
        numbers = self.given.resolve((span,))
        if len(numbers) != 1:
            raise ProgramError(f"{span} names {len(numbers)} numbers; it must name one")
        return numbers[0]

    def answer(self, kind: type[R], law: str, what: str, outcome: Outcome) -> R:
        """Return the result, which must be of a kind; otherwise ``law`` is broken."""
        if not isinstance(outcome.result, kind):
            self.evidence.refuse(law, what, name_of(kind), outcome.result)
        return outcome.result

    def require_shape(self, law: str, what: str, expected: object, found: object) -> None:
        """Test the form of what was read, which is the same at each reading and so counts for nothing."""
        if expected != found:
            self.evidence.refuse(law, what, expected, found)

    def expect_refusal(self, law: str, what: str, outcome: Outcome, *errors: str) -> str:
        """Judge an operation that must be refused with one of some errors, and return the law of its traces.

        A `ProgramError` where the adapter does not claim that it refuses anything.
        """
        if not self.can_refuse:
            raise ProgramError(f"{what} must be refused, and the adapter does not claim to refuse misuse")
        self.evidence.expect_error(law, what, outcome, *errors)
        self.refused()
        return "X1"

    def _judge_malformed(self, step: int, operation: Malformed, outcome: Outcome) -> str:
        what = f"{operation.call} with {operation.wrong}"
        self.evidence.meet("a malformed call is refused")
        return self.expect_refusal("X1", what, outcome, *MALFORMED_ERRORS)

    def _test_sizes(
        self, law: str, before: dict[str, int], now: dict[str, int], found: dict[str, int]
    ) -> None:
        """Test the sizes that were found against those that the model knows now."""
        if found != now:  # not all are told, or one is wrong
            told = {name: size for name, size in found.items() if name in now}
            wanted = {name: now[name] for name in told}
            if told != wanted:
                # What a first operation did not change was wrong before it.
                was_wrong = self._sizes is None and now == before
                self.evidence.refuse(self.SIZES_LAW if was_wrong else law, "sizes", wanted, told)
        if now != before and has_told_a_change(before, now, found):
            self.evidence.count(law)


def has_told_a_change(before: Mapping[str, int], now: Mapping[str, int], found: Collection[str]) -> bool:
    """Tell whether one of the sizes that were found has changed: one that is left out tests nothing."""
    return any(now[name] != size for name, size in before.items() if name in found)
