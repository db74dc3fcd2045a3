"""The base class of all models: results of steps, suspect operations, and the reading of outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from pymllm.errors import ProgramError
from pymllm.history.config_limits import read_number
from pymllm.history.files import Header
from pymllm.history.operations import Malformed, Operation, Span
from pymllm.history.outcomes import Effect, Outcome
from pymllm.history.spans import GivenNumbers

MALFORMED_ERRORS = (
    "TypeError",
    "ValueError",
    "IndexError",
    "UsageError",
    "OwnershipError",
    "LockError",
    "StaleNodeError",
)
"""Errors with which an implementation may refuse an argument that no caller may pass (X1)."""

DONE, REFUSED, NO_ROOM, STRUCK = "done", "refused", "no room", "struck"
UNDONE = "not done"
"""Results that an operation had or must have; struck means that it failed in a call that was made to fail."""


class Misuse(NamedTuple):
    """A mistake in a caller's request: its coverage goal, its law, and the errors that may refuse it."""

    goal: str  # or nothing, where a search need not reach it
    law: str = "X1"
    errors: tuple[str, ...] = ()
    needs: str = "refuses_bad_arguments"  # the capability without which nobody may be asked so
    trace: str = "X1"  # the law of what it leaves behind although it was refused
    name: str = ""  # what the caller did, where the coverage goal does not say enough

    @property
    def what(self) -> str:
        """The description of the mistake in a few words."""
        return self.name or self.goal.removesuffix(" is refused")


@dataclass(slots=True)
class Seen:
    """An outcome as a model has read and classified it, before any check.

    ``effects`` are the outcome's; the judge fills them in.
    """

    result: Any
    fate: str = DONE
    wrong: tuple[Misuse, ...] = ()
    effects: Sequence[Effect] = field(default=(), kw_only=True)


@dataclass(slots=True)
class SeenUndone(Seen):
    """The outcome of an operation that was not done, and whether the claims require the operation."""

    fate: str = UNDONE
    is_owed: bool = False


class KindModel:
    """The base class of the models, each of which follows the state of one kind of implementation.

    For each operation a subclass has ``read_<operation>``, which makes of an outcome what laws look at
    (`Seen`) and raises `ProgramError` where it has no meaning, and ``follow_<operation>``, which changes the
    model as an outcome that kept every law does. Whoever has nothing to follow leaves the second out.

    Attributes
    ----------
    claims : frozenset of str
        Capabilities of the adapter.
    given : GivenNumbers
        The slots, rows or blocks that each step gave.
    step : int
        The number of the operation at hand.
    """

    KIND: ClassVar[str]

    def __init__(self, header: Header) -> None:
        self.config = header.config
        self.claims = header.claims
        self.given = GivenNumbers()
        self.step = 0

    def sizes(self) -> dict[str, int]:
        """Return every size that the model knows, by its documented name."""
        return {}

    tests_each_size: bool = False
    """Whether a size is tested even where it stays unchanged, since no size of this kind ever changes."""

    def suspect(self, law: str) -> None:
        """Record an operation as suspect of any later change beyond the parts that it named."""

    def follow_refused(self, step: int, operation: Operation, seen: Seen) -> None:
        """Record a refused operation, which must have changed nothing, as suspect of any later difference."""
        if seen.wrong[0].trace == "X1":
            self.suspect("X1")

    def can_follow(self, seen: Seen) -> bool:
        """Tell whether the model still knows the state after an operation that broke a law; most do not."""
        return False

    def end_step(self, operation: Operation, told: Mapping[str, int]) -> None:
        """Forget everything about the current operation, even one that the adapter does not support.

        ``told`` are the sizes afterwards, as the implementation tells them.
        """

    # -- reading -------------------------------------------------------------------------------------------

    def read(self, operation: Operation, outcome: Outcome) -> Seen:
        """Read the outcome of an operation of which only the result is checked."""
        return Seen(outcome.result)

    def read_malformed(self, operation: Malformed, outcome: Outcome) -> Seen:
        """Read the outcome of a call with arguments that no caller may pass."""
        wrong = Misuse(
            "a malformed call is refused",
            self.malformed_law,
            self.malformed_errors,
            "refuses_malformed",
            name=f"{operation.call} with {operation.wrong}",
        )
        return self.refused(outcome, wrong)

    malformed_law: ClassVar[str] = "X1"
    malformed_errors: ClassVar[tuple[str, ...]] = MALFORMED_ERRORS

    @staticmethod
    def refused(outcome: Outcome, *wrong: Misuse) -> Seen:
        """Return an operation as read that must be refused."""
        return Seen(outcome.result, REFUSED, wrong)

    # -- arguments -----------------------------------------------------------------------------------------

    def number(self, key: str, least: int = 1) -> int:
        """Return a number from the configuration; raise `ProgramError` if it is missing or too small."""
        return read_number(self.config, key, least)

    def one(self, span: Span) -> int:
        """Return the only number that a span names; raise `ProgramError` if it names none or several."""
        numbers = self.given.resolve((span,))
        if len(numbers) != 1:
            raise ProgramError(f"{span} names {len(numbers)} numbers; it must name one")
        return numbers[0]
