"""Adapter of the allocators in released versions of Megatron-core: a stack of chunks, later of blocks.

Their memory is on the GPU that is current, here on the CPU; nothing else of Megatron-core is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch

from pymllm.adapters.simple import SlotAdapter
from pymllm.history.files import Config

_PLACES = (("dynamic_chunk_allocator", "ChunkAllocator"), ("dynamic_block_allocator", "BlockAllocator"))


def _load() -> Any:
    """Return the class of the first ``megatron.core`` on the path; the package itself is not imported."""
    for folder in sys.path:
        for module, name in _PLACES:
            file = Path(folder, "megatron/core/inference/contexts", f"{module}.py")
            if file.is_file():
                spec = importlib.util.spec_from_file_location(f"megatron_bag_{module}", file)
                assert spec is not None
                assert spec.loader is not None
                loaded = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(loaded)
                return getattr(loaded, name)
    raise ImportError("no megatron.core on the path has an allocator of chunks or blocks")


class MegatronBag(SlotAdapter):
    """``ChunkAllocator`` or ``BlockAllocator``; ids count from 1 here, and the last one is its dummy."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = ({"page_size": 1, "pages": 6}, {"page_size": 1, "pages": 2})

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        made = _load()
        total = self.number("pages") + 1
        with mock.patch.object(torch.cuda, "current_device", return_value="cpu"):
            try:
                self.bag: Any = made(total, 0)
            except TypeError:
                self.bag = made(None, total, 0)

    def claim(self) -> frozenset[str]:
        return frozenset({"pool"})

    def sizes(self) -> dict[str, int]:
        names = ("chunk_count_avail", "block_count_avail", "total_avail")
        return {
            "available_size": next(int(getattr(self.bag, name)) for name in names if hasattr(self.bag, name))
        }

    def _call(self, kind: str) -> Any:
        names = (f"{kind}_memory_chunks", f"{kind}_memory_blocks")
        return next(getattr(self.bag, name) for name in names if hasattr(self.bag, name))

    def alloc(self, tokens: int) -> Sequence[int] | None:
        found = self._call("allocate")(tokens)
        return None if found is None else [int(one) + 1 for one in found]

    def free(self, slots: Sequence[int]) -> None:
        self._call("release")(torch.tensor([slot - 1 for slot in slots], dtype=torch.int32))

    def clear(self) -> None:
        with mock.patch.object(torch.cuda, "current_device", return_value="cpu"):
            self.bag.reset()
