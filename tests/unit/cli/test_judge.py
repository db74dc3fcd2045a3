"""``pymllm judge``: outcomes in, a verdict out, and no implementation anywhere."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pymllm.cli import main
from pymllm.conformance.program import run_program
from pymllm.history.files import History, Step, load_history, write_history
from pymllm.history.operations import AllocRows, FreeRow, ReadRows, Span, WriteRow
from pymllm.history.outcomes import Outcome, Table

CONFIG = {"max_reqs": 1, "max_context_len": 2}
PROGRAM = [AllocRows(1), WriteRow(Span(1, 0, 1), 0, 1, (7,)), FreeRow(Span(1, 0, 1)), ReadRows(), ReadRows()]


def judge(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["judge", *arguments], catch_exceptions=False)


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
    """What was tested is said."""
    result = judge(str(good))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("holds  5 steps of rows: ")
    assert "outcomes" not in result.stdout


def test_a_wrong_outcome_ends_with_1(bad: Path) -> None:
    """P2: at the step that shows it; what came after is not looked at."""
    result = judge(str(bad))
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.startswith("P2  VIOLATED by rows: a freed row is zero, and is freed once\n")
    assert "    at         step 4, in a program of 4 steps (max_reqs 1, max_context_len 2)\n" in result.stdout


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
        result = judge(str(good))
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert words in result.stderr
    result = judge("no/such.jsonl")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no/such.jsonl: cannot be read: No such file or directory" in result.stderr


def test_neither_torch_nor_an_adapter_is_needed(bad: Path) -> None:
    """Whoever gets a file by mail judges it with what the oracle is made of."""
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom pymllm.cli import main\n"
        f"assert CliRunner().invoke(main, ['judge', {str(bad)!r}]).exit_code == 1\n"
        "heavy = ('torch', 'numpy', 'hypothesis', 'pymllm.mem_cache', 'pymllm.adapters.own_pools')\n"
        "print(*[name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_run_that_was_cut_short_is_judged_until_there(good: Path) -> None:
    """What a recorder leaves of a process that died has its last operation without an outcome."""
    history = load_history(good)
    history.steps[-1] = dataclasses.replace(history.steps[-1], outcome=None)
    write_history(history, good)
    result = judge(str(good))
    assert result.exit_code == 0
    assert result.stdout.startswith("holds  4 steps of rows: ")
    assert "the run ended in step 5" in result.stderr
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
    assert result.stderr == f"pymllm: {good}: sizes that nobody knows were not judged: 'availble_size'\n"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda text: text.replace('"max_reqs": 1', '"max_reqs": 1000000000000'), "at most it is 65,536"),
        (
            lambda text: text.replace('"stop": 1', '"stop": 1000000000000', 1),
            "more than",
        ),
        (lambda text: "[" * 10_000, "more than 64 lists and objects"),
    ],
)
def test_a_file_that_wants_everything_is_refused_in_one_line(
    good: Path, spoil: Callable[[str], str], words: str
) -> None:
    """X1: before anything is built."""
    good.write_text(spoil(good.read_text(encoding="utf-8")), encoding="utf-8")
    result = judge(str(good))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert re.search(words, result.stderr)


def test_a_file_without_end_is_refused_in_one_line() -> None:
    """X1: with the most that is read of a line."""
    result = judge("/dev/zero")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "pymllm: /dev/zero:1: longer than 16,777,216 bytes, the most of a line\n"
