"""Every error that pymllm raises by its own name.

::

    PymllmError
      UsageError (ValueError)          the caller made a mistake; nothing changed
        OwnershipError                 a slot, page or row that is not the caller's to give back
        LockError                      an unlock without that hold
        StaleNodeError                 a node that left its cache, or belongs to another
        ProgramError                   a program of operations that the specification gives no meaning to
      CapacityError (RuntimeError)     expected under load: not enough memory; nothing changed
        MambaSlotCapacityError         too few slots for cached states are free or may be evicted
      InvariantViolation               a bug, ours or theirs: a law is broken
      AdapterError                     could not examine: the adapter, not what it adapts, is at fault
        ConversationError              a program that was asked by lines: it crashed, hung, or made no sense
      TraceError (ValueError)          a trace file: which line, and what is wrong with it

Malformed arguments (a wrong type, a negative size, an index outside a buffer) raise the built-in
``TypeError``, ``ValueError`` and ``IndexError``. Only `InvariantViolation` says that an
implementation is wrong.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AdapterError",
    "CapacityError",
    "ConversationError",
    "InvariantViolation",
    "LockError",
    "MambaSlotCapacityError",
    "OwnershipError",
    "ProgramError",
    "PymllmError",
    "StaleNodeError",
    "TraceError",
    "UsageError",
]


_LONGEST = 4000  # Characters of what is said of an adapter.


class PymllmError(Exception):
    """Root of the tree drawn at the top of this module."""


class UsageError(PymllmError, ValueError):
    """The caller made a mistake; the object is exactly as it was (law X1)."""


class OwnershipError(UsageError):
    """A double free, a slot that was never handed out, slot 0, or an index outside the pool."""


class LockError(UsageError):
    """An unlock without that hold: none is outstanding at the node, or its token is another."""


class StaleNodeError(UsageError):
    """A node that was evicted, reset away, or belongs to another cache."""


class ProgramError(UsageError):
    """A program that cannot be judged: it names a step that gave nothing, or breaks a caller's duty."""


class CapacityError(PymllmError, RuntimeError):
    """Not enough memory, as expected under load; the object is exactly as it was."""


class MambaSlotCapacityError(CapacityError):
    """Too few slots are free or may be evicted; nothing has changed (law C5)."""


class InvariantViolation(PymllmError):
    """A law is broken: a bug in the implementation that was looked at.

    Parameters
    ----------
    law : str
        Id of the law in the specification, such as ``"R7"``.
    message : str
        What was looked at; without the two below also what was expected and found.
    expected, observed : str, optional
        What the law demands and what there was, where the two can be set side by side.
    """

    def __init__(
        self, law: str, message: str, *, expected: str | None = None, observed: str | None = None
    ) -> None:
        super().__init__(law, message, expected, observed)
        self.law = law
        self.message = message
        self.expected = expected
        self.observed = observed

    def __str__(self) -> str:
        if self.expected is None and self.observed is None:
            return f"{self.law}: {self.message}"
        return f"{self.law}: {self.message}: expected {self.expected}, observed {self.observed}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _violation, self.args


def _violation(law: str, message: str, expected: str | None, observed: str | None) -> InvariantViolation:
    """Make a violation out of its arguments, for pickle, which knows no keywords."""
    return InvariantViolation(law, message, expected=expected, observed=observed)


class AdapterError(PymllmError):
    """An adapter cannot be loaded or does not answer as it must, so that nothing can be said of a law.

    Parameters
    ----------
    adapter : str
        Name of the adapter.
    message : str
        What is wrong with it and what to do; the beginning, where it is very long.
    """

    def __init__(self, adapter: str, message: str) -> None:
        # An answer that is quoted may be of any length.
        message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}..."
        super().__init__(adapter, message)
        self.adapter = adapter
        self.message = message

    def __str__(self) -> str:
        return f"adapter {self.adapter}: {self.message}"


class ConversationError(AdapterError):
    """A program that is asked by lines of JSON does not go on with the conversation.

    Parameters
    ----------
    adapter, message : str
        As of `AdapterError`.
    verdict : str
        One word for what it did, of `pymllm.adapters.process.VERDICTS`.
    conversation : str
        The last lines that were said, and of its standard error; for a file.
    """

    def __init__(self, adapter: str, message: str, verdict: str, conversation: str) -> None:
        super().__init__(adapter, message)
        self.args = (adapter, message, verdict, conversation)  # what pickle makes it again from
        self.verdict = verdict
        self.conversation = conversation


class TraceError(PymllmError, ValueError):
    """A trace file cannot be read.

    Parameters
    ----------
    source : str
        The file or stream.
    line : int or None
        Line number, counted from 1; ``None`` where the whole file is meant.
    message : str
        What is wrong and what was expected.
    """

    def __init__(self, source: str, line: int | None, message: str) -> None:
        super().__init__(source, line, message)
        self.source = source
        self.line = line
        self.message = message

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{where}: {self.message}"
