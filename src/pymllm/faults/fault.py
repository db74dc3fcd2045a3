"""The classes of a planted fault and of a known bug of another project's engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pymllm.documents.faults import PROBE, SEARCHERS
from pymllm.faults.plant import Change
from pymllm.history.files import Config

ANY = ("any",)
"""The value of `Fault.laws` for a fault that any law may catch."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault; an empty required field or an unknown searcher raises `ValueError`."""

    id: str  # the bug's, as "B01", and of one planted more than once the system, "B79-requests"; or a name
    title: str  # what is wrong, in one line
    laws: tuple[str, ...]  # that may catch it, written down before anybody looks; the most telling first
    adapters: tuple[str, ...]  # whom to examine, by registry name or "module:Class", in this order
    edits: tuple[Change, ...] = ()  # what makes their classes wrong; empty where they are wrong by themselves
    settings: Config = field(default_factory=dict)  # of the configurations in which the fault shows
    searchers: tuple[str, ...] = SEARCHERS  # who is to look, the one first that is expected to find it
    note: str = ""  # how it differs from the bug, where the class is built another way than the engine's
    except_for: Config = field(default_factory=dict)  # settings of the configurations in which it cannot show

    @property
    def entry(self) -> str:
        """The id up to its first hyphen, which for a planted bug is the id of the bug."""
        return self.id.partition("-")[0]

    def may_be_caught_by(self, law: str) -> bool:
        """Tell whether the fault's list includes a law."""
        return self.laws == ANY or law in self.laws

    def shows_in(self, configurations: Sequence[Config]) -> tuple[Config, ...]:
        """Return the configurations in which the fault shows."""
        hides = self.except_for.items()
        return tuple(
            config
            for config in configurations
            if self.settings.items() <= config.items() and not (hides and hides <= config.items())
        )

    def __post_init__(self) -> None:
        for name in ("id", "title", "laws", "adapters", "searchers"):
            value: Any = getattr(self, name)
            if not value or isinstance(value, str) != (name in ("id", "title")):
                kind = "a text" if name in ("id", "title") else "a tuple of texts"
                raise ValueError(f"fault {self.id!r}: {name} is {value!r}; it must be {kind}, not empty")
        for searcher in self.searchers:
            if searcher not in (*SEARCHERS, PROBE):
                raise ValueError(
                    f"fault {self.id!r}: no searcher {searcher!r}; there are {', '.join(SEARCHERS)}"
                )


EVIDENCE = {
    "commit": "the commit was read",
    "thread": "the thread was read, and not every line of its change",
    "thread and run": "the thread was read, and the code was run",
    "run": "the linked code was run",
    "code": "the linked code was read; nobody has reported it",
    "summary": "known from a summary; the thread itself was not read",
}
"""The kinds of evidence for a bug: what was read or run."""


@dataclass(frozen=True, slots=True)
class Bug:
    """A real bug of another project's engine."""

    id: str  # such as "B01"; it never changes its meaning
    title: str  # what is wrong, in one line that can be read alone
    engine: str  # whose bug it was
    sources: str  # issues, pull requests and commits on GitHub, between blanks; the most telling first
    mechanism: str  # how it comes about
    seen: str  # what users saw, or who found it where nobody did
    evidence: str = EVIDENCE["thread"]
    version: str = ""  # of the engine, where it is known

    @property
    def links(self) -> tuple[str, ...]:
        """The absolute links to the bug's sources."""
        return tuple(f"https://github.com/{source}" for source in self.sources.split())
