"""The real caches and pools that an engine drives, made by name. A new cache is added here only."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from reprlib import repr as short_repr
from typing import Any, Protocol

import torch

from pymllm.errors import UsageError
from pymllm.invariants.mamba_radix_cache import check_mamba_radix_cache
from pymllm.invariants.pools import check_gdn_pool
from pymllm.invariants.radix_cache import check_radix_cache
from pymllm.invariants.slots import check_swa_allocator, check_token_allocator
from pymllm.mem_cache.base_prefix_cache import BasePrefixCache
from pymllm.mem_cache.chunk_cache import ChunkCache
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache, MambaTreeNode
from pymllm.mem_cache.memory_pool import (
    GDNPool,
    ReqToTokenPool,
    SWATokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
)
from pymllm.mem_cache.radix_cache import RadixCache, TreeNode
from pymllm.mem_cache.tree.eviction_policy import is_policy
from pymllm.workloads.engine_config import EngineConfig


class SlotAllocator(Protocol):
    """The interface of a slot pool that an engine needs, as `TokenToKVPoolAllocator` documents it."""

    @property
    def size(self) -> int:
        """The number of slots in the pool, in tokens."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Allocate slots in whole pages; ``None`` if there are too few."""

    def free(self, indices: torch.Tensor) -> None:
        """Free slots, with their SWA halves."""

    def available_size(self) -> int:
        """Return the number of tokens that `alloc` can still provide."""

    def is_handed_out(self, indices: torch.Tensor) -> torch.Tensor:
        """Return for each slot whether it is handed out; only audits call this."""


class WindowAllocator(SlotAllocator, Protocol):
    """A `SlotAllocator` with an SWA half behind each slot, as `SWATokenToKVPoolAllocator` documents it."""

    def free_swa(self, indices: torch.Tensor) -> None:
        """Free the SWA halves of slots."""

    def translate_to_swa(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the SWA slot of each slot, 0 where it has been freed."""

    def full_available_size(self) -> int:
        """Return the number of free tokens of the full pool."""

    def swa_available_size(self) -> int:
        """Return the number of free tokens of the SWA pool."""


class StatePool(Protocol):
    """The interface of a state pool that an engine needs, as `GDNPool` documents it."""

    @property
    def max_track_slots(self) -> int:
        """The number of track slots, for states kept besides the working states."""

    @property
    def recurrent_state(self) -> torch.Tensor:
        """The states of all layers and rows, layers first; only the simulated model writes them."""

    @property
    def conv_state(self) -> torch.Tensor:
        """Convolution states of all layers and rows, layers first."""

    def copy_states(self, src_index: int, dst_index: int) -> None:
        """Copy a row to another."""

    def reset_states(self, req_pool_indices: int) -> None:
        """Fill a row with zeros."""

    def alloc_track_slot(self) -> int | None:
        """Allocate a row for a snapshot; ``None`` if none is free."""

    def free_track_slot(self, slot: int) -> None:
        """Free a snapshot's row."""

    def available_track_slots(self) -> int:
        """Return the number of rows that `alloc_track_slot` can still provide."""


def _has_no_states() -> list[int]:
    return []


def _has_no_state(node: Any) -> None:
    """Return ``None`` for any node, in a cache without states."""


@dataclass(frozen=True, slots=True)
class CacheKind:
    """A prefix cache, with functions that inspect its internal state.

    ``check`` walks everything and raises `InvariantViolation`. ``cached_slots`` gives the full slots of every
    node, 1-D integer tensors in whole pages, and ``path_slots`` those of a node's path from the root. With
    states, ``cached_states`` gives the track slots of all nodes and ``state_of`` that of one, or ``None``.
    """

    cache: BasePrefixCache
    check: Callable[[], None]
    cached_slots: Callable[[], list[torch.Tensor]]
    path_slots: Callable[[Any], list[torch.Tensor]]
    state_pool: StatePool | None = None
    cached_states: Callable[[], list[int]] = _has_no_states
    state_of: Callable[[Any], int | None] = _has_no_state


@dataclass(frozen=True, slots=True)
class EnginePools:
    """One engine's cache, slots, and rows of slots per request; a windowed allocator has two names."""

    kind: CacheKind
    allocator: SlotAllocator
    swa_allocator: WindowAllocator | None
    rows: ReqToTokenPool
    check_allocator: Callable[[], None]
    is_driven: bool = False  # somebody else's, who has its own KV, if any: none of ours is examined

    def full_available_size(self) -> int:
        """Return the number of free tokens of the full pool."""
        if self.swa_allocator is None:
            return self.allocator.available_size()
        return self.swa_allocator.full_available_size()


def check_allocator(allocator: TokenToKVPoolAllocator | SWATokenToKVPoolAllocator) -> None:
    """Check an allocator's trackers (the A laws)."""
    if isinstance(allocator, SWATokenToKVPoolAllocator):
        check_swa_allocator(allocator)
    else:
        check_token_allocator(allocator)


CacheMaker = Callable[[EngineConfig, object], CacheKind]
"""A function that builds an empty cache over an allocator."""


def make_engine_pools(config: EngineConfig, maker: CacheMaker | None = None) -> EnginePools:
    """Build the empty cache and the free pools that a rounded configuration names.

    ``maker`` builds the cache instead of the maker that `CACHE_MAKERS` has for its name.
    """
    if config.cache not in CACHE_MAKERS:
        raise ValueError(f"cache is {config.cache!r}; choose one of {', '.join(sorted(CACHE_MAKERS))}")
    rows = ReqToTokenPool(config.max_running, config.max_context, config.device)
    maker, swa_allocator = maker or CACHE_MAKERS[config.cache], None
    allocator: TokenToKVPoolAllocator | SWATokenToKVPoolAllocator
    if config.swa_capacity is None:
        allocator = TokenToKVPoolAllocator(config.capacity, config.device, config.page_size)
    else:
        allocator = swa_allocator = SWATokenToKVPoolAllocator(
            config.capacity, config.swa_capacity, config.device, config.page_size
        )
    return EnginePools(
        maker(config, allocator), allocator, swa_allocator, rows, lambda: check_allocator(allocator)
    )


def find_policy(named: str) -> Any:
    """Return an eviction policy: a built-in name as it is, or the object that ``module:Name`` imports.

    That is a policy as it is, or a class or function that makes one, anew for each cache. `UsageError` where
    there is no such thing, or what it makes is no policy.
    """
    module, colon, name = named.partition(":")
    if not colon:
        return named
    try:
        found = getattr(importlib.import_module(module), name)
        made = found() if callable(found) and not is_policy(found) else found
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything
        raise UsageError(
            f"no eviction policy {short_repr(named)}: {type(error).__name__}: {error}"
        ) from error
    if not is_policy(made):
        raise UsageError(
            f"{short_repr(named)} is no eviction policy: give an object with a method rank(node), "
            "or a class or function that makes one"
        )
    return made


def _make_radix(config: EngineConfig, allocator: object) -> CacheKind:
    policy = find_policy(config.eviction_policy or "lru")
    cache = RadixCache(config.page_size, config.sliding_window_size, allocator, eviction_policy=policy)
    return CacheKind(
        cache, lambda: check_radix_cache(cache), lambda: _tree_slots(cache.root_node), _path_slots
    )


def _make_chunk(config: EngineConfig, allocator: object) -> CacheKind:
    cache = ChunkCache(allocator, config.device)
    return CacheKind(cache, lambda: None, list, lambda node: [])


def _make_mamba(config: EngineConfig, allocator: object) -> CacheKind:
    assert config.track_slots is not None  # of a rounded configuration
    # The smallest pool that has every dimension: two layers, and heads and channels of more than one element.
    pool = GDNPool(
        config.max_running,
        num_gdn_layers=2,
        num_v_heads=1,
        head_k_dim=2,
        head_v_dim=2,
        conv_dim=2,
        conv_kernel_size=2,
        device=config.device,
        max_track_slots=config.track_slots,
    )
    return mamba_kind(config, allocator, pool)


def mamba_kind(config: EngineConfig, allocator: object, pool: GDNPool) -> CacheKind:
    """Build an empty `MambaRadixCache` over an allocator and a pool of states."""
    policy = find_policy(config.eviction_policy or "lru")
    cache = MambaRadixCache(config.page_size, allocator, pool, eviction_policy=policy)

    def check() -> None:
        check_mamba_radix_cache(cache)
        check_gdn_pool(pool)

    return CacheKind(
        cache,
        check,
        lambda: _tree_slots(cache.root_node),
        _path_slots,
        pool,
        lambda: [int(node.mamba_value) for node in cache.mamba_lru if node.mamba_value is not None],
        lambda node: None if node.mamba_value is None else int(node.mamba_value),
    )


def _tree_slots(root: TreeNode | MambaTreeNode) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    ahead: list[Any] = list(root.children.values())
    while ahead:
        node = ahead.pop()
        ahead.extend(node.children.values())
        assert node.value is not None  # only evicted nodes have none, and they are not in the tree
        found.append(node.value)
    return found


def _path_slots(node: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    while node.parent is not None and node.value is not None:
        found.append(node.value)
        node = node.parent
    return found[::-1]


CACHE_MAKERS: dict[str, CacheMaker] = {
    "chunk": _make_chunk,
    "mamba": _make_mamba,
    "radix": _make_radix,
}
