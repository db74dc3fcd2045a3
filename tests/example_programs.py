"""The examples of the process protocol as commands, built where they must be."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples" / "protocol"
PYTHON = [sys.executable, "-S"]


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


def build_strict(folder: Path) -> list[str]:
    return [*PYTHON, str(EXAMPLES / "strict_cache.py")]
