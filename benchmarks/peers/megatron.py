"""Megatron Core's block allocator, as far as the released package has one.

The allocators that T5 and T7 were first measured with (``KVBlockAllocator``, ``MambaSlotAllocator``) are in
its repository, and in no released ``megatron-core``: 0.16.1 has ``BlockAllocator``, a stack without prefix
caching, which asks CUDA for its device.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch

from benchmarks.peers.contender import Peer, SlotPeer, Unavailable
from pymllm.adapters.stand_ins import standing_in

CONTEXTS = "megatron.core.inference.contexts"
BARE_PACKAGES = {
    "megatron": "",
    "megatron.core": "its __init__ imports parallel training",
    "megatron.core.inference": "",
    CONTEXTS: "its __init__ imports contexts that need CUDA",
}


def load_megatron(name: str, of: str) -> Any:
    """Import a class of its inference contexts; `Unavailable` where the release has none of that name."""
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
    """Say why a class cannot be imported, if it cannot."""
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


class MegatronStateSlots(Peer):
    """``MambaSlotAllocator``, which no release has."""

    NAME: ClassVar[str] = "megatron"
    PACKAGE: ClassVar[str] = "megatron-core"

    @classmethod
    def missing(cls) -> str | None:
        why = missing_megatron("mamba_slot_allocator", "MambaSlotAllocator")
        return why or "this release has a MambaSlotAllocator, and nobody has measured it here yet"
