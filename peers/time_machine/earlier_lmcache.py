"""Adapters of LMCache's host memory in releases from 0.3.1 to 0.4, in one module.

Use one as ``--adapter peers.time_machine.earlier_lmcache:EarlierChunks`` from the repository's root.

`EarlierChunks` is `pymllm_peers.lmcache.chunks.LMCacheChunks` over ``TensorMemoryAllocator`` of its time.
The others are of the objects that it hands out, as kind ``blocks`` without hashes. An object is kept by who
has a reference, and by who has looked it up and is to retrieve it: that is a pin, and is counted apart. Both
are references here. `OnePin` pins an object once, and lets go of the pin last; `Pins` pins it as often as it
is shared, and lets go of one pin before the reference.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.simple import BlockAdapter
from pymllm.history.files import Config
from pymllm.history.outcomes import BlockBooks
from pymllm_peers.lmcache.chunks import STAND_INS, LMCacheChunks
from pymllm_peers.stand_ins import standing_in

_STAND_INS = STAND_INS | {
    "lmcache.c_ops": "kernels, and memory that a GPU reads",
    "lmcache.integration.vllm.utils": "sizes of what vLLM has",
    "lmcache.non_cuda_equivalents": "the same where there is no GPU",
    "lmcache.utils": "names of caches, and marks for a profiler",
}

_SHAPE, _DTYPE = torch.Size([8]), torch.uint8
_BYTES = 8  # of a chunk


def load() -> Any:
    """Import the module of LMCache's allocators, where there is no GPU."""
    spec = importlib.util.find_spec("lmcache")
    if spec is None:
        raise ImportError("lmcache is not installed; tox -e peers installs it")
    if "lmcache" not in sys.modules:
        # Its __init__ looks for a GPU, and its modules import from it what it has found.
        package = sys.modules["lmcache"] = importlib.util.module_from_spec(spec)
        package.__dict__.update(torch_dev=None, torch_device_type="cpu")
    with standing_in(_STAND_INS, (), "lmcache"):
        found = importlib.import_module("lmcache.v1.memory_management")
    # What a server logs of each object that is freed twice is no verdict.
    found.logger.setLevel(logging.CRITICAL)
    if hasattr(found, "get_size_bytes"):
        found.get_size_bytes = _size_of
    return found


def _size_of(shapes: Iterable[Any], dtypes: Iterable[Any]) -> int:
    return sum(shape.numel() * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True))


class _NoMetrics:
    """A sink for every metric of a server."""

    def __getattr__(self, name: str) -> Any:
        return lambda *numbers: None


def make_allocator(chunks: int) -> Any:
    """Build an allocator of a number of chunks of one size."""
    module = load()
    objects = module.TensorMemoryObj
    for name in ("monitor", "pin_monitor"):
        if hasattr(objects, name):
            setattr(objects, name, _NoMetrics())
    if hasattr(module, "PinMonitor"):
        module.PinMonitor = type("NoMonitor", (), {"GetOrCreate": staticmethod(_NoMetrics)})
    allocator = module.TensorMemoryAllocator(torch.zeros(chunks * _BYTES, dtype=_DTYPE), _BYTES)
    allocator.stats_monitor = _NoMetrics()
    return allocator


def _for_objects(allocator: Any, call: Any) -> dict[str, Any]:
    """Return the argument that names the owner of the objects, if the call has such a parameter."""
    return {"parent_allocator": allocator} if "parent_allocator" in inspect.signature(call).parameters else {}


def _free_chunks(allocator: Any) -> int:
    return sum(int(block.size) for block in allocator.explicit_list) // _BYTES


class EarlierChunks(LMCacheChunks):
    """The adapter of ``TensorMemoryAllocator`` over ``pages`` chunks of one size."""

    def make_allocator(self, buffer: torch.Tensor) -> Any:
        return make_allocator(self.number("pages"))

    def sizes(self) -> dict[str, int]:
        return {"available_size": self._free()}

    def _free(self) -> int:
        manager = getattr(self.allocator, "address_manager", None)
        return _free_chunks(self.allocator) if manager is None else int(manager.get_free_size()) // _BYTES

    def alloc(self, tokens: int) -> list[int] | None:
        """Allocate a batch, or single chunks where the free ones are not adjacent."""
        if tokens > self._free():
            return None
        batch, one = self.allocator.batched_allocate, self.allocator.allocate
        owner = _for_objects(self.allocator, one)
        taken = None if tokens < 2 else batch(_SHAPE, _DTYPE, tokens, **owner)
        if taken is None:
            taken = [one(_SHAPE, _DTYPE, **owner) for _ in range(tokens)]
        slots = [self.slot_of(chunk) for chunk in taken]
        self._chunks.update(zip(slots, taken, strict=True))
        return slots


class Pins(BlockAdapter):
    """Memory objects, ``blocks`` of them, with one reference and any number of pins each."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        {"blocks": 4, "block_size": 1, "policy": "release", "caching": False},
        {"blocks": 2, "block_size": 1, "policy": "release", "caching": False},
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.reset()

    def claim(self) -> frozenset[str]:
        return frozenset({"pool", "callbacks", "inspect"})

    def reset(self) -> None:
        """Build new memory."""
        self.allocator = make_allocator(self.number("blocks"))
        self._objects: dict[int, Any] = {}
        self._order: dict[int, list[str]] = {}  # by block, who keeps it, first who goes first

    def sizes(self) -> dict[str, int]:
        return {"pool_avail": _free_chunks(self.allocator), "evictable_blocks": 0}

    def alloc(self, count: int) -> list[int] | None:
        """Allocate objects one by one, if enough are free."""
        if count > _free_chunks(self.allocator):
            return None
        call = self.allocator.allocate
        blocks = []
        for _ in range(count):
            taken = call(_SHAPE, _DTYPE, **_for_objects(self.allocator, call))
            blocks.append(taken.meta.address // _BYTES)
            self._objects[blocks[-1]], self._order[blocks[-1]] = taken, ["reference"]
        return blocks

    def retain(self, blocks: list[int]) -> None:
        """Pin objects."""
        for block in blocks:
            self._objects[block].pin()
            order = self._order[block]
            order.insert(0 if order[0] == "reference" else len(order), "pin")

    def release(self, blocks: list[int]) -> None:
        """Unpin objects, and return those that became free."""
        before = {block for block in blocks if self._is_kept(block)}
        for block in blocks:
            kept = self._order[block].pop(0)
            memory = self._objects[block]
            (memory.ref_count_down if kept == "reference" else memory.unpin)()
        gone = [block for block in dict.fromkeys(blocks) if block in before and not self._is_kept(block)]
        if gone:
            self.lost(gone)

    def _is_kept(self, block: int) -> bool:
        return block in self._objects and bool(self._objects[block].is_valid())

    def stamp(self, blocks: list[int]) -> None:
        """Do nothing: nothing here is evicted."""

    def set_clock(self, clock: int) -> None:
        """Do nothing, since nothing is evicted by age."""

    def register(self, blocks: list[int], hashes: list[int], parents: list[int]) -> None:
        """Do nothing: what an object holds is known to others."""

    def books(self) -> BlockBooks:
        """Return the holds of each block: references, and pins as far as they are counted."""
        count = self.number("blocks") + 1
        return BlockBooks(tuple(map(self._references, range(count))), (-1,) * count, (), ())

    def _references(self, block: int) -> int:
        if not self._is_kept(block):
            return 0
        meta = self._objects[block].meta
        return int(meta.ref_count) + int(getattr(meta, "pin_count", getattr(meta, "is_pin", 0)))


class OnePin(Pins):
    """Memory objects, ``blocks`` of them, with one pin and any number of references each."""

    def retain(self, blocks: list[int]) -> None:
        """Pin objects without a pin, and add a reference to the others."""
        for block in blocks:
            memory, order = self._objects[block], self._order[block]
            if "pin" in order:
                memory.ref_count_up()
                order.insert(0, "reference")
            else:
                memory.pin()
                order.append("pin")
