"""A program run again and made smaller, as a process beside the command line does it."""

from __future__ import annotations

import pytest

from pymllm.conformance import shrinker
from pymllm.conformance.program import run_program
from pymllm.conformance.shrinker import ShrinkRun, ShrinkTask, run_shrink, shows_again
from pymllm.errors import ProgramError
from pymllm.history.files import History, Step
from pymllm.history.operations import AllocRows, FreeRow, ReadRows, Span, WriteRow

CONFIG = {"max_reqs": 2, "max_context_len": 2}
PROGRAM = [
    AllocRows(0),
    ReadRows(),
    AllocRows(1),
    WriteRow(Span(3, 0, 1), 0, 1, (7,)),
    FreeRow(Span(3, 0, 1)),
    ReadRows(),
]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[ShrinkRun]:
    words: list[ShrinkRun] = []
    monkeypatch.setattr(shrinker, "tell", words.append)
    monkeypatch.setattr(shrinker, "_BETWEEN_WORDS", 0.0)
    return words


@pytest.fixture
def history() -> History:
    return run_program("rows", CONFIG, PROGRAM)


def test_what_is_found_is_told_as_it_gets_smaller(history: History, tiny: str, told: list[ShrinkRun]) -> None:
    """P2: first the program as it was; the answer is the smallest, and whether it shows the law again."""
    run = run_shrink(ShrinkTask(history, f"{tiny}:KeepsEntries", (), 60.0))
    lengths = [len(word.best.history) for word in told if word.best is not None]
    assert (lengths[0], lengths) == (6, sorted(lengths, reverse=True))
    assert run.before is not None
    assert run.best is not None
    assert (len(run.before.history), len(run.best.history), run.is_rerun) == (6, 4, True)
    assert (run.best.violation.law, run.plays) == ("P2", told[-1].plays + 1)
    assert shows_again(run.best)


def test_of_a_sound_adapter_there_is_the_rerun_alone(history: History, told: list[ShrinkRun]) -> None:
    """Nothing is told on the way."""
    run = run_shrink(ShrinkTask(history, "rows", (), 60.0))
    assert (run.before, run.best, told) == (None, None, [])
    assert run.result is not None
    assert run.result.violation is None


def test_words_are_seconds_apart(history: History, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long program takes some time to be told; the first comes at once."""
    words: list[ShrinkRun] = []
    monkeypatch.setattr(shrinker, "tell", words.append)
    monkeypatch.setattr(shrinker, "_BETWEEN_WORDS", 1e6)
    assert run_shrink(ShrinkTask(history, f"{tiny}:KeepsEntries", (), 60.0)).plays > 1
    assert len(words) == 1


def test_a_program_without_sense_is_refused(history: History) -> None:
    """It has no acts that could show why."""
    steps = [Step(1, FreeRow(Span(7, 0, 1)))]
    with pytest.raises(ProgramError, match="step 7"):
        run_shrink(ShrinkTask(History(history.header, steps), "rows", (), 60.0))
