"""The modules of the package, read and never imported: a page about a cache takes no torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Module", "children_of", "public_modules"]

ROOT = Path(__file__).parents[2]
_SOURCE = ROOT / "src"


@dataclass(frozen=True, slots=True)
class Module:
    """One public module or package: its import path, its file, and the first line of its docstring."""

    name: str
    path: Path
    summary: str

    @property
    def is_package(self) -> bool:
        """Whether the module is a package, with modules of its own."""
        return self.path.name == "__init__.py"

    @property
    def page(self) -> str:
        """Its page, below ``docs``."""
        rest = self.name.split(".")[1:]
        return "/".join(["api", *rest, "index.md"]) if self.is_package else "/".join(["api", *rest]) + ".md"


def public_modules() -> list[Module]:
    """Return every module without an underscore, in the order of their names."""
    return sorted(_read_modules(), key=lambda module: module.name)


def children_of(package: Module, modules: list[Module]) -> list[Module]:
    """Return the modules and packages that lie directly in a package, packages first."""
    inside = [one for one in modules if one.name.rpartition(".")[0] == package.name]
    return sorted(inside, key=lambda one: (not one.is_package, one.name))


def _read_modules() -> Iterator[Module]:
    for path in (_SOURCE / "pymllm").rglob("*.py"):
        parts = path.relative_to(_SOURCE).with_suffix("").parts
        names = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(name.startswith("_") for name in names):
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            yield Module(".".join(names), path, text.split("\n\n")[0].replace("\n", " "))
