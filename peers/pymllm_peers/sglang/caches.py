"""Adapters of sglang's RadixCache, UnifiedRadixCache (in Python and in Rust) and older SWARadixCache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.key_forms import spell_namespace
from pymllm.adapters.own_prefix import pool_configurations
from pymllm.history.files import Config
from pymllm.history.operations import Evict, FreeSWA, Insert, Key
from pymllm.history.outcomes import Effect, Evicted, NodeView, Result
from pymllm_peers.sglang.package import OLDER, load_sglang
from pymllm_peers.sglang.tree import SglangTree


def kind_of_memory(name: str) -> Any:
    """Return sglang's constant for ``"FULL"``, ``"SWA"`` or ``"MAMBA"``."""
    return load_sglang("mem_cache.unified_cache.component_type").ComponentType[name]


class SglangRadix(SglangTree):
    """``sglang.srt.mem_cache.radix_cache.RadixCache`` over its token and paged allocators.

    One more key of its configuration, ``policy``, orders evictions: ``inserts``, which it calls ``lfu``, and
    ``priority``. Ranks are claimed, and not which of equal ones goes: a split has its own time of access.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *pool_configurations([None], ["token"]),
        *pool_configurations([None], ["token"], policy="inserts"),
        *pool_configurations([None], ["token"], policy="priority"),
    )

    def make_cache(self, page_size: int) -> Any:
        return load_sglang("mem_cache.radix_cache").RadixCache(
            self.parameters(page_size, eviction_policy=self.policy)
        )

    @property
    def policy(self) -> str:
        """The policy by sglang's name."""
        return {"inserts": "lfu"}.get(own := str(self.config.get("policy", "lru")), own)

    def claim(self) -> frozenset[str]:
        """Claim the ranks of a policy that has ranks."""
        return super().claim() | ({"ranked_policy"} if "policy" in self.config else set())

    def more_of_insert(self, operation: Insert) -> dict[str, Any]:
        return {"priority": operation.priority}

    def view(self, node: Any, parent: int | None) -> NodeView:
        """Describe a node; its hits count inserts, which is another law's matter."""
        return self.view_of(node, parent, node.value, lock_ref=node.lock_ref)


class SglangManyKinds(SglangTree):
    """The base of sglang's caches of several kinds of memory: the sizes of all kinds are one tuple.

    Their insert frees the duplicates behind ``prev_prefix_len`` itself. Told that the whole key was there
    before, it frees none, as R4 has it.
    """

    def sizes_of_cache(self) -> dict[str, int]:
        return {
            "evictable_size": int(self.cache.full_evictable_size()),
            "protected_size": int(self.cache.full_protected_size()),
            "total_size": int(self.cache.total_size()[0]),
        }

    def more_of_insert(self, operation: Insert) -> dict[str, Any]:
        return {"prev_prefix_len": len(operation.key.tokens)}


class SglangOlder(SglangManyKinds):
    """The base of caches of an older sglang, whose insert returns no node, so that keys are matched again."""

    VERSION: ClassVar[str] = OLDER

    def call_insert(self, operation: Insert, key: Any, value: torch.Tensor) -> Any:
        """Call the cache's insert, and find the node."""
        result = super().call_insert(operation, key, value)
        params = load_sglang("mem_cache.base_prefix_cache").MatchPrefixParams
        found = self.cache.match_prefix(params(key=self.key_of(operation.key)))
        result.last_device_node = found.last_device_node
        return result

    def gone(self, call: str) -> int:
        """Count the slots that went back to a pool in this step."""
        return sum(len(effect.slots) for effect in self.effects if effect.call == call)


class SglangUnified(SglangManyKinds):
    """``UnifiedRadixCache`` over its tree in Python, for full attention."""

    BACKEND: ClassVar[str] = "python"
    """Which tree, by sglang's name."""
    PARTS: ClassVar[Sequence[str]] = ("FULL",)
    """Which kinds of memory it caches, by sglang's names."""

    def make_cache(self, page_size: int) -> Any:
        """Build a cache over the pool; `ValueError` where sglang falls back to another tree."""
        for module in ("mem_cache.allocator.hisparse", "mem_cache.allocator.unified_hybrid_swa"):
            load_sglang(module)  # which a window asks for once it is called, and which import kernels
        cache = load_sglang("mem_cache.unified_radix_cache").UnifiedRadixCache(self.parameters(page_size))
        if cache._tree_core_backend != self.BACKEND:
            raise ValueError(f"sglang chose the {cache._tree_core_backend} tree, not the {self.BACKEND} one")
        return cache

    def parameters(self, page_size: int, **more: Any) -> Any:
        parts = {"tree_components": tuple(map(kind_of_memory, self.PARTS)), "tree_core_backend": self.BACKEND}
        return super().parameters(page_size, **parts, **more)

    def claim(self) -> frozenset[str]:
        """Claim no nodes for the tree in Rust, which shows none."""
        return super().claim() - ({"inspect"} if self.BACKEND == "rust" else set())

    def node_length(self, node: Any, key: Key) -> int | None:
        """Return the length of a node's path; before 0.5.22 only the hashes of its pages tell the length."""
        if hasattr(self.cache, "path_device_indices"):
            return len(self.cache.path_device_indices(node))
        core = self.cache.tree_core
        core.backfill_missing_hash_values()
        pages = len(core.get_prefix_hash_values(node)) + len(core.get_hash_values(node))
        return pages * self.number("page_size")

    def view(self, node: Any, parent: int | None) -> NodeView:
        full = self.part(node, "FULL")
        return self.view_of(node, parent, full.value, lock_ref=full.lock_ref)

    def part(self, node: Any, name: str) -> Any:
        """Return a node's part of one kind of memory."""
        return node.component_data[kind_of_memory(name)]

    def cached_slots(self) -> list[int]:
        slots: list[int] = self.cache.all_values_flatten().tolist()
        return slots


class SglangRust(SglangUnified):
    """``UnifiedRadixCache`` over its tree in Rust, for full attention."""

    BACKEND: ClassVar[str] = "rust"


class SglangWindows(SglangManyKinds):
    """The base of sglang's trees with full attention and a sliding window, over slots with SWA halves.

    Their rules for windows are others than ours: a hold covers whole nodes up to its window, and an insert
    may leave a key that cannot be used. So a `window` is followed, and ``exact_windows`` not claimed; nor is
    ``engine``, since an insert frees duplicates itself. With the key ``sliding_window`` instead nobody knows
    of the window: an engine drives it, nobody gives halves back early or asks for windows to be evicted, and
    no node is ever a tombstone. A new leaf is split where its window begins, so nodes are not shown.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *pool_configurations([None], ["swa"], sliding_window=4),
        *pool_configurations([4, 6], ["swa"]),
    )

    def claim(self) -> frozenset[str]:
        return super().claim() - {"inspect"} - ({"engine"} if self.is_followed else set())

    @property
    def window(self) -> int:
        """The window given to the tree."""
        return self.number("window" if self.is_followed else "sliding_window")

    @property
    def is_followed(self) -> bool:
        """Tell whether the caller tracks the window."""
        return self.config.get("window") is not None

    def sizes_of_cache(self) -> dict[str, int]:
        """Return the sizes, those of the window's half where windows are claimed."""
        sizes = super().sizes_of_cache()
        if self.is_followed:
            sizes["swa_evictable_size"] = int(self.cache.swa_evictable_size())
            sizes["swa_protected_size"] = int(self.cache.swa_protected_size())
        return sizes

    def secondary(self, amount: int) -> dict[str, int]:
        return {"swa_num_tokens": amount} if self.is_followed else {}

    def insert_and_look(self, operation: Insert, key: Any, value: torch.Tensor) -> Any:
        """Call the cache's insert; halves in other slots afterwards have moved, by no call of the pool."""
        before = self.pool.table()
        result = super().insert_and_look(operation, key, value)
        self.effects[:0] = find_moves(before, self.pool.table())
        return result

    def do_free_swa(self, step: int, operation: FreeSWA) -> Result:
        """Refuse to free halves early if the caller does not track the window."""
        if self.is_followed:
            return super().do_free_swa(step, operation)
        raise UnsupportedError("halves are given back with their slots only")


class SglangUnifiedSWA(SglangWindows, SglangUnified):
    """The tree in Python with a sliding window, which keeps leaves that are tombstones."""

    PARTS: ClassVar[Sequence[str]] = ("FULL", "SWA")

    def parameters(self, page_size: int, **more: Any) -> Any:
        return super().parameters(page_size, sliding_window_size=self.window, **more)

    def more_of_insert(self, operation: Insert) -> dict[str, Any]:
        """Return the known and the lost length of a request; only callers with windows pass them."""
        if not self.is_followed:
            return super().more_of_insert(operation)
        gone = {kind_of_memory("SWA"): operation.swa_evicted_seqlen}
        known = {"prev_prefix_len": operation.prev_prefix_len, "component_evicted_seqlens": gone}
        return known | {"track_adopted_ranges": True}

    def adopted(self, operation: Insert, result: Any) -> tuple[tuple[int, int], ...]:
        """Return the adopted ranges, revived tombstones included."""
        if not self.is_followed:
            return super().adopted(operation, result)
        ranges = result.adopted_ranges.get(kind_of_memory("FULL"), ()) if result.adopted_ranges else ()
        return tuple((int(start), int(stop)) for start, stop in ranges)

    def shown_token(self, token: Any) -> int | str | None:
        """Return a hold's identifier for the edge of its window, if hold tokens are claimed."""
        if "hold_tokens" not in self.capabilities:
            return None
        edge: int | None = token.component_lock_uuids[kind_of_memory("SWA")]
        return edge


def find_moves(before: Sequence[int], after: Sequence[int]) -> list[Effect]:
    """Return the halves that changed their slots, given the earlier table of each slot's half, or 0."""
    owners = {half: slot for slot, half in enumerate(before) if half > 0}
    moved = {
        slot: owners[half] for slot, half in enumerate(after) if half > 0 and owners.get(half, slot) != slot
    }
    return [Effect("move_swa", tuple(moved.values()), tuple(moved))] if moved else []


class SglangRustSWA(SglangUnifiedSWA):
    """The tree in Rust with a sliding window."""

    BACKEND: ClassVar[str] = "rust"


class SglangSWA(SglangWindows, SglangOlder):
    """``SWARadixCache`` over slots with SWA halves, whose window is followed as that of `SglangUnifiedSWA`.

    Its insert tells how much it knew, and not what it revived: that is read from the tree. It frees a key of
    which nothing would be alive; its caller never has one, and the adapter takes none. Nor does it tell what
    tombstones a window's eviction takes along: the adapter counts what goes back to the pool, unless
    ``told_counts`` in the configuration repeats the answer.
    """

    LIMITS: ClassVar[Mapping[str, str]] = {
        **SglangWindows.LIMITS,
        "insert": "a key of which nothing is alive is not inserted",
    }

    def make_cache(self, page_size: int) -> Any:
        params = self.parameters(page_size, sliding_window_size=self.window)
        return load_sglang("mem_cache.swa_radix_cache").SWARadixCache(params)

    def more_of_insert(self, operation: Insert) -> dict[str, Any]:
        """Return the known and the lost length of a request; only callers with windows pass them."""
        if not self.is_followed:
            return super().more_of_insert(operation)
        known, gone = operation.prev_prefix_len, operation.swa_evicted_seqlen
        return {"prev_prefix_len": known, "swa_evicted_seqlen": gone}

    def do_insert(self, step: int, operation: Insert) -> Result:
        if 0 < self.whole(len(operation.key.tokens)) <= operation.swa_evicted_seqlen:
            raise UnsupportedError("a key of which nothing is alive is not inserted")
        return super().do_insert(step, operation)

    def insert_and_look(self, operation: Insert, key: Any, value: torch.Tensor) -> Any:
        """Call the cache's insert; the node is at the key's end, even where no match may end."""
        result = super().insert_and_look(operation, key, value)
        if self.is_followed:
            result.last_device_node = [self.cache.root_node, *self._nodes_along(operation.key)][-1]
        return result

    def adopted(self, operation: Insert, result: Any) -> tuple[tuple[int, int], ...]:
        """Return the adopted ranges: new pages that stand in the tree behind the known prefix."""
        if not self.is_followed:
            return super().adopted(operation, result)
        came, size, known = self.numbers(operation.slots or ()), self.page_size, operation.prev_prefix_len
        kept = [slot for node in self._nodes_along(operation.key) for slot in node.value.tolist()]
        starts = range(0, len(kept), size)
        taken = (at for at in starts if at >= known and kept[at : at + size] == came[at : at + size])
        return merge_ranges((at, at + size) for at in taken)

    def do_evict(self, step: int, operation: Evict) -> Result:
        """Evict, and count the evicted slots: of tombstones that windows take along nothing is told."""
        result = super().do_evict(step, operation)
        if self.config.get("told_counts") or not isinstance(result, Evicted):
            return result
        return replace(result, full=self.gone("free"))

    def _nodes_along(self, key: Key) -> list[Any]:
        """Return the nodes on the path of an inserted key, usable or not."""
        node, found, rest = self.cache.root_node, [], key.tokens[: self.whole(len(key.tokens))]
        name = spell_namespace(key.extra_key)
        while node is not None and rest:
            spelled = ((child, *self.spelled(child)) for child in node.children.values())
            on_path = (
                child for child, tokens, own in spelled if own == name and tokens == rest[: len(tokens)]
            )
            node = next(on_path, None)
            found += [] if node is None else [node]
            rest = rest[0 if node is None else len(node.value) :]
        return found

    def spelled(self, node: Any) -> tuple[tuple[int, ...], str | None]:
        """Return the tokens of a node, and its namespace as sglang spells it."""
        return tuple(node.key.token_ids), node.key.extra_key

    def cached_slots(self) -> list[int]:
        has_nodes = bool(self.cache.root_node.children)
        return [int(slot) for slot in self.cache.all_values_flatten()] if has_nodes else []

    def node_length(self, node: Any, key: Key) -> int | None:
        return sum(len(part.key) for part in self._climb(node))

    def nodes(self) -> Iterable[tuple[Any, Any]]:
        """Return no nodes, since the tree shows none."""
        return ()

    def view(self, node: Any, parent: int | None) -> NodeView:
        """Return no view, since the tree shows no nodes."""
        raise UnsupportedError("there are no nodes to look at")


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Merge ranges that touch."""
    merged: list[tuple[int, int]] = []
    for start, stop in ranges:
        if merged and merged[-1][1] == start:
            start = merged.pop()[0]
        merged.append((start, stop))
    return tuple(merged)
