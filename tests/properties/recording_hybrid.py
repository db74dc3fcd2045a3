"""The two pools under a `MambaRadixCache`, with one list of what it gives back, and a refusal at any call."""

from __future__ import annotations

from typing import Any

import torch

from pymllm.adapters.failing_calls import InjectedFault
from pymllm.mem_cache.memory_pool import GDNPool, TokenToKVPoolAllocator


class RecordingHybrid:
    """Write down the calls of both pools in their common order, each with the slots that it named.

    ``takes`` is how many calls are still taken; from then on each is refused with `InjectedFault`. Track
    slots count from 2: there is one working row.
    """

    def __init__(
        self, slots: int = 64, track_slots: int = 8, page_size: int = 1, device: str | torch.device = "cpu"
    ) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.takes: int | None = None
        self.kv = _Kv(TokenToKVPoolAllocator(slots, device, page_size, check_ownership=True), self)
        self.states = _States(GDNPool(1, 1, 1, 1, 1, 1, 2, device, max_track_slots=track_slots), self)

    def take_calls(self) -> list[tuple[str, list[int]]]:
        """Return the calls since the last time, and forget them."""
        calls, self.calls = self.calls, []
        return calls

    def refuse_or_count(self, name: str) -> None:
        """Raise where no more calls are taken."""
        if self.takes == 0:
            raise InjectedFault(name)
        if self.takes is not None:
            self.takes -= 1


class _Recorded:
    def __init__(self, inner: Any, record: RecordingHybrid) -> None:
        self.inner = inner
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Kv(_Recorded):
    def free(self, indices: torch.Tensor) -> None:
        """Give KV slots back."""
        self._record.refuse_or_count("free")
        self.inner.free(indices)
        self._record.calls.append(("free", indices.tolist()))


class _States(_Recorded):
    def free_track_slot(self, slot: int) -> None:
        """Give one track slot back."""
        self._record.refuse_or_count("free_track_slot")
        self.inner.free_track_slot(slot)
        self._record.calls.append(("free_track_slot", [slot]))
