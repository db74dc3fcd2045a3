"""Adapters of sglang's caches with recurrent states: its unified tree, and ``MambaRadixCache`` before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.own_prefix import pool_configurations
from pymllm.history.files import Config
from pymllm.history.operations import AllocTrack, Evict, FreeTrack, Insert, Match
from pymllm.history.outcomes import Done, Effect, Evicted, Matched, NodeView, NoRoom, Result, Slots
from pymllm_peers.sglang.caches import SglangOlder, SglangUnified, kind_of_memory
from pymllm_peers.sglang.package import load_sglang, require_version
from pymllm_peers.sglang.pools import SglangStates, settings_of_states
from pymllm_peers.sglang.tree import SglangTree


class SglangTreeOfStates(SglangTree):
    """The base of sglang's caches with states: an insert brings a state, which goes back on a reset.

    ``track_slots`` is one more key of its configuration: how many there are. They are given back to `states`.
    """

    CONFIGURATIONS: ClassVar[Sequence[Config]] = tuple(
        {**config, "track_slots": tracks}
        for config in pool_configurations([None], ["token"])
        for tracks in (3, 1, 32)
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        self.config = dict(config)  # as the base does, but the states come before the cache
        tracks = self.number("track_slots")
        require_version(self.VERSION)
        self.states = SglangStates(tracks, self.effects_of_cache)
        super().__init__(name, config)

    def claim(self) -> frozenset[str]:
        """Claim states, but no engine, which inserts keys without a state where none is left."""
        return super().claim() - {"engine"} | {"mamba", "branching"}

    def sizes(self) -> dict[str, int]:
        """Return the sizes of both kinds of memory, and the free sizes of both pools."""
        return super().sizes() | {
            "mamba_evictable_size": int(self.cache.mamba_evictable_size()),
            "mamba_protected_size": int(self.cache.mamba_protected_size()),
            "available_track_slots": self.states.size(),
        }

    # -- states, called by who owns them -------------------------------------------------------------------

    def do_alloc_track(self, step: int, operation: AllocTrack) -> Result:
        slot = self.states.alloc()
        return NoRoom() if slot is None else Slots((slot,))

    def do_free_track(self, step: int, operation: FreeTrack) -> Result:
        self.states.free(self.one(operation.slot))
        return Done()

    # -- states in and out ---------------------------------------------------------------------------------

    def do_insert(self, step: int, operation: Insert) -> Result:
        if operation.state is None and self.whole(len(operation.key.tokens)):
            raise UnsupportedError("every key comes with a state")
        return super().do_insert(step, operation)

    def more_of_insert(self, operation: Insert) -> dict[str, Any]:
        """Return the state in sglang's form."""
        state = None if operation.state is None else torch.tensor([self.one(operation.state)])
        return super().more_of_insert(operation) | {"mamba_value": state}

    def parameters(self, page_size: int, **more: Any) -> Any:
        """Return the parameters of a cache over both pools."""
        own = {"req_to_token_pool": self.states.request_pool, "enable_mamba_extra_buffer": page_size > 1}
        return super().parameters(page_size, **own, **more)

    def secondary(self, amount: int) -> dict[str, int]:
        """Return the number of states to evict."""
        return {"mamba_num": amount}

    def reset(self) -> None:
        """Empty the cache, and free its states, as a server does."""
        held = sorted(int(slot) for slot in self.cache.all_mamba_values_flatten())
        super().reset()
        if not self.config.get("whole_reset"):
            self.states.allocator.free(torch.tensor(held, dtype=torch.int64))


class SglangUnifiedMamba(SglangTreeOfStates, SglangUnified):
    """``UnifiedRadixCache`` over its tree in Python, with states beside full attention.

    It keeps leaves whose state is gone, so ``state_leaves`` is not claimed. A hold of a node without a state
    counts for one that comes later. Pages of several tokens take the configuration that servers call an
    extra buffer, which is about requests and changes nothing in the tree.
    """

    PARTS: ClassVar[Sequence[str]] = ("FULL", "MAMBA")

    def claim(self) -> frozenset[str]:
        return super().claim() | {"bare_holds"}

    def make_cache(self, page_size: int) -> Any:
        """Build a cache over both pools, with the settings of a server that caches a state at every page."""
        context = load_sglang("runtime_context").get_context()
        before = context._server_args, context._config_bags
        context._server_args, context._config_bags = settings_of_states(page_size)
        try:
            return super().make_cache(page_size)
        finally:
            context._server_args, context._config_bags = before

    def matched(self, operation: Match, node: Any, result: Any) -> Matched:
        """Make the result of a match, including the state at its end."""
        found, kind = super().matched(operation, node, result), kind_of_memory("MAMBA")
        value = self.cache.tree_core.get_component_device_value(node, kind) if found.slots else None
        state = None if value is None else int(value[0])
        return replace(found, state=state, branching=result.mamba_branching_seqlen)

    def view(self, node: Any, parent: int | None) -> NodeView:
        """Describe a node, without the locks of a state that is missing."""
        part = self.part(node, "MAMBA")
        if part.value is None:
            return super().view(node, parent)
        return replace(super().view(node, parent), state=int(part.value[0]), state_lock_ref=part.lock_ref)


class SglangRustMamba(SglangUnifiedMamba):
    """``UnifiedRadixCache`` with states over its tree in Rust, which shows no nodes.

    Whether an eviction calls the pool of KV or that of states first changes from run to run. Neither pool
    can tell, so the calls of each are put together here; their order within a pool is as it was.
    """

    BACKEND: ClassVar[str] = "rust"

    def effects_of_cache(self, effect: Effect) -> None:
        """Record the memory that the cache gave back, states after slots."""
        super().effects_of_cache(effect)
        self.effects.sort(key=lambda one: one.call)


class SglangMamba(SglangTreeOfStates, SglangOlder):
    """``MambaRadixCache`` of an older sglang.

    It evicts KV and states in two passes that know nothing of each other, and tells of either only what that
    pass was asked for: the adapter asks for KV first and then for the states that are still missing, and
    counts what goes back to the pools. ``told_counts`` in the configuration asks once and repeats the answer.
    """

    def claim(self) -> frozenset[str]:
        return super().claim() | {"state_leaves"}

    def make_cache(self, page_size: int) -> Any:
        """Build a cache over both pools, with the chunk of kernels from arguments, as on a server."""
        cache = load_sglang("mem_cache.mamba_radix_cache").MambaRadixCache(self.parameters(page_size))
        cache.mamba_cache_chunk_size = page_size
        return cache

    def matched(self, operation: Match, node: Any, result: Any) -> Matched:
        state = None if node.mamba_value is None else int(node.mamba_value[0])
        return replace(
            super().matched(operation, node, result), state=state, branching=result.mamba_branching_seqlen
        )

    def call_insert(self, operation: Insert, key: Any, value: torch.Tensor) -> Any:
        """Call the cache's insert, and find the node; a key without a page is not inserted."""
        if operation.state is None:
            raise UnsupportedError("a key without a page comes without a state")
        return super().call_insert(operation, key, value)

    def do_evict(self, step: int, operation: Evict) -> Result:
        """Evict KV, then the states still missing, and count both."""
        if self.config.get("told_counts"):
            return super().do_evict(step, operation)
        base = load_sglang("mem_cache.base_prefix_cache")
        self.cache.evict(base.EvictParams(num_tokens=max(0, operation.tokens)))
        missing = operation.secondary - self.gone("free_state")
        self.cache.evict(base.EvictParams(num_tokens=0, mamba_num=max(0, missing)))
        return Evicted(self.gone("free"), 0, self.gone("free_state"))

    def cached_slots(self) -> list[int]:
        """Return every slot in the tree."""
        return [int(slot) for slot in self.cache.all_values_flatten()]

    # -- looking inside ------------------------------------------------------------------------------------

    def view(self, node: Any, parent: int | None) -> NodeView:
        state = None if node.mamba_value is None else int(node.mamba_value[0])
        locks = {"lock_ref": node.full_lock_ref, "state_lock_ref": node.mamba_lock_ref}
        return self.view_of(node, parent, node.value, state=state, **locks)
