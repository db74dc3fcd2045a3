"""sglang's caches and allocators as its server uses them, unchanged and without recorders."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from peers.benchmarks.contender import EvictingPeer, Hit, HybridPeer, SlotPeer
from pymllm_peers.sglang.caches import kind_of_memory
from pymllm_peers.sglang.package import load_sglang, sglang_version
from pymllm_peers.sglang.pools import make_allocator, settings_of_states


def missing_sglang() -> str | None:
    """Return the reason why sglang's modules cannot be imported, or ``None``."""
    try:
        sglang_version("bench-peers")
        load_sglang("mem_cache.radix_cache")
    except ImportError as error:
        return str(error)
    return None


def key_maker(form: str) -> Callable[[Any], Any]:
    """Return the function that wraps tokens in sglang's key, over the array of its requests."""
    made: Callable[[Any], Any] = load_sglang("mem_cache.radix_cache").RadixKey
    return (lambda ids: made(array("q", ids))) if form == "list" else made


class SglangRadixPeer(EvictingPeer):
    """``RadixCache`` over its token or paged allocator."""

    NAME: ClassVar[str] = "sglang-radix"
    PACKAGE: ClassVar[str] = "sglang"
    FORM = "array('q')"

    @classmethod
    def missing(cls) -> str | None:
        return missing_sglang()

    def __init__(self, page_size: int, capacity: int) -> None:
        super().__init__(page_size, capacity)
        self.pool = make_allocator(page_size, capacity)
        self.cache = self.make_cache()
        base = load_sglang("mem_cache.base_prefix_cache")
        self._key = key_maker(self.FORM)
        self._match, self._insert, self._evict = base.MatchPrefixParams, base.InsertParams, base.EvictParams

    def make_cache(self) -> Any:
        return load_sglang("mem_cache.radix_cache").RadixCache(
            load_sglang("mem_cache.cache_init_params").CacheInitParams(
                disable=False,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=self.pool,
                page_size=self.page_size,
            )
        )

    def match(self, key: Any) -> Hit:
        found = self.cache.match_prefix(self._match(key=self._key(key)))
        node = found.last_device_node
        return Hit(found.device_prefix_len, self.cache.path_device_indices(node), node)

    def insert(self, key: Any, slots: torch.Tensor, before: int) -> int:
        there: int = self.cache.insert(self._insert(key=self._key(key), value=slots)).prefix_len
        if there > before:
            self.pool.free(slots[before:there])
        return there

    def evict(self, tokens: int) -> int:
        gone: int = self.cache.evict(self._evict(num_tokens=tokens)).num_tokens_evicted
        return gone

    def evict_much(self, tokens: int) -> int:
        """Evict within a group of frees: each free of its own copies the whole list of free slots."""
        self.pool.free_group_begin()
        gone = self.evict(tokens)
        self.pool.free_group_end()
        return gone

    def hold(self, hit: Hit) -> Any:
        return self.cache.inc_lock_ref(hit.node)

    def release(self, hit: Hit, receipt: Any) -> None:
        self.cache.dec_lock_ref(hit.node, receipt.to_dec_params())

    def alloc(self, tokens: int) -> torch.Tensor:
        slots: torch.Tensor = self.pool.alloc(tokens)
        return slots

    def free(self, slots: torch.Tensor) -> None:
        self.pool.free(slots)

    def available(self) -> int:
        return int(self.pool.available_size())

    def cached(self) -> int:
        return int(self.cache.total_size())


class SglangUnifiedPeer(SglangRadixPeer):
    """``UnifiedRadixCache`` over its tree in Python; it gives duplicates back itself."""

    NAME: ClassVar[str] = "sglang-unified"
    BACKEND: ClassVar[str] = "python"

    def make_cache(self) -> Any:
        return make_unified(self.BACKEND, self.pool, self.page_size, ("FULL",))

    def insert(self, key: Any, slots: torch.Tensor, before: int) -> int:
        params = self._insert(key=self._key(key), value=slots, prev_prefix_len=before)
        there: int = self.cache.insert(params).prefix_len
        return there

    def cached(self) -> int:
        return int(self.cache.total_size()[0])


class SglangRustPeer(SglangUnifiedPeer):
    """``UnifiedRadixCache`` over its tree in Rust."""

    NAME: ClassVar[str] = "sglang-rust"
    BACKEND: ClassVar[str] = "rust"


def make_unified(
    backend: str, pool: Any, page_size: int, parts: tuple[str, ...], requests: Any = None
) -> Any:
    """Build a unified tree; raise an error where sglang falls back to another backend."""
    for module in ("mem_cache.allocator.hisparse", "mem_cache.allocator.unified_hybrid_swa"):
        load_sglang(module)  # which it asks for once it is called
    cache = load_sglang("mem_cache.unified_radix_cache").UnifiedRadixCache(
        load_sglang("mem_cache.cache_init_params").CacheInitParams(
            disable=False,
            req_to_token_pool=requests,
            token_to_kv_pool_allocator=pool,
            page_size=page_size,
            tree_components=tuple(map(kind_of_memory, parts)),
            tree_core_backend=backend,
        )
    )
    assert cache._tree_core_backend == backend
    return cache


class SglangSlots(SlotPeer):
    """``TokenToKVPoolAllocator``, or ``PagedTokenToKVPoolAllocator``."""

    NAME: ClassVar[str] = "sglang"
    PACKAGE: ClassVar[str] = "sglang"
    HANDS_OUT = "slots"

    @classmethod
    def missing(cls) -> str | None:
        return missing_sglang()

    def __init__(self, size: int, page_size: int) -> None:
        self.pool = make_allocator(page_size, size)

    def alloc(self, count: int) -> Any:
        return self.pool.alloc(count)

    def free(self, piece: Any) -> None:
        self.pool.free(piece)

    def split(self, everything: Any, piece: int, order: list[int]) -> list[Any]:
        return list(everything.reshape(-1, piece)[order].unbind())

    def numbers(self, piece: Any) -> Any:
        return piece.numpy()

    def available(self) -> int:
        return int(self.pool.available_size())


class SglangHybridPeer(HybridPeer):
    """``UnifiedRadixCache`` with states, over its tree in Python."""

    NAME: ClassVar[str] = "sglang-unified"
    PACKAGE: ClassVar[str] = "sglang"
    FORM = "array('q')"
    BACKEND: ClassVar[str] = "python"

    @classmethod
    def missing(cls) -> str | None:
        return missing_sglang()

    def __init__(self, tokens: int, states: int) -> None:
        super().__init__(tokens, states)
        self.pool = make_allocator(1, tokens)
        self.slots = load_sglang("mem_cache.allocator.mamba").MambaSlotAllocator(states, "cpu")
        self.cache = with_settings_of_states(1, self.make_cache)
        base = load_sglang("mem_cache.base_prefix_cache")
        self._key = key_maker(self.FORM)
        self._match, self._insert, self._evict = base.MatchPrefixParams, base.InsertParams, base.EvictParams

    def make_cache(self) -> Any:
        requests = load_sglang("mem_cache.memory_pool").HybridReqToTokenPool
        # Its constructor would allocate the states of a model's layers; a tree only passes slots on.
        pool = type("RequestsWithStates", (requests,), {"__init__": lambda self: None})()
        pool.mamba_allocator = self.slots
        return make_unified(self.BACKEND, self.pool, 1, ("FULL", "MAMBA"), pool)

    def alloc(self, tokens: int) -> torch.Tensor:
        slots: torch.Tensor = self.pool.alloc(tokens)
        return slots

    def alloc_state(self) -> torch.Tensor:
        slot: torch.Tensor = self.slots.alloc(1)
        return slot

    def insert(self, key: Any, slots: torch.Tensor, state: torch.Tensor, before: int) -> int:
        params = self._insert(key=self._key(key), value=slots, mamba_value=state, prev_prefix_len=before)
        there: int = self.cache.insert(params).prefix_len
        return there

    def match(self, key: Any) -> Hit:
        found = self.cache.match_prefix(self._match(key=self._key(key)))
        node = found.last_device_node
        return Hit(found.device_prefix_len, self.cache.path_device_indices(node), node)

    def evict(self, tokens: int, states: int) -> tuple[int, int]:
        gone = self.cache.evict(self._evict(num_tokens=tokens, mamba_num=states))
        return gone.num_tokens_evicted, gone.mamba_num_evicted

    def nothing_is_lost(self) -> bool:
        tokens = int(self.cache.total_size()[0]) + int(self.pool.available_size())
        states = int(self.cache.mamba_evictable_size() + self.cache.mamba_protected_size())
        return tokens == self.tokens and states + int(self.slots.available_size()) == self.states


class SglangRustHybridPeer(SglangHybridPeer):
    """``UnifiedRadixCache`` with states, over its tree in Rust."""

    NAME: ClassVar[str] = "sglang-rust"
    BACKEND: ClassVar[str] = "rust"


def with_settings_of_states(chunk: int, build: Callable[[], Any]) -> Any:
    """Build an object while a server's settings demand a cached state at every page."""
    context = load_sglang("runtime_context").get_context()
    before = context._server_args, context._config_bags
    context._server_args, context._config_bags = settings_of_states(chunk)
    try:
        return build()
    finally:
        context._server_args, context._config_bags = before
