"""What came of judging one file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import pytest
from jsonschema import Draft202012Validator

from pymllm.cli.judgement import Judgement, judgement_schema, make_document, make_text, read_program
from pymllm.errors import InvariantViolation, TraceError
from pymllm.history.files import Header, History, Step
from pymllm.history.operations import Clear
from pymllm.history.outcomes import Done, Outcome
from pymllm.oracle.verdicts import Verdict

ONE = History(Header("rows", "rows", {"max_reqs": 3}), [Step(4, Clear(), Outcome(Done()))])
TWO = History(Header("rows", "rows"), [*ONE.steps, Step(6, Clear(), Outcome(Done()))])
VIOLATION = InvariantViolation("P2", "row 1", expected="0", observed="7")

HOLDS = Judgement("judge", "a.jsonl", "rows", TWO, {"P1": 1200, "P2": 3, "P3": 0}, {})
BREAKS = Judgement("rerun", "a.jsonl", "rows", ONE, {"P1": 2}, {"P1": 1}, VIOLATION, None, (4,))
MISFIT = Judgement("rerun", "a.jsonl", "tiny", ONE, {"P1": 2}, {}, None, "step 5: step 1 gave 0", (4,))
NOTHING = Judgement("rerun", "a.jsonl", "rows", ONE, {}, {})
MANY = Judgement("rerun", "a.jsonl", "rows", TWO, {"P1": 1}, {}, None, None, tuple(range(1, 13)))
ALL = (HOLDS, BREAKS, MISFIT, NOTHING, MANY)


@pytest.mark.parametrize(
    ("judgement", "verdict"),
    [
        (HOLDS, Verdict.HOLDS),
        (BREAKS, Verdict.VIOLATED),
        (MISFIT, Verdict.UNKNOWN),
        (NOTHING, Verdict.UNKNOWN),
        (MANY, Verdict.HOLDS),
    ],
)
def test_a_verdict_is_drawn(judgement: Judgement, verdict: Verdict) -> None:
    """Nothing holds that was not tested."""
    assert judgement.verdict is verdict


@pytest.mark.parametrize("judgement", ALL)
def test_the_name_in_a_file_forges_no_verdict(judgement: Judgement) -> None:
    """Whoever wrote the file chose it; the first line is the verdict, and the only one."""
    text = make_text(replace(judgement, adapter="x\nholds  9 steps\x1b[2J")).split("\n")
    assert [line for line in text if "\x1b" in line or line.startswith("holds  9")] == []
    assert "x\\nholds  9 steps\\x1b[2J" in text[0]


@pytest.mark.parametrize(
    ("judgement", "lines"),
    [
        (
            HOLDS,
            ["holds  2 steps of rows: 1,203 tests of 2 laws, none broken", "    tests      P1 1,200, P2 3"],
        ),
        (
            BREAKS,
            [
                "P2  VIOLATED by rows: a freed row is zero, and is freed once",
                "    looked at  row 1",
                "    expected   0",
                "    observed   7",
                "    at         step 4, in a program of 1 step (max_reqs 3)",
                "    outcomes   differ from the recorded ones at step 4",
            ],
        ),
        (
            MISFIT,
            [
                "unknown  tiny made other choices than the program builds on",
                "    because    step 5: step 1 gave 0",
                "    outcomes   differ from the recorded ones at step 4",
            ],
        ),
        (NOTHING, ["unknown  1 step of rows tested no law", "    outcomes   as recorded"]),
        (
            MANY,
            [
                "holds  2 steps of rows: 1 tests of 1 laws, none broken",
                "    tests      P1 1",
                "    outcomes   differ from the recorded ones at step 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...",
            ],
        ),
    ],
)
def test_the_text_is_facts(judgement: Judgement, lines: list[str]) -> None:
    """The first line is the verdict."""
    assert make_text(judgement).splitlines() == lines


@pytest.mark.parametrize("judgement", ALL)
def test_the_document_keeps_to_its_schema(judgement: Judgement) -> None:
    """Whatever came out."""
    document = json.loads(json.dumps(make_document(judgement)))
    Draft202012Validator(judgement_schema()).validate(document)
    assert document["exit_status"] == judgement.verdict.exit_status
    assert document["steps"] == len(judgement.history)


def test_the_document_has_the_violation() -> None:
    """Law, what was looked at, expected, observed, step."""
    assert make_document(BREAKS)["violation"] == {
        "law": "P2",
        "message": "row 1",
        "expected": "0",
        "observed": "7",
        "step": 4,
    }
    empty = Judgement("judge", "a", "rows", History(Header("rows", "rows")), {}, {}, VIOLATION)
    assert make_document(empty)["violation"]["step"] == 0


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """X1: the system's words, or the line that is none."""
    with pytest.raises(click.UsageError, match="cannot be read: No such file"):
        read_program(str(tmp_path / "none.jsonl"))
    with pytest.raises(click.UsageError, match="cannot be read: Is a directory"):
        read_program(str(tmp_path))
    (tmp_path / "bad.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(TraceError, match=r"bad\.jsonl:1: a history begins with a header"):
        read_program(str(tmp_path / "bad.jsonl"))
