"""The caches in C, Rust and Python behind the process protocol: built and verified; one is convicted."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pymllm.cli import main
from pymllm.errors import InvariantViolation
from pymllm.history.operations import Alloc, Evict, Fault, Insert, Key, Lock, Operation, Span
from pymllm.search.program import run_program
from tests.example_programs import EXAMPLES, PYTHON, build_c, build_python, build_rust, build_strict

LAWS = {
    *("X3", "X4", "X7", "X9", "A1", "A2", "A3", "K1", "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9"),
    *("E1", "E2", "E3", "E4", "E5", "E6"),
}
"""What a cache with slots, namespaces and a strict order of recency claims, driven by an engine."""
STRICT_LAWS = LAWS | {"X1", "X2", "X6"}
"""What it claims beside that refuses misuse, calls back and lets calls fail."""


CACHED = [Alloc(2), Insert(Key((1, 2)), (Span(1, 0, 2),))]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    ("build", "laws"),
    [(build_c, LAWS), (build_rust, LAWS), (build_python, LAWS), (build_strict, STRICT_LAWS)],
    ids=["C", "Rust", "Python", "strict"],
)
def test_an_example_keeps_every_law_that_it_claims(
    build: Callable[[Path], list[str]], laws: set[str], tmp_path: Path
) -> None:
    """After it has spoken rightly: everything is tested, nothing is unknown."""
    command = shlex.join(build(tmp_path))
    checked = run("check-protocol", command, "--output", str(tmp_path))
    assert checked.exit_code == 0, checked.output
    searched = run(
        *("verify", "--command", command, "--examples", "6", "--jobs", "1", "--seed", "2", "--json"),
        *("--output", str(tmp_path)),
    )
    assert searched.exit_code == 0, searched.output
    (adapter,) = json.loads(searched.stdout)["adapters"]
    assert {row["id"] for row in adapter["laws"] if row["verdict"] == "holds"} == laws
    assert {row["verdict"] for row in adapter["laws"]} == {"holds", "not claimed"}


def test_the_broken_one_is_convicted_with_a_small_program(tmp_path: Path) -> None:
    """R6: it evicts what is held. The file shows it again: judged as it is, run with the command."""
    command = shlex.join([*PYTHON, str(EXAMPLES / "broken_cache.py")])
    found = run(
        *("verify", "--command", command, "--law", "R6", "--examples", "5", "--jobs", "1", "--json"),
        *("--output", str(tmp_path)),
    )
    assert found.exit_code == 1, found.output
    (adapter,) = json.loads(found.stdout)["adapters"]
    (violation,) = adapter["violations"]
    assert (violation["law"], violation["rerun_shows_it"], violation["judge_shows_it"]) == ("R6", True, True)
    assert violation["steps"] <= 6
    for again in (("rerun", "--command", command), ("judge",)):
        shown = run(*again, violation["file"])
        assert shown.exit_code == 1, shown.output
        assert "R6" in shown.stdout
    right = run(
        "rerun", violation["file"], "--command", shlex.join([*PYTHON, str(EXAMPLES / "page_cache.py")])
    )
    assert right.exit_code == 0, right.output


@pytest.mark.parametrize(
    ("law", "program", "right", "wrong"),
    [
        (
            "X1",
            [*CACHED, Evict(2), Lock(2)],
            "self.numbers.get(self.nodes.get(step)) != number",
            "number < 0",
        ),
        (
            "X2",
            [*CACHED, Fault("free"), Evict(2)],
            "        if slots and",
            "        self.pages = {}\n        if",
        ),
        ("X2", [*CACHED, Fault("callback", 2), Evict(2)], "raise errors[0]", "errors.clear()"),
        (
            "X6",
            [*CACHED, Fault("reenter"), Evict(2)],
            "calling_back, note = True",
            "calling_back, note = False",
        ),
    ],
)
def test_what_goes_wrong_where_something_fails_is_found(
    law: str, program: list[Operation], right: str, wrong: str, tmp_path: Path
) -> None:
    """Misuse, a pool that refuses and a callback that calls again reach a program; its answers are judged."""
    shutil.copy(EXAMPLES / "page_cache.py", tmp_path)
    text = (EXAMPLES / "strict_cache.py").read_text(encoding="utf-8")
    assert text.count(right) == 1
    (tmp_path / "strict_cache.py").write_text(text.replace(right, wrong), encoding="utf-8")
    config = {"page_size": 1, "window": None, "pool": "token", "slots": 4, "swa_slots": 0}
    run_program(f"command:{shlex.join(build_strict(EXAMPLES))}", config, program)
    with pytest.raises(InvariantViolation, match=f"^{law}"):
        run_program(f"command:{shlex.join([*PYTHON, str(tmp_path / 'strict_cache.py')])}", config, program)


def test_the_examples_know_nothing_of_us_and_are_small() -> None:
    """One file each, of the standard library only."""
    for name, most in (
        ("page_cache.py", 190),
        ("broken_cache.py", 30),
        ("strict_cache.py", 170),
        ("page_cache.c", 450),
        ("page_cache.rs", 380),
    ):
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        assert "import pymllm" not in text
        assert "from pymllm" not in text
        assert len(text.splitlines()) <= most, name
