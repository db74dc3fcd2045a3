"""``pymllm judge``, and how a judgement is told."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from msgspec import structs

from pymllm.cli.results.judge import make_judgement, make_text
from pymllm.cli.schema import make_schema
from pymllm.documents.programs import JudgementDocument
from pymllm.errors import InvariantViolation
from pymllm.history.files import Header, History, Step, load_history, write_history
from pymllm.history.operations import AllocRows, Clear, FreeRow, ReadRows, Span, WriteRow
from pymllm.history.outcomes import Done, Outcome, Table, Unsupported
from pymllm.search.program import run_program
from tests.unit.cli.typed import refused, typed

CONFIG = {"max_reqs": 1, "max_context_len": 2}
PROGRAM = [AllocRows(1), WriteRow(Span(1, 0, 1), 0, 1, (7,)), FreeRow(Span(1, 0, 1)), ReadRows(), ReadRows()]


judge = partial(typed, "judge")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    write_history(run_program("rows", dict(CONFIG), PROGRAM), tmp_path / "good.jsonl")
    return tmp_path / "good.jsonl"


@pytest.fixture
def bad(good: Path) -> Path:
    """The same, but for one value that somebody else would have read."""
    history = load_history(good)
    outcome = Outcome(Table(((0, 0), (7, 0))), (), {"size": 1, "available_size": 1})
    history.steps[3] = Step(4, ReadRows(), outcome)
    write_history(history, good.with_name("bad.jsonl"))
    return good.with_name("bad.jsonl")


def test_outcomes_that_break_no_law_end_with_0(good: Path) -> None:
    """A history that breaks no law ends with status 0 and a count of the judged steps."""
    result = judge(str(good))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("holds  5 steps of rows: ")
    assert "outcomes" not in result.stdout


def test_one_program_of_several_is_named_behind_the_file(good: Path, bad: Path) -> None:
    """A program of several is named behind the file, and a file with the mark in its name is read."""
    both = good.with_name("both.jsonl")
    for it in (good, bad):
        history = load_history(it)
        write_history(History(structs.replace(history.header, name=it.stem), history.steps), it)
    both.write_text(good.read_text(encoding="utf-8") + bad.read_text(encoding="utf-8"), encoding="utf-8")
    assert judge(f"{both}#good").exit_code == 0
    assert judge(f"{both}#bad").stdout.startswith("P2  VIOLATED by rows: ")
    refused("judge", both, words="several programs; add # and the name of one: good, bad")
    refused("judge", f"{both}#goood", words="no program has the name 'goood' (did you mean good?)")
    refused("judge", f"{good.with_name('no.jsonl')}#good", words="no.jsonl: cannot be read: No such file")
    good.rename(good.with_name("a#bad"))
    assert judge(str(good.with_name("a#bad"))).exit_code == 0
    assert judge(f"{bad}#").exit_code == 2


def test_a_wrong_outcome_ends_with_1(bad: Path) -> None:
    """P2: at the step that shows it; what came after is not looked at."""
    result = judge(str(bad))
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.startswith("P2  VIOLATED by rows: a freed row is zero, and is freed once\n")
    assert "    at         step 4, in a program of 4 steps (max_reqs 1, max_context_len 2)\n" in result.stdout


@pytest.fixture
def silent(bad: Path) -> Path:
    """The wrong outcome replaced by an answer that says nothing."""
    history = load_history(bad)
    history.steps[3] = structs.replace(history.steps[3], outcome=Outcome(Unsupported("not now")))
    write_history(history, bad)
    return bad


def test_an_outcome_that_was_replaced_by_unsupported_is_a_violation(silent: Path) -> None:
    """X9: it hid what breaks P2, and did not pass for a step that counts as nothing."""
    result = judge(str(silent))
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.startswith("X9  VIOLATED by rows: every claimed operation is carried out\n")
    assert "unsupported (not now)" in result.stdout


def test_a_limit_that_was_declared_is_told_with_the_verdict(silent: Path) -> None:
    """X9: how many steps, why, and which is the first."""
    history = load_history(silent)
    header = structs.replace(history.header, limits={"read_rows": "it is a secret"})
    write_history(History(header, history.steps), silent)
    result = judge(str(silent))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "    limits     read_rows: 1 step not done of 2 (it is a secret); step 4\n" in result.stdout
    (limit,) = json.loads(judge(str(silent), "--json").stdout)["limits"]
    assert (limit["operation"], limit["not_done"], limit["done"], limit["step"]) == ("read_rows", 1, 1, 4)


def test_an_older_file_that_leaves_a_step_undone_is_unknown(silent: Path) -> None:
    """X9: its adapter could declare nothing, and nobody knows what the answer hid."""
    history = load_history(silent)
    write_history(History(structs.replace(history.header, specification="2.1"), history.steps), silent)
    result = judge(str(silent))
    assert (result.exit_code, result.stderr) == (3, "")
    assert result.stdout.startswith("unknown  rows left undone what it claims")
    assert "    limits     read_rows: 1 step not done (no limit is declared); step 4\n" in result.stdout


@pytest.mark.parametrize(("name", "status", "verdict"), [("good", 0, "holds"), ("bad", 1, "violated")])
def test_the_document_is_one_object(bad: Path, name: str, status: int, verdict: str) -> None:
    """For a program to read."""
    result = judge(str(bad.with_name(f"{name}.jsonl")), "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["exit_status"], document["verdict"]) == (status, status, verdict)
    assert document["command"] == "judge"


def test_a_program_that_tests_nothing_ends_with_3(good: Path) -> None:
    """Nothing is said to hold."""
    write_history(History(load_history(good).header), good)
    result = judge(str(good))
    assert (result.exit_code, result.stdout) == (3, "unknown  0 steps of rows tested no law\n")


def test_what_makes_no_sense_is_one_line_and_status_2(good: Path) -> None:
    """X1: a program that was not run, one that names what nobody gave, and no file."""
    history = load_history(good)
    for steps, words in (
        ([Step(3, ReadRows())], "step 3: it has no outcome"),
        ([Step(3, FreeRow(Span(1, 0, 1)), history.steps[2].outcome)], "step 1 gave 0 numbers, not 0..1."),
    ):
        write_history(dataclasses.replace(history, steps=steps), good)
        refused("judge", str(good), words=words)


def test_neither_torch_nor_an_adapter_is_needed(bad: Path) -> None:
    """A history is judged with the modules of the oracle alone."""
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom pymllm.cli import main\n"
        f"assert CliRunner().invoke(main, ['judge', {str(bad)!r}]).exit_code == 1\n"
        "heavy = ('torch', 'numpy', 'hypothesis', 'pymllm.mem_cache', 'pymllm.adapters.own_pools')\n"
        "print(*[name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_run_that_was_cut_short_is_judged_until_there(good: Path) -> None:
    """A history of a process that died, with a last operation without an outcome, is judged until there."""
    history = load_history(good)
    history.steps[-1] = dataclasses.replace(history.steps[-1], outcome=None)
    write_history(history, good)
    result = judge(str(good))
    assert result.exit_code == 0
    assert result.stdout.startswith("holds  4 steps of rows: ")
    assert "the recorded run ended in step 5" in result.stderr
    history.steps[-2] = dataclasses.replace(history.steps[-2], outcome=None)
    write_history(history, good)
    assert judge(str(good)).exit_code == 2


def test_a_size_that_nobody_knows_is_told(good: Path) -> None:
    """A mistyped one is judged by nobody, and looks as if it were."""
    good.write_text(
        good.read_text(encoding="utf-8").replace('"available_size"', '"availble_size"'), encoding="utf-8"
    )
    result = judge(str(good))
    assert result.exit_code == 0
    assert result.stderr == f"pymllm: {good}: sizes with unknown names were not judged: 'availble_size'\n"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda text: text.replace('"max_reqs": 1', '"max_reqs": 1000000000000'), "at most it is 65,536"),
        (lambda text: text.replace('"stop": 1', '"stop": 1000000000000', 1), "more than"),
        (lambda text: "[" * 10_000, "more than 64 lists and objects"),
    ],
)
def test_a_file_that_wants_everything_is_refused_in_one_line(
    good: Path, spoil: Callable[[str], str], words: str
) -> None:
    """X1: before anything is built."""
    good.write_text(spoil(good.read_text(encoding="utf-8")), encoding="utf-8")
    refused("judge", good, words=words)


# -- how a judgement is told -------------------------------------------------------------------------------

ONE = History(Header("rows", "rows", {"max_reqs": 3}), [Step(4, Clear(), Outcome(Done()))])
TWO = History(Header("rows", "rows"), [*ONE.steps, Step(6, Clear(), Outcome(Done()))])
VIOLATION = InvariantViolation("P2", "row 1", expected="0", observed="7")

HOLDS = make_judgement("judge", "a.jsonl", "rows", TWO, {"P1": 1200, "P2": 3, "P3": 0})
BREAKS = make_judgement(
    "rerun", "a.jsonl", "rows", ONE, {"P1": 2}, {"P1": 1}, violation=VIOLATION, differences=(4,)
)
MISFIT = make_judgement(
    "rerun", "a.jsonl", "tiny", ONE, {"P1": 2}, misfit="step 5: step 1 gave 0", differences=(4,)
)
NOTHING = make_judgement("rerun", "a.jsonl", "rows", ONE, {})
MANY = make_judgement("rerun", "a.jsonl", "rows", TWO, {"P1": 1}, differences=tuple(range(1, 13)))
ALL = (HOLDS, BREAKS, MISFIT, NOTHING, MANY)


@pytest.mark.parametrize("judgement", ALL)
def test_the_name_in_a_file_forges_no_verdict(judgement: JudgementDocument) -> None:
    """Whoever wrote the file chose it; the first line is the verdict, and the only one."""
    text = make_text(structs.replace(judgement, adapter="x\nholds  9 steps\x1b[2J")).split("\n")
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
                "unknown  tiny made other choices than the program relies on",
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
def test_the_text_is_facts(judgement: JudgementDocument, lines: list[str]) -> None:
    """The first line is the verdict."""
    assert make_text(judgement).splitlines() == lines


@pytest.mark.parametrize("judgement", ALL)
def test_the_document_keeps_to_its_schema(judgement: JudgementDocument) -> None:
    """Whatever came out."""
    document = json.loads(json.dumps(judgement.plain()))
    Draft202012Validator(make_schema("judgement")).validate(document)
    assert document["exit_status"] == judgement.verdict.exit_status


def test_the_document_has_the_violation() -> None:
    """Law, what was looked at, expected, observed, step."""
    said = {"law": "P2", "message": "row 1", "expected": "0", "observed": "7", "step": 4}
    assert BREAKS.plain()["violation"] == said
    empty = make_judgement("judge", "a", "rows", History(Header("rows", "rows")), {}, violation=VIOLATION)
    assert empty.plain()["violation"]["step"] == 0
