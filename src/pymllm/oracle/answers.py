"""The count of operations that an implementation did or left undone, with the reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from pymllm.history.asked import can_be_given, is_optional, needs_of
from pymllm.history.claims import are_met
from pymllm.history.codec import name_of
from pymllm.history.files import Header
from pymllm.history.operations import Insert, Operation
from pymllm.history.outcomes import Inserted, Outcome
from pymllm.history.spans import steps_of
from pymllm.oracle.evidence import Evidence

OWED = "no limit is declared"
"""The reason for a step left undone in breach of law X9; in files older than X9 it is only reported."""
LEFT = "the specification leaves it to each implementation"
NO_NODE = "the insert gave no node to hold"

_EARLIER = frozenset({"", "2.1"})
"""Versions of the specification in which adapters could not declare limits, so that law X9 did not apply."""


class Answers:
    """The count of steps that were not done, by reason, with a verdict on whether each had to be done.

    Parameters
    ----------
    kind : str
        Of the implementation.
    claims : frozenset of str
        What it claims, with all that these claims say.
    header : Header, optional
        Of the history, with the limits that were declared.
    evidence : Evidence
        Where steps are counted.
    """

    def __init__(self, kind: str, claims: frozenset[str], header: Header | None, evidence: Evidence) -> None:
        self.kind = kind
        self.claims = claims
        self.limits = header.limits if header is not None else {}
        self.is_demanded = header is None or header.specification not in _EARLIER
        self._evidence = evidence
        self._done: set[type[Operation]] = set()
        self._reasons: dict[int, str | None] = {}
        self._nodeless: set[int] = set()
        evidence.done.update(dict.fromkeys(self.limits, 0))

    def counts(self, operation: type[Operation]) -> bool:
        """Tell whether every step of an operation must be counted, rather than the first step alone."""
        return operation is Insert or self._is_counted(operation)

    def _is_counted(self, operation: type[Operation]) -> bool:
        return name_of(operation) in self.limits or is_optional(self.kind, operation)

    def note_done(self, step: int, operation: Operation, outcome: Outcome) -> None:
        """Record that a step was done, and whether it was an insert that returned no node."""
        kind = type(operation)
        self._done.add(kind)
        if self._is_counted(kind):
            self._evidence.done[name_of(kind)] += 1
        if isinstance(outcome.result, Inserted) and outcome.result.node_len is None:
            self._nodeless.add(step)

    def is_owed(self, operation: Operation) -> bool:
        """Tell whether an implementation with these claims must do an operation, whatever came before."""
        needs = needs_of(self.kind, operation, self.claims)
        return can_be_given(self.kind, operation) and are_met(needs, self.claims)

    def find_reason(self, step: int, operation: Operation, is_misuse: Callable[[], bool]) -> str | None:
        """Count a step that was not done, and return the reason; ``None`` if it was not due, as in misuse."""
        self._reasons[step] = reason = self._find_reason(operation, is_misuse)
        if reason is not None and not (reason == OWED and self.is_demanded):  # of that X9 tells
            told = f"{name_of(type(operation))}: {reason}"
            self._evidence.not_done[told] += 1
            self._evidence.first_not_done.setdefault(told, step)
        return reason

    def _find_reason(self, operation: Operation, is_misuse: Callable[[], bool]) -> str | None:
        for named in steps_of(operation):
            if named in self._reasons:  # what was not done gave nothing
                return self._reasons[named]
            if named in self._nodeless:
                return NO_NODE
        if not self.is_owed(operation) or is_misuse():
            return None
        kind = type(operation)
        limit = self.limits.get(name_of(kind))
        return limit or (LEFT if is_optional(self.kind, kind) and kind not in self._done else OWED)


class Limit(NamedTuple):
    """The number of steps of an operation that were not done, the reason, and the number that were done.

    ``told`` is what an `Evidence` counts them by; ``done`` is ``None`` where nobody counted them.
    """

    told: str
    operation: str
    reason: str
    steps: int
    done: int | None


def limits_of(not_done: Mapping[str, int], done: Mapping[str, int]) -> tuple[Limit, ...]:
    """Return the limits to report for steps that were not done, in one history or in several.

    Of what the specification leaves to each implementation there is nothing to tell where it was never done.
    """
    found = []
    for told, steps in sorted(not_done.items()):
        operation, _, reason = told.partition(": ")
        if reason != LEFT or done.get(operation):
            found.append(Limit(told, operation, reason, steps, done.get(operation)))
    return tuple(found)
