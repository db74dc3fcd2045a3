"""What a situation is: a state worth reaching, of whom it may be expected, and what is at stake in it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pymllm.history.files import Config

Row = tuple[str, str] | tuple[str, str, str]
"""Name, ids of laws, and perhaps ids of bugs; ids with blanks between them."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A demand on a configuration.

    Parameters
    ----------
    text : str
        What is demanded, to be read after "needs".
    holds : callable
        Tells whether a configuration meets it.
    """

    text: str
    holds: Callable[[Config], bool]


@dataclass(frozen=True, slots=True)
class Situation:
    """A state in which something is at stake: until a search has reached it, its silence means nothing.

    Parameters
    ----------
    name : str
        What is the case. Judges count it by this name, and whoever tells of it uses it.
    kind : str
        Kind of implementation that it arises in, one of `pymllm.history.operations.KINDS`.
    laws : tuple of str
        Ids of the laws that a wrong implementation may break in it.
    bugs : tuple of str
        Ids of historical bugs, as docs/faults.md has them, that lived in it.
    needs : frozenset of str
        Capabilities without which nobody can tell, or it cannot arise.
    when : tuple of Condition
        What a configuration must be like for it to arise.
    of_engine : bool
        Whether it takes an engine's life; else callers of every sort bring it about.
    """

    name: str
    kind: str
    laws: tuple[str, ...]
    bugs: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()
    when: tuple[Condition, ...] = ()
    of_engine: bool = False

    def is_expected_of(self, config: Config, capabilities: Collection[str]) -> bool:
        """Tell whether a long run of a configuration with these capabilities must reach it."""
        return self.needs <= set(capabilities) and all(condition.holds(config) for condition in self.when)


def make_situations(
    kind: str, *rows: Row, needs: str = "", when: Collection[Condition] = (), of_engine: bool = False
) -> tuple[Situation, ...]:
    """Make situations that arise under the same conditions.

    Parameters
    ----------
    kind, of_engine
        As of `Situation`.
    *rows : Row
        One for each.
    needs : str
        Capabilities, with blanks between them.
    when : collection of Condition
        As of `Situation`.
    """
    return tuple(
        Situation(
            name,
            kind,
            tuple(laws.split()),
            tuple(" ".join(bugs).split()),
            frozenset(needs.split()),
            tuple(when),
            of_engine,
        )
        for name, laws, *bugs in rows
    )
