"""Candidates, played."""

from __future__ import annotations

import pytest

from pymllm.adapters.base import header_of
from pymllm.adapters.registry import make_adapter
from pymllm.conformance.reduction import Program
from pymllm.conformance.shrink_trials import Look, OutOfBudgetError, ShrinkBudget, Trials
from pymllm.conformance.time_limit import time_limit
from pymllm.history.operations import (
    Alloc,
    AllocRows,
    Free,
    FreeRow,
    Insert,
    Key,
    Match,
    Operation,
    ReadRows,
    Span,
    WriteRow,
)
from pymllm.oracle.row_judge import RowJudge

ROWS = {"max_reqs": 3, "max_context_len": 4}
RADIX = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18}
BREAKING: tuple[Operation, ...] = (
    AllocRows(1),
    WriteRow(Span(1, 0, 1), 0, 1, (7,)),
    FreeRow(Span(1, 0, 1)),
    ReadRows(),
)


def trials_of(adapter: str, law: str, budget: ShrinkBudget | None = None) -> Trials:
    config = ROWS if "tiny" in adapter else RADIX
    header = header_of(make_adapter(adapter, dict(config)), 5)
    return Trials(header, {law}, budget or ShrinkBudget())


def test_a_program_that_breaks_the_law_comes_back_up_to_the_step(tiny: str) -> None:
    """P2: with its outcomes and the seed; what comes later is left out."""
    trials = trials_of(f"{tiny}:KeepsEntries", "P2")
    result = trials.play(Program(ROWS, (*BREAKING, ReadRows(), AllocRows(0))))
    assert result is not None
    program, found = result
    assert program.operations == BREAKING
    assert [step.number for step in found.history.steps] == [1, 2, 3, 4]
    assert found.history.header.seed == 5


def test_another_law_is_no_success(tiny: str) -> None:
    """It may be another bug."""
    assert trials_of(f"{tiny}:KeepsEntries", "P1").play(Program(ROWS, BREAKING)) is None
    assert trials_of(f"{tiny}:TinyRows", "P2").play(Program(ROWS, BREAKING)) is None


def test_what_lost_its_sense_goes_along() -> None:
    """R5: a free of what the cache owns, an insert with more slots than the match gave, and what follows."""
    trials = trials_of("faulty-short-matches", "R2")
    operations: list[Operation] = [
        Alloc(3),
        Insert(Key((1, 2)), (Span(1, 0, 2),)),
        Free((Span(1, 0, 2),)),
        Match(Key((8,))),
        Insert(Key((8, 9)), (Span(4, 0, 2),)),
        Match(Key((1, 2))),
    ]
    result = trials.play(Program({**RADIX}, tuple(operations)))
    assert result is not None
    assert result[0].operations == (*operations[:2], Match(Key((8,))), Match(Key((1, 2))))


def test_what_only_the_judge_sees_to_be_senseless_goes_along(tiny: str) -> None:
    """The adapter has done it then, so the program is begun again."""
    budget = ShrinkBudget()
    trials = trials_of(f"{tiny}:KeepsEntries", "P2", budget)
    senseless = FreeRow(Span(0, 2, 3))  # nobody's, and the adapter refuses nothing
    result = trials.play(Program(ROWS, (senseless, *_later(BREAKING))))
    assert result is not None
    assert result[0].operations == BREAKING
    assert budget.plays == 2


def _later(operations: tuple[Operation, ...]) -> list[Operation]:
    """Number a program that begins with an `AllocRows` from 2."""
    row = Span(2, 0, 1)
    return [operations[0], WriteRow(row, 0, 1, (7,)), FreeRow(row), *operations[3:]]


def test_nothing_is_asked_twice(tiny: str) -> None:
    """Unless everything is to be looked at in another way."""
    trials = trials_of(f"{tiny}:TinyRows", "P2")
    program = Program(ROWS, BREAKING)
    assert [trials.is_new(program), trials.is_new(program)] == [True, False]
    trials.forget()
    assert trials.is_new(program)


def test_the_end_is_judged_where_that_is_asked_for(tiny: str) -> None:
    """X3: rows handed out in another order the second time."""
    trials = trials_of(f"{tiny}:Moody", "X3")
    program = Program(ROWS, tuple(AllocRows(1) for _ in range(3)))
    assert trials.play(program) is None
    trials.look = Look.TO_THE_END
    assert any(trials.play(program) for _ in range(20))


def test_an_adapter_that_cannot_be_built_breaks_nothing() -> None:
    """A pool of no slots, a key that is missing."""
    trials = trials_of("radix", "R2")
    assert trials.play(Program({**RADIX, "slots": 0}, ())) is None
    assert trials.play(Program({}, ())) is None


def test_a_crash_and_a_hang_break_nothing(tiny: str) -> None:
    """A hang is counted."""
    budget = ShrinkBudget()
    assert trials_of(f"{tiny}:KeepsEntriesAndBreaks", "P2", budget).play(Program(ROWS, BREAKING)) is None
    assert budget.misfits == {"AdapterError": 1}
    trials = trials_of(f"{tiny}:KeepsEntriesAndHangs", "P2", budget)
    with time_limit(0.2):
        assert trials.play(Program(ROWS, BREAKING)) is None
    assert budget.hangs == 1


def test_a_mistake_of_a_judge_is_not_taken_for_a_misfit(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidate breaks nothing, and what was wrong is told."""
    budget = ShrinkBudget()
    trials = trials_of(f"{tiny}:KeepsEntries", "P2", budget)
    monkeypatch.delattr(RowJudge, "_judge_read_rows")
    assert trials.play(Program(ROWS, BREAKING)) is None
    (told,) = budget.tell_mistakes()
    assert told.startswith("1 candidate could not be run: AttributeError: 'RowJudge' object has no attribute")
    assert not budget.misfits


def test_no_program_is_begun_without_budget(tiny: str) -> None:
    """Nor one carried on once time is up."""
    for budget in (ShrinkBudget(plays=0), ShrinkBudget(seconds=0.0)):
        with pytest.raises(OutOfBudgetError):
            trials_of(f"{tiny}:TinyRows", "P2", budget).play(Program(ROWS, BREAKING))
