"""What is asked of torch's CUDA allocator, and torch itself as the one that answers."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Protocol

__all__ = ["AllocatorSource", "TorchAllocator"]


class AllocatorSource(Protocol):
    """One device's caching allocator."""

    @property
    def identity(self) -> Hashable:
        """What two sources have in common that speak of the same allocator."""

    def why_not(self) -> str | None:
        """Return why the allocator cannot be asked now, or ``None``; initialises nothing."""

    def backend(self) -> str:
        """Return the allocator's kind: ``"native"`` or ``"cudaMallocAsync"``."""

    def stats(self) -> Mapping[str, int]:
        """Return its counters, by the names of ``torch.cuda.memory_stats``."""

    def reset_peak(self) -> None:
        """Let the peaks begin anew from what is in use."""

    def settle(self) -> None:
        """Wait for the device, so that what was freed on any stream counts as free."""

    def release_cache(self) -> None:
        """Give the driver back what the allocator keeps for later."""

    def record_history(self, entries: int | None) -> None:
        """Keep that many of the last events, or stop with ``None``."""

    def dump(self, path: Path) -> None:
        """Write the history and what is allocated, for torch's viewer."""


class TorchAllocator:
    """``torch.cuda``, asked only where this process already uses it.

    Parameters
    ----------
    device : int, torch.device, str or None
        As torch takes it; ``None`` is the current device at each call.

    Notes
    -----
    Torch is never loaded and CUDA never initialised: a process that has not done so has no memory there.
    """

    def __init__(self, device: Any = None) -> None:
        self._device = device

    def why_not(self) -> str | None:
        """Return why there is nothing to ask."""
        torch = sys.modules.get("torch")
        if torch is None:
            return "torch is not loaded in this process"
        if torch.version.cuda is None and torch.version.hip is None:
            return f"torch {torch.__version__} is built without CUDA"
        if not torch.cuda.is_initialized():  # pragma: needs cuda
            return "CUDA is not initialised in this process"
        return None  # pragma: needs cuda

    @property
    def identity(self) -> Hashable:  # pragma: needs cuda
        """Torch's index of the device."""
        return int(self._cuda()._utils._get_device_index(self._device, optional=True))

    def backend(self) -> str:  # pragma: needs cuda
        """Return the allocator's kind."""
        return str(self._cuda().get_allocator_backend())

    def stats(self) -> Mapping[str, int]:  # pragma: needs cuda
        """Return ``torch.cuda.memory_stats``."""
        found: Mapping[str, int] = self._cuda().memory_stats(self._device)
        return found

    def reset_peak(self) -> None:  # pragma: needs cuda
        """Call ``torch.cuda.reset_peak_memory_stats``."""
        self._cuda().reset_peak_memory_stats(self._device)

    def settle(self) -> None:  # pragma: needs cuda
        """Call ``torch.cuda.synchronize``."""
        self._cuda().synchronize(self._device)

    def release_cache(self) -> None:  # pragma: needs cuda
        """Call ``torch.cuda.empty_cache``."""
        self._cuda().empty_cache()

    def record_history(self, entries: int | None) -> None:  # pragma: needs cuda
        """Switch torch's record of allocations on, with a bound, or off."""
        if entries is None:
            self._cuda().memory._record_memory_history(enabled=None)
        else:
            self._cuda().memory._record_memory_history(max_entries=entries)

    def dump(self, path: Path) -> None:  # pragma: needs cuda
        """Write what ``pytorch.org/memory_viz`` reads."""
        self._cuda().memory._dump_snapshot(str(path))

    def _cuda(self) -> Any:  # pragma: needs cuda
        return sys.modules["torch"].cuda
