"""Recorded histories, run again."""

from __future__ import annotations

import dataclasses

import pytest

from pymllm.conformance.program import run_program
from pymllm.conformance.rerun import rerun_history
from pymllm.errors import ProgramError, UsageError
from pymllm.history.files import History, Step
from pymllm.history.operations import AllocRows, FreeRow, Merge, ReadRows, Span, WriteRow
from pymllm.history.outcomes import NoRoom, Outcome

CONFIG = {"max_reqs": 3, "max_context_len": 4}


@pytest.fixture
def history(tiny: str) -> History:
    program = [AllocRows(1), WriteRow(Span(1, 0, 1), 0, 1, (7,)), FreeRow(Span(1, 0, 1)), ReadRows()]
    return run_program(f"{tiny}:TinyRows", CONFIG, program)


def test_the_same_again(history: History, tiny: str) -> None:
    """Nothing differs, and laws were tested."""
    result = rerun_history(history, f"{tiny}:TinyRows")
    assert (result.violation, result.misfit, result.differences) == (None, None, ())
    assert result.history.steps == history.steps
    assert result.exercised["P1"] > 0
    assert result.audited == {}


def test_another_adapter_breaks_the_law(history: History, tiny: str) -> None:
    """P2: the history ends with the step that shows it, whose outcome is not the recorded one."""
    result = rerun_history(history, f"{tiny}:KeepsEntries")
    assert result.violation is not None
    assert result.violation.law == "P2"
    assert len(result.history) == 4
    assert [now.number for _, now in result.differences] == [4]


def test_walks_from_inside_are_counted(history: History) -> None:
    """Our own classes are looked at from inside, too."""
    assert rerun_history(history, "rows").audited["P1"] == 4


def test_another_configuration_can_be_chosen(history: History, tiny: str) -> None:
    """What fails in one may hold in another."""
    result = rerun_history(history, f"{tiny}:TinyRows", {"max_reqs": 1, "max_context_len": 2})
    assert result.history.header.config == {"max_reqs": 1, "max_context_len": 2}
    assert result.violation is None
    assert [now.number for _, now in result.differences] == [1, 2, 3, 4]


def test_a_program_that_was_never_run_has_no_differences(history: History, tiny: str) -> None:
    """Outcomes may be missing."""
    program = History(history.header, [Step(step.number, step.operation) for step in history.steps])
    assert rerun_history(program, f"{tiny}:TinyRows").differences == ()


def test_a_program_that_does_not_fit_is_no_ones_fault(history: History, tiny: str) -> None:
    """It was recorded where two rows were given; here there are none, so nothing can be said of the rest."""
    steps = [Step(1, AllocRows(2), history.steps[0].outcome), Step(5, FreeRow(Span(1, 0, 1)))]
    result = rerun_history(
        History(history.header, steps), f"{tiny}:TinyRows", {"max_reqs": 1, "max_context_len": 4}
    )
    assert result.misfit is not None
    assert result.misfit.startswith("step 5: step 1 gave 0")
    assert result.violation is None


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([Step(4, FreeRow(Span(1, 0, 1)))], "step 4: step 1 gave 0"),
        ([Step(1, AllocRows(4), Outcome(NoRoom(), (), {"size": 3, "available_size": 3})),
          Step(2, FreeRow(Span(1, 0, 1)))], "step 2: step 1 gave 0"),
    ],
)  # fmt: skip
def test_a_program_without_sense_is_refused(
    history: History, tiny: str, steps: list[Step], words: str
) -> None:
    """X1: nothing differs from what was recorded, so the program itself is wrong."""
    with pytest.raises(ProgramError, match=words):
        rerun_history(History(history.header, steps), f"{tiny}:TinyRows")


def test_an_adapter_of_another_kind_is_refused(history: History, tiny: str) -> None:
    """X1: the message names both kinds."""
    with pytest.raises(UsageError, match="a program for rows; token-slots is of kind slots"):
        rerun_history(history, "token-slots")
    header = dataclasses.replace(history.header, kind="slots")
    with pytest.raises(UsageError, match="a program for slots"):
        rerun_history(History(header, [Step(1, Merge())]), f"{tiny}:TinyRows")
