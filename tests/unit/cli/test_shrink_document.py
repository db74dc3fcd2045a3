"""What is told of a program that was made smaller."""

from __future__ import annotations

import dataclasses

import pytest
from jsonschema import Draft202012Validator

from pymllm.adapters.registry import make_adapter
from pymllm.cli.shrink_document import Shrunk, make_document, make_text, shrink_schema
from pymllm.conformance.acting import FoundViolation
from pymllm.conformance.examiner import Examiner
from pymllm.conformance.program import play_steps
from pymllm.conformance.shrinker import shrink
from pymllm.errors import InvariantViolation
from pymllm.history.files import History, Step
from pymllm.history.operations import AllocRows, FreeRow, ReadRows, Span, WriteRow

PROGRAM = [AllocRows(2), WriteRow(Span(1, 0, 1), 0, 1, (7,)), FreeRow(Span(1, 0, 1)), ReadRows()]


@pytest.fixture
def shrunk(tiny: str) -> Shrunk:
    examiner = Examiner(make_adapter(f"{tiny}:KeepsEntries", {"max_reqs": 2, "max_context_len": 2}))
    with pytest.raises(InvariantViolation) as caught:
        play_steps(examiner, enumerate(PROGRAM, 1))
    before = FoundViolation(examiner.history, caught.value)
    return Shrunk(
        "a b.jsonl", "a b.short.jsonl", before, shrink(before, plays=500), 1_234, 5.67, is_rerun=True
    )


def test_the_text_sets_what_is_beside_what_was(shrunk: Shrunk) -> None:
    """And only what is smaller; numbers with commas, names of files quoted."""
    lines = make_text(shrunk).splitlines()
    assert "    operations 4 -> 4" in lines
    assert "    max_reqs   2 -> 1" in lines
    assert "    programs   1,234 were run in 5.7 s; no part of it can go" in lines
    assert lines[-1].startswith("    again      pymllm rerun 'a b.short.jsonl' --adapter ")


def test_what_could_not_be_run_is_counted(shrunk: Shrunk) -> None:
    """By error; what this package did wrong itself stands for itself."""
    mistake = "2 candidates could not be run: KeyError: 3 (line 7 of judge.py)"
    after = dataclasses.replace(shrunk.after, mistakes=(mistake,))
    told = dataclasses.replace(shrunk, after=after, misfits={"AdapterError": 3, "UsageError": 1})
    lines = make_text(told).splitlines()
    assert (
        "    programs   1,234 were run in 5.7 s; 4 could not be run (AdapterError 3, UsageError 1); "
        "no part of it can go"
    ) in lines
    assert f"    mistake    of pymllm: {mistake}" in lines
    document = make_document(told)
    assert (document["misfits"], document["mistakes"]) == ({"AdapterError": 3, "UsageError": 1}, [mistake])


def test_a_program_that_stayed_long_is_not_printed(shrunk: Shrunk) -> None:
    """The file has it."""
    steps = [Step(number, ReadRows()) for number in range(1, 102)]
    long = FoundViolation(History(shrunk.after.history.header, steps), shrunk.after.violation)
    text = make_text(Shrunk("a", "b", shrunk.before, long, 1, 0.0))
    assert "    operations 4 -> 101" in text
    assert "run_program" not in text


def test_what_a_rerun_does_not_show_is_not_promised(shrunk: Shrunk) -> None:
    """X3: an engine's findings, for instance."""
    other = FoundViolation(shrunk.after.history, InvariantViolation("X3", "looked"))
    text = make_text(Shrunk("a", "b", shrunk.before, other, 1, 0.0))
    assert "again" not in text
    assert text.endswith("    written    b")


def test_the_document_keeps_to_its_schema(shrunk: Shrunk) -> None:
    """Every field is there."""
    document = make_document(shrunk)
    Draft202012Validator(shrink_schema()).validate(document)
    assert document["before"] == {
        "operations": 4,
        "tokens": 0,
        "config": {"max_reqs": 2, "max_context_len": 2},
    }
    assert document["after"]["config"] == {"max_reqs": 1, "max_context_len": 1}
    assert (document["programs"], document["seconds"]) == (1_234, 5.67)
    assert document["program"].startswith("from pymllm.conformance.program import run_program")
