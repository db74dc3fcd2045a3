"""Mutants are read as mutmut wrote them, and counted as what became of them."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import mutation
import pytest
from mutant_places import exchange, find_codes, find_functions, find_lines
from mutant_processes import Task, Tell, limit, run_each
from mutant_reach import IMPORT, Reach, Sources, merge, read_reach, stamp_sources, write_reach
from mutant_runs import stages_for
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
    """Make a folder as mutmut leaves it behind."""
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
    """A process imports the change without a word in the file, even if the module is already compiled."""
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
    """A file of its name, where there is one, then the room, and the machines last."""
    stages = stages_for(mutation.ROOT, "pymllm.history.files", ("history", "core"))
    assert stages == [
        ("tests/unit/history/test_files.py",),
        ("tests/unit/history",),
        ("tests/unit/core",),
        ("tests/properties",),
    ]
    assert stages_for(mutation.ROOT, "pymllm.core.nothing", ("core",))[0] == ("tests/unit/core",)


def test_a_score_leaves_out_what_nobody_can_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share is of the mutants that could be noticed; every survivor is on the page."""
    changes = {name: Change("m", "m.f", f"old {name}", "new | one", "") for name in "abcd"}
    monkeypatch.setattr(mutation, "explain", lambda: {mutation.Mutant("m.f", "old d", "new | one"): "equal"})
    monkeypatch.setattr(mutation, "version", lambda name: "3")  # it is installed only where mutants are made
    found = mutation.score(changes, {"a": "here", "b": "there", "c": "", "d": ""})
    assert (found.killed, len(found.survived), len(found.explained)) == (2, 1, 1)
    assert found.share == pytest.approx(2 / 3)
    page = mutation.make_page(found, "seed", 4, 40)
    assert "2 noticed, 1 not noticed, 1 that no test can notice: 66.7%" in page
    assert "| `m.f` | `` old d `` | `` new \\| one `` | equal |" in page


def test_a_sample_outlives_other_changes() -> None:
    """The order of names does not matter; a name that came or went moves at most one place of a sample."""
    names = [f"name {number}" for number in range(50)]
    drawn = mutation.sample(names, "seed", 10)
    assert drawn == mutation.sample(names[::-1], "seed", 10) != mutation.sample(names, "another", 10)
    assert set(drawn[:9]) <= set(mutation.sample([*names, "one more"], "seed", 10))
    assert drawn[1:] == mutation.sample([name for name in names if name != drawn[0]], "seed", 9)


def load(path: Path) -> ModuleType:
    """Import a file."""
    spec = importlib.util.spec_from_file_location("pack.halves", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_running_process_exchanges_one_function(folder: Path) -> None:
    """An object that holds the function already has the changed code, under decorators, too."""
    path = folder / "src" / "pack" / "halves.py"
    module = load(path)
    half, of = module.half, module.Box.of
    functions = find_functions(folder / "src")
    for name in ("pack.halves.x_half__mutmut_1", "pack.halves.xǁBoxǁof__mutmut_1"):
        codes = find_codes(read_mutant(folder, name), path)
        assert codes
        assert codes.keys() <= functions.keys()
        exchange(codes, functions)
    assert (half(6), module.half(6)) == (2, 2)
    assert of.__func__.__code__.co_consts == module.Box.of.__func__.__code__.co_consts


def test_what_no_code_tells_needs_an_import(folder: Path) -> None:
    """A default of a parameter, and variables from around the function."""
    path = folder / "src" / "pack" / "halves.py"
    for old, new in (("number: int) -> int", "number: int = 1) -> int"), ("cls() if", "__class__() if")):
        change = Change("pack.halves", "pack.halves.half", "", "", SOURCE.replace(old, new))
        of_method = Change("pack.halves", "pack.halves.Box.of", "", "", SOURCE.replace(old, new))
        assert find_codes(change if "int" in old else of_method, path) == {}


def test_a_function_that_is_not_there_cannot_be_exchanged(folder: Path) -> None:
    """Its module comes later, and sound: tests would say nothing about the change."""
    codes = find_codes(
        read_mutant(folder, "pack.halves.x_half__mutmut_1"), folder / "src" / "pack" / "halves.py"
    )
    with pytest.raises(LookupError, match=r"halves\.py:4:half: this process has no such function"):
        exchange(codes, {})


LATE = """\
class Half:
    def of(self, number, by=2):
        return number // by


class Other(Half):
    def of(self, number):
        return super().of(number)

    def unasked(self):
        return 1


def make():
    return 2


TWO = make()
"""
TESTS_OF_LATE = """\
def test_half():
    from pymllm.core.late import Half

    assert Half().of(6) == 3


def test_other():
    from pymllm.core.late import Other

    assert Other().of(6) == 3


def test_two():
    from pymllm.core.late import TWO

    assert TWO == 2
"""
CHANGED = {
    "late": ("Half.of", "number // by", "number * by"),
    "closure": ("Other.of", "super().of(number)", "None.of"),  # whose locals are shown with the error
    "default": ("Half.of", "by=2", "by=3"),
    "unasked": ("Other.unasked", "return 1", "return 2"),
    "import": ("make", "return 2", "return 3"),  # where functions are exchanged, it has been called already
}
RUN_LATE = """\
import json, sys
from pathlib import Path
from mutant_runs import run_all
from mutants import Change


class Results:
    path = Path("kept")  # a file, for two processes write it

    def keep(self, name, by):
        with self.path.open("a") as file:
            file.write(f"{name} {by}\\n")

    def reload(self):
        self.lines = self.path.read_text().splitlines()
        self.known = dict(line.split(" ", 1) for line in self.lines)


results = Results()
changes = {name: Change(*fields) for name, fields in json.load(sys.stdin).items()}
run_all(Path.cwd(), changes, ["core"], 1, Path.cwd(), results, lambda name, by: None)
results.reload()
print(json.dumps(results.lines))
"""


def test_tests_meet_the_change_however_its_module_comes(tmp_path: Path) -> None:
    """A test meets each change however it imports the module, also from a package that is a plugin of pytest.

    Each has one result: that nobody noticed it so far is none, where it is tried again.
    """
    for name, text in {
        "src/pymllm/__init__.py": "",
        "src/pymllm/pytest_plugin.py": "",
        "src/pymllm/core/late.py": LATE,
        "tests/unit/core/test_late.py": TESTS_OF_LATE,
        "tests/properties/test_nothing.py": "",
        "tests/conftest.py": "import hypothesis\n\nhypothesis.settings.register_profile('ci')\n",
        "pytest.ini": "[pytest]\naddopts = -p pymllm.pytest_plugin\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    changes = {
        name: Change("pymllm.core.late", f"pymllm.core.late.{function}", old, new, LATE.replace(old, new))
        for name, (function, old, new) in CHANGED.items()
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN_LATE],
        input=json.dumps({name: dataclasses.astuple(change) for name, change in changes.items()}),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{tmp_path / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)
    assert sorted(line.split(" ")[0] for line in lines) == sorted(CHANGED), lines
    found = {line.split(" ")[0] for line in lines if " tests/unit/core/test_late.py::" in line}
    assert found == {"late", "closure", "default", "import"}, lines


def test_a_functions_lines_leave_out_its_head(folder: Path) -> None:
    """They run when it is defined."""
    module = load(folder / "src" / "pack" / "halves.py")
    assert find_lines(module.half.__code__) == {6}
    assert find_lines((lambda: 1).__code__) != frozenset()


def test_reach_is_kept_for_the_same_sources(tmp_path: Path) -> None:
    """Of each file of tests; and forgotten with the first change of what they share."""
    path = tmp_path / "reach.json"
    reach = Reach({"a.py::one": 0.5, "b.py::one": 1.5}, {"here": ["b.py::one", IMPORT], "there": []})
    sources = Sources(1, {"a.py": 2, "b.py": 3})
    assert read_reach(path, sources) == (Reach({}, {}), set())
    write_reach(path, sources, reach)
    assert read_reach(path, sources) == (reach, {"a.py", "b.py"})
    known, same = read_reach(path, Sources(1, {"a.py": 2, "b.py": 4}))
    assert (known, same) == (Reach({"a.py::one": 0.5}, {"here": [IMPORT], "there": []}), {"a.py"})
    assert read_reach(path, Sources(2, sources.files)) == (Reach({}, {}), set())
    again = merge(known, Reach({"b.py::two": 1.0}, {"there": ["b.py::two"]}))
    assert again == Reach({"a.py::one": 0.5, "b.py::two": 1.0}, {"here": [IMPORT], "there": ["b.py::two"]})


def test_sources_are_told_apart(tmp_path: Path) -> None:
    """Each file of tests is stamped alone and all other files together, by their names and contents."""
    for name in ("src/a.py", "tests/unit/test_a.py", "tests/unit/helper.py", "tests/conftest.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    first = stamp_sources(tmp_path, ["tests/unit"])
    assert stamp_sources(tmp_path, ["tests/unit"]) == first
    assert list(first.files) == ["tests/unit/test_a.py"]
    (tmp_path / "tests/unit/test_a.py").write_text("other", encoding="utf-8")
    second = stamp_sources(tmp_path, ["tests/unit"])
    assert second.stamp == first.stamp
    assert second.files != first.files
    (tmp_path / "src" / "a.py").rename(tmp_path / "src" / "b.py")
    assert stamp_sources(tmp_path, ["tests/unit"]).stamp != second.stamp


def test_processes_say_one_thing_or_nothing() -> None:
    """Whether they talk, end, die, or take too much time."""

    def spin(tell: Tell) -> None:
        limit(0.01, tell, "slow")
        while True:
            pass

    tasks = [
        Task("silent", lambda tell: None, 60.0),
        Task("talking", lambda tell: tell("words"), 60.0),
        Task("dying", lambda tell: os._exit(3), 60.0),
        Task("spinning", spin, 60.0),
        Task("waiting", lambda tell: time.sleep(60.0), 0.001),
    ]
    said: dict[str, str] = {}
    run_each(tasks, 2, said.__setitem__)
    assert said == {
        "silent": "",
        "talking": "words",
        "dying": "it ended with 3",
        "spinning": "slow",
        "waiting": "it hangs",
    }


def test_a_task_that_raises_is_no_verdict() -> None:
    """Its error is not taken for a test's."""

    def fail(tell: Tell) -> None:
        raise ValueError("wrong")

    with pytest.raises(RuntimeError, match="wrong one: what runs the tests has failed"):
        run_each([Task("wrong one", fail, 60.0)], 1, lambda name, words: None)


def test_nothing_that_a_process_started_outlives_it(tmp_path: Path) -> None:
    """Once it has spoken."""

    def leave(tell: Tell) -> None:
        child = os.fork()
        if child == 0:
            time.sleep(60.0)
            os._exit(0)
        (tmp_path / "child").write_text(str(child), encoding="utf-8")
        tell("words")
        time.sleep(60.0)

    run_each([Task("parent", leave, 60.0)], 1, lambda name, words: None)
    child = int((tmp_path / "child").read_text(encoding="utf-8"))
    state = Path(f"/proc/{child}/stat")
    deadline = time.monotonic() + 30.0
    while state.exists() and ") Z " not in state.read_text(encoding="utf-8"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_reason_of_code_that_was_rewritten_is_stale() -> None:
    """A reason is stale if its code was rewritten or its function is gone, and not if its code is there."""
    here = mutation.Mutant("pymllm.text_file.cut", "return", "")
    rewritten = mutation.Mutant("pymllm.text_file.cut", "return nothing of it", "")
    gone = mutation.Mutant("pymllm.text_file.Cutter.cut", "return", "")
    assert mutation.find_stale([here, rewritten, gone]) == [rewritten, gone]


def test_strictness_of_a_zip_is_explained_once_for_all() -> None:
    """Every other change needs a reason of its own."""
    strict = mutation.Mutant("m.f", "zip(a, b, strict=True)", "zip(a, b)")
    other = mutation.Mutant("m.f", "zip(a, b, strict=True)", "zip(a, None, strict=True)")
    assert mutation.reason_of(strict, {}) is not None
    assert mutation.reason_of(other, {}) is None
    assert mutation.reason_of(other, {other: "why"}) == "why"
