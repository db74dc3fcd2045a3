"""``pymllm faults`` from the outside: faults in, a table and a status out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from pymllm.adapters.cabinet.table import own_cabinet
from pymllm.cli import main
from pymllm.cli.schema import make_schema


def faults(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["faults", "--jobs", "1", *arguments], catch_exceptions=False)


def test_what_is_caught_ends_with_0() -> None:
    """P1, P2: each fault with the law, who caught it, and after how much."""
    result = faults("B116", "b107")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["id", "fault", "caught", "law", "by", "the", "operations", "seconds"]
    assert [line.split()[0] for line in lines[1:3]] == ["B116", "B107"]
    assert "2 of 2 faults caught by a law of their list (2 by the machine); " in lines[-1]


def test_what_is_missed_ends_with_1_and_comes_first(tiny: str) -> None:
    """Another law than was written down is no success, and is explained."""
    result = faults("--cabinet", "tiny_cabinet:TABLE")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[1].startswith("keeping")
    assert "BY ANOTHER LAW  P2" in lines[1]
    assert "keeping keeps entries by itself" in lines
    assert any("seed 0: P2 by the machine on tiny_adapters:KeepsEntries" in line for line in lines)
    assert lines[-1].startswith("1 of 2 faults caught by a law of their list")


def test_the_document_keeps_to_its_schema(tiny: str) -> None:
    """And says the same."""
    result = faults("--cabinet", "tiny_cabinet:TABLE", "--json", "dirty", "B107")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    Draft202012Validator(make_schema("faults")).validate(document)
    assert [(row["id"], row["caught"]) for row in document["faults"]] == [("dirty", True), ("B107", True)]
    assert (document["caught"], document["missed"], document["seeds"]) == (2, 0, [0])


def test_the_full_form_has_five_seeds_small_programs_and_a_page(tmp_path: Path) -> None:
    """P1: the page is written beside the table."""
    page = tmp_path / "faults.md"
    result = faults("B116", "--full", "--seed", "3", "--page", str(page), "--json")
    document = json.loads(result.stdout)
    assert document["seeds"] == [3, 4, 5, 6, 7]
    assert document["faults"][0]["program"] >= 1
    assert page.read_text(encoding="utf-8").startswith("# Faults\n")


def test_what_was_found_is_kept_for_the_next_call(tmp_path: Path) -> None:
    """P1, P2: only what is missing is looked for."""
    kept = str(tmp_path / "results.jsonl")
    assert faults("B116", "--keep", kept).exit_code == 0
    result = faults("B116", "B107", "--keep", kept, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["kept"], document["caught"]) == (0, 1, 2)
    assert len(Path(kept).read_text(encoding="utf-8").splitlines()) == 2
    assert faults("B116", "--keep", kept).stdout.splitlines()[-1].endswith(" s without 1 that were known")


def test_the_list_names_the_laws_beforehand() -> None:
    """All of the cabinet, nothing planted."""
    result = faults("--list")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [fault.id for fault in own_cabinet()]
    assert lines[0].split()[1:3] == ["R2,", "R6"]


def test_a_fault_may_be_caught_by_any_law(tiny: str) -> None:
    """P3: the list and the document say so; a whole method was replaced."""
    assert faults("--cabinet", "tiny_cabinet:BY_ANY", "--list").stdout == "whole  any  frees nothing\n"
    result = faults("--cabinet", "tiny_cabinet:BY_ANY", "--full", "--json")
    (row,) = json.loads(result.stdout)["faults"]
    assert (result.exit_code, row["laws"], row["caught"], row["unlisted"]) == (0, ["any"], True, [])
    assert row["program"] >= 2


def test_results_can_be_kept_only_in_a_text(tmp_path: Path) -> None:
    """X1: a file of another kind is left as it is."""
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"\xff\xfe")
    result = faults("B116", "--keep", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "results cannot be kept in" in result.stderr
    assert path.read_bytes() == b"\xff\xfe"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("B999",), "no fault 'B999'"),
        (("--cabinet", "nowhere:TABLE"), "cannot import nowhere"),
        (("--cabinet", "tiny_cabinet:TABLE", "B01", "b998"), "no fault 'b998'"),
        (("--page", "no/such/folder/faults.md"), "there is no folder"),
        (("--keep", "no/such/folder/results.jsonl"), "there is no folder"),
    ],
)
def test_bad_input_ends_with_2(tiny: str, arguments: tuple[str, ...], message: str) -> None:
    """X1: one line, and nothing is planted."""
    result = faults(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize(
    "option", [["--json"], ["--page", "faults.md"], ["--keep", "kept"], ["--store", "runs"]]
)
def test_a_list_has_no_result_to_print_or_keep(option: list[str]) -> None:
    """X1: a program that asks for a document gets one, or is told that there is none."""
    result = faults("--list", *option)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{option[0]}: --list looks for no fault" in result.stderr


def test_a_page_is_not_written_over_what_is_kept(tmp_path: Path) -> None:
    """Whether it is there already or not."""
    for make in (lambda: None, (tmp_path / "a").touch):
        make()
        result = faults("B116", "--keep", str(tmp_path / "a"), "--page", str(tmp_path / "a"))
        assert (result.exit_code, "which is read; name another one" in result.stderr) == (2, True)
