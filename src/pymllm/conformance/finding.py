"""A broken law, with the program that breaks it and who can see it again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pymllm.conformance.acting import FoundViolation, with_scenario
from pymllm.conformance.rerun import rerun_history
from pymllm.errors import InvariantViolation, PymllmError
from pymllm.history.files import History
from pymllm.oracle.judge import judge_steps


@dataclass(frozen=True, slots=True)
class Finding:
    """What one search found of one law."""

    violation: InvariantViolation  # the law, what was expected and what was observed
    history: History  # the smallest program that was seen to break it, ending with the step that does
    is_rerun: bool  # whether running the history again breaks the law again
    is_judged: bool  # whether its outcomes alone show it, without the implementation
    is_unfinished: bool = False  # whether the search for a smaller program was cut short
    mistakes: tuple[str, ...] = ()  # as of `pymllm.conformance.acting.FoundViolation`

    @property
    def law(self) -> str:
        """Id of the law."""
        return self.violation.law

    @property
    def step(self) -> int:
        """Number of the last step; 0 where there is none."""
        return self.history.steps[-1].number if self.history.steps else 0


def make_finding(found: FoundViolation) -> Finding:
    """Try in which ways a violation of a machine can be seen again.

    An engine that drives a cache and an adapter that looks inside both see what outcomes alone do not
    show; a cache that does not do the same twice may show nothing the second time. Where the operations do
    not show it, the history has the acts, where a machine played any.
    """
    law = found.violation.law
    is_rerun = _is_rerun(found.history, law)
    return Finding(
        found.violation,
        with_scenario(found.history, None if is_rerun else found.scenario),
        is_rerun,
        _is_judged(found.history, law),
        found.is_unfinished,
        found.mistakes,
    )


def pick_smallest(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Keep the smallest program for each law, the smallest of all first."""
    kept: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda finding: (len(finding.history), finding.is_unfinished)):
        kept.setdefault(finding.law, finding)
    return tuple(kept.values())


def _is_rerun(history: History, law: str) -> bool:
    try:
        violation = rerun_history(history, history.header.adapter).violation
    except PymllmError:
        return False
    return violation is not None and violation.law == law


def _is_judged(history: History, law: str) -> bool:
    try:
        _, found = judge_steps(history.header, history.steps)
    except PymllmError:
        return False
    return found is not None and found[1].law == law
