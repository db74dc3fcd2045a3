"""A pool that writes down what a cache gives back to it, and that can be told to fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pymllm.history.operations import Fault
from pymllm.history.outcomes import Effect

__all__ = [
    "InjectedFault",
    "Recorder",
    "RecordingPagedPool",
    "RecordingPool",
    "RecordingSWAPool",
    "RecordingStatePool",
    "record_around",
]


class InjectedFault(Exception):
    """Raised where a `Fault` says so; who raises it has done nothing."""


class Recorder:
    """Wrap a pool for a cache; everything but the recorded calls goes straight through.

    Parameters
    ----------
    inner : object
        The pool; the caller's own calls go to it directly, and are not recorded.
    record : callable
        Called with the `Effect` of each call that the pool has taken.

    Attributes
    ----------
    fault : Fault or None
        The call that is to fail: it raises `InjectedFault` and takes nothing. Counting starts when it is set.
    """

    def __init__(self, inner: Any, record: Callable[[Effect], None]) -> None:
        self.inner = inner
        self._record = record
        self.fault = None

    @property
    def fault(self) -> Fault | None:
        """The call that is to fail."""
        return self._fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        self._fault, self._calls_until = fault, fault.nth if fault is not None else 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _fail_if_told(self, call: str) -> None:
        if self._fault is None or self._fault.call != call:
            return
        self._calls_until -= 1
        if self._calls_until == 0:
            raise InjectedFault(f"{call} was told to fail")


class RecordingPool(Recorder):
    """Wrap a `TokenToKVPoolAllocator`."""

    def free(self, indices: torch.Tensor) -> None:
        """Give slots back."""
        self._fail_if_told("free")
        self.inner.free(indices)
        self._record(Effect("free", _plain(indices)))


class RecordingPagedPool(RecordingPool):
    """The same around a pool that takes pages by their first slots."""

    def free_pages(self, starts: Any) -> None:
        """Give pages back; written down as the `free` of all their slots that it stands for."""
        self._fail_if_told("free")
        self.inner.free_pages(starts)
        offsets = range(self.inner.page_size)
        self._record(Effect("free", tuple(start + at for start in starts.tolist() for at in offsets)))


class RecordingSWAPool(RecordingPool):
    """The same around an `SWATokenToKVPoolAllocator`."""

    def free_swa(self, indices: torch.Tensor) -> None:
        """Give SWA halves back."""
        self._fail_if_told("free_swa")
        self.inner.free_swa(indices)
        self._record(Effect("free_swa", _plain(indices)))

    def move_swa(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """Give the halves of ``src`` to ``dst``."""
        self._fail_if_told("move_swa")
        self.inner.move_swa(src, dst)
        self._record(Effect("move_swa", _plain(src), _plain(dst)))


class RecordingStatePool(Recorder):
    """Wrap the track slots of a `GDNPool`."""

    def free_track_slot(self, slot: int) -> None:
        """Give one track slot back."""
        self._fail_if_told("free_state")
        self.inner.free_track_slot(slot)
        self._record(Effect("free_state", (slot,)))


def record_around(inner: Any, record: Callable[[Effect], None]) -> RecordingPool:
    """Wrap any allocator; caches look for ``free_swa`` and ``free_pages``: what has none must not get one."""
    if hasattr(inner, "free_swa"):
        return RecordingSWAPool(inner, record)
    return (RecordingPagedPool if hasattr(inner, "free_pages") else RecordingPool)(inner, record)


def _plain(indices: torch.Tensor) -> tuple[int, ...]:
    return tuple(indices.reshape(-1).tolist())
