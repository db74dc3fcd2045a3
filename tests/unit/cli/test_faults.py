"""``pymllm faults hunt`` and ``list``."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError
from msgspec import structs

from pymllm.cli.schema import make_schema
from pymllm.cli.search.faults_page import make_page, print_anew, rows_of
from pymllm.cli.tables import draw_document
from pymllm.documents.faults import Detection
from pymllm.faults.detection import FaultResult, HuntPlan
from pymllm.faults.fault import Fault
from pymllm.faults.hunt import FaultsReport
from pymllm.faults.table import BUGS, SERVERS, UNPLANTED, find_faults, own_cabinet
from tests.kept_results import results_in
from tests.unit.cli.typed import refused, typed

faults = partial(typed, "faults", "hunt", "--jobs", "1")


def test_what_is_caught_ends_with_0() -> None:
    """P1, P2: each fault with the law, who caught it, and after how much."""
    result = faults("B116", "b107", "--progress", "off")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    head = ["fault", "what is wrong", "caught", "by", "operations", "time"]
    assert re.split("  +", lines[0].strip()) == head
    assert [line.split()[0] for line in lines[1:3]] == ["B107", "B116"]
    assert "2 of 2 faults caught by a listed law (2 by the machine); " in lines[-1]


def test_what_is_missed_ends_with_1_and_comes_first(tiny: str) -> None:
    """Another law than was written down is no success, and is explained."""
    result = faults("--cabinet", "tiny_cabinet:TABLE")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[1].startswith("keeping")
    assert "keeps entries by itself  ✗ by another law  machine (P2)" in lines[1]
    assert any("from seed 0: P2 by the machine on tiny_adapters:KeepsEntries" in line for line in lines)
    assert lines[-1].startswith("1 of 2 faults caught by a listed law")


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
    assert len(results_in(Path(kept))) == 2
    assert (
        faults("B116", "--keep", kept)
        .stdout.splitlines()[-1]
        .endswith(" s, and 1 result kept from an earlier run")
    )


def test_shards_have_each_fault_once_and_their_lines_make_the_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1, P2: whoever puts the kept lines into one file looks for nothing again."""
    whole = typed("faults", "list").stdout.splitlines()
    parts = [typed("faults", "list", "--shard", f"{number}/3").stdout.splitlines() for number in (1, 2, 3)]
    assert sorted(line.split()[0] for part in parts for line in part) == sorted(it.split()[0] for it in whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    kept = [str(tmp_path / f"{number}.jsonl") for number in (1, 2)]
    for number, path in enumerate(kept, 1):
        assert faults("B116", "B107", "--shard", f"{number}/2", "--keep", path).exit_code == 0
    both = tmp_path / "both.jsonl"
    both.write_text("".join(Path(path).read_text("utf-8") for path in reversed(kept)), encoding="utf-8")
    document = json.loads(faults("B116", "B107", "--keep", str(both), "--json").stdout)
    assert (document["kept"], {row["id"] for row in document["faults"]}) == (2, {"B116", "B107"})
    refused(
        "faults",
        "hunt",
        "B116",
        "--shard",
        "1/2",
        words="--shard 1/2: of 1 fault; take at most so many shards",
    )
    monkeypatch.setenv("PYMLLM_SHARD", "1/2")
    refused("faults", "hunt", "B116", words="PYMLLM_SHARD=1/2: of 1 fault; take at most so many shards")
    told = "pymllm: this is shard 1/2, as PYMLLM_SHARD says\n"
    assert typed("faults", "list", "B116", "B107").stderr == told
    assert faults("B116", "B107", "--keep", tmp_path / "kept.jsonl").stderr.startswith(told)


def test_the_list_names_the_laws_beforehand() -> None:
    """All of the cabinet, nothing planted."""
    result = typed("faults", "list")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [fault.id for fault in (*own_cabinet(), *SERVERS)]
    assert lines[0].split()[1:3] == ["R2,", "R6"]


def test_a_fault_may_be_caught_by_any_law(tiny: str) -> None:
    """P3: the list and the document say so; a whole method was replaced."""
    assert typed("faults", "list", "--cabinet", "tiny_cabinet:BY_ANY").stdout == "whole  any  frees nothing\n"
    result = faults("--cabinet", "tiny_cabinet:BY_ANY", "--full", "--json")
    (row,) = json.loads(result.stdout)["faults"]
    assert (result.exit_code, row["laws"], row["caught"], row["unlisted"]) == (0, ["any"], True, [])
    assert row["program"] >= 2


def test_results_can_be_kept_only_in_a_text(tmp_path: Path) -> None:
    """X1: a file of another kind is left as it is."""
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"\xff\xfe")
    refused("faults", "hunt", "B116", "--keep", path, words="results cannot be kept in")
    assert path.read_bytes() == b"\xff\xfe"


def test_a_page_is_not_written_over_what_is_kept(tmp_path: Path) -> None:
    """Whether it is there already or not."""
    for make in (lambda: None, (tmp_path / "a").touch):
        make()
        both = ("--keep", tmp_path / "a", "--page", tmp_path / "a")
        refused("faults", "hunt", "B116", *both, words="which the command reads; name another file")


# -- table and document ------------------------------------------------------------------------------------

NOTED = Fault("B1", "is wrong", ("R1",), ("radix",), note="in another way")
OTHER = Fault("mine", "is wrong, too", ("R2",), ("radix",))


def detection(seed: int, law: str) -> Detection:
    return Detection(seed, law, "page 3", "machine", "radix", {}, 1200 + seed, 0.5, 4 + seed)


def told(*results: FaultResult) -> list[str]:
    return draw_document(FaultsReport(HuntPlan((0, 1)), 2, {}, results, 12.34).document()).splitlines()


CAUGHT = FaultResult(NOTED, (detection(0, "R1"), detection(1, "R1")), (), 1.0)
UNLISTED = FaultResult(OTHER, (detection(0, "R1"),), (), 1.0)
MISSED = FaultResult(OTHER, (), ("seed 0: not caught",), 1.0, 1_234)


def test_what_needs_a_look_comes_first() -> None:
    """Not caught, or by a law that nobody wrote down."""
    lines = told(CAUGHT, MISSED)
    assert [line.split()[0] for line in lines[1:3]] == ["mine", "B1"]
    assert "✗ missed: seed 0: not caught" in lines[1]
    assert "1,200" in lines[2]
    lines = told(UNLISTED)
    assert "✗ by another law" in lines[1]
    assert "mine from seed 0: R1 by the machine on radix: page 3; its laws are R2" in lines


def test_programs_have_a_column_where_they_were_made_small() -> None:
    """The smallest of all seeds."""
    as_found = replace(
        CAUGHT, detections=tuple(structs.replace(it, program=None) for it in CAUGHT.detections)
    )
    assert "program" not in told(as_found)[0]
    lines = told(CAUGHT)
    assert lines[0].split()[-1] == "program"
    assert lines[1].endswith("4 operations")


def test_the_last_line_says_who_caught_how_many() -> None:
    """Also where nobody caught anything."""
    last = "1 of 2 faults caught by a listed law (1 by the machine); 12.3 s"
    assert told(CAUGHT, MISSED)[-1] == last
    assert told(MISSED)[-1] == "0 of 1 faults caught by a listed law; 12.3 s"


def test_a_document_says_everything_and_is_valid() -> None:
    """One caught, one not: no number is made up for it. A searcher that is none of six is no searcher."""
    found = structs.replace(detection(0, "R1"), seconds=0.1234, program=None)
    results = replace(CAUGHT, detections=(found,)), MISSED
    report = FaultsReport(HuntPlan(), 2, {"pymllm": "0"}, results, 3.0)
    document = json.loads(json.dumps(report.document().plain()))
    validator = Draft202012Validator(make_schema("faults"))
    validator.validate(document)
    assert (document["caught"], document["missed"], document["exit_status"]) == (1, 1, 1)
    caught, missed = document["faults"]
    assert caught["detections"][0]["seconds"] == 0.123
    assert (caught["operations"], caught["program"]) == (1200.0, None)
    assert (missed["operations"], missed["seconds"], missed["missed"]) == (None, None, 1_234)
    assert missed["problems"] == ["seed 0: not caught"]
    caught["detections"][0]["searcher"] = "nobody"
    with pytest.raises(ValidationError):
        validator.validate(document)


# -- page --------------------------------------------------------------------------------------------------

DAY = date(2026, 11, 21)
B01, B79 = find_faults(["B01", "B79-requests"], own_cabinet())


def caught(fault: Fault, law: str = "R2", program: int | None = 4) -> FaultResult:
    detection = Detection(0, law, "page 3", "machine", "radix", {}, 1200, 0.5, program)
    return FaultResult(fault, (detection,), (), 1.0)


def page(*results: FaultResult, day: date = DAY, earlier: str = "") -> str:
    report = FaultsReport(HuntPlan((0, 1)), 2, {"pymllm": "1.0"}, results, 12.34)
    return make_page(report.document(), day, earlier)


def test_the_page_has_what_was_measured_and_of_which_run() -> None:
    """Caught, caught by another law, not caught; a stranger's fault has no section to lead to."""
    missed = FaultResult(B79, (), ("seed 0: not caught",), 1.0)
    text = page(caught(B01), missed, caught(OTHER, "R1", None))
    assert "- run 1: 2026-11-21, pymllm 1.0, 3 faults from 2 seeds with 2 processes, 12 s\n" in text
    assert f"| [B01](#b01) | {B01.title} | R2 | machine | 1,200 | 0.50 | 4 | 1 |\n" in text
    assert f"| [B79-requests](#b79-requests) | {B79.title} | **no** |  |  |  |  | 1 |\n" in text
    assert "| mine | is wrong, too | R1 **by another law** | machine | 1,200 | 0.50 |  | 1 |\n" in text
    assert "1 of 3 faults caught by a listed law (1 by the machine).\n" in text
    assert "0 of 1 faults caught by a listed law.\n" in page(missed)


def test_rows_of_an_earlier_run_stay_where_a_fault_was_not_looked_for() -> None:
    """A run that nobody refers to any more goes."""
    first = page(caught(B01), caught(B79))
    second = page(caught(B79, program=3), day=date(2026, 11, 22), earlier=first)
    assert rows_of(second) == {
        "B01": ("R2", "machine", "1,200", "0.50", "4", "1"),
        "B79-requests": ("R2 **by another law**", "machine", "1,200", "0.50", "3", "2"),
    }
    assert "- run 1: 2026-11-21" in second
    assert "- run 2: 2026-11-22" in second
    third = page(caught(B01), caught(B79), earlier=second)
    assert "- run 1" not in third
    assert "- run 2" not in third
    assert "- run 3" in third


def test_a_run_says_what_it_did_not_look_for_again() -> None:
    """Its seconds are without that."""
    report = FaultsReport(HuntPlan((0,)), 1, {"pymllm": "1.0"}, (caught(B01),), 12.34, kept=1)
    text = make_page(report.document(), DAY)
    assert "1 fault from 1 seed with 1 process, 12 s, and 1 result kept from an earlier run\n" in text


def test_texts_are_printed_anew_without_a_run() -> None:
    """The figures stay, whatever a title was."""
    text = page(caught(B01))
    assert print_anew(text.replace(B01.title, "Something else")) == text


def test_every_bug_has_its_section() -> None:
    """Every bug has a section: engine, version, links, evidence, cause, symptom, and planted place."""
    text = page(caught(B01))
    for bug in BUGS.values():
        section = text.partition(f"\n### {bug.id}\n\n")[2].partition("\n### ")[0]
        assert section.startswith(f"**{bug.title}.** {bug.engine}")
        assert all(f"]({link})" in section for link in bug.links)
        assert f"; {bug.evidence}.\n" in section
        assert f"- *How*: {bug.mechanism}\n- *Seen*: {bug.seen}\n" in section
        assert ("- *Planted*: " in section) != (bug.id in UNPLANTED)
        assert section.count(UNPLANTED.get(bug.id, "no reason")) == (bug.id in UNPLANTED)
    assert "**Upstream pymllm revives" in text
    assert "mllm (commit b9c30702): [radix_cache.py](https" in text
    assert "- *Planted*: on `radix`; laws R2, R6.\n" in text
    assert '- *Planted*: <a id="b79-requests"></a>B79-requests, on `requests`; laws C1, C6, E4.\n' in text
    assert "[issue 35270](https" in text
    assert "[pull request 46](https" in text
    assert "[commit 61acfdcb](https" in text
    assert f"| [B83](#b83) | {BUGS['B83'].title} | {UNPLANTED['B83']} |\n" in text
