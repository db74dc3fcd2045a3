"""Steps that a failing program does not need."""

from __future__ import annotations

import pytest

from pymllm.adapters.registry import make_adapter
from pymllm.conformance.acting import FoundViolation
from pymllm.conformance.examiner import Examiner
from pymllm.conformance.program import play_steps
from pymllm.conformance.shrinker import shrink
from pymllm.conformance.time_limit import time_limit
from pymllm.errors import InvariantViolation
from pymllm.oracle.history import Header, History
from pymllm.oracle.operations import (
    AllocRows,
    FreeRow,
    Operation,
    ReadRows,
    Span,
    WriteRow,
)

CONFIG = {"max_reqs": 3, "max_context_len": 4}
LONG: list[Operation] = [
    AllocRows(0),
    ReadRows(),
    AllocRows(1),
    AllocRows(1),
    WriteRow(Span(3, 0, 1), 0, 1, (7,)),
    WriteRow(Span(4, 0, 1), 0, 1, (7,)),
    ReadRows(),
    FreeRow(Span(3, 0, 1)),
    AllocRows(0),
    ReadRows(),
]
SHORT = [AllocRows(1), WriteRow(Span(1, 0, 1), 0, 1, (7,)), FreeRow(Span(1, 0, 1)), ReadRows()]


def found(adapter: str) -> FoundViolation:
    examiner = Examiner(make_adapter(adapter, dict(CONFIG)), seed=5)
    with pytest.raises(InvariantViolation) as caught:
        play_steps(examiner, enumerate(LONG, 1))
    return FoundViolation(examiner.history, caught.value)


def operations_of(found: FoundViolation) -> list[Operation]:
    return [step.operation for step in found.history.steps]


def test_only_what_is_needed_stays(tiny: str) -> None:
    """P2: a row, a write, a free and a look, numbered from 1, with the outcomes of this program."""
    short = shrink(found(f"{tiny}:KeepsEntries"), plays=1000)
    assert operations_of(short) == SHORT
    assert [step.number for step in short.history.steps] == [1, 2, 3, 4]
    assert all(step.outcome is not None for step in short.history.steps)
    assert short.violation.law == "P2"
    assert short.history.header.seed == 5


def test_it_ends(tiny: str) -> None:
    """What was reached until then breaks the law all the same, and is numbered from 1."""
    lengths = [len(shrink(found(f"{tiny}:KeepsEntries"), plays=plays).history) for plays in (0, 12, 100)]
    assert lengths[0] == len(LONG) > lengths[1] > lengths[2] == len(SHORT)


def test_what_does_not_break_the_law_again_stays_as_it_is(tiny: str) -> None:
    """An engine's finding, one of another law, and one whose adapter is gone."""
    original = found(f"{tiny}:KeepsEntries")
    for adapter, law in ((f"{tiny}:TinyRows", "P2"), (f"{tiny}:KeepsEntries", "E3"), ("gone", "P2")):
        history = History(Header(adapter, "rows", dict(CONFIG)), original.history.steps)
        same = FoundViolation(history, InvariantViolation(law, "looked"))
        assert shrink(same, plays=1000) is same


def test_a_crash_on_the_way_is_no_shorter_program(tiny: str) -> None:
    """What a program without some of its steps meets may be anything."""
    short = shrink(found(f"{tiny}:KeepsEntriesAndBreaks"), plays=1000)
    assert short.violation.law == "P2"
    assert len(short.history) == len(SHORT) + 1


def test_a_program_that_hangs_ends_it(tiny: str) -> None:
    """What was reached until then is kept, and said to be unfinished: nobody waits for the next one."""
    original = found(f"{tiny}:KeepsEntriesAndHangs")
    with time_limit(0.3):
        short = shrink(original, plays=1000)
    assert short.violation.law == "P2"
    assert len(short.history) <= len(LONG)
    assert short.is_unfinished
    assert not shrink(found(f"{tiny}:KeepsEntries"), plays=1000).is_unfinished
    assert shrink(found(f"{tiny}:KeepsEntries"), plays=12).is_unfinished
