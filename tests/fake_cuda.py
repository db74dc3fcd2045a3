"""A CUDA that does not exist: what this package asks torch.cuda, answered by devices that a test plays with.

It stands in for the counters of memory, the devices, the waits and the errors; no tensor is ever on it. What
NVML tells of the same machine is `tests.fake_nvml`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from tests.unit.instrument.fake_allocator import FakeAllocator

GIB = 1 << 30
WORKSPACE = 8 << 20  # of cuBLAS, taken from torch's allocator by whoever multiplies first
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_installed: list[FakeCuda] = []


class FakeDevice(FakeAllocator):
    """A GPU with its caching allocator and its present fault."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.has_context = index == 0
        self.total_memory = 8 * GIB
        self.uuid = f"{index:08}-fake"  # as the fake NVML names it, without GPU-
        self.workspace = 0
        self.fault: str | None = None  # told by the next wait for the device
        self.is_deadly = False
        self.blocks: list[dict[str, Any]] = []

    def allocate(self, size: int, frames: str = "") -> None:
        """Take memory as a tensor does; ``frames`` is the function that asked for it."""
        self.has_context = True
        if UNCACHED not in os.environ:
            super().allocate(size)
            stack = [{"filename": "model.py", "line": 7, "name": frames}] if frames else []
            state = {"size": size, "state": "active_allocated", "address": self.given, "frames": stack}
            self.blocks.append(state)

    def free(self, size: int) -> None:
        """Let go of the last memory of that size."""
        if UNCACHED not in os.environ:
            super().free(size)
            at = max(at for at, it in enumerate(self.blocks) if it["size"] == size)
            del self.blocks[at]

    def multiply(self) -> None:
        """Have cuBLAS take its workspace, which it keeps."""
        if not self.workspace:
            self.workspace = WORKSPACE
            self.allocate(WORKSPACE, "cublas")

    def break_down(self, fault: str, *, is_deadly: bool = False) -> None:
        """Let a kernel fail, which the next wait for the device tells; a deadly fault ends the context."""
        self.fault, self.is_deadly = fault, is_deadly

    def wait(self) -> str | None:
        """Return the fault that a wait for the device tells, once."""
        fault, self.fault = self.fault, None
        return fault


class FakeCuda:
    """Devices of one process, and the functions of torch.cuda that speak of them."""

    def __init__(self, devices: int = 2) -> None:
        self.devices = [FakeDevice(index) for index in range(devices)]
        self.current = 0
        self.is_in_use = True
        self.backend = "native"
        self.dead: str | None = None
        self.host: dict[str, int] = {}
        self.waits: list[int] = []
        self.recorded: list[int | None] = []

    def install(self, put: Callable[..., object] = setattr) -> FakeCuda:
        """Stand in for torch.cuda, by ``put``, such as monkeypatch.setattr."""
        functions: dict[str, Callable[..., Any]] = {
            "is_available": lambda: bool(self.devices),
            "is_initialized": lambda: self.is_in_use,
            "device_count": lambda: len(self.devices),
            "current_device": lambda: self.current,
            "set_device": self.set_device,
            "get_device_properties": self.properties,
            "get_allocator_backend": lambda: self.backend,
            "memory_stats": lambda device=None: self.counted(device).stats(),
            "reset_peak_memory_stats": lambda device=None: self.counted(device).reset_peak(),
            "synchronize": self.synchronize,
            "empty_cache": lambda: [self.counted(it.index).release_cache() for it in self.devices],
            "memory_snapshot": self.snapshot,
            "host_memory_stats": lambda: {**self.host},
        }
        for name, function in functions.items():
            put(torch.cuda, name, function)
        put(torch.cuda.memory, "_record_memory_history", self.record)
        for name, inner in {
            "_cuda_clearCublasWorkspaces": self.clear_workspaces,
            "_cuda_hasPrimaryContext": lambda index: self.devices[index].has_context,
            "_cuda_isHistoryEnabled": lambda: bool(self.recorded and self.recorded[-1]),
        }.items():
            _put_new(put, torch._C, name, inner)
        put(torch.version, "cuda", "13.0")
        _installed[:] = [self]
        return self

    def set_device(self, device: int) -> None:
        """Let other calls mean this device, which has a context from now on."""
        self.current = device
        self.devices[device].has_context = True

    def of(self, device: Any) -> FakeDevice:
        """Return the device of an index, or the current one; a dead context answers nothing."""
        if self.dead is not None:
            raise torch.AcceleratorError(self.dead)
        return self.devices[self.current if device is None else int(device)]

    def counted(self, device: Any) -> FakeDevice:
        """Return a device whose allocator counts; raise a RuntimeError if the allocator is pluggable."""
        if self.backend == "pluggable":
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")
        return self.of(device)

    def properties(self, device: Any = None) -> SimpleNamespace:
        """Return what a device is."""
        it = self.devices[self.current if device is None else int(device)]
        return SimpleNamespace(uuid=it.uuid, total_memory=it.total_memory, name="Fake GPU", major=9, minor=0)

    def synchronize(self, device: Any = None) -> None:
        """Wait for a device, which tells what failed on it; a wait makes a context, as CUDA's does."""
        it = self.of(device)
        it.has_context = True
        self.waits.append(it.index)
        fault = it.wait()
        if fault is not None:
            self.dead = fault if it.is_deadly else None
            raise torch.AcceleratorError(fault)

    def clear_workspaces(self) -> None:
        """Let cuBLAS give its workspaces back."""
        for it in self.devices:
            if it.workspace:
                it.free(it.workspace)
                it.workspace = 0

    def record(self, enabled: str | None = "all", **options: Any) -> None:
        """Begin or stop to keep the stacks of allocations."""
        self.recorded.append(options.get("max_entries", 1) if enabled else None)

    def snapshot(self) -> list[dict[str, Any]]:
        """Return segments with their blocks: stacks only where they were recorded."""
        is_recording = bool(self.recorded and self.recorded[-1])
        segments: list[dict[str, Any]] = []
        for it in self.devices:
            blocks = [{**block, "frames": block["frames"] if is_recording else []} for block in it.blocks]
            common = {"segment_pool_id": (0, 0), "total_size": it.reserved, "allocated_size": it.live}
            segments.append({"device": it.index, "blocks": blocks, **common})
            if it.private:
                pool = {"segment_pool_id": (0, 1), "total_size": it.private, "allocated_size": 0}
                segments.append({"device": it.index, "blocks": [], **pool})
        return segments


def cuda() -> FakeCuda:
    """Return what stands in for torch.cuda now."""
    return _installed[0]


def _put_new(put: Callable[..., object], place: Any, name: str, value: object) -> None:
    """Put what a torch for the CPU does not have."""
    if put is setattr:
        setattr(place, name, value)
    else:
        put(place, name, value, raising=False)
