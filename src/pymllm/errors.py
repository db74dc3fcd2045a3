"""Every error that pymllm raises by its own name.

::

    PymllmError
      UsageError (ValueError)          the caller broke the contract; nothing changed
        OwnershipError                 a slot, page or row that is not the caller's to give back
        LockError                      an unlock without that hold
        StaleNodeError                 a node that left its cache, or belongs to another
      CapacityError (RuntimeError)     expected under load: not enough memory; nothing changed
      InvariantViolation               a bug, ours or theirs: a law is broken
      TraceError (ValueError)          a trace file: which line, and what is wrong with it

Malformed arguments (a wrong type, a negative size, an index outside a buffer) raise the built-in
``TypeError``, ``ValueError`` and ``IndexError``. Only `InvariantViolation` says that an
implementation is wrong.
"""

from __future__ import annotations

__all__ = [
    "CapacityError",
    "InvariantViolation",
    "LockError",
    "OwnershipError",
    "PymllmError",
    "StaleNodeError",
    "TraceError",
    "UsageError",
]


class PymllmError(Exception):
    """Root of the tree drawn at the top of this module."""


class UsageError(PymllmError, ValueError):
    """The caller broke the contract; the object is exactly as it was (law X1)."""


class OwnershipError(UsageError):
    """A double free, a slot that was never handed out, slot 0, or an index outside the pool."""


class LockError(UsageError):
    """An unlock without that hold: none is outstanding at the node, or its token is another."""


class StaleNodeError(UsageError):
    """A node that was evicted, reset away, or belongs to another cache."""


class CapacityError(PymllmError, RuntimeError):
    """Not enough memory, as expected under load; the object is exactly as it was."""


class InvariantViolation(PymllmError):
    """A law is broken: a bug in the implementation that was looked at.

    Parameters
    ----------
    law : str
        Id of the law in the contract, such as ``"R7"``.
    message : str
        What was expected and what was found, with the values.
    """

    def __init__(self, law: str, message: str) -> None:
        super().__init__(law, message)
        self.law = law
        self.message = message

    def __str__(self) -> str:
        return f"{self.law}: {self.message}"


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
