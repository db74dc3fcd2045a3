"""What a process holds between two runs."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import platform
import sys

import psutil  # type: ignore[import-untyped]

from pymllm.conformance.soak.records import Memory

__all__ = ["look_at_memory"]

_PROCESS = psutil.Process()
_NAME = f"{platform.node()}/{os.getpid()}/{_PROCESS.create_time():.2f}"
_C = ctypes.CDLL(None)


@functools.cache
def _set_modules_aside() -> None:
    """Let the collector leave alone what is there now: half a million objects of torch and its like.

    Looking through them took 0.2 s after each run, as long as 2,000 operations.
    """
    gc.collect()
    gc.freeze()


def look_at_memory(operations: int, *, is_first: bool = False) -> Memory:
    """Let go of what nobody needs, then look at what is left.

    Parameters
    ----------
    operations : int
        That this process has carried out so far.
    is_first : bool
        Whether the last run was the first of its process at its place.

    Notes
    -----
    The C library keeps what was freed for later, so that a process looks as large as the largest run it ever
    played; what can go is given back first (`malloc_trim`), where the library can do so. Cost: a full
    garbage collection, and the kernel's look at every mapping, a few milliseconds each.
    """
    _set_modules_aside()
    gc.collect()
    if hasattr(_C, "malloc_trim"):
        _C.malloc_trim(0)
    used = _PROCESS.memory_full_info()
    uss: int = getattr(used, "uss", used.rss)
    return Memory(_NAME, operations, used.rss, uss, sys.getallocatedblocks(), is_first)
