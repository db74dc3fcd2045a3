"""Megatron's allocators: the released one, and those of a checkout where ``PYMLLM_MEGATRON`` names one.

``KVBlockAllocator`` and ``MambaSlotAllocator`` are in no released ``megatron-core``: 0.16.1 has
``BlockAllocator``, a stack without prefix caching, which asks CUDA for its device.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch

from peers.benchmarks.contender import CheckoutPeer, SlotPeer, StateCopyPeer, StateSlotPeer, Unavailable
from pymllm_peers.checkouts import Checkout
from pymllm_peers.megatron.blocks import MegatronContext
from pymllm_peers.megatron.package import load_megatron as load_module
from pymllm_peers.megatron.package import load_slots
from pymllm_peers.projects import MEGATRON
from pymllm_peers.stand_ins import standing_in

CONTEXTS = "megatron.core.inference.contexts"
BARE_PACKAGES = {
    "megatron": "",
    "megatron.core": "its __init__ imports parallel training",
    "megatron.core.inference": "",
    CONTEXTS: "its __init__ imports contexts that need CUDA",
}


def load_megatron(name: str, of: str) -> Any:
    """Import a class of Megatron's inference contexts; `Unavailable` where the release lacks it."""
    try:
        version = importlib.metadata.version("megatron-core")
    except importlib.metadata.PackageNotFoundError:
        raise Unavailable("megatron-core is not installed; tox -e bench-peers installs it") from None
    with standing_in((), BARE_PACKAGES, "megatron"):
        try:
            return getattr(importlib.import_module(f"{CONTEXTS}.{name}"), of)
        except ModuleNotFoundError as error:
            if error.name != f"{CONTEXTS}.{name}":
                raise
            raise Unavailable(f"megatron-core {version}, the newest released, has no {of}") from None


def missing_megatron(name: str, of: str) -> str | None:
    """Return the reason why a class cannot be imported, or ``None``."""
    try:
        load_megatron(name, of)
    except Unavailable as error:
        return str(error)
    return None


class MegatronSlots(SlotPeer):
    """``BlockAllocator`` with its stack on the CPU."""

    NAME: ClassVar[str] = "megatron"
    PACKAGE: ClassVar[str] = "megatron-core"
    HANDS_OUT = "blocks"

    @classmethod
    def missing(cls) -> str | None:
        return missing_megatron("dynamic_block_allocator", "BlockAllocator")

    def __init__(self, size: int, page_size: int) -> None:
        allocator = load_megatron("dynamic_block_allocator", "BlockAllocator")
        with mock.patch("torch.cuda.current_device", return_value=torch.device("cpu")):
            self.pool = allocator(SimpleNamespace(), size + 1, 0)  # it keeps one for padding

    def alloc(self, count: int) -> Any:
        # What it returns is a part of its stack, which the next release overwrites; its caller copies, too.
        return self.pool.allocate_memory_blocks(count).clone()

    def free(self, piece: Any) -> None:
        self.pool.release_memory_blocks(piece)

    def split(self, everything: Any, piece: int, order: list[int]) -> list[Any]:
        return list(everything.reshape(-1, piece)[order].unbind())

    def numbers(self, piece: Any) -> Any:
        return piece.numpy()

    def available(self) -> int:
        return int(self.pool.total_avail)


class _OfCheckout(CheckoutPeer):
    NAME: ClassVar[str] = "megatron-lm"
    CHECKOUT: ClassVar[Checkout] = MEGATRON


class MegatronBlocks(_OfCheckout, MegatronSlots):
    """``KVBlockAllocator``, with prefix caching, of blocks without hashes."""

    def __init__(self, size: int, page_size: int) -> None:
        self.pool = make_blocks(size)

    def available(self) -> int:
        return int(self.pool.pool_avail)


class MegatronStateSlots(_OfCheckout, StateSlotPeer):
    """``MambaSlotAllocator`` beside a ``KVBlockAllocator``."""

    def __init__(self, blocks: int, slots: int, order: list[int]) -> None:
        allocator = make_blocks(blocks)
        ids = allocator.allocate_memory_blocks(blocks).clone()
        numbers = ids.tolist()
        allocator.register_kv_block_hashes(numbers, [number + 1 for number in numbers], [0] * blocks)
        for clock, block in enumerate(order):
            allocator.context.prefix_cache_lru_clock = clock
            allocator.update_timestamps(torch.tensor([block]))
        allocator.release_memory_blocks(ids)
        states = (slots, 1, (1,), (1,), torch.float32, torch.float32)
        self.slots = load_slots().MambaSlotAllocator(allocator.context, *states)

    def allocate(self, blocks: list[int]) -> None:
        self.slots.allocate_slots_batch(blocks)

    def invalidate(self, blocks: list[int]) -> None:
        self.slots._invalidate_blocks_batch(blocks)

    def free_count(self) -> int:
        return int(self.slots.free_count)

    def without_slot(self) -> np.ndarray[Any, Any]:
        return np.flatnonzero(self.slots.block_to_slot.numpy()[:-1] < 0)


class MegatronStateCopies(_OfCheckout, StateCopyPeer):
    """``MambaSlotAllocator``."""

    def make_context(self, rows: int) -> Any:
        context = make_blocks(1).context
        context.max_requests = rows
        context.max_mamba_intermediate_states_per_step = 3 * rows
        return context

    def allocator(self) -> type[Any]:
        made: type[Any] = load_slots().MambaSlotAllocator
        return made


def make_blocks(count: int) -> Any:
    """Build a ``KVBlockAllocator`` in the smallest context."""
    module = load_module("kv_block_allocator")
    policy = module.PrefixCachingEvictionPolicy.LRU
    context = MegatronContext(8, 1, policy, torch.device("cpu"))
    context.kv_block_allocator = module.KVBlockAllocator(context, count + 1, 0, True, policy)
    return context.kv_block_allocator
