"""``pymllm compare``."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator, ValidationError
from msgspec.structs import replace

from pymllm.cli import main
from pymllm.cli.schema import make_schema
from pymllm.cli.tables import draw_document
from pymllm.search.results import SavedFiles, VerifyReport

EXAMPLE = Path(__file__).parents[3] / "examples" / "protocol" / "page_cache.py"


def compare(folder: Path, *arguments: str) -> Result:
    options = ("--profile", "dev", "--examples", "10", "--jobs", "1", "--output", str(folder))
    return CliRunner().invoke(main, ["compare", *options, *arguments], catch_exceptions=False)


def test_a_sound_and_a_wrong_one_stand_side_by_side(tiny: str, tmp_path: Path) -> None:
    """P2 holds of one and not of the other, whose program is written; the status is that of the worst."""
    result = compare(tmp_path, f"{tiny}:TinyRows", f"{tiny}:KeepsEntries")
    assert (result.exit_code, result.stderr) == (1, "")
    (*_, row) = [line for line in result.stdout.splitlines() if line.startswith("P2  ")]
    assert re.search(r" ✓ \d+ +✗ violated$", row)
    (file,) = tmp_path.iterdir()
    assert f"pymllm rerun {file} --adapter {tiny}:KeepsEntries" in result.stdout


def test_the_document_keeps_to_its_schema(tiny: str, tmp_path: Path) -> None:
    """The same for a program to read: a cell for each that the law is about."""
    result = compare(tmp_path, f"{tiny}:TinyRows", "hashes", "--json")
    document = json.loads(result.stdout)
    Draft202012Validator(make_schema("compare")).validate(document)
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
        (row,) = [line for line in lines if line.startswith("R3  ")]
        assert re.search(r" ✓ [1-9][0-9,]* +✓ [1-9][0-9,]*$", row)


FILES = SavedFiles(
    {("my.rows:Rows", "P2"): "runs/P2.jsonl"},
    {("my.rows:Rows", 0): "runs/crash.jsonl"},
    {("gone:Cache", 0): "runs/said.txt"},
)


def test_a_cell_says_what_is_known_of_one_law_and_one_adapter(report: VerifyReport) -> None:
    """Tests where it holds, words elsewhere, and what the signs mean."""
    lines = draw_document(report.comparison(FILES)).splitlines()
    assert "  1  my.rows:Rows (rows)" in lines
    assert "  3  gone:Cache (could not be loaded)" in lines
    rows = {line.split()[0]: line for line in lines if line[:2] in ("X1", "P1", "P2", "P3", "E5")}
    cells = {law: re.split("  +", row)[2:] for law, row in rows.items()}
    assert cells == {
        "P1": ["✓ 1,200", "✓ 34"],
        "P2": ["✗ violated", "✓ 3"],
        "P3": ["✗ violated", "not about it"],
        "E5": ["not about it", "? unknown"],
    }
    assert "rows: 4 laws, 2 implementations; not claimed: X1" in lines
    explained = [line.split("  ")[0] for line in lines[lines.index("") :]]
    assert {"✓", "✗ violated", "? unknown", "not about it"} <= set(explained)


def test_a_cell_whose_search_ended_at_another_law_has_a_mark(report: VerifyReport) -> None:
    """Behind the number of tests, and the legend explains it."""
    broken, *others = report.adapters
    laws = tuple(replace(row, unfinished=row.id == "P1") for row in broken.laws)
    ended = dataclasses.replace(report, adapters=(dataclasses.replace(broken, laws=laws), *others))
    lines = draw_document(ended.comparison(FILES)).splitlines()
    (row,) = (line for line in lines if line.startswith("P1"))
    assert re.split("  +", row)[2:] == ["✓ 1,200 ~", "✓ 34"]
    assert sum(line.startswith("~ ") for line in lines) == 1


def test_violations_come_before_the_table(report: VerifyReport) -> None:
    """A report begins with violated laws, then unknown ones, each violation, the matrix, and the sum."""
    text = draw_document(report.comparison(FILES))
    parts = (
        "VIOLATED  2 of 4 laws that apply: P2 (my.rows:Rows), P3 (my.rows:Rows)\n",
        "UNKNOWN   1 of 4 laws that apply: E5 (rows)\n",
        "UNKNOWN   gone:Cache could not be examined, so none of its laws was judged\n",
        "P2  VIOLATED by my.rows:Rows: a freed row is zero",
        "    file       runs/P2.jsonl\n",
        "    program    runs/crash.jsonl\n",
        "    verdict    hung\n    because    cannot import gone\n    last said  runs/said.txt\n",
        "law  ",
        "pairs of law and implementation: 2 violated, 1 unknown, 3 hold, 1 not claimed; 40 programs",
    )
    assert sorted(parts, key=text.index) == list(parts)


def test_the_document_is_that_of_verify_with_the_matrix(report: VerifyReport) -> None:
    """Each cell with its counts."""
    document = json.loads(json.dumps(report.comparison(FILES).plain()))
    Draft202012Validator(make_schema("compare")).validate(document)
    assert (document["schema"], document["version"]) == ("pymllm.compare", 1)
    (row,) = [row for row in document["matrix"] if row["id"] == "P1"]
    assert row["cells"] == [
        {
            "adapter": "my.rows:Rows",
            "verdict": "holds",
            "tests": 1200,
            "walks": 30,
            "limits": [],
            "unfinished": False,
        },
        {"adapter": "rows", "verdict": "holds", "tests": 34, "walks": 12, "limits": [], "unfinished": False},
    ]
    document["matrix"][0]["cells"][0]["verdict"] = "perhaps"
    with pytest.raises(ValidationError):
        Draft202012Validator(make_schema("compare")).validate(document)
