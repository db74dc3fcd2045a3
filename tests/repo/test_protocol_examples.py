"""The caches in C, Rust and Python behind the process protocol: built and verified; one is convicted."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pymllm.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "protocol"
PYTHON = [sys.executable, "-S"]
LAWS = {
    *("X3", "X4", "X7", "A1", "A2", "A3", "K1", "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9"),
    *("E1", "E2", "E3", "E4", "E5"),
}
"""What a cache with slots, namespaces and a strict order of recency claims, driven by an engine."""


def compiler(*names: str) -> str:
    """The first of some compilers that is there; rustup puts its own where no PATH may lead."""
    cargo = str(Path.home() / ".cargo" / "bin")
    found = next(
        (path for name in names if (path := shutil.which(name) or shutil.which(name, path=cargo))), None
    )
    if found is None:
        pytest.skip(f"needs a compiler; there is none of {', '.join(names)}")
    return found


def build_c(folder: Path) -> list[str]:
    program = folder / "page_cache_c"
    strict = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run(
        [compiler("cc", "gcc"), "-O2", *strict, "-o", program, EXAMPLES / "page_cache.c"], check=True
    )
    return [str(program)]


def build_rust(folder: Path) -> list[str]:
    program = folder / "page_cache_rs"
    command = [compiler("rustc"), "--edition", "2021", "-O", "-D", "warnings", "-o", program]
    subprocess.run([*command, EXAMPLES / "page_cache.rs"], check=True)
    return [str(program)]


def build_python(folder: Path) -> list[str]:
    return [*PYTHON, str(EXAMPLES / "page_cache.py")]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


@pytest.mark.parametrize("build", [build_c, build_rust, build_python], ids=["C", "Rust", "Python"])
def test_an_example_keeps_every_law_that_it_claims(build: object, tmp_path: Path) -> None:
    """After it has spoken rightly: everything is tested, nothing is unknown."""
    assert callable(build)
    command = shlex.join(build(tmp_path))
    checked = run("verify", "--command", command, "--check-protocol", "--output", str(tmp_path))
    assert checked.exit_code == 0, checked.output
    searched = run(
        *("verify", "--command", command, "--examples", "6", "--jobs", "1", "--seed", "2", "--json"),
        *("--output", str(tmp_path)),
    )
    assert searched.exit_code == 0, searched.output
    (adapter,) = json.loads(searched.stdout)["adapters"]
    assert {row["id"] for row in adapter["laws"] if row["verdict"] == "holds"} == LAWS
    assert {row["verdict"] for row in adapter["laws"]} == {"holds", "not claimed"}


def test_the_broken_one_is_convicted_with_a_small_program(tmp_path: Path) -> None:
    """R6: it evicts what is held. The file shows it again by itself."""
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
    for again in ("rerun", "judge"):
        shown = run(again, violation["file"])
        assert shown.exit_code == 1, shown.output
        assert "R6" in shown.stdout
    right = run(
        "rerun", violation["file"], "--command", shlex.join([*PYTHON, str(EXAMPLES / "page_cache.py")])
    )
    assert right.exit_code == 0, right.output


def test_the_examples_know_nothing_of_us_and_are_small() -> None:
    """One file each, of the standard library only."""
    for name, most in (
        ("page_cache.py", 190),
        ("broken_cache.py", 30),
        ("page_cache.c", 450),
        ("page_cache.rs", 380),
    ):
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        assert "import pymllm" not in text
        assert "from pymllm" not in text
        assert len(text.splitlines()) <= most, name
