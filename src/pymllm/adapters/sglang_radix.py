"""The adapter of sglang's ``RadixCache``."""

from __future__ import annotations

from typing import Any

from pymllm.adapters.sglang_package import load_sglang
from pymllm.adapters.sglang_tree import SglangTree, read_namespace
from pymllm.history.outcomes import NodeView

__all__ = ["SglangRadix"]


class SglangRadix(SglangTree):
    """``sglang.srt.mem_cache.radix_cache.RadixCache`` over its token and paged allocators."""

    def make_cache(self, page_size: int) -> Any:
        """Build a cache over the pool."""
        params = load_sglang("mem_cache.cache_init_params").CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=self.pool.allocator,
            page_size=page_size,
        )
        return load_sglang("mem_cache.radix_cache").RadixCache(params)

    def view(self, node: Any, parent: int | None) -> NodeView:
        """Tell what a node looks like; its hits count inserts, which is another law's business."""
        return NodeView(
            id=self.number_of(node),
            parent=parent,
            tokens=tuple(node.key.token_ids),
            extra_key=read_namespace(node.key.extra_key),
            slots=tuple(node.value.tolist()),
            lock_ref=node.lock_ref,
            kept_bytes=node.value.untyped_storage().nbytes(),
        )
