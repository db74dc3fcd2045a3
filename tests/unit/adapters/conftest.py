"""How the tests of wrong implementations show what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.adapters.faulty import Faulty
from pymllm.adapters.registry import FAULTY, load_adapter
from pymllm.conformance.program import run_program
from pymllm.errors import InvariantViolation
from pymllm.history.operations import Operation


@pytest.fixture
def assert_caught() -> Callable[..., None]:
    """Runs a program: its last step breaks the law, and the sound sibling keeps it."""
    names = {entry.place.partition(":")[2]: entry.name for entry in FAULTY}

    def check(faulty: type[Faulty], *operations: Operation) -> None:
        name, config = names[faulty.__name__], dict(faulty.CONFIGURATIONS[0])  # type: ignore[attr-defined]
        with pytest.raises(InvariantViolation) as caught:
            run_program(name, config, operations)
        assert caught.value.law == faulty.BREAKS
        if faulty.BREAKS != "X3":  # which shows in any program, once it runs again
            run_program(name, config, operations[:-1])
        assert len(run_program(faulty.SOUND, config, operations)) == len(operations)

    return check


@pytest.fixture
def faulty_classes() -> dict[str, type[Faulty]]:
    """Every wrong implementation of the registry, by its name there."""
    return {entry.name: load_adapter(entry) for entry in FAULTY}  # type: ignore[misc]
