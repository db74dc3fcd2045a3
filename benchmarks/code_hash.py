"""Telling an edited benchmark from the one that was run before: a hash of its code."""

from __future__ import annotations

import ast
import functools
import hashlib
from pathlib import Path

__all__ = ["code_of", "sources_of"]

ROOT = Path(__file__).parents[1]


@functools.cache
def sources_of(path: Path) -> tuple[Path, ...]:
    """List a file and all files of this folder that it imports, directly or through others, sorted."""
    found: set[Path] = set()
    pending = [path.resolve()]
    while pending:
        source = pending.pop()
        if source in found:
            continue
        found.add(source)
        pending += (place for name in imported(source) if (place := place_of(name)) is not None)
    return tuple(sorted(found))


def imported(path: Path) -> set[str]:
    """Return the full names that a file imports, wherever in it the import stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def place_of(name: str) -> Path | None:
    """Return the file of a module of this folder; none for any other name."""
    if name.split(".")[0] != "benchmarks":
        return None
    place = ROOT / f"{name.replace('.', '/')}.py"
    return place if place.is_file() else None


def code_of(path: Path) -> str:
    """Hash a benchmark's own code: its file, and the helpers of this folder that it imports.

    What it measures is not in the hash, since that is what may change between two runs that are compared.
    """
    digest = hashlib.sha256()
    for source in sources_of(path):
        digest.update(source.relative_to(ROOT).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
