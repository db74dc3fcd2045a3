"""Stand-ins for modules that only a server with a GPU has, while other modules are imported.

A stand-in can be imported, inherited from and used as a decorator; whatever would compute with one raises,
so that no result is ever made up.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
import types
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def standing_in(stand_ins: Collection[str], bare_packages: Collection[str], keep: str) -> Iterator[None]:
    """Replace modules, and all below them, by stand-ins while others are imported.

    ``bare_packages`` are entered without their ``__init__``, which would import the rest; `ImportError` where
    one is not installed. The stand-ins of the package ``keep`` stay in ``sys.modules``; those for others are
    gone afterwards, and what they stood for is back, so that nobody else ever meets one.
    """
    finder = _StandInFinder(stand_ins)
    ours = f"{keep}."
    # Where the real one is there and was imported, it would be found without asking anybody.
    aside = {
        name: sys.modules.pop(name)
        for name, module in list(sys.modules.items())
        if finder.stands_for(name) and not name.startswith(ours) and not isinstance(module, _StandInModule)
    }
    for name in bare_packages:
        if name not in sys.modules:
            sys.modules[name] = _bare_package(name)
    sys.meta_path.insert(0, finder)
    # Each missing kernel library is worth a warning to a server, and none here.
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if isinstance(module, _StandInModule) and not name.startswith(ours):
                del sys.modules[name]
        sys.modules.update(aside)


class _StandIn(type):
    """A name that a module imports and no code here uses."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        if "stands_in" not in cls.__dict__:
            return super().__call__(*arguments, **keywords)  # somebody's class, derived from one
        if len(arguments) == 1 and not keywords and callable(arguments[0]):
            return arguments[0]  # a decorator
        if not arguments:
            return cls  # a decorator's factory
        raise RuntimeError(f"{cls.__name__} is a stand-in: what it stands for needs a GPU")


def _stand_in(name: str) -> _StandIn:
    return _StandIn(name, (), {"stands_in": True})


class _StandInModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)


class _StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def stands_for(self, module: str) -> bool:
        """Tell whether a module is one of some names, or below one."""
        return any(module == name or module.startswith(f"{name}.") for name in self._names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if self.stands_for(fullname):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


def _bare_package(name: str) -> types.ModuleType:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(f"{name} is no package")
    package = types.ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    return package
