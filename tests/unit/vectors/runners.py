"""The runners as commands: as they are, and with a fault in the example."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.example_programs import compiler

VECTORS = Path(__file__).parents[3] / "vectors"
FOLDER = VECTORS / "v1"
_SOURCES = VECTORS / "runners"
FAULTS = ("lost holds", "youngest first", "no result")
RAISES = ("locks raise", "builds raise")
"""Faults of which each language has words of its own."""


@dataclass(frozen=True, slots=True)
class Runner:
    """A runner, the file of its example, its build command, and the edits of its faults."""

    source: Path
    example: Path
    build: Callable[[Path], list[str]]
    edits: Mapping[str, tuple[str, str]]

    def make(self, folder: Path, fault: str = "") -> list[str]:
        """Build it in a folder, and return its command."""
        folder.mkdir()
        shutil.copy(self.source, folder)
        text = self.example.read_text(encoding="utf-8")
        if fault:
            old, new = self.edits[fault]
            assert text.count(old) == 1, f"{self.example.name} has {old!r} no more, or more than once"
            text = text.replace(old, new)
        (folder / self.example.name).write_text(text, encoding="utf-8")
        return self.build(folder / self.source.name)


def _build_python(source: Path) -> list[str]:
    return [sys.executable, "-S", "-E", str(source)]


def _build_rust(source: Path) -> list[str]:
    return _compile([compiler("rustc"), "--edition", "2021", "-O", "-D", "warnings"], source)


def _build_cpp(source: Path) -> list[str]:
    strict = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    return _compile([compiler("g++", "clang++"), *strict], source)


def _build_go(source: Path) -> list[str]:
    return _compile([compiler("go"), "build"], source, source.with_name("example_cache.go"))


def _compile(command: list[str], source: Path, *others: Path) -> list[str]:
    program = source.with_suffix("")
    files = map(str, (source, *others))
    subprocess.run([*command, "-o", str(program), *files], check=True, cwd=source.parent)
    return [str(program)]


RUNNERS = {
    "python": Runner(
        _SOURCES / "python" / "run_vectors.py",
        _SOURCES / "python" / "run_vectors.py",
        _build_python,
        {
            "lost holds": ("self.hold(self.nodes[step], 1)", "self.hold(self.nodes[step], 0)"),
            "youngest first": ("min(leaves", "max(leaves"),
            "no result": ('"result": result,', '"answer": result,'),
            "locks raise": ("self.hold(self.nodes[step], 1)", 'raise KeyError("lost\\nhold")'),
            "builds raise": ("return cls(size, count)", 'return {}["lost hold"]'),
        },
    ),
    "rust": Runner(
        _SOURCES / "rust" / "run_vectors.rs",
        _SOURCES / "rust" / "run_vectors.rs",
        _build_rust,
        {
            "lost holds": ('("of", 1)', '("of", 0)'),
            "youngest first": ("leaves.min_by_key", "leaves.max_by_key"),
            "no result": ('r#"{{"result"', 'r#"{{"answer"'),
            "locks raise": ('("of", 1)', 'panic!("lost {}", "hold")'),
            "builds raise": ("let free = (size", 'if is_ours { panic!("lost hold") }\nlet free = (size'),
        },
    ),
    "go": Runner(
        _SOURCES / "go" / "run_vectors.go",
        _SOURCES / "go" / "example_cache.go",
        _build_go,
        {
            "lost holds": ("my.hold(my.nodes[step], 1)", "my.hold(my.nodes[step], 0)"),
            "youngest first": ("it.used < my.pages", "it.used > my.pages"),
            "no result": ('`{"result"', '`{"answer"'),
            "locks raise": ("my.hold(my.nodes[step], 1)", 'panic("lost hold")'),
            "builds raise": ("made := &pageCache", 'panic("lost hold")\nmade := &pageCache'),
        },
    ),
    "cpp": Runner(
        _SOURCES / "cpp" / "run_vectors.cpp",
        _SOURCES / "cpp" / "example_cache.hpp",
        _build_cpp,
        {
            "lost holds": ('name == "lock" ? 1 : -1', 'name == "lock" ? 0 : -1'),
            "youngest first": ("it->second.used < found", "it->second.used > found"),
            "no result": (r'"{\"result\"', r'"{\"answer\"'),
            "locks raise": ('name == "lock" ? 1', 'name == "lock" ? throw std::runtime_error("lost hold")'),
            "builds raise": (
                "size_t end = ",
                'if (is_ours) throw std::runtime_error("lost hold");\nsize_t end = ',
            ),
        },
    ),
}


def _load(path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


IN_PYTHON = _load(RUNNERS["python"].source)
