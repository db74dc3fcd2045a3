"""An entry in the list of adapters: name, place, adapted implementation and requirements."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass, field
from typing import Protocol

ANY_VERSION = "PYMLLM_ANY_VERSION"
"""The environment variable that permits versions with which an adapter has not been tried."""


class Checkout(Protocol):
    """The sources of a project, in a folder that an environment variable names."""

    @property
    def project(self) -> str:
        """The name of the project, as written before the @ in lists of deviations."""

    @property
    def variable(self) -> str:
        """The name of the environment variable."""

    def how_to_get(self) -> str:
        """Return words for the sources to get and the variable to set."""

    def is_of(self, commit: str) -> bool:
        """Tell whether the files of a commit are checked out."""


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """An adapter that ``--adapter`` finds by name.

    A plug-in makes its own with keywords, as docs/verify.md has it; all but the first three may be left out.
    """

    name: str  # for ``--adapter``; no colon, which separates module and class
    place: str  # ``"module:Class"``, imported only when the adapter is used
    summary: str  # what it adapts, in a few words
    package: str = ""  # module that must be importable, beyond what pymllm needs; empty for none
    distribution: str = ""  # what that is called where its version is asked for; empty for the same name
    install: str = ""  # what brings the package, as a sentence without its end
    checkout: Checkout | None = field(default=None, compare=False)  # sources that it reads, where it does
    tool: str = ""  # program on the PATH that it needs, such as a compiler
    tool_from: str = ""  # what brings the program
    needs_torch: bool = False  # whether it needs pymllm[torch]

    def find_missing(self) -> str | None:
        """Return the missing package, checkout or program, and how to get it; ``None`` if none is missing."""
        if self.checkout is not None and not os.environ.get(self.checkout.variable):
            return f"{self.name} needs a checkout: {self.checkout.how_to_get()}"
        if self.tool and shutil.which(self.tool) is None:
            return f"{self.name} needs {self.tool}, which is not on the PATH{_way_out(self.tool_from)}"
        if not self.package or _is_there(self.package):
            return None
        return f"{self.name} needs {self.package}, which is not installed{_way_out(self.install)}"

    @property
    def released_as(self) -> str:
        """The name of the distribution with the implementation; empty if it needs none."""
        return self.distribution or self.package


def _is_there(module: str) -> bool:
    """Tell whether a module can be imported, with the packages in a dotted name."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # one above it is not there
        return False


def _way_out(text: str) -> str:
    return f"; {text}" if text else ""
