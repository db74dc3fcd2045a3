"""sglang's allocator of recurrent states, under its caches and in the hands of their caller."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from pymllm.adapters.sglang_package import load_sglang
from pymllm.history.outcomes import Effect

__all__ = ["SglangStates", "settings_of_states"]


class SglangStates:
    """A ``MambaSlotAllocator`` that tells what a cache gives back to it, in a pool of requests around it.

    Parameters
    ----------
    slots : int
        How many states there are.
    record : callable
        Called with the `Effect` of each call of the cache.

    Attributes
    ----------
    allocator : object
        What hands the slots out.
    request_pool : object
        A ``HybridReqToTokenPool`` with the allocator and nothing else. Its own constructor allocates the
        states of every layer by the configuration of a model; a tree only passes slots on.
    """

    def __init__(self, slots: int, record: Callable[[Effect], None]) -> None:
        self.allocator = load_sglang("mem_cache.allocator.mamba").MambaSlotAllocator(slots, "cpu")
        base = load_sglang("mem_cache.memory_pool").HybridReqToTokenPool
        pool = type("RequestsWithStates", (base,), {"__init__": lambda self: None})
        self.request_pool = pool()
        self.request_pool.mamba_allocator = self.allocator
        self._free = self.allocator.free

        def recorded(free_index: torch.Tensor) -> None:
            self._free(free_index)
            if free_index.numel():
                record(Effect("free_state", tuple(free_index.tolist())))

        self.allocator.free = recorded

    def alloc(self) -> int | None:
        """Take a slot for the caller."""
        found = self.allocator.alloc(1)
        return None if found is None else int(found[0])

    def free(self, slot: int) -> None:
        """Give one of the caller's back, which no cache has asked for."""
        self._free(torch.tensor([slot]))

    def size(self) -> int:
        """Count the slots that can be handed out."""
        return int(self.allocator.available_size())


def settings_of_states(chunk: int) -> tuple[Any, dict[str, Any]]:
    """Return what a server's settings say to a cache of states, for as long as one is built.

    Parameters
    ----------
    chunk : int
        Tokens between places where a state may be kept; a server takes a kernel's chunk, 64.

    Returns
    -------
    tuple
        Arguments of the server, and its published settings: no bound on the states of a path.
    """
    mamba = types.SimpleNamespace(mamba_max_states_per_path=-1, enable_mamba_extra_buffer_lazy=False)
    return types.SimpleNamespace(_mamba_cache_chunk_size=chunk), {"exec": types.SimpleNamespace(mamba=mamba)}
