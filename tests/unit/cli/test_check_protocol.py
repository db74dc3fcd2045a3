"""``pymllm check-protocol``."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator, ValidationError

from pymllm.cli import main
from pymllm.cli.schema import make_schema
from pymllm.cli.search.check_protocol import make_protocol_text as make_text
from pymllm.documents.programs import Exchange
from pymllm.search.protocol_check import ProtocolReport

EXAMPLE = Path(__file__).parents[3] / "examples" / "protocol" / "page_cache.py"


def check(folder: Path, *arguments: str) -> Result:
    arguments = ("check-protocol", "--output", str(folder), *arguments)
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def test_a_right_program_is_told_the_next_step(tmp_path: Path) -> None:
    """Status 0, and no file."""
    command = shlex.join([sys.executable, "-S", str(EXAMPLE)])
    result = check(tmp_path, command)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "page-cache 1.0 in Python: prefix, protocol 1"
    assert lines[1].split() == ["line", "said", "answered"]
    assert lines[2].split() == ["1", "hello", "hello", "ok"]
    assert lines[-2].endswith(" answers are right")
    assert lines[-1] == f"next: pymllm verify --command {shlex.quote(command)}"
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_one_is_told_where_and_what_to_do(tmp_path: Path, tiny_program: Callable[..., str]) -> None:
    """Status 3; the conversation is in a file. The right one beside it has its own table."""
    wrong, right = tiny_program("hello", "no-kind"), shlex.join([sys.executable, "-S", str(EXAMPLE)])
    result = check(tmp_path, wrong, right)
    assert (result.exit_code, result.stderr) == (3, "")
    assert "answers are right" in result.stdout
    text = result.stdout.split("next:")[0]
    assert text.startswith(f"command:{wrong}: no hello\n")
    assert "\nline 1, the answer to hello\n    wrong  kind is 'teapot'; it must be one of " in text
    assert "\n    do     pymllm schema protocol has every message" in text
    (path,) = tmp_path.iterdir()
    assert f"the last lines of the conversation are in {path}\n" in text
    assert path.read_text(encoding="utf-8").startswith('> {"say":"hello"')


def test_what_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    """It says nothing of the protocol."""
    result = check(tmp_path, "no-such-program-anywhere")
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
    assert "cannot be started" in result.stderr


def test_of_very_many_problems_the_first_are_shown() -> None:
    """One that cannot be written has no file."""
    exchanges = tuple(Exchange(line, "op", "outcome", f"wrong {line}", "mend it") for line in range(1, 26))
    text = make_text(ProtocolReport("command:x", None, exchanges, "").row(None))
    assert text.count("mend it") == 20
    assert text.endswith(
        "\n\nand 5 more\n25 mistakes in 25 answers\nnext: correct the first one, then pymllm check-protocol x"
    )


def test_the_document_keeps_to_its_schema(tmp_path: Path, tiny_program: Callable[..., str]) -> None:
    """Name the program, each line with its answer, and a way out of each mistake; null without a hello."""
    right = shlex.join([sys.executable, "-S", str(EXAMPLE)])
    wrong, silent = tiny_program("hello", "no-claim"), tiny_program("hello", "garbage")
    result = check(tmp_path, right, wrong, silent, "--json")
    document = json.loads(result.stdout)
    validator = Draft202012Validator(make_schema("protocol-check"))
    validator.validate(document)
    assert (document["verdict"], document["exit_status"]) == ("unknown", 3)
    first, second, third = document["programs"]
    assert (first["program"]["name"], first["program"]["clock"], first["problems"]) == ("page-cache", True, 0)
    assert first["answers"] == first["exchanges"][-1]["line"]
    assert not any("problem" in exchange for exchange in first["exchanges"])
    (blamed,) = [found for found in second["exchanges"] if "flying" in found.get("problem", "")]
    assert blamed["advice"].startswith("there are pool")
    assert (third["program"], third["exchanges"][0]["answered"]) == (None, "not JSON")
    assert [row["conversation"] is None for row in (first, second, third)] == [True, False, False]
    with pytest.raises(ValidationError):
        validator.validate({**document, "programs": [{**first, "surprise": 1}]})
    alone = check(tmp_path, right, "--json")
    assert (alone.exit_code, json.loads(alone.stdout)["verdict"]) == (0, "holds")
