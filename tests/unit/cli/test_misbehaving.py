"""Tests of adapters that misbehave: each has a line of its own, and other adapters have results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pymllm.history import operations as ops
from pymllm.history.files import write_history
from pymllm.machines.adapter_calls import build_adapter
from pymllm.machines.examiner import Examiner
from tests.unit.cli.typed import typed

pytestmark = pytest.mark.usefixtures("work_here")


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lets ``misbehaving:Class`` name the classes, and keeps what commands write."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    monkeypatch.chdir(tmp_path)


HARMLESS = ("misbehaving:close_is_", "misbehaving:close_has_", "misbehaving:name_is_huge")
"""What nobody looks at."""
GOOD = "first_adapters:Slots"


def names() -> list[str]:
    """Return all that misbehave."""
    from misbehaving import NAMES

    return [f"misbehaving:{name}" for name in NAMES]


def noticed() -> set[str]:
    """Return the adapters with a misbehaviour that shows."""
    return {name for name in names() if not name.startswith(HARMLESS)}


def asked(option: str = "--adapter") -> list[str]:
    """Return the arguments that name all of them and the good one."""
    return [word for name in (*names(), GOOD) for word in (option, name) if word]


def read(*typing: object) -> dict[str, Any]:
    """Return the document of a run in which something is unknown, and nothing a mistake of ours."""
    result = typed(*typing, "--json")
    assert (result.exit_code, "Traceback" in result.output) == (3, False), result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.mark.parametrize("verb", ["verify", "compare"])
def test_a_search_gives_each_its_line_and_the_others_their_results(verb: str) -> None:
    """Of whatever is wrong with the class, with an object of it, or with a method."""
    words = asked("") if verb == "compare" else asked()
    adapters = {row["name"]: row for row in read(verb, *words, "--examples", 2)["adapters"]}
    for name in sorted(noticed()):
        message, *more = (problem["message"] for problem in adapters[name]["problems"])
        assert not adapters[name]["violations"]
        assert all("\n" not in it and 10 < len(it) < 1000 for it in (message, *more)), name
    good = adapters[GOOD]
    assert (good["problems"], good["violations"]) == ([], [])
    assert {row["verdict"] for row in good["laws"]} >= {"holds"}


def test_a_soak_gives_each_its_line_and_the_others_their_runs() -> None:
    """A fault that only a run shows is a failure of that run."""
    document = read(
        "soak", *asked(), "--operations", 2000, "--longest", 20, "--audit", "every", "--output", "soak"
    )
    refused: dict[str, str] = document["refused"]
    failed = {row["name"] for row in document["adapters"] if row["failures"]}
    assert noticed() == refused.keys() | failed
    assert all("\n" not in it and 10 < len(it) < 1000 for it in refused.values())
    (good,) = (row for row in document["adapters"] if row["name"] == GOOD)
    assert good["operations"] > 0
    assert not good["failures"]


@pytest.mark.parametrize("verb", ["rerun", "shrink"])
def test_a_program_on_one_that_misbehaves_ends_with_a_line(verb: str) -> None:
    """A class of no kind is bad input, status 2; else nothing can be said of the program, status 3."""
    examiner = Examiner(build_adapter("first_adapters:Right"))
    examiner.do(ops.Alloc(2))
    examiner.do(ops.Insert(ops.Key((1, 2)), (ops.Span(1, 0, 2),)))
    write_history(examiner.history, Path("program.jsonl"))
    for name in noticed():
        if ":CONFIGURATIONS_" in name:  # a program has a configuration of its own
            continue
        result = typed(verb, "program.jsonl", "--adapter", name)
        assert result.exit_code == (2 if ":KIND_" in name else 3), (name, result.output)
        assert (result.stdout, result.stderr.count("\n")) == ("", 1), (name, result.output)
        assert len(result.stderr) < 1000


def test_one_size_too_late_costs_nobody_else_a_result() -> None:
    """The first that is None comes in the search."""
    document = read("verify", "--adapter", "misbehaving:Late", "--adapter", GOOD, "--examples", 3)
    late, good = document["adapters"]
    assert "sizes() returned None; it must return a dict" in late["problems"][0]["message"]
    assert good["problems"] == []
