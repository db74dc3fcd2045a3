"""sglang's allocators of slots and states under its caches, with every call of the cache written down."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pymllm.adapters.sglang.package import load_sglang
from pymllm.adapters.simple import CallRecorder
from pymllm.history.outcomes import Effect

_CALLS = {
    "free": "free",
    "free_segment": "free",
    "free_full": "free",
    "free_full_segment": "free",
    "free_swa": "free_swa",
    "free_swa_segment": "free_swa",
}
"""Each call that gives slots or halves back, and its name in the specification."""


def make_allocator(page_size: int, slots: int, swa_slots: int | None = None, need_sort: bool = False) -> Any:
    """Build the allocator of slots that sglang would choose on the CPU, with so many tokens of either kind.

    Without ``swa_slots`` there are no halves. With ``need_sort``, what is freed waits until a merge.
    """
    common = (torch.float16, "cpu")
    if swa_slots is not None:
        swa = load_sglang("mem_cache.allocator.swa").SWATokenToKVPoolAllocator
        return swa(slots, swa_slots, page_size, *common, _make_kv_of_halves(), need_sort)
    if page_size == 1:
        token = load_sglang("mem_cache.allocator.token").TokenToKVPoolAllocator
        return token(slots, *common, None, need_sort)
    paged = load_sglang("mem_cache.allocator.paged").PagedTokenToKVPoolAllocator
    return paged(slots, page_size, *common, None, need_sort)


def _make_kv_of_halves() -> Any:
    """Build a KV pool with halves that stores nothing: an allocator only registers its table with it."""
    base = load_sglang("mem_cache.base_swa_memory_pool").BaseSWAKVPool

    def register_mapping(self: Any, full_to_swa_index_mapping: torch.Tensor) -> None:
        self.full_to_swa_index_mapping = full_to_swa_index_mapping

    def translate(self: Any, kv_indices: torch.Tensor) -> torch.Tensor:
        halves: torch.Tensor = self.full_to_swa_index_mapping[kv_indices]
        return halves

    names: dict[str, Any] = dict.fromkeys(base.__abstractmethods__)
    names |= {
        "__init__": lambda self: None,
        "register_mapping": register_mapping,
        "translate_loc_from_full_to_swa": translate,
    }
    return type("KVOfHalves", (base,), names)()


class SglangPool(CallRecorder):
    """An allocator that tells what a cache gives back to it; its own type, since a cache looks for that."""

    def __init__(self, allocator: Any, record: Callable[[Effect], None]) -> None:
        super().__init__(record)
        self.allocator = allocator
        self.has_halves = hasattr(allocator, "full_to_swa_index_mapping")
        # A cache frees some full halves behind the back of the allocator of both.
        for part in (allocator, getattr(allocator, "full_attn_allocator", None)):
            for name, call in _CALLS.items():
                if hasattr(part, name):
                    self.watch(part, name, call)

    # -- the caller's own calls ----------------------------------------------------------------------------

    def alloc(self, tokens: int) -> tuple[int, ...] | None:
        """Take whole pages, and return the first slots of them; ``None`` where there are too few.

        sglang's callers round up themselves, or extend a request from no prefix at all where slots of pages
        have halves.
        """
        page_size = self.allocator.page_size
        whole = -(-tokens // page_size) * page_size
        if self.has_halves and page_size > 1:
            none, length = torch.tensor([0]), torch.tensor([whole])
            found = self.allocator.alloc_extend(none, none, length, length, torch.tensor([-1]), whole)
        else:
            found = self.allocator.alloc(whole)
        return None if found is None else tuple(found[:tokens].tolist())

    def free(self, slots: Sequence[int]) -> None:
        """Give slots back, and their halves where they have any."""
        if not self.has_halves:
            with self.unrecorded():
                self.allocator.free(torch.tensor(slots, dtype=torch.int64))
            return
        halves = self.halves(slots)
        whole = [slot for slot, half in zip(slots, halves, strict=True) if half]
        rest = [slot for slot, half in zip(slots, halves, strict=True) if not half]
        with self.unrecorded():
            self.allocator.free(torch.tensor(whole, dtype=torch.int64))
            if rest:  # older versions have no call for these
                self.allocator.free_full(torch.tensor(rest, dtype=torch.int64))

    def free_swa(self, slots: Sequence[int]) -> None:
        """Give halves back."""
        with self.unrecorded():
            self.allocator.free_swa(torch.tensor(slots, dtype=torch.int64))

    def halves(self, slots: Sequence[int]) -> tuple[int, ...]:
        """Return the SWA half of each slot, 0 where it is gone; nothing where there are no halves."""
        if not self.has_halves:
            return ()
        table = self.table()
        return tuple(table[slot] for slot in slots)

    def table(self) -> list[int]:
        """Return the SWA half of every slot, 0 for none."""
        halves: list[int] = self.allocator.full_to_swa_index_mapping.tolist()
        return halves

    def sizes(self) -> dict[str, int]:
        """Return what is available, of each half and of both."""
        sizes = {"available_size": int(self.allocator.available_size())}
        if self.has_halves:
            sizes["full_available_size"] = int(self.allocator.full_available_size())
            sizes["swa_available_size"] = int(self.allocator.swa_available_size())
        return sizes


class SglangStates(CallRecorder):
    """A ``MambaSlotAllocator`` that tells what a cache gives back to it, in a pool of requests around it.

    `request_pool` is a ``HybridReqToTokenPool`` with the allocator and nothing else. Its own constructor
    allocates the states of every layer by the configuration of a model; a tree only passes slots on.
    """

    def __init__(self, slots: int, record: Callable[[Effect], None]) -> None:
        super().__init__(record)
        self.allocator = load_sglang("mem_cache.allocator.mamba").MambaSlotAllocator(slots, "cpu")
        base = load_sglang("mem_cache.memory_pool").HybridReqToTokenPool
        pool = type("RequestsWithStates", (base,), {"__init__": lambda self: None})
        self.request_pool = pool()
        self.request_pool.mamba_allocator = self.allocator
        self.watch(self.allocator, "free", "free_state")

    def alloc(self) -> int | None:
        """Take a slot for the caller."""
        found = self.allocator.alloc(1)
        return None if found is None else int(found[0])

    def free(self, slot: int) -> None:
        """Give one of the caller's back, which no cache has asked for."""
        with self.unrecorded():
            self.allocator.free(torch.tensor([slot]))

    def size(self) -> int:
        """Count the slots that can be handed out."""
        return int(self.allocator.available_size())


def settings_of_states(chunk: int) -> tuple[Any, dict[str, Any]]:
    """Return a server's arguments and its published settings, for as long as a cache of states is built.

    ``chunk`` counts tokens between places where a state may be kept (a server takes a kernel's, 64); the
    states of a path are not bounded.
    """
    mamba = types.SimpleNamespace(mamba_max_states_per_path=-1, enable_mamba_extra_buffer_lazy=False)
    return types.SimpleNamespace(_mamba_cache_chunk_size=chunk), {"exec": types.SimpleNamespace(mamba=mamba)}
