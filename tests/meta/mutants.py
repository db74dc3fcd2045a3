"""Mutants as mutmut makes them, one at a time in place of the sound function, with nothing in between.

mutmut's own runs go through a trampoline at every call, which makes the state machines several times slower;
here a process has the one function changed (mutant_places.py), or imports its module changed.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import CodeType, ModuleType

_SETTINGS = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = {only}
pytest_add_cli_args_test_selection = ["test_nothing.py"]
"""
_NO_TEST = "from pymllm.history.operations import *\n\n\ndef test_nothing() -> None:\n    pass\n"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one function of a module, which goes by its class's name, too."""

    module: str
    function: str
    old: str
    new: str
    text: str
    """Of the whole module with the change."""


def make_mutants(folder: Path, root: Path, only: Sequence[str]) -> list[str]:
    """Let mutmut make all mutants of some files in a folder, where they are not there; return their names."""
    made = folder / "made.txt"
    stamped = f"{version('mutmut')} {stamp(root, (root / 'src').rglob('*.py'))} {' '.join(only)}"
    said = ""
    if not made.exists() or made.read_text(encoding="utf-8") != stamped:
        said = _make(folder, root, only)
        made.write_text(stamped, encoding="utf-8")
    names = [
        name
        for path in sorted((folder / "mutants" / "src").rglob("*.meta"))
        for name in json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    ]
    if not names:
        made.unlink()
        raise SystemExit(said[-3000:])
    return names


def _make(folder: Path, root: Path, only: Sequence[str]) -> str:
    """Run mutmut on a copy of a package; return what it printed."""
    for old in ("src", "mutants"):
        shutil.rmtree(folder / old, ignore_errors=True)
    shutil.copytree(root / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pyproject.toml").write_text(_SETTINGS.format(only=json.dumps(list(only))), encoding="utf-8")
    (folder / "test_nothing.py").write_text(_NO_TEST, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mutmut", "run", "none"],  # no mutant is called so: they are made, and not run
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def stamp(root: Path, paths: Iterable[Path]) -> int:
    """Return a number that changes with any of some files, their names included."""
    found = 0
    for path in sorted(paths):
        found = zlib.crc32(str(path.relative_to(root)).encode() + path.read_bytes(), found)
    return found


def read_mutant(folder: Path, name: str) -> Change:
    """Return the change that a mutant is, such as ``"pymllm.history.operations.x_cut__mutmut_3"``."""
    module, _, mangled = name.rpartition(".")
    path = find_path(folder, module).relative_to(folder)
    function = re.sub(r"__mutmut_\d+$", "", mangled)
    class_name, plain = "", function.removeprefix("x_")
    if function.startswith("xǁ"):
        _, class_name, plain = function.split("ǁ")
    source = (folder / path).read_text(encoding="utf-8").splitlines()
    new = _cut((folder / "mutants" / path).read_text(encoding="utf-8").splitlines(), mangled)
    new[0] = new[0].replace(mangled, plain, 1)
    first, last = _find(ast.parse("\n".join(source)), class_name, plain)
    old = source[first:last]
    text = "\n".join([*source[:first], *new, *source[last:], ""])
    where = f"{module}.{class_name}.{plain}" if class_name else f"{module}.{plain}"
    return Change(module, where, *_differ(old, new), text)


def find_path(root: Path, module: str) -> Path:
    """Return the file of a module under a root's ``src``."""
    path = root.joinpath("src", *module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _cut(lines: Sequence[str], name: str) -> list[str]:
    """Return the lines of the one function of a name; a file of all mutants takes too long to parse."""
    first = next(number for number, line in enumerate(lines) if line.lstrip().startswith(f"def {name}("))
    indent = len(lines[first]) - len(lines[first].lstrip())
    for last in range(first + 1, len(lines) + 1):
        if last == len(lines) or (lines[last].strip() and not lines[last][: indent + 1].isspace()):
            with contextlib.suppress(SyntaxError):  # its head may go on there, or a text
                body = ast.parse(_under_if(lines[first:last])).body[0]
                assert body.end_lineno is not None
                return list(lines[first : first + body.end_lineno - 1])
    raise AssertionError(f"{name} has no end")


def _find(tree: ast.Module, class_name: str, name: str) -> tuple[int, int]:
    """Return where a function's lines begin and end, its decorators left out."""
    body: list[ast.stmt] = tree.body
    if class_name:
        body = next(it for it in body if isinstance(it, ast.ClassDef) and it.name == class_name).body
    # The last of a name counts: the first may be an overload.
    found = [it for it in body if isinstance(it, ast.FunctionDef) and it.name == name][-1]
    assert found.end_lineno is not None
    return found.lineno - 1, found.end_lineno


def _differ(old: Sequence[str], new: Sequence[str]) -> tuple[str, str]:
    """Return the lines that are only in one of two texts, written the same way first."""
    texts = [ast.unparse(ast.parse(_under_if(lines))).splitlines()[1:] for lines in (old, new)]
    diff = list(difflib.ndiff(*texts))
    gone, come = ([line[2:].strip() for line in diff if line.startswith(sign)] for sign in ("- ", "+ "))
    return "\n".join(gone), "\n".join(come)


def _under_if(lines: Sequence[str]) -> str:
    """Return a text in which lines may be indented."""
    return "\n".join(["if 1:", *(f" {line}" if line.strip() else line for line in lines)])


class _ChangedLoader(importlib.machinery.SourceFileLoader):
    """Loads a module from another text than its file's."""

    def __init__(self, change: Change, path: str) -> None:
        super().__init__(change.module, path)
        self._text = change.text

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._text.encode(), self.path)  # never from a .pyc
        return code


class _ChangedFinder(importlib.abc.MetaPathFinder):
    """Finds the one module."""

    def __init__(self, change: Change, root: Path) -> None:
        self._change = change
        self._path = find_path(root, change.module)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._change.module:
            return None
        place = str(self._path)
        return importlib.util.spec_from_file_location(
            fullname, place, loader=_ChangedLoader(self._change, place)
        )


def install(change: Change, root: Path) -> None:
    """Let this process import a module with a change in it; it must not have been imported before."""
    assert change.module not in sys.modules
    sys.meta_path.insert(0, _ChangedFinder(change, root))


def is_sound(module: str) -> bool:
    """Tell whether this process has a module as its file says: another import hook was quicker."""
    return module in sys.modules and not isinstance(sys.modules[module].__loader__, _ChangedLoader)
