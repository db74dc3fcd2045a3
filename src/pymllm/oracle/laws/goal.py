"""Coverage goals: states worth reaching, the configurations that must reach them, and the laws they test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from pymllm.history.claims import are_met
from pymllm.history.files import Config

Row = tuple[str, str] | tuple[str, str, str]
"""One coverage goal: its name, the ids of its laws, and perhaps ids of bugs, separated by blanks."""


Met = Mapping[str, object]
"""For each coverage goal, by name, whether an operation reaches the goal."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a configuration, with the text that messages print after "needs"."""

    text: str
    holds: Callable[[Config], bool]


CACHING = Condition("prefix caching", lambda config: config.get("caching") is not False)


@dataclass(frozen=True, slots=True)
class CoverageGoal:
    """A state that a search must reach before its finding of no violation means anything."""

    name: str  # judges count it by this name, and whoever tells of it uses it
    kind: str  # one of `pymllm.history.operations.KINDS`
    laws: tuple[str, ...]  # that a wrong implementation may break in it
    bugs: tuple[str, ...] = ()  # historical ones, as docs/faults.md has them, that lived in it
    needs: frozenset[str] = frozenset()  # capabilities without which nobody can tell, or it cannot arise
    when: tuple[Condition, ...] = ()  # what a configuration must be like for it to arise
    unless: frozenset[str] = frozenset()  # capabilities with which it cannot arise
    of_engine: bool = False  # whether it takes an engine's life; else callers of every sort bring it about

    def is_expected_of(self, config: Config, capabilities: Collection[str]) -> bool:
        """Tell whether a long run of a configuration with these capabilities must reach it."""
        is_possible = are_met(self.needs, capabilities) and self.unless.isdisjoint(capabilities)
        return is_possible and all(condition.holds(config) for condition in self.when)


def make_goals(
    kind: str,
    *rows: Row,
    needs: str = "",
    when: Collection[Condition] = (),
    unless: str = "",
    of_engine: bool = False,
) -> tuple[CoverageGoal, ...]:
    """Return one coverage goal for each row, all under the same conditions."""
    return tuple(
        CoverageGoal(
            name,
            kind,
            tuple(laws.split()),
            tuple(" ".join(bugs).split()),
            frozenset(needs.split()),
            tuple(when),
            frozenset(unless.split()),
            of_engine,
        )
        for name, laws, *bugs in rows
    )
