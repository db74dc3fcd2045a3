"""Installed packages of other projects, and their versions known to adapters."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Sequence

from pymllm.adapters.entry import ANY_VERSION


def installed_version(package: str, environment: str) -> str:
    """Return the version of a package; `ImportError` names the environment of tox.ini that installs it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"{package} is not installed; tox -e {environment} installs it") from None


def require_known(package: str, known: Sequence[str], environment: str) -> None:
    """Refuse a version of a package unknown to an adapter, by `ImportError`.

    A call that another version does not have, or that means something else there, would be taken for an error
    of its cache. Who wants to know all the same sets `pymllm.adapters.entry.ANY_VERSION`. The first of
    ``known`` is the one that the environment installs.
    """
    version = installed_version(package, environment)
    if version not in known and not os.environ.get(ANY_VERSION):
        raise ImportError(
            f"{package} {version} is not the version that this adapter knows, {' or '.join(known)}; "
            f"tox -e {environment} installs {known[0]}, and {ANY_VERSION}=1 tries this one as it is"
        )
