"""The adapters of sglang's ``UnifiedRadixCache``, over its tree in Python and over the one in Rust."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.sglang_package import load_sglang
from pymllm.adapters.sglang_tree import SglangTree, read_namespace, sglang_configurations
from pymllm.history.files import Config
from pymllm.history.operations import FreeSWA, Insert, Key
from pymllm.history.outcomes import NodeView, Result

__all__ = ["SglangRust", "SglangRustSWA", "SglangUnified", "SglangUnifiedSWA", "kind_of_memory"]


def kind_of_memory(name: str) -> Any:
    """Return sglang's own object for ``"FULL"``, ``"SWA"`` or ``"MAMBA"``."""
    return load_sglang("mem_cache.unified_cache.component_type").ComponentType[name]


class SglangUnified(SglangTree):
    """``UnifiedRadixCache`` over its tree in Python, for full attention.

    Notes
    -----
    Its insert frees the duplicates behind ``prev_prefix_len`` itself. Told that the whole key was there
    before, it frees none, as R4 has it; nothing else depends on the number where there is no window.
    """

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

    def parameters(self, page_size: int) -> Any:
        """Return what the cache is built from."""
        return load_sglang("mem_cache.cache_init_params").CacheInitParams(
            disable=False,
            token_to_kv_pool_allocator=self.pool.allocator,
            page_size=page_size,
            tree_components=tuple(map(kind_of_memory, self.PARTS)),
            tree_core_backend=self.BACKEND,
            **{"req_to_token_pool": None, **self.more_parameters()},
        )

    def more_parameters(self) -> dict[str, Any]:
        """Return the parameters that only some kinds of memory have."""
        return {}

    def sizes_of_cache(self) -> dict[str, int]:
        """Return the sizes; those of all kinds of memory together are one tuple."""
        evictable, protected = self.cache.full_evictable_size(), self.cache.full_protected_size()
        return {
            "evictable_size": int(evictable),
            "protected_size": int(protected),
            "total_size": int(self.cache.total_size()[0]),
        }

    def insert(self, operation: Insert, key: Any, value: torch.Tensor) -> Any:
        """Make the call."""
        params = load_sglang("mem_cache.base_prefix_cache").InsertParams(
            key=key, value=value, prev_prefix_len=len(key), **self.more_of_insert(operation)
        )
        return self.cache.insert(params)

    def more_of_insert(self, operation: Insert) -> dict[str, Any]:
        """Return the parameters of an insert that only some kinds of memory have."""
        return {}

    def node_length(self, node: Any, key: Key) -> int | None:
        """Return the length of the path that ends with a node."""
        return len(self.cache.path_device_indices(node))

    # -- looking inside ------------------------------------------------------------------------------------

    def view(self, node: Any, parent: int | None) -> NodeView:
        """Tell what a node looks like."""
        full = self.part(node, "FULL")
        return NodeView(
            id=self.number_of(node),
            parent=parent,
            tokens=tuple(node.key.token_ids),
            extra_key=read_namespace(node.key.extra_key),
            slots=tuple(full.value.tolist()),
            lock_ref=full.lock_ref,
            kept_bytes=full.value.untyped_storage().nbytes(),
        )

    def part(self, node: Any, name: str) -> Any:
        """Return what a node has of one kind of memory."""
        return node.component_data[kind_of_memory(name)]

    def cached_slots(self) -> list[int]:
        """Return every slot in the tree."""
        slots: list[int] = self.cache.all_values_flatten().tolist()
        return slots


class SglangRust(SglangUnified):
    """The same over its tree in Rust, which shows no nodes."""

    BACKEND: ClassVar[str] = "rust"

    def claim(self) -> frozenset[str]:
        """Claim no nodes."""
        return super().claim() - {"inspect"}


class SglangUnifiedSWA(SglangUnified):
    """The tree in Python with a sliding window beside full attention, over slots with SWA halves.

    Parameters
    ----------
    name, config
        As of `SglangTree`, and ``sliding_window``: sglang's window in tokens. With a ``window`` it is held to
        our rules for windows, to show where its own differ.

    Notes
    -----
    Its rules for windows are others than ours: it keeps leaves that are tombstones, a hold covers whole nodes
    up to its window, and an insert may leave a key that cannot be used. None of that is claimed: nobody gives
    halves back early here or asks for windows to be evicted, so no node is ever a tombstone. What is
    judged is all else that the window's books take part in: both halves of every slot, holds,
    sizes and content. A new leaf is split where its window begins, so nodes are not shown.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {**config, "sliding_window": window}
        for config in sglang_configurations(pool="swa")
        for window in (4, 6)
    )
    PARTS: ClassVar[Sequence[str]] = ("FULL", "SWA")

    def claim(self) -> frozenset[str]:
        """Claim halves, and no nodes."""
        return super().claim() - {"inspect"}

    def more_parameters(self) -> dict[str, Any]:
        """Return the window."""
        return {"sliding_window_size": self.number("sliding_window")}

    @property
    def is_held_to_windows(self) -> bool:
        """Whether our rules for windows are claimed."""
        return self.config.get("window") is not None

    def sizes_of_cache(self) -> dict[str, int]:
        """Return the sizes, those of the window's half where windows are claimed."""
        sizes = super().sizes_of_cache()
        if self.is_held_to_windows:
            sizes["swa_evictable_size"] = int(self.cache.swa_evictable_size())
            sizes["swa_protected_size"] = int(self.cache.swa_protected_size())
        return sizes

    def more_of_insert(self, operation: Insert) -> dict[str, Any]:
        """Return how much of the window is gone, which nobody says where windows are not claimed."""
        if not self.is_held_to_windows:
            return {}
        return {"component_evicted_seqlens": {kind_of_memory("SWA"): operation.swa_evicted_seqlen}}

    def token_of(self, receipt: Any) -> int | str | None:
        """Return what a hold has for the edge of its window."""
        if not self.is_held_to_windows:
            return None
        edge: int | None = receipt.component_lock_uuids[kind_of_memory("SWA")]
        return edge

    def do_free_swa(self, step: int, operation: FreeSWA) -> Result:
        """Refuse to give halves back early, after which there would be tombstones."""
        if self.is_held_to_windows:
            return super().do_free_swa(step, operation)
        raise UnsupportedError("halves are given back with their slots only")


class SglangRustSWA(SglangUnifiedSWA):
    """The same over its tree in Rust."""

    BACKEND: ClassVar[str] = "rust"
