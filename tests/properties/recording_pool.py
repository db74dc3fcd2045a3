"""A pool that writes down what a cache gives back to it, and that can be told to refuse."""

from __future__ import annotations

from typing import Any

import torch


class PoolBrokenError(Exception):
    """What a pool that was told to refuse raises; the pool took nothing."""


class RecordingPool:
    """Wrap an allocator; everything but the recorded calls goes straight through.

    Parameters
    ----------
    inner : object
        A `TokenToKVPoolAllocator`.

    Attributes
    ----------
    calls : list of (str, list of int)
        Calls that the inner pool took, in order, with the slots named.
    refuse : str
        Name of the call that raises `PoolBrokenError` instead, or ``""``.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls: list[tuple[str, list[int]]] = []
        self.refuse = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def free(self, indices: torch.Tensor) -> None:
        """Give slots back."""
        self._forward("free", indices)

    def _forward(self, name: str, *indices: torch.Tensor) -> None:
        if self.refuse == name:
            raise PoolBrokenError(name)
        getattr(self.inner, name)(*indices)
        self.calls.append((name, torch.cat(indices).tolist()))

    def take_calls(self) -> list[tuple[str, list[int]]]:
        """Return the calls since the last time, and forget them."""
        calls, self.calls = self.calls, []
        return calls


class RecordingSWAPool(RecordingPool):
    """The same around an `SWATokenToKVPoolAllocator`."""

    def free_swa(self, indices: torch.Tensor) -> None:
        """Give SWA halves back."""
        self._forward("free_swa", indices)

    def move_swa(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        """Give the halves of ``src`` to ``dst``; recorded as one list, sources first."""
        self._forward("move_swa", src, dst)
