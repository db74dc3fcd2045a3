"""Programs that were written down."""

from __future__ import annotations

import pytest

from pymllm.conformance.program import run_program
from pymllm.errors import AdapterError, InvariantViolation, ProgramError, UsageError
from pymllm.history.operations import AllocRows, FreeRow, ReadRows, Span, WriteRow
from pymllm.history.outcomes import Slots

CONFIG = {"max_reqs": 3, "max_context_len": 4}
WRITE_AND_FREE = [
    AllocRows(1),
    WriteRow(Span(1, 0, 1), 0, 1, (7,)),
    FreeRow(Span(1, 0, 1)),
    ReadRows(),
]


def test_a_program_runs_and_gives_its_history(tiny: str) -> None:
    """Every step has its outcome, whatever adapter runs it."""
    for adapter in ("rows", f"{tiny}:TinyRows"):
        history = run_program(adapter, CONFIG, WRITE_AND_FREE)
        assert [step.number for step in history.steps] == [1, 2, 3, 4]
        assert history.steps[0].outcome is not None
        assert history.steps[0].outcome.result == Slots((1,))
        assert (history.header.adapter, history.header.config) == (adapter, CONFIG)


def test_a_broken_law_is_raised(tiny: str) -> None:
    """P2: what a pasted program shows is the violation itself."""
    with pytest.raises(InvariantViolation) as caught:
        run_program(f"{tiny}:KeepsEntries", CONFIG, WRITE_AND_FREE)
    assert caught.value.law == "P2"


def test_steps_may_have_numbers_of_their_own(tiny: str) -> None:
    """A program of which lines were dropped keeps its references."""
    history = run_program(f"{tiny}:TinyRows", CONFIG, {3: AllocRows(1), 9: FreeRow(Span(3, 0, 1))})
    assert [step.number for step in history.steps] == [3, 9]


def test_the_whole_program_is_run_again(tiny: str) -> None:
    """X3: a second run with other outcomes is a violation, too."""
    with pytest.raises(InvariantViolation) as caught:
        run_program(f"{tiny}:Moody", {"max_reqs": 60, "max_context_len": 1}, [AllocRows(50)])
    assert caught.value.law == "X3"


def test_what_cannot_be_run_is_told(tiny: str) -> None:
    """X1: a program without sense, an adapter that does not exist, one that gives up."""
    with pytest.raises(ProgramError, match="step 1 gave 1"):
        run_program(f"{tiny}:TinyRows", CONFIG, [AllocRows(1), FreeRow(Span(1, 1, 2))])
    with pytest.raises(UsageError, match="no adapter 'rowz'"):
        run_program("rowz", CONFIG, [])
    with pytest.raises(AdapterError, match="lost the connection"):
        run_program(f"{tiny}:GivesUp", CONFIG, [AllocRows(2), AllocRows(1)])
