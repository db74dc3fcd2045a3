"""``pymllm diff``: what changed from one run to another."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pymllm.cli.schema import make_schema
from tests.unit.cli.typed import refused, typed

WRITTEN = Path(__file__).parent / "written_by_1"
REPORTED = Path(__file__).parents[1] / "report" / "written_by_1"


diff = partial(typed, "diff")


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[str, Callable[[Any], None]], Path]:
    """Write a document of the version before with something else in it."""

    def write(name: str, change: Callable[[Any], None]) -> Path:
        document = copy.deepcopy(json.loads((WRITTEN / name).read_text(encoding="utf-8")))
        change(document)
        path = tmp_path / name
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    return write


Changed = Callable[[str, Callable[[Any], None]], Path]


@pytest.mark.parametrize(
    "run",
    [
        *(WRITTEN / f"{name}.json" for name in ("verify", "compare", "soak", "faults", "replay", "judge")),
        WRITTEN / "soak-ledger.jsonl",
        REPORTED / "found" / "campaign",
        REPORTED / "found" / "0001_benchmark.json",
        *sorted((REPORTED / "store").glob("*.run.jsonl"))[:3],
    ],
    ids=lambda path: path.name,
)
def test_a_run_is_as_it_was(run: Path) -> None:
    """Of any kind, wherever it is kept: nothing changed, and nothing fails."""
    result = diff(run, run, "--fail-on", "any", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    Draft202012Validator(make_schema("diff")).validate(document)
    assert not any(document[name] for name in ("laws", "findings", "figures", "situations_lost"))


def test_a_law_that_is_broken_now_comes_first(changed: Changed) -> None:
    """With its finding; a law that was tested at last is better. The document says the same."""

    def spoil(document: Any) -> None:
        _, chunk = document["adapters"][1], document["adapters"][0]
        a1, r1 = chunk["laws"]
        a1["verdict"], r1["verdict"] = "holds", "violated"
        chunk["violations"] = [{**document["adapters"][1]["violations"][0], "law": "R1", "message": "match"}]

    after = changed("verify.json", spoil)
    result = diff(WRITTEN / "verify.json", after)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines()]
    first = lines.index(["law", "implementation", "before", "after", "change"])
    assert [line[0] for line in lines[first + 1 : first + 3]] == ["R1", "A1"]
    assert lines[first + 1][-3:] == ["violated", "newly", "violated"]
    assert ["R1", "chunk", "match", "new"] in lines
    assert "laws: 1 worse, 1 better; findings: 1 new, 0 gone" in result.stdout
    back = diff(after, WRITTEN / "verify.json")
    assert ["R1", "chunk", "match", "gone"] in [line.split() for line in back.stdout.splitlines()]
    document = json.loads(diff(WRITTEN / "verify.json", after, "--json", "--fail-on", "law").stdout)
    Draft202012Validator(make_schema("diff")).validate(document)
    assert (document["failed_on"], document["exit_status"]) == (["law"], 1)


@pytest.mark.parametrize(
    ("name", "change", "reasons"),
    [
        ("verify.json", lambda it: it["adapters"][1]["laws"][0].update(verdict="unknown"), []),
        ("verify.json", lambda it: it["adapters"][0]["laws"][0].update(verdict="violated"), ["law", "any"]),
        (
            "verify.json",
            lambda it: it["adapters"][0]["problems"].append({"message": "it is gone"}),
            ["finding", "any"],
        ),
        ("soak.json", lambda it: it["conflicts"].append("runs 3 and 4"), ["finding", "any"]),
        ("soak.json", lambda it: it["adapters"][0].update(situations={}), ["any"]),
        ("faults.json", lambda it: it["faults"][0].update(caught=False), ["finding", "any"]),
        (
            "replay.json",
            lambda it: it.update(violation={"cache": "radix", "law": "E1", "message": "page 3"}),
            ["finding", "any"],
        ),
        ("replay.json", lambda it: it["runs"][0]["match"].update(median_us=9e9), []),
    ],
)
def test_it_fails_on_what_is_asked_for(
    changed: Changed, name: str, change: Callable[[Any], None], reasons: list[str]
) -> None:
    """Status 1 for CI, and 0 for everything else; a figure without samples is shown and not judged."""
    after = changed(name, change)
    failing = [
        reason
        for reason in ("law", "finding", "figure", "any")
        if diff(WRITTEN / name, after, "--fail-on", reason).exit_code
    ]
    assert failing == reasons
    result = diff(WRITTEN / name, after, *(it for reason in reasons for it in ("--fail-on", reason)))
    assert ("failed on" in result.stdout) == bool(reasons)
    assert ("no samples" in result.stdout) == ("median_us" in str(change.__code__.co_consts))


def benchmark(path: Path, median: float, **other: object) -> Path:
    """One benchmark with quartiles a tenth below and above its median."""
    text = (REPORTED / "found" / "0001_benchmark.json").read_text(encoding="utf-8")
    document = json.loads(text)
    (it,) = document["benchmarks"][:1]
    it["stats"] |= {"median": median, "q1": 0.9 * median, "q3": 1.1 * median}
    it.get("extra_info", {}).update(other)
    document["benchmarks"] = [it]
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("factor", "other", "test", "status"),
    [
        (1.1, {}, "spreads overlap", 0),
        (1.5, {}, "worse: spreads apart", 1),
        (0.5, {}, "better: spreads apart", 0),
        (1.5, {"code": "another"}, "other code", 0),
    ],
)
def test_a_figure_is_judged_beyond_its_noise(
    tmp_path: Path, factor: float, other: dict[str, object], test: str, status: int
) -> None:
    """Where the spreads of both have nothing in common, and the same code measured."""
    before = benchmark(tmp_path / "0001_a.json", 1e-3)
    after = benchmark(tmp_path / "0002_b.json", factor * 1e-3, **other)
    result = diff(before, after, "--fail-on", "figure")
    assert result.exit_code == status
    (line,) = [line for line in result.stdout.splitlines() if ": median" in line]
    assert line.endswith(test)


def test_another_machine_is_shown_and_not_judged(tmp_path: Path) -> None:
    """Its figures are no regression."""
    before = benchmark(tmp_path / "0001_a.json", 1e-3)
    after = benchmark(tmp_path / "0002_b.json", 5e-3)
    document = json.loads(after.read_text(encoding="utf-8"))
    document["machine_info"] |= {"processor": "Another", "usable_cores": 77}
    after.write_text(json.dumps(document), encoding="utf-8")
    result = diff(before, after, "--fail-on", "any")
    assert result.exit_code == 0
    assert "another machine" in result.stdout


def test_goals_and_subjects_of_one_run_alone_are_named(changed: Changed) -> None:
    """An adapter that was not searched has lost no law."""

    def leave_out(document: Any) -> None:
        del document["adapters"][1]

    result = diff(WRITTEN / "verify.json", changed("verify.json", leave_out))
    assert "only before: faulty-slot-zero\n" in result.stdout
    assert "no longer reached by faulty-slot-zero, SlotMachine: " in result.stdout
    assert re.search("A1 +faulty-slot-zero .* gone\n", result.stdout)
    assert "laws: 0 worse" in result.stdout


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (WRITTEN / "verify.json", WRITTEN / "replay.json", "two of one kind are compared"),
        (WRITTEN, WRITTEN / "verify.json", "name one of them"),
        (Path(__file__), WRITTEN / "verify.json", "not JSON"),
        (WRITTEN / "shrink.json", WRITTEN / "shrink.json", "shows no document 'pymllm.shrink'"),
        (Path("nowhere"), WRITTEN / "verify.json", "'nowhere' does not exist"),
        (Path("/proc/self/mem"), WRITTEN / "verify.json", "/proc/self/mem"),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_status_2(before: Path, after: Path, words: str) -> None:
    """X1: what it is, and what would do."""
    refused("diff", before, after, words=words)


def test_a_document_that_is_not_whole_is_refused(changed: Changed) -> None:
    """With the field that is missing."""
    for name in ("judge.json", "verify.json"):
        broken = changed(name, lambda it: it.pop("verdict"))
        result = diff(broken, broken)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "verdict" in result.stderr
