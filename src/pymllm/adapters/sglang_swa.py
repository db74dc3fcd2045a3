"""The adapter of sglang's ``SWARadixCache``, which older versions have; its unified tree has replaced it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.sglang_package import OLDER, load_sglang
from pymllm.adapters.sglang_tree import SglangTree
from pymllm.adapters.sglang_unified import SglangUnifiedSWA
from pymllm.history.files import Config
from pymllm.history.operations import FreeSWA, Insert, Key, Match
from pymllm.history.outcomes import Matched, NodeView, Result

__all__ = ["SglangSWA"]


class SglangSWA(SglangTree):
    """``SWARadixCache`` over slots with SWA halves, without tombstones as `SglangUnifiedSWA`.

    Notes
    -----
    Its insert tells no node, so the adapter matches the key once more, as sglang's caller does. It frees
    duplicates behind ``prev_prefix_len`` itself, and is told that the whole key was there before. Pages of
    one token only: for larger ones these versions allocate halves with a kernel that needs a GPU.
    """

    VERSION: ClassVar[str] = OLDER
    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        config for config in SglangUnifiedSWA.CONFIGURATIONS if config["page_size"] == 1
    )

    def make_cache(self, page_size: int) -> Any:
        """Build a cache over the pool."""
        params = load_sglang("mem_cache.cache_init_params").CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=self.pool.allocator,
            page_size=page_size,
            sliding_window_size=self.number("sliding_window"),
        )
        return load_sglang("mem_cache.swa_radix_cache").SWARadixCache(params)

    def claim(self) -> frozenset[str]:
        """Claim no nodes: a new leaf is split where its window begins."""
        return super().claim() - {"inspect"}

    def sizes_of_cache(self) -> dict[str, int]:
        """Return the sizes; those of both halves together are one tuple."""
        return {
            "evictable_size": int(self.cache.full_evictable_size()),
            "protected_size": int(self.cache.full_protected_size()),
            "total_size": int(self.cache.total_size()[0]),
        }

    def matched(self, operation: Match, node: Any, result: Any) -> Matched:
        """Tell what a match found."""
        slots = tuple(result.device_indices.tolist())
        dtype = str(result.device_indices.dtype).removeprefix("torch.")
        return Matched(slots, len(slots), self.node_length(node, operation.key), dtype)

    def insert(self, operation: Insert, key: Any, value: torch.Tensor) -> Any:
        """Make the call, and find the node."""
        base = load_sglang("mem_cache.base_prefix_cache")
        result = self.cache.insert(base.InsertParams(key=key, value=value, prev_prefix_len=len(key)))
        found = self.cache.match_prefix(base.MatchPrefixParams(key=self.key_of(operation.key)))
        result.last_device_node = found.last_device_node
        return result

    def do_free_swa(self, step: int, operation: FreeSWA) -> Result:
        """Refuse to give halves back early, after which there would be tombstones."""
        raise UnsupportedError("halves are given back with their slots only")

    def cached_slots(self) -> list[int]:
        """Return every slot in the tree."""
        has_nodes = bool(self.cache.root_node.children)
        return [int(slot) for slot in self.cache.all_values_flatten()] if has_nodes else []

    def node_length(self, node: Any, key: Key) -> int | None:
        """Return the length of the path that ends with a node."""
        return sum(len(part.key) for part in self._climb(node))

    def nodes(self) -> Iterable[tuple[Any, Any]]:
        """Show none."""
        return ()

    def view(self, node: Any, parent: int | None) -> NodeView:
        """Show none."""
        raise UnsupportedError("there are no nodes to look at")
