"""Adapters of sglang's slot allocators (by the token, by the page, with SWA halves) and request rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.base import BaseAdapter, UnsupportedError
from pymllm.adapters.simple import SlotAdapter
from pymllm.history import operations as ops
from pymllm.history.files import Config
from pymllm.history.outcomes import Done, Effect, NoRoom, Slots, Table
from pymllm_peers.sglang.package import NEWER, also_claimed, load_sglang, require_version
from pymllm_peers.sglang.pools import OverSglangPool, SglangPool, make_allocator


def _configurations(*page_sizes: int, **more: int) -> tuple[Config, ...]:
    return tuple(
        {"page_size": page_size, "pages": 12, **more, "need_sort": need_sort}
        for page_size in page_sizes
        for need_sort in (True, False)
    )


class SglangTokenSlots(OverSglangPool, SlotAdapter):
    """``TokenToKVPoolAllocator``: slots by the token; ``page_size``, ``pages``, ``need_sort``, ``also``.

    sglang's caller rounds an allocation up to whole pages, passes slots as one 64-bit tensor, and knows which
    of its slots have lost their halves; so does the adapter. Misuse is undefined, that of groups included.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = _configurations(1)

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        require_version(NEWER)
        page_size = self.number("page_size")
        swa_tokens = self.number("swa_pages") * page_size if "swa_pages" in config else None
        tokens, need_sort = self.number("pages") * page_size, bool(config["need_sort"])
        self.pool = SglangPool(make_allocator(page_size, tokens, swa_tokens, need_sort), _forget)

    def claim(self) -> frozenset[str]:
        """Claim groups, and the order of allocations if the allocator sorts."""
        order = {"merges", "sorted"} if self.config["need_sort"] else set()
        return frozenset({"pool", "groups"} | order) | also_claimed(self.config)

    def sizes(self) -> dict[str, int]:
        return self.pool.sizes()

    def clear(self) -> None:
        self.pool.allocator.clear()

    def do_merge(self, step: int, operation: ops.Merge) -> Done:
        if "merges" not in self.capabilities:
            raise UnsupportedError("nothing waits for a merge")
        self.pool.allocator.merge_and_sort_free()
        return Done()

    def do_begin_group(self, step: int, operation: ops.BeginGroup) -> Done:
        self.pool.allocator.free_group_begin()
        return Done()

    def do_end_group(self, step: int, operation: ops.EndGroup) -> Done:
        self.pool.allocator.free_group_end()
        return Done()


class SglangPagedSlots(SglangTokenSlots):
    """``PagedTokenToKVPoolAllocator``: slots by the page."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = _configurations(4)


class SglangSWASlots(SglangTokenSlots):
    """``SWATokenToKVPoolAllocator``; ``swa_pages`` is one more key. It can move no halves by itself."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = _configurations(1, 4, swa_pages=8)

    def claim(self) -> frozenset[str]:
        """Claim halves; a merge applies to both pools below the allocator."""
        return frozenset({"pool", "groups", "swa"}) | also_claimed(self.config)

    def do_free_swa(self, step: int, operation: ops.FreeSWA) -> Done:
        self.pool.free_swa(self.numbers(operation.slots))
        return Done()

    def do_read_halves(self, step: int, operation: ops.ReadHalves) -> Slots:
        return Slots((), self.pool.halves(self.numbers(operation.slots)))


def _forget(effect: Effect) -> None:
    """Drop the recorded calls that no cache made."""


class SglangRows(BaseAdapter):
    """``sglang.srt.mem_cache.memory_pool.ReqToTokenPool``, called as for rows without a request.

    A row that is freed keeps its entries, so ``zeroed_rows`` is not claimed; misuse is undefined.
    """

    KIND: ClassVar[str] = "rows"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        {"max_reqs": 3, "max_context_len": 5},
        {"max_reqs": 5, "max_context_len": 2},
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        require_version(NEWER)
        pool = load_sglang("mem_cache.memory_pool").ReqToTokenPool
        self.pool: Any = pool(config["max_reqs"], config["max_context_len"], "cpu", False)

    def claim(self) -> frozenset[str]:
        return frozenset({"pool"}) | also_claimed(self.config)

    def sizes(self) -> dict[str, int]:
        """Return ``size`` and ``available_size``, in rows."""
        return {"size": int(self.pool.size), "available_size": int(self.pool.available_size())}

    def do_alloc_rows(self, step: int, operation: ops.AllocRows) -> Slots | NoRoom:
        rows = self.pool.alloc_rows(operation.count)
        return NoRoom() if rows is None else Slots(tuple(map(int, rows)))

    def do_free_row(self, step: int, operation: ops.FreeRow) -> Done:
        self.pool.free_rows([self.one(operation.row)])
        return Done()

    def do_write_row(self, step: int, operation: ops.WriteRow) -> Done:
        where = (self.one(operation.row), slice(operation.start, operation.stop))
        self.pool.write(where, torch.tensor(operation.values, dtype=torch.int32))
        return Done()

    def do_write_entries(self, step: int, operation: ops.WriteEntries) -> Done:
        rows, positions = self.numbers(operation.rows), operation.positions
        where = tuple(torch.tensor(index, dtype=torch.int64) for index in (rows, positions))
        self.pool.write(where, torch.tensor(operation.values, dtype=torch.int32))
        return Done()

    def do_read_rows(self, step: int, operation: ops.ReadRows) -> Table:
        return Table(tuple(map(tuple, self.pool.req_to_token.tolist())))

    def do_clear(self, step: int, operation: ops.Clear) -> Done:
        self.pool.clear()
        return Done()
