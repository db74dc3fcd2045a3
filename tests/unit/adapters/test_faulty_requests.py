"""Wrong contexts of whole requests: a small program that shows each fault."""

from __future__ import annotations

import pytest

from pymllm.adapters import faulty_requests
from pymllm.adapters.faulty import Faulty
from pymllm.adapters.own_requests import Requests
from pymllm.conformance.examiner import Examiner
from pymllm.errors import InvariantViolation
from pymllm.history.operations import (
    AddRequest,
    Fault,
    Inspect,
    Operation,
    Pause,
    Release,
    Reset,
    RunStep,
    ScheduleChunk,
)


def prompt(first: int, blocks: int) -> AddRequest:
    """Whole blocks of four tokens that count up."""
    return AddRequest(tuple(range(first, first + 4 * blocks)))


ONE, TWO = prompt(1, 1), prompt(1, 2)
LONG, OTHER = prompt(1, 7), prompt(100, 7)

PROGRAMS: list[tuple[type[Faulty], tuple[Operation, ...]]] = [
    (faulty_requests.BatchSnapshots, (prompt(1, 1), prompt(50, 1), RunStep(), Inspect())),
    (faulty_requests.PromptOffsets, (AddRequest(ONE.tokens, 2), RunStep(), ScheduleChunk(1), RunStep())),
    (faulty_requests.TrunksFirst, (prompt(1, 2), prompt(50, 2), RunStep())),
    (faulty_requests.UnfilledSlots, (ONE, Fault("store_states"), RunStep())),
    (faulty_requests.StaleRestores, (ONE, RunStep(), TWO)),
    (faulty_requests.FullHits, (ONE, RunStep(), ONE, RunStep())),
    (faulty_requests.UnheldHits, (TWO, RunStep(), Release(1), OTHER, LONG)),
    (faulty_requests.LeakyAdmissions, (prompt(1, 1), RunStep(), OTHER, LONG, Inspect())),
    (faulty_requests.SharedReleases, (TWO, RunStep(), TWO, Release(1))),
    (faulty_requests.LongRows, (TWO, Release(1), ONE)),
    (faulty_requests.UnboundedPauses, (LONG, Pause(1))),
    (faulty_requests.DurableHashes, (TWO, RunStep(), Release(1), Reset())),
]


def examine(adapter: Requests, operations: tuple[Operation, ...]) -> None:
    examiner = Examiner(adapter)
    for operation in operations:
        examiner.do(operation)


@pytest.mark.parametrize(("adapter_class", "operations"), PROGRAMS)
def test_its_last_step_breaks_the_law_that_it_names(
    adapter_class: type[Faulty], operations: tuple[Operation, ...]
) -> None:
    """C1, C7 to C9, E1 to E4, X2, X4: and the sound context does all of it."""
    assert issubclass(adapter_class, Requests)
    config = dict(adapter_class.CONFIGURATIONS[0])
    wrong = adapter_class("x", config)
    examine(Requests("x", config), operations)
    with pytest.raises(InvariantViolation) as caught:
        examine(wrong, operations)
    assert caught.value.law == adapter_class.BREAKS


def test_colliding_hashes_break_c3() -> None:
    """C3: of 300 prompts of one block, two have the same hash of eight bits."""
    config = dict(faulty_requests.BareHashes.CONFIGURATIONS[0])
    program: list[Operation] = []
    for number, token in enumerate(range(300)):
        program += [AddRequest((token,) * 4), RunStep(), Release(3 * number + 1)]
    examine(Requests("x", config), tuple(program))
    with pytest.raises(InvariantViolation) as caught:
        examine(faulty_requests.BareHashes("x", config), tuple(program))
    assert caught.value.law == "C3"


def test_every_wrong_context_is_shown() -> None:
    """None is in the module without a program."""
    shown = {adapter_class.__name__ for adapter_class, _ in PROGRAMS} | {"BareHashes"}
    assert shown == set(faulty_requests.__all__)
