"""The use of a GPU by a test: whether it touched a GPU at all, and whether the memory has come back."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pymllm.instrument.gpu_memory import parse_bytes
from pymllm.instrument.nvml_counters import DeviceUse, NvmlMemory
from pymllm.instrument.nvml_device import visible_devices
from pymllm.instrument.reading import BYTES, Reading
from pymllm.instrument.torch_memory import AllocatorSource, TorchAllocator, TorchMemory, read_torch_memory

SECONDS = 30.0
"""How long a test's memory may take to come back."""

SLACK = "256 MiB"
"""By how much more may stay: kernels and workspaces that libraries load when they are first used."""

_CONTEXT = 1 << 30  # bytes that CUDA takes at most when it comes into use; 0.3 to 0.6 GiB are usual
_LOOK = 0.1  # seconds between two looks
_NAME_MOST = 60


# -- touched -----------------------------------------------------------------------------------------------


class GpuTouch:
    """A detector of signs that a GPU was used: made before a test's fixtures, asked after it.

    In doubt a GPU was used: child processes may have, and so may tensors that were there before, other
    libraries where the driver lists this process, and allocators that count nothing.
    """

    def __init__(self, sources: Sequence[AllocatorSource] | None = None) -> None:
        self._sources = sources
        self._allocated = self._count_allocated()
        self._children = _children()

    def why_untouched(self) -> str | None:
        """Return the reason why no GPU was used; ``None`` where one was, or may have been."""
        children = _children()
        if children != self._children or children[-1]:
            return None
        allocated = self._count_allocated()
        if allocated is not None:
            is_same = allocated == self._allocated and not any(live for _, live in allocated)
            return "torch's allocator gave out no memory" if is_same else None
        if any(source.is_in_use() for source in self._asked()):
            return None
        memories = [NvmlMemory(index) for index in visible_devices()]
        try:
            is_listed = any(memory.lists_this_process() for memory in memories)
        finally:
            for memory in memories:
                memory.close()
        return None if is_listed else "CUDA was not used in this process"

    def _asked(self) -> Sequence[AllocatorSource]:
        return _all_devices() if self._sources is None else self._sources

    def _count_allocated(self) -> list[tuple[int, int]] | None:
        """Return for each device the bytes ever allocated and those in use; ``None`` if not counted."""
        sources = self._asked()
        if any(source.why_not() is not None for source in sources):
            return None
        with suppress(RuntimeError):  # of a context that is dead
            return [_given_and_live(source) for source in sources]
        return None


def _given_and_live(source: AllocatorSource) -> tuple[int, int]:
    stats = source.stats()
    live = stats.get("allocated_bytes.all.current", 0) if source.backend() == "native" else 1
    return stats.get("allocated_bytes.all.allocated", 0), live


def _all_devices() -> list[TorchAllocator]:
    """Return the allocator of each device that CUDA shows; none where CUDA is not in use."""
    first = TorchAllocator()
    if first.why_not() is not None:
        return [first]
    torch: Any = sys.modules["torch"]
    return [TorchAllocator(index) for index in range(torch.cuda.device_count())]


def _children() -> tuple[object, ...]:
    """Return figures that change when a child process ends, and the running children."""
    running = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            running += path.read_text(encoding="ascii").split()
    try:
        import resource  # Not at the top: a system without it can still load the plugin.
    except ImportError:
        return (True,)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_minflt, usage.ru_utime, usage.ru_stime, running


# -- come back ---------------------------------------------------------------------------------------------


class MemoryReturn:
    """A reader of a device's memory in use, by default the current one, that waits for it to come back.

    What CUDA and the libraries of this process take for themselves stays with it, and is left out where the
    driver tells how much that is.
    """

    def __init__(self, device: int | None = None, *, source: AllocatorSource | None = None) -> None:
        self._memory = NvmlMemory(device)
        self._source = source or TorchAllocator(device)
        self._before = self._read()
        self._was_in_use = self._source.is_in_use()

    @property
    def unknown(self) -> str | None:
        """Why the memory in use cannot be read; ``None`` where it can."""
        return self._before[0].used.reason

    def wait(
        self, seconds: float = SECONDS, slack: int | str = SLACK, *, without_own: bool = False
    ) -> str | None:
        """Return ``None`` once the memory is back, or after ``seconds`` a text on the rest and its holders.

        ``without_own`` leaves out all of this process, whose tensors the traceback of a failed test holds.
        """
        allowed = _held(*self._before, without_own) + parse_bytes(slack)
        until = time.monotonic() + seconds
        while True:
            use, torch = self._read()
            if use.used.value is None:
                return f"whether it has come back is unknown: {use.used.reason}"
            is_in_use = self._source.is_in_use()
            context = 0 if self._was_in_use or not is_in_use or use.own.is_known else _CONTEXT
            held = _held(use, torch, without_own)
            if held <= allowed + context:
                return None
            if time.monotonic() >= until:
                more = Reading(held - allowed + parse_bytes(slack), BYTES)
                return f"after {seconds:g} s {more} more are in use than before it; {who_holds(self._memory)}"
            time.sleep(_LOOK)

    def close(self) -> None:
        """Release NVML."""
        self._memory.close()

    def _read(self) -> tuple[DeviceUse, TorchMemory]:
        gc.collect()
        if self._source.is_in_use():
            with suppress(RuntimeError):  # of a device that failed, which the test has been told
                self._source.settle()
        if self._source.why_not() is None:
            self._source.release_cache()
        return self._memory.read(), read_torch_memory(self._source)


def _held(use: DeviceUse, torch: TorchMemory, without_own: bool) -> int:
    """Return bytes in use, less this process's bytes beside torch's allocator, or less all of its bytes."""
    used, own, reserved = use.used.value or 0, use.own.value, torch.reserved.value or 0
    beside = 0 if own is None else max(0, own - reserved)
    return used - beside - (reserved if without_own else 0)


def who_holds(memory: NvmlMemory | None = None) -> str:
    """Return the processes that the driver lists on a device, each with number, name and bytes."""
    asked = memory or NvmlMemory()
    try:
        found = asked.holders()
    finally:
        if memory is None:
            asked.close()
    if isinstance(found, str):
        return f"who has memory is unknown: {found}"
    told = [f"{process_name(pid)} {size}" for pid, size in found]
    return f"it is held by {', '.join(told)}" if told else "the driver lists no process that has any"


def process_name(pid: int) -> str:
    """Return a process's number, and its command where this process can see it."""
    with suppress(OSError):
        words = (
            Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").replace("\0", " ").split()
        )
        name = " ".join(words)
        who = "this one: " if pid == os.getpid() else ""
        return f"process {pid} ({who}{name[:_NAME_MOST]}{'...' if len(name) > _NAME_MOST else ''})"
    return f"process {pid} (not of this container)"
