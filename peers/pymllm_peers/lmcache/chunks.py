"""LMCache's ``TensorMemoryAllocator`` and ``PagedTensorMemoryAllocator``, as allocators of equal chunks.

A slot is a chunk. The first gives out ranges of bytes of any size, which no kind here knows: a request may
fail although enough is free, in pieces. With chunks of one size nothing is ever in pieces, and it is to do
what an allocator of slots does. A chunk alone goes by ``allocate`` and ``ref_count_down``, several go in one
batch. LMCache has no padding, so chunk 0 is slot 1 here.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.simple import SlotAdapter
from pymllm.history.files import Config
from pymllm_peers.installed import require_known
from pymllm_peers.stand_ins import standing_in

VERSION = "0.5.6"
"""The version that the adapters were tried with."""

STAND_INS: dict[str, str] = {
    "lmcache.observability": "a server's metrics",
    "lmcache.v1.pin_monitor": "a thread that looks for pins that nobody takes back",
    "lmcache.v1.platform": "which GPU there is",
    "lmcache.v1.system_detection": "which memory is near which GPU",
}
"""What is replaced while a module is imported, and what it is for."""

_SHAPE, _DTYPE = torch.Size([8]), torch.uint8
_BYTES = 8  # of a chunk


def load_allocators(module: str) -> Any:
    """Import a module of LMCache's allocators, where there is no GPU."""
    require_known("lmcache", (VERSION,), "peers")
    spec = importlib.util.find_spec("lmcache")
    if spec is None:
        raise ImportError("what is installed as lmcache has no package of that name")
    if "lmcache" not in sys.modules:
        # Its __init__ looks for a GPU, and its modules import from it what it has found.
        package = sys.modules["lmcache"] = importlib.util.module_from_spec(spec)
        package.__dict__.update(device_ops=None, torch_dev=None, torch_device_type="cpu")
    with standing_in(STAND_INS, (), "lmcache"):
        found = importlib.import_module(f"lmcache.v1.memory_allocators.{module}")
    # What a server logs of each allocation that fails, and of chunks that nobody gave back, is no verdict.
    found.logger.setLevel(logging.ERROR)
    return found


class _NoMetrics:
    """A sink for every metric of a server."""

    def __getattr__(self, name: str) -> Any:
        return lambda number: None


class LMCacheChunks(SlotAdapter):
    """The adapter of ``TensorMemoryAllocator`` over ``pages`` chunks of one size."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = ({"page_size": 1, "pages": 12},)

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.allocator = self.make_allocator(torch.zeros(self.number("pages") * _BYTES, dtype=_DTYPE))
        self.allocator.stats_monitor = _NoMetrics()
        self._chunks: dict[int, Any] = {}

    def make_allocator(self, buffer: torch.Tensor) -> Any:
        """Build the allocator over a buffer."""
        return load_allocators("tensor_memory_allocator").TensorMemoryAllocator(buffer, _BYTES)

    def slot_of(self, chunk: Any) -> int:
        """Return the number of a chunk."""
        return 1 + int(chunk.meta.address) // _BYTES

    def claim(self) -> frozenset[str]:
        return frozenset({"pool"})

    def sizes(self) -> dict[str, int]:
        """Return how many chunks are free."""
        return {"available_size": self.allocator.address_manager.get_free_size() // _BYTES}

    def alloc(self, tokens: int) -> list[int] | None:
        if tokens == 1:
            chunk = self.allocator.allocate(_SHAPE, _DTYPE)
            taken = None if chunk is None else [chunk]
        else:
            taken = self.allocator.batched_allocate(_SHAPE, _DTYPE, tokens)
        if taken is None:
            return None
        slots = [self.slot_of(chunk) for chunk in taken]
        self._chunks.update(zip(slots, taken, strict=True))
        return slots

    def free(self, slots: list[int]) -> None:
        chunks = [self._chunks.pop(slot) for slot in slots]
        if len(chunks) == 1:
            chunks[0].ref_count_down()
        else:
            self.allocator.batched_free(chunks)


class LMCachePages(LMCacheChunks):
    """The adapter of ``PagedTensorMemoryAllocator``, whose chunks all exist from the beginning."""

    def make_allocator(self, buffer: torch.Tensor) -> Any:
        module = load_allocators("paged_tensor_memory_allocator")
        return module.PagedTensorMemoryAllocator(buffer, [_SHAPE], [_DTYPE])

    def slot_of(self, chunk: Any) -> int:
        return 1 + int(chunk.meta.address)
