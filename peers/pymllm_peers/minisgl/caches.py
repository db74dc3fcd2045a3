"""Adapters of mini-sglang's ``CacheManager`` with both of its prefix caches, and of its ``TableManager``.

The manager has the free pages, and the prefix cache gives it back what it evicts when an allocation needs
that. An adapter does what the scheduler does: it asks whether there is room before it allocates, evicts no
more than may go, reads no slots of an empty match, and frees duplicates and tails by the page.

mini-sglang numbers pages and rows from 0, and keeps the last of each for padding. Here padding comes first,
as it does with us: each number is one page, or one row, more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from msgspec.structs import replace

from pymllm.adapters.base import BaseAdapter, UnsupportedError
from pymllm.adapters.key_forms import clobber
from pymllm.adapters.simple import PrefixAdapter, SlotAdapter, SlotCalls
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm_peers.minisgl.package import load_minisgl


def _make_manager(page_size: int, pages: int, kind: str) -> Any:
    """Build a manager in an engine's context, with a row for a request."""
    core = load_minisgl("core")
    core._GLOBAL_CTX = core.Context(page_size)
    table = torch.zeros((1, pages * page_size), dtype=torch.int32)
    load_minisgl(f"kvcache.{kind}_cache")  # which is imported where a cache is made, and not found there
    return load_minisgl("scheduler.cache").CacheManager(pages, page_size, table, kind)


class _Pages(SlotCalls):
    """The pages of a ``CacheManager`` in the hands of its callers."""

    manager: Any

    def alloc(self, tokens: int) -> torch.Tensor | None:
        pages = -(-tokens // self.page_size)
        if pages > len(self.manager.free_slots):
            return None
        return self.shown(self.manager._page_to_token(self.manager._allocate(pages))[:tokens])

    def free(self, slots: list[int]) -> None:
        self.manager._free(self.indices(self.slots_of(self.pages_of(slots))))

    def shown(self, indices: torch.Tensor) -> torch.Tensor:
        """Return our slot numbers for those of the cache."""
        return indices + self.page_size

    def indices(self, slots: Sequence[int]) -> torch.Tensor:
        """Return the cache's slot numbers for ours."""
        return torch.tensor(slots, dtype=torch.int32) - self.page_size

    def free_tokens(self) -> int:
        """Count the tokens of free pages."""
        return len(self.manager.free_slots) * self.page_size


class MinisglSlots(_Pages, SlotAdapter):
    """``CacheManager`` without a cache, as an allocator of pages; its ``lazy_free_region`` is a group."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {"page_size": page_size, "pages": 12} for page_size in (1, 4)
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.manager = _make_manager(self.page_size, self.number("pages"), "naive")

    def claim(self) -> frozenset[str]:
        return frozenset({"pool", "groups"})

    def sizes(self) -> dict[str, int]:
        return {"available_size": self.manager.available_size}

    def do_begin_group(self, step: int, operation: ops.BeginGroup) -> out.Result:
        self.group = self.manager.lazy_free_region()
        self.group.__enter__()
        return out.Done()

    def do_end_group(self, step: int, operation: ops.EndGroup) -> out.Result:
        self.group.__exit__(None, None, None)
        return out.Done()


def _configurations(**more: bool | str) -> tuple[Config, ...]:
    """Return a configuration for pages of one token and for larger ones, over pools that run out."""
    return tuple(
        {"page_size": page_size, "window": None, "pool": "token", "slots": slots, **more}
        for page_size, slots in ((1, 24), (4, 48))
    )


class MinisglRadix(_Pages, PrefixAdapter):
    """``RadixPrefixCache`` under its ``CacheManager``. Its reset is not written: a new cache takes its place.

    With ``untold`` in its configuration nodes do not tell what they keep alive, so that a search goes on
    behind what it finds at once (peers/findings). Three more keys are each for one program: ``also`` names
    capabilities that it does not promise; with ``own_keys`` its caller overwrites a key once a call has
    returned; and with ``by_request`` an insert is the prefill of a request that goes on, as ``cache_req``
    has it, which frees duplicates itself.
    """

    KIND_OF_CACHE = "radix"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *_configurations(),
        *_configurations(untold="kept_bytes"),
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        pages = self.number("slots") // self.page_size
        self.manager = _make_manager(self.page_size, pages, self.KIND_OF_CACHE)
        self.cache = self.manager.prefix_cache

    def claim(self) -> frozenset[str]:
        """Claim no order of evictions, since the docstrings name none."""
        also = str(self.config.get("also", "")).split()
        return frozenset({"pool", "engine", "inspect", "lean_matches", *also})

    def sizes(self) -> dict[str, int]:
        info = self.cache.size_info
        return {**info._asdict(), "total_size": info.total_size, "available_size": self.free_tokens()}

    def _ids(self, key: ops.Key) -> torch.Tensor:
        return torch.tensor(key.tokens, dtype=torch.int32)

    def _let_go(self, ids: torch.Tensor) -> None:
        if self.config.get("own_keys"):
            clobber(ids)

    def match(self, key: ops.Key) -> tuple[Any, Any]:
        ids = self._ids(key)
        handle = self.cache.match_prefix(ids).cuda_handle
        self._let_go(ids)
        slots = self.shown(handle.get_matched_indices()) if handle.cached_len else ()
        return slots, (self.cache, handle)

    def do_match(self, step: int, operation: ops.Match) -> out.Result:
        """Match a key, and report also the length that the cache itself states."""
        result = super().do_match(step, operation)
        length = self._nodes[step][1].cached_len
        return replace(result, prefix_len=length, node_len=length)

    def insert(self, key: ops.Key, slots: list[int]) -> tuple[int, Any]:
        """Insert a key; its slots are overwritten at once (X5), as those of a request's row are later."""
        ids, indices = self._ids(key), self.indices(slots)
        if self.config.get("by_request"):
            return self._prefill(ids, indices)
        known, handle = self.cache.insert_prefix(ids, indices)
        self._let_go(ids)
        clobber(indices)
        return known, (self.cache, handle)

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        """Allocate all free pages and enough more that the manager evicts, and give them back."""
        tokens = min(operation.tokens, self.cache.size_info.evictable_size)
        pages = -(-tokens // self.page_size)
        if pages <= 0:
            return out.Evicted(0)
        free = len(self.manager.free_slots)
        taken = self.manager._allocate(free + pages)
        self.manager.free_slots = torch.cat([taken, self.manager.free_slots])
        gone = self.manager._page_to_token(self.manager.free_slots[free:])
        return out.Evicted(self.gave_back(self.shown(gone)))

    def lock(self, node: Any) -> None:
        cache, handle = node
        cache.lock_handle(handle)

    def unlock(self, node: Any, token: Any) -> None:
        cache, handle = node
        cache.lock_handle(handle, unlock=True)

    def reset(self) -> None:
        """Give back the cache's pages, and begin with a new cache."""
        for node in self.nodes():
            self.manager._free(node.value)
            self.gave_back(self.shown(node.value))
        self.cache = self.manager.prefix_cache = type(self.cache)(self.manager.device)

    def nodes(self) -> list[Any]:
        """Return every node but the root, parents before their children."""
        found = [self.cache.root_node]
        for node in found:
            found += node.children.values()
        return found[1:]

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        """Show every node; the memory that its slots keep alive counts in slots of eight bytes."""
        is_told = "untold" not in self.config
        return out.Inspected(
            tuple(
                out.NodeView(
                    id=node.uuid,
                    parent=None if node.parent.is_root() else node.parent.uuid,
                    tokens=tuple(node._key.tolist()),
                    extra_key=None,
                    slots=tuple(self.shown(node.value).tolist()),
                    lock_ref=node.ref_count,
                    last_access=node.timestamp,
                    kept_bytes=node.value.untyped_storage().nbytes() * 2 if is_told else None,
                )
                for node in self.nodes()
            )
        )

    def _prefill(self, ids: torch.Tensor, indices: torch.Tensor) -> tuple[int, Any]:
        """Cache a request that matched nothing, after its prefill."""
        handle = self.cache.match_prefix(ids[:0]).cuda_handle
        request = load_minisgl("core").Req(ids, 0, 0, 1, 0, None, handle)
        request.complete_one()
        self.manager.page_table[0, : len(ids)] = indices
        free = len(self.manager.free_slots)
        self.manager.cache_req(request, finished=False)
        freed = self.manager.free_slots[free:]
        self.gave_back(self.shown(self.manager._page_to_token(freed)))
        self.manager.unlock(request.cache_handle)
        return len(freed) * self.page_size, (self.cache, request.cache_handle)


class MinisglNaive(MinisglRadix):
    """``NaivePrefixCache``, which keeps nothing, under its ``CacheManager``."""

    KIND_OF_CACHE = "naive"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = _configurations(retains=False)

    def claim(self) -> frozenset[str]:
        """Claim no more than pages: keys cannot meet where nothing is kept."""
        return frozenset({"pool", "engine"})

    def nodes(self) -> list[Any]:
        return []

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        """Return an insert that adopted nothing: what is passed stays the caller's."""
        return replace(super().do_insert(step, operation), adopted=())

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        raise UnsupportedError("there are no nodes")


class MinisglRows(BaseAdapter):
    """``TableManager``; a row that is freed keeps its entries, and misuse is undefined."""

    KIND: ClassVar[str] = "rows"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        {"max_reqs": 3, "max_context_len": 5},
        {"max_reqs": 5, "max_context_len": 2},
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.rows = self.number("max_reqs")
        table = torch.zeros((self.rows + 1, self.number("max_context_len")), dtype=torch.int32)
        self.table = load_minisgl("scheduler.table").TableManager(self.rows, table)

    def claim(self) -> frozenset[str]:
        return frozenset({"pool"})

    def sizes(self) -> dict[str, int]:
        return {"size": self.rows, "available_size": self.table.available_size}

    def do_alloc_rows(self, step: int, operation: ops.AllocRows) -> out.Result:
        """Allocate rows one by one, if enough are free."""
        if operation.count > self.table.available_size:
            return out.NoRoom()
        return out.Slots(tuple(self.table.allocate() + 1 for _ in range(operation.count)))

    def do_free_row(self, step: int, operation: ops.FreeRow) -> out.Result:
        self.table.free(self.one(operation.row) - 1)
        return out.Done()

    def do_write_row(self, step: int, operation: ops.WriteRow) -> out.Result:
        row = self.table.page_table[self.one(operation.row) - 1]
        row[operation.start : operation.stop] = torch.tensor(operation.values, dtype=torch.int32)
        return out.Done()

    def do_write_entries(self, step: int, operation: ops.WriteEntries) -> out.Result:
        rows = torch.tensor(self.numbers(operation.rows), dtype=torch.int64) - 1
        values = torch.tensor(operation.values, dtype=torch.int32)
        self.table.page_table[rows, torch.tensor(operation.positions, dtype=torch.int64)] = values
        return out.Done()

    def do_read_rows(self, step: int, operation: ops.ReadRows) -> out.Result:
        """Show the table, the row for padding first."""
        return out.Table(tuple(map(tuple, self.table.page_table.roll(1, 0).tolist())))
