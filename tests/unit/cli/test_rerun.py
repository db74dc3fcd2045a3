"""``pymllm rerun``: a file and an adapter in, a verdict out."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pymllm.cli.schema import make_schema
from pymllm.history.files import Header, History, Step, load_history, write_history
from pymllm.history.operations import AllocRows, FreeRow, HashBytes, ReadRows, Span, WriteRow
from pymllm.search.program import run_program
from tests.unit.cli.typed import refused, typed

PROGRAM = [AllocRows(1), WriteRow(Span(1, 0, 1), 0, 1, (7,)), FreeRow(Span(1, 0, 1)), ReadRows()]
PROGRAMS = Path(__file__).parents[3] / "docs" / "specification" / "programs"

rerun = partial(typed, "rerun")


@pytest.fixture
def file(tmp_path: Path) -> str:
    history = run_program("rows", {"max_reqs": 2, "max_context_len": 2}, PROGRAM)
    write_history(history, tmp_path / "a.jsonl")
    return str(tmp_path / "a.jsonl")


def test_the_adapter_of_the_file_is_the_default(file: str) -> None:
    """A program is rerun on the adapter of its file, with the same outcomes."""
    result = rerun(file)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("holds  4 steps of rows: ")
    assert result.stdout.endswith("    outcomes   as recorded\n")


def test_another_adapter_may_break_a_law(file: str, tiny: str) -> None:
    """P2: the step that shows it is the first that differs."""
    result = rerun(file, "--adapter", f"{tiny}:KeepsEntries")
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.startswith(f"P2  VIOLATED by {tiny}:KeepsEntries: a freed row is zero")
    assert result.stdout.endswith("    outcomes   differ from the recorded ones at step 4\n")


def test_another_configuration_can_be_given(file: str) -> None:
    """As JSON; what differs is named."""
    result = rerun(file, "--config", '{"max_reqs": 2, "max_context_len": 3}', "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["verdict"], document["command"]) == (0, "holds", "rerun")
    assert document["config"] == {"max_reqs": 2, "max_context_len": 3}
    assert document["differences"] == [4]
    assert document["walks"]["P1"] == 3  # and none behind what only reads


def test_what_happens_is_recorded_and_timed(file: str, tmp_path: Path) -> None:
    """The recording can be run again; a time is that of the adapter, in a row for each operation."""
    record = tmp_path / "again.jsonl"
    result = rerun(file, "--record", str(record), "--timing")
    assert result.exit_code == 0
    assert "\nmicroseconds  calls  " in result.stdout
    assert load_history(record).steps == load_history(Path(file)).steps
    document = json.loads(rerun(str(record), "--timing", "--json").stdout)
    assert document["differences"] == []
    names = [(row["operation"], row["is_refused"], row["count"]) for row in document["times"]]
    assert names == [(name, False, 1) for name in ("alloc_rows", "free_row", "read_rows", "write_row")]
    assert all(0 < row["p50_us"] <= row["max_us"] * 1.01 for row in document["times"])
    Draft202012Validator(make_schema("judgement")).validate(document)
    assert "times" not in json.loads(rerun(file, "--json").stdout)


def test_a_recording_that_cannot_be_written_is_told_in_a_line(file: str, tmp_path: Path) -> None:
    """Before anything runs, and the file that is read stays as it was."""
    before = Path(file).read_bytes()
    refused("rerun", file, "--record", tmp_path / "missing" / "a.jsonl", words="there is no folder")
    (tmp_path / "link").symlink_to(file)
    (tmp_path / "twin").hardlink_to(file)
    for name in ("a.jsonl", "./../" + tmp_path.name + "/a.jsonl", "link", "twin"):
        result = rerun(file, "--record", str(tmp_path / name))
        assert (result.exit_code, Path(file).read_bytes()) == (2, before)
        assert "name another file" in result.stderr


def test_a_program_that_does_not_fit_ends_with_3(file: str) -> None:
    """It needs two rows; what was tested until then broke nothing."""
    history = load_history(Path(file))
    history = run_program("rows", history.header.config, [AllocRows(2), FreeRow(Span(1, 1, 2))])
    write_history(history, Path(file))
    result = rerun(file, "--config", '{"max_reqs": 1, "max_context_len": 2}')
    assert result.exit_code == 3
    assert result.stdout.splitlines()[:2] == [
        "unknown  rows made other choices than the program relies on",
        "    because    step 2: step 1 gave 0 numbers, not 1..2",
    ]


def test_an_adapter_that_gives_up_ends_with_3(file: str, tiny: str) -> None:
    """One line on standard error: the adapter, and why."""
    history = load_history(Path(file))
    steps = [Step(1, AllocRows(1)), Step(2, AllocRows(1))]
    write_history(History(history.header, steps), Path(file))
    result = rerun(file, "--adapter", f"{tiny}:GivesUp")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == f"pymllm: adapter {tiny}:GivesUp: lost the connection\n"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--adapter", "raddix"], 2, "no adapter 'raddix'"),
        (["--adapter", "hashes"], 2, "a.jsonl: has a program for rows; hashes is of kind hashes."),
        (["--adapter", "no_such_module_here:Cache"], 2, "cannot import no_such_module_here"),
        (["--config", "{"], 2, "'{': not JSON"),
        (["--config", "[]"], 2, "it must be an object"),
        (["--config", '{"max_reqs": 1.5}'], 2, "max_reqs is 1.5; it must be an integer, a string"),
        (["--config", "{}"], 3, "cannot be built with {}"),
    ],
)
def test_bad_input_is_one_line(file: str, arguments: list[str], status: int, words: str) -> None:
    """X1: nothing was run; 2 for what the user can mend here, 3 for an adapter."""
    result = rerun(file, *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (status, "", 1)
    assert words in result.stderr


def test_a_file_of_an_adapter_that_is_gone_names_it(file: str, tmp_path: Path) -> None:
    """X1: another one can be named instead."""
    text = Path(file).read_text(encoding="utf-8").replace('"adapter": "rows"', '"adapter": "old-rows"')
    Path(file).write_text(text, encoding="utf-8")
    result = rerun(file)
    assert result.exit_code == 2
    assert "no adapter 'old-rows' (did you mean " in result.stderr
    assert "?); pymllm adapters lists all" in result.stderr
    assert rerun(file, "--adapter", "rows").exit_code == 0
    assert rerun(str(tmp_path / "none.jsonl")).exit_code == 2


def test_a_file_never_says_what_code_runs(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the working folder and a command are named by the user or not at all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evilmod.py").write_text("open('imported', 'w').close()\n", encoding="utf-8")
    text = Path(file).read_text(encoding="utf-8")
    for name, way in (
        ("command:touch ran", "add --command 'touch ran'"),
        ("evilmod:X", "add --adapter evilmod:X "),
        (f"evilmod:{'X' * 5_000}", "add --adapter or --command "),
    ):
        Path(file).write_text(text.replace('"adapter": "rows"', f'"adapter": "{name}"'), encoding="utf-8")
        result = rerun(file)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert f"a.jsonl: names the adapter '{name[:200]}" in result.stderr
        assert "which may run any code; if you trust it, add" in result.stderr
        assert way in result.stderr
        assert len(result.stderr) < 1_000
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "evilmod.py"]
    assert "holds" in rerun(file, "--adapter", "rows").stdout


def test_a_program_that_ends_is_one_line_and_its_last_words_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_program: Callable[..., str]
) -> None:
    """Status 3; a folder of them beside the working folder's other runs."""
    monkeypatch.chdir(tmp_path)
    write_history(History(Header("hashes", "hashes"), [Step(1, HashBytes("00"))]), tmp_path / "a.jsonl")
    result = rerun("a.jsonl", "--command", tiny_program("op", "kill"))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1)
    assert "was ended by SIGKILL before it answered; it was asked for step 1, hash_bytes" in result.stderr
    (path,) = Path("runs").iterdir()
    assert result.stderr.endswith(f"; the last lines of the conversation are in {path}\n")
    text = path.read_text(encoding="utf-8")
    assert '> {"say":"op","step":1,"op":{"op":"hash_bytes","data":"00"}}' in text
    assert "! so long" in text


def test_last_words_that_cannot_be_kept_are_no_error_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_program: Callable[..., str]
) -> None:
    """Status 3 all the same."""
    monkeypatch.chdir(tmp_path)
    Path("runs").touch()
    write_history(History(Header("hashes", "hashes"), [Step(1, HashBytes("00"))]), tmp_path / "a.jsonl")
    result = rerun("a.jsonl", "--command", tiny_program("op", "kill"))
    assert (result.exit_code, result.stderr.count("\n")) == (3, 2)
    assert "cannot be written" in result.stderr


def test_a_command_stands_for_an_adapter(file: str) -> None:
    """X1: of one kind with the file, and there is one of them."""
    result = rerun(file, "--command", "x", "--adapter", "rows")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "give only one of them" in result.stderr


def test_a_picture_is_drawn_on_request(tmp_path: Path) -> None:
    """The picture names the broken law; a file that is read, or that has a program, is not overwritten."""
    program = PROGRAMS / "prefixes.jsonl"
    kept = program.read_text(encoding="utf-8")
    picture = tmp_path / "picture.svg"
    done = rerun(f"{program}#R6-breaks", "--adapter", "faulty-locked-victims", "--picture", str(picture))
    assert done.exit_code == 1
    assert "faulty-locked-victims violates R6" in picture.read_text(encoding="utf-8")
    for option in ("--picture", "--record"):
        refused("rerun", f"{program}#R6-breaks", option, program, words="this is")
    refused(
        "rerun", f"{program}#R6-breaks", "--picture", tmp_path / "p.png", words="p.png is no name of an SVG"
    )
    assert program.read_text(encoding="utf-8") == kept
