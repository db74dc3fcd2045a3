"""Good programs of block allocators, of which the last outcome is spoiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pymllm.adapters.own_blocks import Blocks
from pymllm.history.operations import Operation
from pymllm.history.outcomes import Outcome
from pymllm.oracle.judge import judge_steps
from pymllm.search.program import run_program


@pytest.fixture
def law_broken_by() -> Callable[..., str | None]:
    """Plays a program on our class, spoils its last outcome, and has it judged: the law that is broken.

    Keywords of the inner function go into the first configuration; ``claims`` replaces what is claimed.
    """

    def find(
        operations: Sequence[Operation],
        spoil: Callable[[Outcome], Outcome],
        claims: Sequence[str] | None = None,
        **config: Any,
    ) -> str | None:
        history = run_program("blocks", {**Blocks.CONFIGURATIONS[0], **config}, operations)
        header = history.header
        if claims is not None:
            header = dataclasses.replace(header, capabilities=tuple(claims))
        *before, last = history.steps
        assert last.outcome is not None
        spoiled = dataclasses.replace(last, outcome=spoil(last.outcome))
        assert spoiled != last or claims is not None, "nothing was spoiled"
        _, found = judge_steps(header, [*before, spoiled])
        assert found is None or found[0].number == last.number, found
        return found and found[1].law

    return find
