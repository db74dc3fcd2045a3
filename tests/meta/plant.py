"""What a plant is: a bug from the history of serving engines, planted in this package's own classes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from planting import Edit

from pymllm.errors import InvariantViolation

__all__ = ["NOTICED", "Plant"]

NOTICED = (AssertionError, pytest.fail.Exception, InvariantViolation)
"""What a test or a check raises when it has noticed something."""


@dataclass(frozen=True, slots=True)
class Plant:
    """One bug, how to make it, and who notices.

    Parameters
    ----------
    id : str
        Id in the catalogue.
    laws : tuple of str
        The contract's laws that the bug breaks, at least one of which the noticing test is about.
    edits : tuple of Edit
        The bug.
    noticed_by : str
        Node id of the test, relative to the root of the repository; without brackets: of all its parameters.
    shows_as : type of BaseException, optional
        Where the class under test refuses what the bug does, its error; no error but this one counts then.
    note : str
        In which way the plant differs from the entry, where the entry's class is built another way.
    system : str
        Where an entry is planted more than once, in which of the systems this one is.
    """

    id: str
    laws: tuple[str, ...]
    edits: tuple[Edit, ...]
    noticed_by: str
    shows_as: type[BaseException] | None = None
    note: str = ""
    system: str = ""

    @property
    def name(self) -> str:
        """The id, with the system where that is needed to tell plants of one entry apart."""
        return f"{self.id}-{self.system}" if self.system else self.id

    @property
    def counts(self) -> tuple[type[BaseException], ...]:
        """The errors that show that the bug was noticed, and not that the plant is broken."""
        return NOTICED if self.shows_as is None else (self.shows_as,)
