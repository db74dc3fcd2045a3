"""Tests of the words about steps that were not done (X9), which limit a verdict."""

from __future__ import annotations

import dataclasses

import pytest

from pymllm.adapters.process.messages import read_answer
from pymllm.cli.search.check_protocol import make_protocol_text
from pymllm.cli.tables import draw_document
from pymllm.documents.programs import Exchange, Introduced, ProgramRow
from pymllm.documents.searches import LimitRow
from pymllm.report.findings import limit_words
from pymllm.search.results import SavedFiles, VerifyReport

LIMIT = LimitRow("write_row", "it is hard", 2, 38, 3, {"max_reqs": 1}, "program")
TOLD = "write_row: 2 steps not done of 40 (it is hard); step 3 of a program on max_reqs 1, which --json has"


@pytest.fixture
def limited(report: VerifyReport) -> VerifyReport:
    """The report, and the adapter that holds has a limit."""
    _, fine, _ = report.adapters
    law = fine.laws[0]
    row = type(law)(law.id, law.sentence, law.source, law.verdict, law.tests, law.walks, 0, ("write_row",))
    fine = dataclasses.replace(fine, laws=(row, *fine.laws[1:]), limits=(LIMIT,))
    return dataclasses.replace(report, adapters=(fine,))


def test_a_verdict_names_its_limits(limited: VerifyReport) -> None:
    """A line for each kind of step, and a word beside each law that such steps would have tested."""
    text = draw_document(limited.document())
    assert f"\nlimits    rows {TOLD}\n" in text
    assert " holds ^ " in text
    assert "\n^ " in text
    (adapter,) = limited.document().adapters
    assert adapter.limits == (LIMIT,)


def test_what_holds_but_for_limits_says_so(limited: VerifyReport) -> None:
    """Also the line that sums up."""
    (fine,) = limited.adapters
    fine = dataclasses.replace(fine, laws=fine.laws[:1])
    text = draw_document(dataclasses.replace(limited, adapters=(fine,)).document())
    assert "holds     all 1 law that apply, but for the limits above\n" in text


def test_a_matrix_marks_what_was_tested_but_for_its_limits(limited: VerifyReport) -> None:
    """The mark stands in the legend."""
    text = draw_document(limited.comparison(SavedFiles()))
    assert f"\nlimits    rows {TOLD}\n" in text
    assert " 34 ^" in text
    assert "\n^ " in text


@pytest.mark.parametrize(
    ("done", "steps"),
    [(38, "2 steps not done of 40"), (0, "2 steps not done, and none was done"), (None, "2 steps not done")],
)
def test_a_count_is_told_as_far_as_it_is_known(done: int | None, steps: str) -> None:
    """A step that follows from another is told without the number of times that it was done."""
    row = LimitRow("write_row", "it is hard", 2, done, 3, {})
    assert limit_words(row) == f"write_row: {steps} (it is hard); step 3"


HELLO = (
    b'{"say": "hello", "protocol": 1, "name": "a", "version": "1", "language": "C", "kind": "prefix", '
    b'"capabilities": [], "configurations": [{}], "limits": %b}\n'
)


def test_a_program_declares_its_limits_with_its_hello() -> None:
    """A limit that names no operation of the kind is a wrong answer."""
    said = read_answer(HELLO % b'{"unlock": "as it was taken"}')
    assert said.limits == {"unlock": "as it was taken"}  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="limits name 'unlok', which is no operation of prefix"):
        read_answer(HELLO % b'{"unlok": "as it was taken"}')


def test_a_check_of_the_protocol_tells_of_limits() -> None:
    """Above the table of answers."""
    limits = {"unlock": "as it was taken"}
    said = Introduced(1, "a", "1", "C", "prefix", (), False, False, limits)
    text = make_protocol_text(ProgramRow("command:x", said, 1, 0, (Exchange(1, "hello", "hello"),), None))
    assert "\nlimit  unlock may be unsupported: as it was taken\n" in text
