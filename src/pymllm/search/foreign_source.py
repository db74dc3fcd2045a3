"""A digest of the source of an adapter outside this package, by which each change is noticed."""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.util
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from pymllm.adapters.process.command_name import PREFIX, split_command
from pymllm.adapters.registry import find_adapter

_OURS = ("pymllm", "__main__", *sys.stdlib_module_names)
_INSTALLED = tuple(
    Path(sysconfig.get_paths()[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def digest_adapter(name: str) -> str:
    """Return a digest of an adapter's source; empty for an adapter of this package.

    Of a program (``command:PROGRAM ARGS``) the files are taken that its command names.
    """
    place = find_adapter(name).place
    if not place.startswith(PREFIX):
        return digest_modules([place.partition(":")[0]])
    words = split_command(place)
    paths = [Path(shutil.which(words[0]) or words[0]), *map(Path, words[1:])]
    return _digest({f"{number}": path for number, path in enumerate(paths) if path.is_file()})


def digest_modules(names: list[str]) -> str:
    """Return a digest of modules and of the modules they import; empty if all are in this package.

    Nothing is imported for it. Installed packages are left out, but for those that a name is in: they have
    versions, and too many files.
    """
    files: dict[str, Path] = {}
    named = {name.partition(".")[0] for name in names}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        path = None if name in files or top in _OURS else _find(name)
        if path is None or (top not in named and _is_installed(path)):
            continue
        files[name] = path
        waiting += [name.rpartition(".")[0] or name, *_imports_of(name, path)]
    return _digest(files)


def _is_installed(path: Path) -> bool:
    """Tell whether a file belongs to an installed package, in any environment on the import path."""
    is_here = any(path.is_relative_to(folder) for folder in _INSTALLED)
    return is_here or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _digest(files: dict[str, Path]) -> str:
    if not files:
        return ""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _find(name: str) -> Path | None:
    """Return the file of a module, whether it is loaded or not."""
    spec, parts = None, name.split(".")
    for end in range(1, len(parts) + 1):
        if spec is None and end > 1:
            return None
        try:
            spec = _spec_of(".".join(parts[:end]), spec)
        except (ImportError, ValueError, KeyError):  # a loaded module may have none, nor its package's parent
            return None
    path = None if spec is None or not spec.has_location or spec.origin is None else Path(spec.origin)
    return path.resolve() if path is not None and path.is_file() else None


def _spec_of(
    name: str, parent: importlib.machinery.ModuleSpec | None
) -> importlib.machinery.ModuleSpec | None:
    if parent is None:
        return importlib.util.find_spec(name)
    folders = parent.submodule_search_locations
    return None if folders is None else importlib.machinery.PathFinder.find_spec(name, list(folders))


def _imports_of(name: str, path: Path) -> Iterator[str]:
    """Yield the modules that a module may import: for ``from a import b`` both ``a`` and ``a.b``."""
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            folders = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*filter(None, folders), *filter(None, [node.module])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names)) if base else ()
