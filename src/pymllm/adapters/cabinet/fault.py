"""What a fault is: one way to be wrong, how to make it, and the laws that may catch it; and known bugs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from pymllm.adapters.cabinet.planting import Change, Edit
from pymllm.history.files import Config

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

    def edit(self, target: str, old: str, new: str) -> Fault:
        """Return the same fault with one more `Edit`."""
        return replace(self, edits=(*self.edits, Edit(target, old, new)))

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


COMMIT = "the commit was read"
THREAD = "the thread was read, and not every line of its change"
THREAD_AND_RUN = "the thread was read, and the code was run"
RUN = "the linked code was run"
CODE = "the linked code was read; nobody has reported it"
SUMMARY = "known from a summary; the thread itself was not read"


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug of somebody's engine.

    Parameters
    ----------
    id : str
        Such as ``"B01"``; it never changes its meaning.
    title : str
        What is wrong, in one line that can be read alone.
    engine : str
        Whose bug it was.
    sources : str
        Issues, pull requests and commits on GitHub, between blanks; the most telling first.
    mechanism, seen : str
        How it comes about; what users saw, or who found it where nobody did.
    evidence : str
        What was read of it.
    version : str
        Of the engine, where it is known.
    """

    id: str
    title: str
    engine: str
    sources: str
    mechanism: str
    seen: str
    evidence: str = THREAD
    version: str = ""

    @property
    def links(self) -> tuple[str, ...]:
        """The sources, absolute."""
        return tuple(f"https://github.com/{source}" for source in self.sources.split())
