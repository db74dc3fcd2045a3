"""sglang's allocators of slots and states under its caches, with every call of the cache recorded."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pymllm.adapters.simple import CallRecorder, SlotCalls
from pymllm.history.outcomes import Effect
from pymllm_peers.sglang.package import load_sglang

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
    """Build the allocator that sglang would choose on the CPU, with some tokens of either kind.

    Without ``swa_slots`` there are no halves. With ``need_sort``, what is freed waits until a merge.
    """
    common = (torch.float16, "cpu")
    if swa_slots is not None:
        swa = load_sglang("mem_cache.allocator.swa").SWATokenToKVPoolAllocator
        made = swa(slots, swa_slots, page_size, *common, _make_kv_of_halves(), need_sort)
        extend_on_host(made.full_attn_allocator)
        return made
    if page_size == 1:
        token = load_sglang("mem_cache.allocator.token").TokenToKVPoolAllocator
        return token(slots, *common, None, need_sort)
    paged = load_sglang("mem_cache.allocator.paged").PagedTokenToKVPoolAllocator
    return paged(slots, page_size, *common, None, need_sort)


def extend_on_host(allocator: Any) -> None:
    """Let an allocator of pages extend requests on the host, in place of its kernel.

    Versions before 0.5.22 have no other way to allocate slots with halves by the page.
    """
    module = sys.modules[type(allocator).__module__]
    if hasattr(module, "alloc_extend_kernel"):
        module.alloc_extend_kernel = _EveryGrid()  # type: ignore[attr-defined]


class _EveryGrid:
    """A stand-in for a kernel: a loop runs over all of it, for every grid of a launch."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return fill_extensions


def fill_extensions(
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    *sizes: int,
) -> None:
    """Write the slots by which requests grow, one request after the other.

    A request first fills its last page, behind the slot ``last_loc``, and then takes free pages in their
    order, the last of them perhaps in part. Where there are too few, the caller finds that out afterwards,
    and looks at nothing here. ``sizes`` are the launch's own: of a block of requests, then ``page_size``.
    """
    page_size, done, taken = sizes[1], 0, 0
    for start, stop, last in zip(prefix_lens.tolist(), seq_lens.tolist(), last_loc.tolist(), strict=True):
        begun = -(-start // page_size)  # pages that the request has already
        needed = -(-stop // page_size) - begun
        if taken + needed > len(free_pages):
            return
        pages = free_pages[taken : taken + needed]
        offsets = torch.arange(page_size)
        old = last + 1 + torch.arange(min(stop, begun * page_size) - start)
        grown = torch.cat([old, (pages[:, None] * page_size + offsets).reshape(-1)])
        out_indices[done : done + stop - start] = grown[: stop - start]
        done, taken = done + stop - start, taken + needed


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
    """An allocator that records the slots that a cache returns; a subclass, since a cache checks types."""

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
        """Allocate whole pages, and return their first slots; ``None`` where there are too few.

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
        """Free slots, with their halves where they have any."""
        if not self.has_halves:
            with self.unrecorded():
                self.allocator.free(torch.tensor(slots, dtype=torch.int64))
            return
        halves = self.halves(slots)
        whole = [slot for slot, half in zip(slots, halves, strict=True) if half]
        rest = [slot for slot, half in zip(slots, halves, strict=True) if not half]
        with self.unrecorded():
            self.allocator.free(torch.tensor(whole, dtype=torch.int64))
            if rest:  # older versions have no call for these, and pass over halves that are gone
                free = getattr(self.allocator, "free_full", self.allocator.free)
                free(torch.tensor(rest, dtype=torch.int64))

    def free_swa(self, slots: Sequence[int]) -> None:
        """Give halves back."""
        with self.unrecorded():
            self.allocator.free_swa(torch.tensor(slots, dtype=torch.int64))

    def halves(self, slots: Sequence[int]) -> tuple[int, ...]:
        """Return the SWA half of each slot, 0 where it is gone; empty where there are no halves."""
        if not self.has_halves:
            return ()
        table = self.table()
        return tuple(table[slot] for slot in slots)

    def table(self) -> list[int]:
        """Return the SWA half of every slot, 0 for none."""
        halves: list[int] = self.allocator.full_to_swa_index_mapping.tolist()
        return halves

    def sizes(self) -> dict[str, int]:
        """Return the free sizes, of each half and of both."""
        sizes = {"available_size": int(self.allocator.available_size())}
        if self.has_halves:
            sizes["full_available_size"] = int(self.allocator.full_available_size())
            sizes["swa_available_size"] = int(self.allocator.swa_available_size())
        return sizes


class SglangStates(CallRecorder):
    """A ``MambaSlotAllocator`` that records the slots that a cache returns, in a pool of requests.

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
        """Allocate a slot for the caller."""
        found = self.allocator.alloc(1)
        return None if found is None else int(found[0])

    def free(self, slot: int) -> None:
        """Free a slot of the caller, by no call of a cache."""
        with self.unrecorded():
            self.allocator.free(torch.tensor([slot]))

    def size(self) -> int:
        """Count the slots that can be handed out."""
        return int(self.allocator.available_size())


def settings_of_states(chunk: int) -> tuple[Any, dict[str, Any]]:
    """Set a server's arguments and published settings while a cache of states is built.

    ``chunk`` counts tokens between places where a state may be kept (a server takes a kernel's, 64); the
    states of a path are not bounded.
    """
    mamba = types.SimpleNamespace(mamba_max_states_per_path=-1, enable_mamba_extra_buffer_lazy=False)
    return types.SimpleNamespace(_mamba_cache_chunk_size=chunk), {"exec": types.SimpleNamespace(mamba=mamba)}


class OverSglangPool(SlotCalls):
    """The base of adapters over a `SglangPool`, whose calls reach the pool."""

    pool: SglangPool

    def alloc(self, tokens: int) -> Sequence[int] | None:
        return self.pool.alloc(tokens)

    def free(self, slots: Sequence[int]) -> None:
        self.pool.free(slots)

    def halves(self, slots: Sequence[int]) -> Sequence[int]:
        return self.pool.halves(slots)
