"""Programs of whole requests on the sound context, and what a judge says once the last outcome is another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pymllm.errors import InvariantViolation
from pymllm.history.files import Config, History
from pymllm.history.operations import AddRequest, Operation, Release, RunStep
from pymllm.history.outcomes import Outcome
from pymllm.oracle.judge import judge_steps
from pymllm.search.program import run_program

__all__ = [
    "CONFIG",
    "SEVEN",
    "Change",
    "law_of",
    "play",
    "result_with",
    "sizes_with",
    "two_served",
    "words_of",
]

CONFIG: Config = {
    **{
        "max_requests": 3,
        "num_blocks": 8,
        "max_blocks": 4,
        "paused_limit": 3,
        "block_size": 2,
        "chunk_size": 2,
    },
    **{"layers": 1, "conv_width": 1, "ssm_width": 1, "mamba_slots": 2, "policy": "lru", "hash_digits": None},
}
SEVEN = (1, 2, 3, 4, 5, 6, 7)

Change = Callable[[Outcome], Outcome]


def play(*operations: Operation, **config: int | str | None) -> History:
    """Run a program; nothing is wrong with it."""
    return run_program("requests", {**CONFIG, **config}, operations)


def two_served(tokens: tuple[int, ...] = SEVEN) -> tuple[Operation, ...]:
    """Compute a prompt, let it go, and take up another that shares its blocks (steps 1 to 4)."""
    return AddRequest(tokens), RunStep(), Release(1), AddRequest((*tokens[:6], 9))


def law_of(history: History, change: Change) -> str | None:
    """Return the law that the last outcome breaks once it is changed."""
    violation = _violation_of(history, change)
    return violation and violation.law


def words_of(history: History, change: Change) -> str:
    """Return the message about the changed last outcome: the law, the compared part, and both sides."""
    return str(_violation_of(history, change))


def _violation_of(history: History, change: Change) -> InvariantViolation | None:
    *before, last = history.steps
    assert last.outcome is not None
    changed = dataclasses.replace(last, outcome=change(last.outcome))
    assert changed != last, "the change changes something"
    _, found = judge_steps(history.header, [*before, changed])
    if found is None:
        return None
    assert found[0] is changed
    return found[1]


def result_with(**fields: Any) -> Change:
    """Change fields of the result; a function gets what was there."""

    def change(outcome: Outcome) -> Outcome:
        values = {
            name: value(getattr(outcome.result, name)) if callable(value) else value
            for name, value in fields.items()
        }
        return dataclasses.replace(outcome, result=dataclasses.replace(outcome.result, **values))  # type: ignore[type-var]

    return change


def sizes_with(**by: int) -> Change:
    """Tell sizes wrong."""
    return lambda outcome: dataclasses.replace(
        outcome, sizes=outcome.sizes | {name: outcome.sizes[name] + more for name, more in by.items()}
    )
