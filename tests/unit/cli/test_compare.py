"""``pymllm compare``: names in, a matrix of laws out."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from pymllm.cli import main
from pymllm.cli.compare_matrix import compare_schema

EXAMPLE = Path(__file__).parents[3] / "examples" / "protocol" / "page_cache.py"


def compare(folder: Path, *arguments: str) -> Result:
    options = ("--profile", "dev", "--examples", "10", "--jobs", "1", "--output", str(folder))
    return CliRunner().invoke(main, ["compare", *arguments, *options], catch_exceptions=False)


def test_a_sound_and_a_wrong_one_stand_side_by_side(tiny: str, tmp_path: Path) -> None:
    """P2 holds of one and not of the other, whose program is written; the status is that of the worst."""
    result = compare(tmp_path, f"{tiny}:TinyRows", f"{tiny}:KeepsEntries")
    assert (result.exit_code, result.stderr) == (1, "")
    (row,) = [line.split() for line in result.stdout.splitlines() if line.startswith("P2  ")][:1]
    assert row[1] == "holds"
    assert row[3:4] == ["VIOLATED"]
    (file,) = tmp_path.iterdir()
    assert f"pymllm rerun {file} --adapter {tiny}:KeepsEntries" in result.stdout


def test_the_document_keeps_to_its_schema(tiny: str, tmp_path: Path) -> None:
    """The same for a program to read: a cell for each that the law is about."""
    result = compare(tmp_path, f"{tiny}:TinyRows", "hashes", "--json")
    document = json.loads(result.stdout)
    Draft202012Validator(compare_schema()).validate(document)
    cells = {row["id"]: [cell["adapter"] for cell in row["cells"]] for row in document["matrix"]}
    assert cells["P2"] == [f"{tiny}:TinyRows"]
    assert cells["K1"] == ["hashes"]
    assert cells["X3"] == [f"{tiny}:TinyRows", "hashes"]


def test_a_program_stands_beside_ours(tmp_path: Path) -> None:
    """By its command as a name or as an option, which are the same; names with blanks are quoted."""
    program = shlex.join([sys.executable, "-S", str(EXAMPLE)])
    by_name = compare(tmp_path, "chunk", f"command:{program}", "--law", "R3", "--examples", "2")
    by_option = compare(tmp_path, "chunk", "--command", program, "--law", "R3", "--examples", "2")
    assert (by_name.exit_code, by_option.exit_code) == (0, 0), by_name.output
    for result in (by_name, by_option):
        lines = result.stdout.splitlines()
        assert f"  2  {shlex.quote('command:' + program)} (prefix)" in lines
        (row,) = [line.split() for line in lines if line.startswith("R3  ")]
        assert (row[1], row[3]) == ("holds", "holds")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["rows"], "compares 2 different implementations or more; got 1."),
        (["rows", "rows"], "compares 2 different implementations or more; rows was named 2 times."),
        (["rows", "sglang-radixx"], "did you mean sglang-radix or"),
        (["--command", "cat"], "compares 2 different implementations or more; got 1."),
        (["rows", "--command", "no-such-program-here"], "no-such-program-here"),
    ],
)
def test_bad_names_are_refused_in_one_line(names: list[str], message: str, tmp_path: Path) -> None:
    """2, before anything is searched."""
    result = compare(tmp_path, *names)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
