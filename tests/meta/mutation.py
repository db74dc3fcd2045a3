"""Change the code at random places and see the tests fail: ``python tests/meta/mutation.py``.

mutmut makes the mutants of oracle/, mem_cache/ and core/ in a copy of this tree; a sample of them, drawn from
a named seed, runs under the unit tests of these rooms and the state machines. The score is printed with every
survivor that mutants_explained.json does not explain: it is equivalent, or nobody could tell the difference.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Mutant", "Score", "explain", "main", "sample", "score"]

ROOT = Path(__file__).parents[2]
EXPLAINED = Path(__file__).with_name("mutants_explained.json")
ROOMS = ("oracle", "mem_cache", "core")
TESTS = (*(f"tests/unit/{room}" for room in ROOMS), "tests/properties")
COPIED = ("src", "tests", "docs", "examples", "benchmarks", "README.md", "CONTRIBUTING.md", "pyproject.toml")
GOAL = 0.9


class Mutant(NamedTuple):
    """A change of one function: where, what it says, and what it said."""

    function: str
    old: str
    new: str


class Score(NamedTuple):
    """How many of a sample were noticed, and who was not: with a reason, or without one."""

    killed: int
    explained: tuple[Mutant, ...]
    survived: tuple[Mutant, ...]

    @property
    def share(self) -> float:
        """Killed among those that could be."""
        return self.killed / max(self.killed + len(self.survived), 1)


def explain() -> dict[Mutant, str]:
    """Read the reasons of those that nobody can kill."""
    rows = json.loads(EXPLAINED.read_text(encoding="utf-8"))
    return {Mutant(row["function"], row["old"], row["new"]): row["reason"] for row in rows}


def sample(names: Sequence[str], seed: str, count: int) -> list[str]:
    """Draw mutants; equal names and seeds give an equal sample."""
    ordered = sorted(names)
    return random.Random(seed).sample(ordered, min(count, len(ordered)))


def score(statuses: dict[str, str], mutants: dict[str, Mutant]) -> Score:
    """Sum up what became of a sample.

    Parameters
    ----------
    statuses : dict of str to str
        By mutmut's name of the mutant, as mutmut says it.
    mutants : dict of str to Mutant
        The survivors.
    """
    reasons = explain()
    gone = Counter(status in ("killed", "timeout", "segfault", "suspicious") for status in statuses.values())
    found = [mutants[name] for name, status in statuses.items() if status in ("survived", "no tests")]
    explained = tuple(mutant for mutant in found if mutant in reasons)
    return Score(gone[True], explained, tuple(mutant for mutant in found if mutant not in reasons))


class Tree:
    """A copy of the repository in which mutmut runs; what it prints is kept from the screen."""

    def __init__(self, folder: Path, only: Sequence[str], tests: Sequence[str]) -> None:
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=ignored)
            else:
                shutil.copy(source, folder / name)
        settings = {
            "source_paths": ["src"],
            "only_mutate": list(only),
            "also_copy": [name for name in COPIED if name not in ("src", "tests", "pyproject.toml")],
            "pytest_add_cli_args": ["-p", "no:cacheprovider", "-x", "--hypothesis-profile=ci"],
            "pytest_add_cli_args_test_selection": list(tests),
        }
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        with (folder / "pyproject.toml").open("a", encoding="utf-8") as file:
            file.write(f"\n[tool.mutmut]\n{lines}")

    def call(self, *arguments: str) -> str:
        """Run mutmut."""
        done = subprocess.run(
            [sys.executable, "-m", "mutmut", *arguments],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "src"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    def statuses(self) -> dict[str, str]:
        """Return what mutmut knows of every mutant."""
        lines = self.call("results", "--all", "true").splitlines()
        return dict(line.strip().rsplit(": ", 1) for line in lines if "__mutmut_" in line)

    def show(self, name: str) -> Mutant:
        """Return the change that a mutant is."""
        diff = [
            line for line in self.call("show", name).splitlines() if not line.startswith(("---", "+++", "#"))
        ]
        old, new = (
            "\n".join(line[1:].strip() for line in diff if line.startswith(sign)) for sign in ("-", "+")
        )
        function = re.sub(r"__mutmut_\d+$", "", name).replace("xǁ", "").replace("ǁ", ".").replace(".x_", ".")
        return Mutant(function, old, new)


def main() -> int:
    """Make mutants, run a sample, print the score; 0 where it is good enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", default="pymllm", help="names the sample")
    parser.add_argument("--sample", type=int, default=300, help="how many mutants")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", nargs="*", help="files to change, as src/pymllm/oracle/slot_*.py")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="which tests may notice")
    arguments = parser.parse_args()
    only = arguments.only or [f"src/pymllm/{room}/*" for room in ROOMS]
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder), only, arguments.tests)
        said = tree.call(
            "run", "none", "--max-children", str(arguments.jobs)
        )  # makes them, and times the tests
        chosen = sample(list(tree.statuses()), arguments.seed, arguments.sample)
        if not chosen:
            print(said[-3000:], file=sys.stderr)
            return 2
        said = tree.call("run", "--max-children", str(arguments.jobs), *chosen)
        statuses = {name: status for name, status in tree.statuses().items() if name in set(chosen)}
        survivors = [name for name, status in statuses.items() if status in ("survived", "no tests")]
        found = score(statuses, {name: tree.show(name) for name in survivors})
    print(dict(Counter(statuses.values())), "seed", arguments.seed, "sample", len(chosen))
    for mutant in found.survived:
        print(f"\n{mutant.function}\n- {mutant.old}\n+ {mutant.new}")
    print(
        f"\n{found.killed} killed, {len(found.survived)} survived, {len(found.explained)} cannot be killed: "
        f"{found.share:.1%}"
    )
    return 0 if found.share >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
