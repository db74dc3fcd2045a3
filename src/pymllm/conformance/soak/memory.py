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


class _MallInfo(ctypes.Structure):
    """What glibc (2.33 and later) says of its arenas, as its header has it."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


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
    played; what can go is given back first (`malloc_trim`), where the library can do so. Python gives back an
    arena of a megabyte only when its last object is gone: after a run that needed 500 MiB, 11,000 objects
    more than before, about one megabyte, were seen to keep 240 MiB. So what is in use is counted, too:
    objects (``blocks``), and what the library handed out to everything else (``malloc``). Cost: a full
    garbage collection, and the kernel's look at every mapping, a few milliseconds each.
    """
    _set_modules_aside()
    gc.collect()
    if hasattr(_C, "malloc_trim"):
        _C.malloc_trim(0)
    used = _PROCESS.memory_full_info()
    uss: int = getattr(used, "uss", used.rss)
    return Memory(_NAME, operations, used.rss, uss, sys.getallocatedblocks(), is_first, _handed_out())


def _handed_out() -> int:
    """Return the bytes that the C library has handed out; 0 where it cannot be asked."""
    if not hasattr(_C, "mallinfo2"):
        return 0
    _C.mallinfo2.restype = _MallInfo
    info = _C.mallinfo2()
    return int(info.uordblks + info.hblkhd)
