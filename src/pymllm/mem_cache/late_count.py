"""A number that is on its way from a device: asked for now, read when somebody needs it."""

from __future__ import annotations

import enum

import torch

__all__ = ["LateCount", "Whereabouts"]


class Whereabouts(enum.Enum):
    """Where the pages are that a `LateCount` counts."""

    PENDING = "pending"
    RELEASED = "released"
    MAIN = "main"


class LateCount:
    """Count pages on their device without waiting for it.

    ``pages``: shape ``(n,)``; zeros are no pages, and only what is none is counted out. ``where``: the list
    that they are in. ``where``: as given; whoever moves the pages changes it. On CUDA the number goes to
    pinned memory on the current stream, behind which an event is recorded: who reads it later waits for what
    was launched before, and for nothing after it. Elsewhere it stays where it is until it is read.
    """

    def __init__(self, pages: torch.Tensor, where: Whereabouts) -> None:
        self.where = where
        self._number = torch.count_nonzero(pages)
        self._done: torch.cuda.Event | None = None
        if pages.is_cuda:
            self._send(pages.device)  # pragma: needs cuda

    def _send(self, device: torch.device) -> None:  # pragma: needs cuda
        # The sender's memory is its stream's, and so free for reuse as soon as the name is gone.
        there = torch.empty((), dtype=torch.int64, pin_memory=True)
        there.copy_(self._number, non_blocking=True)
        self._number, self._done = there, torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._done.record(torch.cuda.current_stream(device))

    def is_here(self) -> bool:
        """Tell whether reading waits for nobody."""
        return self._done is not None and bool(self._done.query())  # type: ignore[no-untyped-call]

    def read(self) -> int:
        """Return the number, now or as soon as it is here."""
        if self._done is not None:
            self._done.synchronize()  # pragma: needs cuda
        return int(self._number)
