"""Modules of a checkout, found by an environment variable, under a name that no other package has.

A checkout's package may be called like one that is installed, mllm's even like ours. So its modules are
imported below a package of their own, `Checkout.alias`, and where their code says ``import pymllm`` they get
each other. Nothing of the path or of ``sys.modules`` that others see is changed, nothing is written into the
checkout, and no ``__init__`` of it is run unless asked for: what a package itself imports is rarely what its
caches need.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pymllm.adapters.entry import ANY_VERSION
from pymllm_peers.stand_ins import standing_in


@dataclass(frozen=True)
class Checkout:
    """A project whose sources are read from a folder, named by an environment variable.

    `digests` has the SHA-256 of each file that the adapters load, by its path below that folder, as of
    `commit`: so a clone, an archive and a copy are all known by what is in them. `stand_ins` names what is
    replaced while they are imported, with the reason. `root` is the folder below the checkout's in which the
    package lies, and `entered` are those of its packages of which others import names, so that their
    ``__init__`` is run. A project in another language has no ``package``: its files are read, and compiled by
    `pymllm_peers.compiled`.
    """

    project: str
    variable: str
    package: str
    commit: str
    digests: Mapping[str, str]
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    root: str = "."
    entered: frozenset[str] = frozenset()

    @property
    def alias(self) -> str:
        """The name of the package below which the checkout's modules are imported."""
        return f"checkout_of_{self.project.lower().replace('-', '_')}"

    def folder(self) -> Path:
        """Return the checkout's root; `ImportError` where it is not set, or not this project's."""
        named = os.environ.get(self.variable)
        if not named:
            raise ImportError(self.how_to_get())
        folder = Path(named).expanduser().resolve()
        missing = [path for path in self.digests if not (folder / path).is_file()]
        if missing:
            raise ImportError(f"{self.variable} is {named}, which has no {missing[0]}; {self.how_to_get()}")
        return folder

    def how_to_get(self) -> str:
        """Describe how to get a checkout."""
        return (
            f"{self.project} is read from a checkout; clone it, check {self.commit} out and set "
            f"{self.variable} to its folder"
        )

    def read(self) -> dict[str, bytes]:
        """Return the files of `digests` by their paths, for compilers; errors as of `require_version`."""
        self.require_version()
        folder = self.folder()
        return {path: (folder / path).read_bytes() for path in self.digests}

    def require_version(self) -> None:
        """Refuse a version that the adapters were not tried with, by `ImportError`.

        A call that another version does not have, or that means something else there, would be taken for an
        error of its cache. Who wants to know all the same sets `ANY_VERSION`.
        """
        others = self._find_others()
        if others and not os.environ.get(ANY_VERSION):
            raise ImportError(
                f"{others[0]} of {self.folder()} is not the version that this adapter knows, that of "
                f"{self.project} {self.commit}; check that out, or set {ANY_VERSION}=1 to try it as it is"
            )

    def is_of(self, commit: str) -> bool:
        """Tell whether the files of a commit are checked out; only the commit `commit` can be recognised."""
        is_known = commit.startswith(self.commit) or self.commit.startswith(commit)
        try:
            return is_known and not self._find_others()
        except ImportError:
            return False

    def _find_others(self) -> list[str]:
        """Return the files that differ from those of the commit."""
        folder = self.folder()
        return [path for path, digest in self.digests.items() if _digest(folder / path) != digest]

    def load(self, module: str) -> Any:
        """Import a module of the project by its own name, such as ``"pymllm.mem_cache.x"``."""
        name = self.alias + module.removeprefix(self.package)
        if name in sys.modules:
            return sys.modules[name]
        folder = self.folder() / self.root
        # What a server logs of every pool that it builds is no part of a verdict.
        logging.getLogger(self.alias).setLevel(logging.ERROR)
        finder = _Finder(self.package, self.alias, folder, self.entered)
        sys.meta_path.insert(0, finder)
        try:
            with standing_in(self._standing_in(), (), self.alias):
                return importlib.import_module(name)
        finally:
            sys.meta_path.remove(finder)

    def _standing_in(self) -> list[str]:
        """Return the stand-in names; those of the project's own modules are below its alias."""
        own = f"{self.package}."
        return [self.alias + name.removeprefix(self.package) if name.startswith(own) else name
                for name in self.stand_ins]  # fmt: skip


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


class _Finder(importlib.abc.MetaPathFinder):
    """An importer of the modules below an alias from a checkout's package."""

    def __init__(self, package: str, alias: str, folder: Path, entered: frozenset[str]) -> None:
        self._package, self._alias, self._folder, self._entered = package, alias, folder, entered

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._alias and not fullname.startswith(f"{self._alias}."):
            return None
        name = self._package + fullname.removeprefix(self._alias)
        own, is_entered = self._folder / name.replace(".", "/"), name in self._entered
        file = own / "__init__.py" if is_entered else own.with_suffix(".py")
        if file.is_file():
            loader = _Loader(fullname, str(file), self._package, self._alias)
            spec = importlib.machinery.ModuleSpec(fullname, loader, origin=str(file), is_package=is_entered)
            spec.has_location = True
            return spec
        if own.is_dir():
            return importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        return None


class _Loader(importlib.machinery.SourceFileLoader):
    """A loader of a checkout's module whose imports of its own package lead to the alias."""

    def __init__(self, fullname: str, path: str, package: str, alias: str) -> None:
        super().__init__(fullname, path)
        self._package, self._alias = package, alias

    def get_code(self, fullname: str) -> types.CodeType:
        """Compile the source, and write no bytecode into the checkout."""
        code: types.CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module with our own ``__import__`` in its builtins, where ``import`` statements look."""
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._import}
        super().exec_module(module)

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if name == self._package or name.startswith(f"{self._package}."):
            name = self._alias + name.removeprefix(self._package)
        return __import__(name, globals, locals, fromlist, level)
