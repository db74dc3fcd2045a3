"""Recorded calls that a fault can make fail (X2): those of caches to pools, and those inside contexts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from pymllm.history.operations import Fault
from pymllm.history.outcomes import Effect


class InjectedFault(Exception):
    """The error that an armed `Fault` raises in a call, which then does nothing."""


class Recorder:
    """A wrapper of a pool for a cache, which records some calls and passes on all others.

    ``record`` is called with the `Effect` of each call that the pool has taken. The caller's own calls go to
    `inner` directly, and are not recorded.
    """

    def __init__(self, inner: Any, record: Callable[[Effect], None]) -> None:
        self.inner = inner
        self._record = record
        self.fault = None

    @property
    def fault(self) -> Fault | None:
        """The armed fault: the nth call from then on raises `InjectedFault` instead of doing anything."""
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
    """A recorder of a `TokenToKVPoolAllocator`."""

    def free(self, indices: torch.Tensor) -> None:
        """Free slots, and record the call."""
        self._fail_if_told("free")
        self.inner.free(indices)
        self._record(Effect("free", _plain(indices)))


class RecordingPagedPool(RecordingPool):
    """A recorder of a pool that takes pages by their first slots."""

    def free_pages(self, starts: Any) -> None:
        """Free pages, and record the equivalent `free` of all their slots."""
        self._fail_if_told("free")
        self.inner.free_pages(starts)
        self._record(Effect("free", self._slots_of(starts)))

    def _slots_of(self, starts: Any) -> tuple[int, ...]:
        return tuple(start + at for start in starts.tolist() for at in range(self.inner.page_size))


class RecordingSWAPool(RecordingPool):
    """A recorder of an `SWATokenToKVPoolAllocator`."""

    def free_swa(self, indices: torch.Tensor) -> None:
        """Free SWA halves, and record the call."""
        self._fail_if_told("free_swa")
        self.inner.free_swa(indices)
        self._record(Effect("free_swa", _plain(indices)))

    def move_swa(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """Move the SWA halves of ``src`` to ``dst``, and record the call."""
        self._fail_if_told("move_swa")
        self.inner.move_swa(src, dst)
        self._record(Effect("move_swa", _plain(src), _plain(dst)))


class RecordingPagedSWAPool(RecordingPagedPool, RecordingSWAPool):
    """A recorder of a pool with SWA halves that takes pages by their first slots."""

    def free_swa_pages(self, starts: Any) -> None:
        """Free the SWA halves of pages, and record the equivalent `free_swa` of all their slots."""
        self._fail_if_told("free_swa")
        self.inner.free_swa_pages(starts)
        self._record(Effect("free_swa", self._slots_of(starts)))


class RecordingStatePool(Recorder):
    """A recorder of the track slots of a `GDNPool`."""

    def free_track_slot(self, slot: int) -> None:
        """Free a track slot, and record the call."""
        self._fail_if_told("free_state")
        self.inner.free_track_slot(slot)
        self._record(Effect("free_state", (slot,)))


def record_around(inner: Any, record: Callable[[Effect], None]) -> RecordingPool:
    """Wrap an allocator so that its calls are recorded.

    The wrapper has ``free_swa`` and ``free_pages`` only if the allocator has them: caches look for them.
    """
    if hasattr(inner, "free_swa"):
        return (RecordingPagedSWAPool if hasattr(inner, "free_swa_pages") else RecordingSWAPool)(
            inner, record
        )
    return (RecordingPagedPool if hasattr(inner, "free_pages") else RecordingPool)(inner, record)


def _plain(indices: torch.Tensor) -> tuple[int, ...]:
    return tuple(indices.reshape(-1).tolist())


_BLOCKS: Final = ("kv_block_allocator", ("allocate_memory_blocks",))
FAILING_CALLS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "allocate_blocks": _BLOCKS,
    "no_blocks": _BLOCKS,
    "allocate_slots": ("mamba_slot_allocator", ("allocate_slots_batch",)),
    "store_states": ("mamba_slot_allocator", ("_copy_intermediate_to_cache", "store_from_live_batch")),
    "restore_state": ("mamba_slot_allocator", ("restore_to_live",)),
}
"""The calls that a `Fault` may name, with the part of a context and the methods that make each."""


class FailingCalls:
    """A wrapper of methods of a context's allocators, which can make a call fail.

    The allocators get attributes of their own in place of these methods. `made` counts each call of
    `FAILING_CALLS`, failing ones included; one that asks for nothing, such as an allocation of no blocks,
    cannot fail and is not counted.
    """

    def __init__(self, context: Any) -> None:
        self._fault: Fault | None = None
        self._calls_until = 0
        self.made: Counter[str] = Counter()
        for owner, names in set(FAILING_CALLS.values()):
            part = getattr(context, owner)
            for name in names if part is not None else ():
                setattr(part, name, self._before(getattr(part, name), name))

    def arm(self, fault: Fault) -> None:
        """Make the nth call of the kind that a fault names fail, counted from now."""
        self._fault, self._calls_until = fault, fault.nth

    def disarm(self) -> None:
        """Cancel the armed fault."""
        self._fault = None

    def _before(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def checked(asked: Any, *more: Any) -> Any:
            if self._is_struck(name, asked):
                assert self._fault is not None
                if self._fault.call == "no_blocks":
                    return None
                raise InjectedFault(f"{name} was told to fail")
            return call(asked, *more)

        return checked

    def _is_struck(self, name: str, asked: Any) -> bool:
        if name != "restore_to_live" and not asked:
            return False
        calls = [call for call, (_, names) in FAILING_CALLS.items() if name in names]
        self.made.update(calls)
        if self._fault is None or self._fault.call not in calls:
            return False
        self._calls_until -= 1
        return self._calls_until == 0
