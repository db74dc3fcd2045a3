"""``pymllm vectors``: playing and making, and everything that is refused in one line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from pymllm.cli.schema import make_schema
from tests.unit.cli.typed import refused, typed

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "vectors" / "v1"
ROWS = json.loads((FOLDER / "rows.jsonl").read_text(encoding="utf-8").splitlines()[1])["id"]


def run(*words: object) -> list[object]:
    return ["vectors", "run", "--vectors", FOLDER, "--progress", "off", *words]


def test_an_adapter_of_ours_passes() -> None:
    """An adapter of ours passes its vectors, and the document keeps to its schema and counts its list."""
    result = typed(*run("--adapter", "rows", "--json"))
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    Draft202012Validator(make_schema("vectors-run")).validate(document)
    verdicts = [row["verdict"] for row in document["vectors"]]
    assert document["passed"] == len(verdicts) == verdicts.count("passed") > 0
    assert document["verdict"] == "holds"


def test_a_run_is_kept_and_shown_as_a_badge(tmp_path: Path) -> None:
    """The store has the document that --json prints, and the report reads it."""
    store = tmp_path / "store"
    document = json.loads(typed(*run("--adapter", "rows", "--store", store, "--json")).stdout)
    result = typed("report", store, "--format", "vectors-badge")
    assert (result.exit_code, result.stderr) == (0, "")
    badge = json.loads(result.stdout)
    assert (badge["message"], badge["color"]) == (f"{document['passed']} pass", "brightgreen")


def test_a_wrong_one_fails() -> None:
    """The law, the step and what was seen are told; the status is 1."""
    result = typed(*run("--adapter", "faulty-row-zero"))
    assert result.exit_code == 1
    assert "rows-P" in result.stdout
    assert re.search("^vector +law +step +why", result.stdout, re.MULTILINE)
    assert "expected" in result.stdout


def test_a_known_deviation_is_no_failure_and_one_that_is_gone_is_told(tmp_path: Path) -> None:
    """By a file of reasons."""
    wrong = typed(*run("--adapter", "faulty-row-zero", "--json"))
    failed = [row["id"] for row in json.loads(wrong.stdout)["vectors"] if row["verdict"] == "failed"]
    known = tmp_path / "known.json"
    known.write_text(json.dumps(dict.fromkeys(failed, "row 0 is handed out")), encoding="utf-8")
    result = typed(*run("--adapter", "faulty-row-zero", "--known", known))
    assert result.exit_code == 0
    assert "  row 0 is handed out\n" in result.stdout
    result = typed(*run("--adapter", "rows", "--known", known))
    assert result.exit_code == 0
    assert f"{failed[0]}  passes on rows, and is listed as a known deviation" in result.stdout


def test_an_adapter_that_skips_all_is_unknown(tmp_path: Path) -> None:
    """Nothing was tested, with the reason."""
    lines = (FOLDER / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    vector = json.loads(lines[1])
    (tmp_path / "rows.jsonl").write_text(
        f"{lines[0]}\n{json.dumps({**vector, 'needs': ['mamba']})}\n", encoding="utf-8"
    )
    result = typed("vectors", "run", "--adapter", "rows", "--vectors", tmp_path, "--progress", "off")
    assert result.exit_code == 3
    assert "1 skipped: does not claim mamba" in result.stdout
    assert result.stdout.endswith("nothing was played of 1 vectors\n")


def test_a_run_ends_with_the_share_that_was_played() -> None:
    """A run ends with the share of vectors that it played, as the runners do."""
    result = typed(*run("--adapter", "chunk"))
    assert result.exit_code == 0
    last = result.stdout.splitlines()[-1]
    found = re.fullmatch(r"played (\d+) of (\d+) vectors \((\d+)\.(\d) %\)", last)
    assert found is not None, last
    played, total, whole, tenth = map(int, found.groups())
    assert 0 < played < total
    assert 10 * whole + tenth == 1000 * played // total


def faults(*words: object) -> list[object]:
    return ["vectors", "faults", "--vectors", FOLDER, "--progress", "off", *words]


def test_it_is_told_which_faults_some_claims_show() -> None:
    """How many vectors there are for them, and which faults pass unseen: fewer with fewer claims."""
    every = typed(*faults("--kind", "rows", "--json"))
    assert (every.exit_code, every.stderr) == (0, "")
    document = json.loads(every.stdout)
    Draft202012Validator(make_schema("vectors-faults")).validate(document)
    rows = {row["id"]: row["vectors"] for row in document["faults"]}
    assert document["shown"] == len(rows) == sum(map(bool, rows.values())) > 1
    assert (document["claims"], len(document["vectors"])) == (None, document["available"])
    few = typed(*faults("--kind", "rows", "--claims", " ,"))
    lines = few.stdout.splitlines()
    assert (few.exit_code, lines[0]) == (0, "rows that claims nothing")
    assert lines[1].startswith(f"1 of {document['available']} vectors ")
    unseen = [line.split()[0] for line in lines[5:]]
    assert set(unseen) < set(rows)
    assert lines[2].startswith(f"they show {len(rows) - len(unseen)} of {len(rows)} planted faults (")


def test_claims_without_a_vector_are_no_success(tmp_path: Path) -> None:
    """Nothing is shown, with status 3."""
    lines = (FOLDER / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "rows.jsonl").write_text(f"{lines[0]}\n", encoding="utf-8")
    result = typed("vectors", "faults", "--vectors", tmp_path, "--kind", "rows", "--progress", "off")
    assert result.exit_code == 3
    assert "0 of 0 vectors" in result.stdout


def test_claims_that_are_none_are_refused(tmp_path: Path) -> None:
    """In one line, with those of the kind."""
    refused(*faults("--claims", "pool,lru"), words="'lru' is none of kind prefix, which has pool, swa")
    refused(*faults("--kind", "slots", "--claims", "exact_lru"), words="none of kind slots")
    refused(*faults("--page-size", "0"), words="--page-size")
    shutil.copy(FOLDER / "rows.jsonl", tmp_path)
    refused("vectors", "faults", "--vectors", tmp_path, words="has no vectors of kind prefix")


def test_what_cannot_be_run_is_refused(tmp_path: Path) -> None:
    """In one line, with status 2."""
    refused(*run(), words="name one implementation, with --adapter or --command")
    refused(*run("--adapter", "rows", "--command", "x"), words="name one implementation")
    refused(*run("--adapter", "nothing-there"), words="no adapter 'nothing-there'")
    refused("vectors", "run", "--adapter", "rows", "--vectors", tmp_path / "no", words="there is no folder")
    refused("vectors", "run", "--adapter", "rows", "--vectors", tmp_path, words="has no file of vectors")
    shutil.copy(FOLDER / "rows.jsonl", tmp_path)
    refused(
        *("vectors", "run", "--adapter", "hashes", "--vectors", tmp_path, "--progress", "off"),
        words="has no vectors of kind hashes",
    )
    (tmp_path / "rows.jsonl").write_text("{}\n", encoding="utf-8")
    refused("vectors", "run", "--adapter", "rows", "--vectors", tmp_path, words="rows.jsonl:1: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "an object of reasons"),
        ('{"a": 1}', "an object of reasons"),
        ("{", "known.json: "),
        ('{"a": "b"}', "'a' is no vector of"),
    ],
)
def test_a_file_of_known_deviations_is_read_with_care(tmp_path: Path, text: str, words: str) -> None:
    """A mistyped id would be known for ever."""
    known = tmp_path / "known.json"
    known.write_text(text, encoding="utf-8")
    refused(*run("--adapter", "rows", "--known", known), words=words)
    refused(*run("--adapter", "rows", "--known", tmp_path / "none.json"), words="none.json: ")


def test_what_is_made_is_the_same_again(tmp_path: Path) -> None:
    """Of one kind: what was written is what --check finds, and anything else is told and put right."""
    shutil.copy(FOLDER / "rows.jsonl", tmp_path)
    page = tmp_path / "page.md"
    make = ["vectors", "make", "--vectors", tmp_path, "--page", page, "--progress", "off"]
    assert typed(*make).exit_code == 0
    assert (tmp_path / "rows.jsonl").read_bytes() == (FOLDER / "rows.jsonl").read_bytes()
    assert ROWS in page.read_text(encoding="utf-8")
    result = typed(*make, "--check")
    assert (result.exit_code, result.stderr) == (0, "")
    page.write_text("# Mine\n", encoding="utf-8")
    result = typed(*make, "--check")
    assert (result.exit_code, result.stderr) == (1, f"pymllm: {page} differs\n")
    assert page.read_text(encoding="utf-8") == "# Mine\n"


def test_what_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """In one line, with status 2."""
    make = ("vectors", "make", "--progress", "off", "--vectors")
    refused(*make, tmp_path / "no", words="there is no folder")
    refused(*make, tmp_path, "--check", "--search", words="choose one")
    lines = (FOLDER / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    vector = json.loads(lines[1])
    (tmp_path / "rows.jsonl").write_text(
        f"{lines[0]}\n{json.dumps({**vector, 'needs': ['mamba']})}\n", encoding="utf-8"
    )
    refused(*make, tmp_path, words="no adapter of ours claims mamba")
