"""Mutants are read as mutmut wrote them, and counted as what became of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mutation
import pytest
from mutant_runs import Results, stages_for
from mutants import Change, read_mutant

SOURCE = '''\
"""A module."""


def half(number: int) -> int:
    """Return half of it."""
    return number // 2


class Box:
    @classmethod
    def of(cls, number: int) -> object:
        return cls() if number > 1 else Box()
'''
MUTATED = '''\
def x_half__mutmut_orig(number: int) -> int:
    return number // 2

def x_half__mutmut_1(number: int) -> int:
    """Return half of it."""
    return number // 3

class Box:
    def xǁBoxǁof__mutmut_1(cls, number: int) -> object:
        return cls() if number >= 1 else Box()
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What mutmut leaves behind."""
    for place, text in (("src", SOURCE), ("mutants/src", MUTATED)):
        path = tmp_path / place / "pack" / "halves.py"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_one_function_is_changed_and_nothing_else(folder: Path) -> None:
    """With its name, its decorators and its place."""
    change = read_mutant(folder, "pack.halves.x_half__mutmut_1")
    assert (change.module, change.function) == ("pack.halves", "pack.halves.half")
    assert (change.old, change.new) == ("return number // 2", "return number // 3")
    assert change.text == SOURCE.replace("// 2", "// 3")
    inner = read_mutant(folder, "pack.halves.xǁBoxǁof__mutmut_1")
    assert inner.function == "pack.halves.Box.of"
    assert inner.text == SOURCE.replace("> 1", ">= 1")


def test_a_process_imports_the_change_in_place_of_the_file(folder: Path) -> None:
    """Without a word in the file, and whatever is compiled already."""
    program = (
        "from pathlib import Path; from mutants import install, read_mutant\n"
        "import py_compile; py_compile.compile('src/pack/halves.py')\n"
        "install(read_mutant(Path(), 'pack.halves.x_half__mutmut_1'), Path())\n"
        "from pack.halves import Box, half; print(half(6), Box)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={"PYTHONPATH": f"{Path(__file__).parent}:src", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "2 <class 'pack.halves.Box'>\n"


def test_the_nearest_tests_come_first() -> None:
    """The mirror, where there is one, then the room, and the machines last."""
    stages = stages_for(mutation.ROOT, "pymllm.oracle.spans", ("oracle", "core"))
    assert stages == [
        ("tests/unit/oracle/test_spans.py",),
        ("tests/unit/oracle",),
        ("tests/unit/core",),
        ("tests/properties",),
    ]
    assert stages_for(mutation.ROOT, "pymllm.core.nothing", ("core",))[0] == ("tests/unit/core",)


def test_a_score_leaves_out_what_nobody_can_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share is of those that could be noticed; every survivor is on the page."""
    changes = {name: Change("m", "m.f", f"old {name}", "new | one", "") for name in "abcd"}
    monkeypatch.setattr(mutation, "explain", lambda: {mutation.Mutant("m.f", "old d", "new | one"): "equal"})
    found = mutation.score(changes, {"a": "here", "b": "there", "c": "", "d": ""})
    assert (found.killed, len(found.survived), len(found.explained)) == (2, 1, 1)
    assert found.share == pytest.approx(2 / 3)
    page = mutation.make_page(found, "seed", 4, 40)
    assert "2 killed, 1 survived, 1 cannot be killed: 66.7%" in page
    assert "| `m.f` | `` old d `` | `` new \\| one `` | equal |" in page


def test_equal_seeds_draw_equal_samples() -> None:
    """In whatever order the names come."""
    names = [f"name {number}" for number in range(50)]
    drawn = mutation.sample(names, "seed", 10)
    assert drawn == mutation.sample(names[::-1], "seed", 10)
    assert drawn != mutation.sample(names, "another", 10)


def test_results_are_kept(tmp_path: Path) -> None:
    """A later run goes on with them."""
    path = tmp_path / "results.json"
    results = Results(path)
    results.noticed["a"], results.seconds["tests"] = "tests/unit", 2.5
    results.save()
    again = Results(path)
    assert (again.noticed, again.seconds) == ({"a": "tests/unit"}, {"tests": 2.5})
    assert json.loads(path.read_text(encoding="utf-8"))["seconds"] == {"tests": 2.5}


def test_every_reason_is_of_a_function_that_is_there() -> None:
    """What was explained once may have been rewritten since."""
    for mutant in mutation.explain():
        module, _, function = mutant.function.rpartition(".")
        path = next(
            file
            for parts in (module, module.rpartition(".")[0])
            if (file := mutation.ROOT.joinpath("src", *parts.split(".")).with_suffix(".py")).exists()
        )
        assert f"def {function}(" in path.read_text(encoding="utf-8")
