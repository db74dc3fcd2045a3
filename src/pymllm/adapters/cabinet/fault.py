"""What a fault is: one way to be wrong, how to make it, and the laws that may catch it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pymllm.adapters.cabinet.planting import Change
from pymllm.history.files import Config

__all__ = ["ANY", "SEARCHERS", "Fault"]

ANY = ("any",)
"""For `Fault.laws`: whichever law catches it will do."""

SEARCHERS = ("machine", "life-cycle machine", "invariants", "sweep")
"""Who can catch a fault: random programs judged by their outcomes; the same by an engine that drives; walks
from inside while either plays; and failures of every single call of a program."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Parameters
    ----------
    id : str
        Id of the bug, such as ``"B01"``, or a name of its own. Where an entry is planted more
        than once, the system follows: ``"B79-requests"``.
    title : str
        What is wrong, in one line.
    laws : tuple of str
        Ids of the laws that may catch it, written down before anybody looks; the most telling first. `ANY`
        for whichever.
    adapters : tuple of str
        Whom to examine, by registry name or ``module:Class``, in this order.
    edits : tuple of Edit or Replace
        What makes the adapters' classes wrong while they are examined; empty where the adapters are wrong
        by themselves.
    settings : dict
        Only configurations of the adapters that agree with it are examined: those in which the fault shows.
    searchers : tuple of str
        Who is to look, names of `SEARCHERS`, the one first that is expected to find it.
    note : str
        In which way it differs from the bug, where the class is built another way than the engine's.

    Raises
    ------
    ValueError
        A field that must say something is empty, or a searcher is none.
    """

    id: str
    title: str
    laws: tuple[str, ...]
    adapters: tuple[str, ...]
    edits: tuple[Change, ...] = ()
    settings: Config = field(default_factory=dict)
    searchers: tuple[str, ...] = SEARCHERS
    note: str = ""

    @property
    def entry(self) -> str:
        """The id without the system: the bug that is planted, if it is one."""
        return self.id.partition("-")[0]

    def may_be_caught_by(self, law: str) -> bool:
        """Tell whether a law is one of those that may catch it."""
        return self.laws == ANY or law in self.laws

    def __post_init__(self) -> None:
        for name in ("id", "title", "laws", "adapters", "searchers"):
            value: Any = getattr(self, name)
            if not value or isinstance(value, str) != (name in ("id", "title")):
                kind = "a text" if name in ("id", "title") else "a tuple of texts"
                raise ValueError(f"fault {self.id!r}: {name} is {value!r}; it must be {kind}, not empty")
        for searcher in self.searchers:
            if searcher not in SEARCHERS:
                raise ValueError(
                    f"fault {self.id!r}: no searcher {searcher!r}; there are {', '.join(SEARCHERS)}"
                )
