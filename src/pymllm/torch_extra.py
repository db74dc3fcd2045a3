"""torch and NumPy are an extra: whether they are there, the one sentence if not, and how torch is loaded.

Who takes the classes has a torch of their own choice, often a build for their CUDA, which no installer may
replace; who holds a program in another language against the oracle wants no gigabytes. So the package without
extras judges, and ``pymllm[torch]`` has the classes, too.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PACKAGES = ("torch", "numpy")
"""What the extra has; the first is what people ask for."""


def why_no_torch() -> str | None:
    """Return what is missing and the way to get it, to stand behind a subject; ``None`` where nothing is.

    Loads nothing, so that whoever needs no torch does not wait for it.
    """
    missing = [package for package in PACKAGES if not _is_there(package)]
    if not missing:
        return None
    verb, object_ = ("is", "it") if len(missing) == 1 else ("are", "them")
    names = " and ".join(missing)
    return f"needs {names}, which {verb} not installed; pip install 'pymllm[torch]' brings {object_}"


def require_torch(who: str) -> None:
    """Raise `ModuleNotFoundError` if torch or NumPy is missing; its message begins with ``who``."""
    reason = why_no_torch()
    if reason is not None:
        raise ModuleNotFoundError(f"{who} {reason}", name=next(it for it in PACKAGES if not _is_there(it)))


@contextmanager
def collector_aside() -> Iterator[None]:
    """Load torch, where nobody has, in a process of our own: its collector never looks through torch.

    That took 0.3 s of 2.0 while torch is imported, as much at the process's end, and 3 % of all searches.
    """
    if "torch" in sys.modules:
        yield
        return
    with without_collector():
        try:
            yield
        finally:
            gc.freeze()


@contextmanager
def without_collector() -> Iterator[None]:
    """Switch Python's garbage collector off inside the block."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # it was loaded in another way than by the import system
        return True
    except ModuleNotFoundError:  # whoever finds modules refuses this one
        return False
