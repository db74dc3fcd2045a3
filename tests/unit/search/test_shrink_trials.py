"""Tests of the bounds of a shrinker, of senseless programs, and of its trials of programs."""

from __future__ import annotations

import re

import pytest
from msgspec import structs

from pymllm.adapters.base import header_of
from pymllm.adapters.registry import make_adapter
from pymllm.errors import AdapterError, UsageError
from pymllm.history import operations as ops
from pymllm.history.operations import Key, Operation, Span
from pymllm.machines.acting import FoundViolation, make_machine
from pymllm.machines.examiner import Examiner
from pymllm.machines.rows import RowMachine
from pymllm.oracle.models.rows import RowModel
from pymllm.search.reduction import Program
from pymllm.search.shrink_trials import (
    ActTrials,
    Look,
    OutOfBudgetError,
    ShrinkBudget,
    Trials,
    makes_sense,
    play_scenario,
)
from pymllm.work.time_limit import time_limit
from tests.unit.finding import DIRTY, ROWS, found_by


def test_programs_are_counted_up_to_a_number() -> None:
    """The one after the last is not played."""
    told = []
    budget = ShrinkBudget(plays=2, on_play=lambda: told.append(budget.plays))
    budget.spend()
    budget.spend()
    with pytest.raises(OutOfBudgetError):
        budget.spend()
    assert (budget.plays, told) == (2, [0, 1])


def test_time_is_up_at_some_time() -> None:
    """Between two programs, and within one."""
    budget = ShrinkBudget(seconds=0.0)
    for ask in (budget.spend, budget.check_time):
        with pytest.raises(OutOfBudgetError):
            ask()
    assert budget.plays == 0
    ShrinkBudget(seconds=60.0).check_time()


def test_an_adapter_that_hangs_thrice_is_left_alone() -> None:
    """Each time takes as long as one waits."""
    budget = ShrinkBudget()
    budget.hangs = 2
    budget.spend()
    budget.hangs = 3
    with pytest.raises(OutOfBudgetError):
        budget.spend()


def test_a_part_leaves_the_rest_for_later() -> None:
    """Whether it ended early, or was ended."""
    budget = ShrinkBudget(plays=10, seconds=1_000.0)
    with budget.part(0.5):
        for _ in range(100):
            budget.spend()
    assert budget.plays == 5
    with budget.part(0.2):
        budget.spend()
    for _ in range(4):
        budget.spend()
    with pytest.raises(OutOfBudgetError):
        budget.spend()


def test_a_part_without_bounds_has_none() -> None:
    """Neither of programs nor of time."""
    budget = ShrinkBudget()
    with budget.part(0.1):
        for _ in range(100):
            budget.spend()
    assert budget.plays == 100


def _caught(module: str, error: Exception) -> Exception:
    """An error that a function of some module raises."""
    space: dict[str, object] = {"__name__": module, "error": error}
    exec("def fail():\n    raise error\n", space)
    try:
        space["fail"]()  # type: ignore[operator]
    except Exception as caught:
        return caught
    raise AssertionError("it raises")


def test_what_stops_a_candidate_is_counted_by_class() -> None:
    """A candidate that cannot be run is counted by its error's class, such as a pool too small."""
    budget = ShrinkBudget()
    for error in (AdapterError("odd", "hung"), AdapterError("odd", "broke"), UsageError("no")):
        budget.note_failure(_caught("pymllm.machines.examiner", error))
    budget.note_failure(_caught("pymllm.workloads.engine", TypeError("not in here")))
    budget.note_failure(_caught("pymllm.machinesque", TypeError("nor here")))
    assert budget.misfits == {"AdapterError": 2, "UsageError": 1, "TypeError": 2}
    assert budget.tell_mistakes() == ()


def test_a_mistake_of_ours_is_told_with_its_place() -> None:
    """An unexpected error of a driver or a judge is told with its place and is no misfit."""
    budget = ShrinkBudget()
    for _ in range(2):
        budget.note_failure(_caught("pymllm.oracle.judge", AttributeError("no such thing")))
    budget.note_failure(_caught("pymllm.machines.slots", KeyError(3)))
    assert not budget.misfits
    told = [re.sub(r"\(line .* line ", "(line ", words) for words in budget.tell_mistakes()]
    assert told == [
        "2 candidates could not be run: AttributeError: no such thing (line 2 of <string>)",
        "1 candidate could not be run: KeyError: 3 (line 2 of <string>)",
    ]


CONFIG = {"page_size": 1, "window": 4, "pool": "swa", "slots": 24, "swa_slots": 18}
DONE: list[Operation] = [
    ops.Alloc(4),  # 1
    ops.Insert(Key((1, 2)), (Span(1, 0, 2),)),  # 2
    ops.FreeSWA((Span(1, 2, 3),)),  # 3
]


@pytest.fixture
def examiner() -> Examiner:
    examiner = Examiner(make_adapter("radix-window", dict(CONFIG)))
    for operation in DONE:
        examiner.do(operation)
    return examiner


@pytest.mark.parametrize(
    "operation",
    [
        ops.Free((Span(1, 2, 4),)),
        ops.FreeSWA((Span(1, 3, 4),)),
        ops.MoveSWA((Span(1, 3, 4),), (Span(1, 2, 3),)),
        ops.Insert(Key((1, 2, 3)), (Span(1, 0, 2), Span(1, 3, 4))),
        ops.Insert(Key((1, 2)), None),
        ops.Match(Key((5,))),
    ],
)
def test_what_is_the_callers_may_be_named(examiner: Examiner, operation: Operation) -> None:
    """So may what the cache has at the same place."""
    assert makes_sense(examiner.judge, operation)


@pytest.mark.parametrize(
    "operation",
    [
        ops.Free((Span(1, 0, 1),)),
        ops.Free((Span(1, 2, 3), Span(1, 2, 3))),
        ops.Free((Span(0, 20, 21),)),
        ops.Free((Span(9, 0, 1),)),
        ops.FreeSWA((Span(1, 2, 3),)),
        ops.MoveSWA((Span(1, 2, 3),), (Span(1, 3, 4),)),
        ops.MoveSWA((Span(1, 3, 4),), (Span(1, 3, 4),)),
        ops.Insert(Key((2, 1)), (Span(1, 0, 2),)),
        ops.Insert(Key((8, 8)), (Span(1, 3, 4), Span(1, 3, 4))),
    ],
)
def test_what_is_not_may_not(examiner: Examiner, operation: Operation) -> None:
    """The judge would refuse to judge it, once it is done."""
    assert not makes_sense(examiner.judge, operation)


def test_of_other_kinds_everything_is_let_pass() -> None:
    """Their judges say afterwards what made no sense."""
    rows = Examiner(make_adapter("rows", {"max_reqs": 1, "max_context_len": 1}))
    assert makes_sense(rows.judge, ops.ReadRows())
    config = {**CONFIG, "window": None, "pool": "none"}
    without = Examiner(make_adapter("radix", config))
    assert makes_sense(without.judge, ops.Insert(Key((1,)), (Span(0, 5, 6),)))


RADIX = {"page_size": 1, "window": None, "pool": "token", "slots": 24, "swa_slots": 18}


def trials_of(adapter: str, law: str, budget: ShrinkBudget | None = None) -> Trials:
    config = ROWS if "tiny" in adapter else RADIX
    header = header_of(make_adapter(adapter, dict(config)), 5)
    return Trials(header, {law}, budget or ShrinkBudget())


def test_a_program_that_breaks_the_law_comes_back_up_to_the_step(tiny: str) -> None:
    """P2: with its outcomes and the seed; what comes later is left out."""
    trials = trials_of(f"{tiny}:KeepsEntries", "P2")
    result = trials.play(Program(ROWS, (*DIRTY, ops.ReadRows(), ops.AllocRows(0))))
    assert result is not None
    program, found = result
    assert program.items == DIRTY
    assert [step.number for step in found.history.steps] == [1, 2, 3, 4]
    assert found.history.header.seed == 5


def test_another_law_is_no_success(tiny: str) -> None:
    """It may be another bug."""
    assert trials_of(f"{tiny}:KeepsEntries", "P1").play(Program(ROWS, DIRTY)) is None
    assert trials_of(f"{tiny}:TinyRows", "P2").play(Program(ROWS, DIRTY)) is None


def test_what_lost_its_sense_goes_along() -> None:
    """R5: a free of what the cache owns, an insert with more slots than the match gave, and what follows."""
    trials = trials_of("faulty-short-matches", "R2")
    operations: list[Operation] = [
        ops.Alloc(3),
        ops.Insert(Key((1, 2)), (Span(1, 0, 2),)),
        ops.Free((Span(1, 0, 2),)),
        ops.Match(Key((8,))),
        ops.Insert(Key((8, 9)), (Span(4, 0, 2),)),
        ops.Match(Key((1, 2))),
    ]
    result = trials.play(Program({**RADIX}, tuple(operations)))
    assert result is not None
    assert result[0].items == (*operations[:2], ops.Match(Key((8,))), ops.Match(Key((1, 2))))


def test_what_only_the_judge_sees_to_be_senseless_goes_along(tiny: str) -> None:
    """The adapter has done it then, so the program is begun again."""
    budget = ShrinkBudget()
    trials = trials_of(f"{tiny}:KeepsEntries", "P2", budget)
    senseless = ops.FreeRow(Span(0, 2, 3))  # nobody's, and the adapter refuses nothing
    result = trials.play(Program(ROWS, (senseless, *_later(DIRTY))))
    assert result is not None
    assert result[0].items == DIRTY
    assert budget.plays == 2


def _later(operations: tuple[Operation, ...]) -> list[Operation]:
    """Number a program that begins with an `AllocRows` from 2."""
    row = Span(2, 0, 1)
    return [operations[0], ops.WriteRow(row, 0, 1, (7,)), ops.FreeRow(row), *operations[3:]]


def test_nothing_is_asked_twice(tiny: str) -> None:
    """Unless everything is to be looked at in another way."""
    trials = trials_of(f"{tiny}:TinyRows", "P2")
    program = Program(ROWS, DIRTY)
    assert [trials.is_new(program), trials.is_new(program)] == [True, False]
    trials.forget()
    assert trials.is_new(program)


def test_the_end_is_judged_where_that_is_asked_for(tiny: str) -> None:
    """X3: rows handed out in another order the second time."""
    trials = trials_of(f"{tiny}:Moody", "X3")
    program = Program(ROWS, tuple(ops.AllocRows(1) for _ in range(3)))
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
    assert trials_of(f"{tiny}:KeepsEntriesAndBreaks", "P2", budget).play(Program(ROWS, DIRTY)) is None
    assert budget.misfits == {"AdapterError": 1}
    trials = trials_of(f"{tiny}:KeepsEntriesAndHangs", "P2", budget)
    with time_limit(0.2):
        assert trials.play(Program(ROWS, DIRTY)) is None
    assert budget.hangs == 1


def test_a_mistake_of_a_judge_is_not_taken_for_a_misfit(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidate breaks nothing, and what was wrong is told."""
    budget = ShrinkBudget()
    trials = trials_of(f"{tiny}:KeepsEntries", "P2", budget)
    monkeypatch.delattr(RowModel, "has_entry")
    assert trials.play(Program(ROWS, DIRTY)) is None
    (told,) = budget.tell_mistakes()
    assert told.startswith("1 candidate could not be run: AttributeError: 'RowModel' object has no attribute")
    assert not budget.misfits


def test_no_program_is_begun_without_budget(tiny: str) -> None:
    """Nor one carried on once time is up."""
    for budget in (ShrinkBudget(plays=0), ShrinkBudget(seconds=0.0)):
        with pytest.raises(OutOfBudgetError):
            trials_of(f"{tiny}:TinyRows", "P2", budget).play(Program(ROWS, DIRTY))


@pytest.fixture
def found(tiny: str) -> FoundViolation:
    """Return the violation of P2 that a machine found in rows that keep their entries."""
    return found_by(make_machine(RowMachine, f"{tiny}:KeepsEntries", ROWS, seed=3, audit=False))


def play_acts(
    found: FoundViolation, *laws: str, adapter: str | None = None, budget: ShrinkBudget | None = None
) -> FoundViolation | None:
    """Play the acts behind a violation, on another adapter perhaps."""
    header = found.history.header
    header = structs.replace(header, adapter=adapter or header.adapter)
    assert found.scenario is not None
    if not laws:
        return play_scenario(found.scenario, header)
    trials = ActTrials(found.scenario, header, laws, budget or ShrinkBudget())
    result = trials.play(Program(header.config, found.scenario.acts))
    return None if result is None else result[1]


@pytest.mark.parametrize("laws", [(), ("P2",)], ids=["once", "to be made smaller"])
def test_acts_break_the_law_again(found: FoundViolation, laws: tuple[str, ...]) -> None:
    """P2, and none where the adapter has no fault any more."""
    again = play_acts(found, *laws)
    assert again is not None
    assert (again.violation.law, len(again.history)) == ("P2", len(found.history))
    assert play_acts(found, *laws, adapter="rows") is None


def test_acts_that_break_another_law_are_no_success(found: FoundViolation) -> None:
    """It may be another bug."""
    assert play_acts(found, "P1") is None


def test_what_stops_acts_is_counted(
    found: FoundViolation, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no smaller, and a mistake of the machine is told to the reader."""
    budget = ShrinkBudget()
    with time_limit(0.2):
        assert play_acts(found, "P2", adapter=f"{tiny}:KeepsEntriesAndHangs", budget=budget) is None
    assert budget.hangs == 1
    monkeypatch.delattr(RowMachine, "admit")
    assert play_acts(found, "P2", budget=budget) is None
    assert not budget.misfits
    (told,) = budget.tell_mistakes()
    assert told.startswith("1 candidate could not be run: KeyError: 'admit'")


def test_acts_end_in_the_middle(found: FoundViolation) -> None:
    """Time is looked at before each operation."""
    budget = ShrinkBudget(seconds=1_000.0)
    seen = []

    def late() -> None:
        seen.append(1)
        if len(seen) > 2:
            raise OutOfBudgetError

    budget.check_time = late  # type: ignore[method-assign]
    with pytest.raises(OutOfBudgetError):
        play_acts(found, "P2", budget=budget)
    assert len(seen) == 3
