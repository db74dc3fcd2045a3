"""The operations that stress tests ask of a device, with equivalents for rehearsals on the CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import psutil
import torch

Rounds = Callable[..., Iterator[int]]
"""``rounds(at_least, share=1.0)``: numbers of rounds, so many and on while the test has time."""


class Lane:
    """Work in order, beside that of other lanes: a CUDA stream. On the CPU all lanes are one."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __enter__(self) -> None:
        self._context: AbstractContextManager[object] = (
            nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        )
        self._context.__enter__()

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(*error)  # type: ignore[arg-type]

    def follow_current(self) -> None:
        """Begin nothing new before what the current lane was given so far is done."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def be_followed(self) -> None:
        """Have the current lane begin nothing new before this one's work so far is done."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


class Card:
    """A device, and how much of it a test may take."""

    def __init__(self, device: torch.device, limit: int | None = None) -> None:
        self.is_cuda = device.type == "cuda"
        # Some of torch.cuda takes a device without a number for the current one, and some refuses it.
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.is_cuda else device
        self._limit = limit

    @property
    def is_roomy(self) -> bool:
        """Whether tests that need little memory are to be as large as on a GPU that they have alone."""
        return self.is_cuda and self.budget(on_cpu=0) >= 1 << 30

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record work as a graph and return a function that replays it; on the CPU, the work is repeated.

        The work is done once before, as capturing asks for: kernels are loaded and memory is mapped then.
        """
        lane = Lane(self.device)
        lane.follow_current()
        with lane:
            work()
        lane.be_followed()
        if not self.is_cuda:
            return work
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    @contextmanager
    def never_waiting(self) -> Iterator[None]:
        """Make each call an error that would have the host wait for the device."""
        if not self.is_cuda:
            yield
            return
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def settle(self) -> None:
        """Wait until all work is done, and give back the unused memory that the allocator keeps."""
        if self.is_cuda:
            gc.collect()
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()

    def free_bytes(self) -> int:
        """Return the number of unused bytes."""
        if self.is_cuda:
            return torch.cuda.mem_get_info(self.device)[0]
        return psutil.virtual_memory().available

    def budget(self, on_cpu: int, share: float = 0.25, at_most: int = 16 << 30) -> int:
        """Bytes that a test may take: a share of what is free on a GPU, little on a CPU."""
        found = min(int(self.free_bytes() * share), at_most) if self.is_cuda else on_cpu
        return found if self._limit is None else min(found, self._limit)
