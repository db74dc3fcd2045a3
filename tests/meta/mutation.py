"""Change the code at random places and see the tests fail: ``python tests/meta/mutation.py``.

mutmut makes the mutants of oracle/, mem_cache/ and core/ in a copy of this tree; a sample of them, drawn from
a named seed, runs under the unit tests of these rooms and the state machines. The score is printed with every
survivor that mutants_explained.json does not explain: it is equivalent, or nobody could tell the difference.

A sample of 300 takes hours. With --folder the copy is kept, and a later call goes on there: what was killed
stays killed, all others are tried again, under the tests as they are by then.
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
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

__all__ = ["Mutant", "Score", "Tree", "draw", "explain", "main", "make_page", "sample", "score", "sum_up"]

ROOT = Path(__file__).parents[2]
PLUGINS = Path(__file__).parent
EXPLAINED = Path(__file__).with_name("mutants_explained.json")
ROOMS = ("oracle", "mem_cache", "core")
TESTS = (*(f"tests/unit/{room}" for room in ROOMS), "tests/properties")
COPIED = ("src", "tests", "docs", "examples", "benchmarks", "README.md", "CONTRIBUTING.md", "pyproject.toml")
GOAL = 0.9

_PAGE = """\
# Mutation

Is every line of `oracle/`, `mem_cache/` and `core/` tested, or only run? mutmut {version} changes one small
thing at a time: an operator, a number, a text, an argument. The unit tests of these rooms and the state
machines must notice. A sample of {size} out of {total} changes, drawn from the seed `{seed}`:

**{score}.** The goal is {goal:.0%} of those that can be killed.

A test that takes ten times its processor time has noticed; one that is late on a busy machine has not, and
runs again alone. This page is written by `python tests/meta/mutation.py --page docs/mutation.md`. It names
all that survived; `tests/meta/mutants_explained.json` says why nobody could tell the difference.

| function | was | became | noticed by nobody, because |
| --- | --- | --- | --- |
"""


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
    killed = sum(status == "killed" for status in statuses.values())
    found = [mutants[name] for name, status in statuses.items() if status != "killed"]
    explained = tuple(mutant for mutant in found if mutant in reasons)
    return Score(killed, explained, tuple(mutant for mutant in found if mutant not in reasons))


def sum_up(found: Score) -> str:
    """Say the score in one line."""
    return (
        f"{found.killed} killed, {len(found.survived)} survived, {len(found.explained)} cannot be killed: "
        f"{found.share:.1%}"
    )


def make_page(found: Score, seed: str, size: int, total: int) -> str:
    """Lay the score out as the page docs/mutation.md."""
    reasons = explain()
    rows = [(mutant, "nobody knows yet") for mutant in found.survived]
    rows += [(mutant, reasons[mutant]) for mutant in found.explained]
    lines = [
        f"| `{mutant.function}` | {_cell(mutant.old)} | {_cell(mutant.new)} | {reason} |"
        for mutant, reason in rows
    ]
    head = _PAGE.format(
        size=size, total=total, seed=seed, score=sum_up(found), version=version("mutmut"), goal=GOAL
    )
    return head + "\n".join([*lines, ""])


def _cell(text: str) -> str:
    """Return code as it may stand in a table."""
    line = " ".join(text.split()).replace("|", "\\|")
    return f"`` {line} ``" if line else "nothing"


class Tree:
    """A copy of the repository in which mutmut runs; what it prints is kept from the screen."""

    def __init__(self, folder: Path, only: Sequence[str], tests: Sequence[str]) -> None:
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=ignored, dirs_exist_ok=True)
            else:
                shutil.copy2(source, folder / name)
        settings = {
            "source_paths": ["src"],
            "only_mutate": list(only),
            "also_copy": [name for name in COPIED if name not in ("src", "tests", "pyproject.toml")],
            "pytest_add_cli_args": [
                *("-p", "no:cacheprovider", "-p", "mutant_limits", "-x", "--hypothesis-profile=ci")
            ],
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
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"src{os.pathsep}{PLUGINS}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    @property
    def is_timed(self) -> bool:
        """Whether the tests have passed without a mutant, and mutmut knows which of them run what."""
        return (self.folder / "mutants" / "mutmut-stats.json").exists()

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


def draw(tree: Tree, seed: str, count: int, jobs: int) -> tuple[list[str], dict[str, str]]:
    """Make the mutants where there are none, draw a sample, and run what of it was not killed before.

    Returns
    -------
    tuple
        Names of all mutants, and what became of the sample.

    Raises
    ------
    SystemExit
        mutmut made none, or the tests fail without a mutant.
    """
    said = tree.call("run", "none", "--max-children", str(jobs))  # makes them, and times the tests
    before = tree.statuses()
    if not before or not tree.is_timed:
        raise SystemExit(said[-3000:])
    chosen = sample(list(before), seed, count)
    left = [name for name in chosen if before[name] != "killed"]
    if left:
        tree.call("run", "--max-children", str(jobs), *left)
    now = tree.statuses()
    late = [name for name in left if now[name] not in ("killed", "survived", "no tests")]
    if late:  # alone: a busy machine is no proof
        tree.call("run", "--max-children", "1", *late)
        now = tree.statuses()
    return list(before), {name: now[name] for name in chosen}


def main() -> int:
    """Make mutants, run a sample, print the score; 0 where it is good enough."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", default="pymllm", help="names the sample")
    parser.add_argument("--sample", type=int, default=300, help="how many mutants")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", nargs="*", help="files to change, as src/pymllm/oracle/slot_*.py")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="which tests may notice")
    parser.add_argument("--folder", type=Path, help="keep the copy there, and go on with what it knows")
    parser.add_argument("--page", type=Path, help="write the score as Markdown")
    arguments = parser.parse_args()
    only = arguments.only or [f"src/pymllm/{room}/*" for room in ROOMS]
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(arguments.folder or Path(folder), only, arguments.tests)
        names, statuses = draw(tree, arguments.seed, arguments.sample, arguments.jobs)
        survivors = [name for name, status in statuses.items() if status != "killed"]
        found = score(statuses, {name: tree.show(name) for name in survivors})
    print(dict(Counter(statuses.values())), "seed", arguments.seed, "sample", len(statuses))
    for mutant in found.survived:
        print(f"\n{mutant.function}\n- {mutant.old}\n+ {mutant.new}")
    print(f"\n{sum_up(found)}")
    if arguments.page is not None:
        page = make_page(found, arguments.seed, len(statuses), len(names))
        arguments.page.write_text(page, encoding="utf-8")
    return 0 if found.share >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main())
