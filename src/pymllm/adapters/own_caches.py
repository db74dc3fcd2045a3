"""The adapters of this package's prefix caches: `ChunkCache`, `RadixCache` and `MambaRadixCache`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.failing_calls import RecordingStatePool
from pymllm.adapters.kept_events import take_events
from pymllm.adapters.malformed import MALFORMED_CALLS, call_malformed
from pymllm.adapters.own_pools import view_states, write_state
from pymllm.adapters.own_prefix import OwnPrefixCache, pool_configurations
from pymllm.history import operations as ops
from pymllm.history.files import Config
from pymllm.history.operations import DIMENSIONS
from pymllm.history.outcomes import Done, Hashes, Inspected, Locked, NodeView, NoRoom, Result, Slots
from pymllm.invariants import check_gdn_pool, check_mamba_radix_cache, check_radix_cache
from pymllm.invariants.radix_cache import check_departed
from pymllm.mem_cache.base_prefix_cache import RadixKey
from pymllm.mem_cache.chunk_cache import ChunkCache
from pymllm.mem_cache.mamba_radix_cache import MambaRadixCache
from pymllm.mem_cache.pools.gdn_pool import GDNPool
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.mem_cache.tree.eviction_policy import POLICIES
from pymllm.oracle.laws import ranks_policy

ASTRAY = -1
"""The length reported for a path that is no prefix of its key, or has another root."""


def view_node(node: Any, parent: int | None) -> NodeView:
    """Return the view of a `TreeNode`; ``parent`` is its parent's id, ``None`` for a root."""
    return _view(
        node,
        parent,
        is_alive=not node.swa_tombstone,
        lock_ref=node.lock_ref,
        swa_lock_ref=node.swa_lock_ref,
        boundary=node.swa_boundary_id,
    )


def view_hybrid_node(node: Any, parent: int | None) -> NodeView:
    """Return the view of a `MambaTreeNode`."""
    state = node.mamba_value
    return _view(
        node,
        parent,
        lock_ref=node.full_lock_ref,
        state=None if state is None else int(state),
        state_lock_ref=node.mamba_lock_ref,
    )


def _view(node: Any, parent: int | None, **own: Any) -> NodeView:
    # These are made when they are asked for: once is half of what a look at a node took.
    hashes, key, value = node.hash_values, node.key, node.value
    return NodeView(
        id=node.id,
        parent=parent,
        tokens=tuple(key),
        extra_key=key.extra_key,
        slots=tuple(value.tolist()),
        hit_count=node.hit_count,
        last_access=float(node.last_access_time),
        page_hashes=None if hashes is None else tuple(hashes),
        kept_bytes=value.untyped_storage().nbytes(),
        **own,
    )


def view_tree(root: Any, view: Callable[[Any, int | None], NodeView] = view_node) -> tuple[NodeView, ...]:
    """Return the views of all nodes below a root, parents before children."""
    views: list[NodeView] = []
    pending: list[tuple[Any, int | None]] = [(child, None) for child in root.children.values()]
    for node, parent in pending:
        views.append(view(node, parent))
        pending += [(child, node.id) for child in node.children.values()]
    return tuple(views)


def path_length(root: Any, node: Any, key: ops.Key) -> int:
    """Return the length of a node's path, whose tokens must begin ``key``; otherwise `ASTRAY`."""
    chain = []
    while node is not root:
        if node is None or node.key is None:
            return ASTRAY
        chain.append(node)
        node = node.parent
    length = 0
    for node in reversed(chain):
        tokens: tuple[ops.Token, ...] = tuple(node.key)
        if tokens != key.tokens[length : length + len(tokens)]:
            return ASTRAY
        length += len(tokens)
    return length


class Chunk(OwnPrefixCache):
    """The adapter of `ChunkCache`, which keeps nothing and refuses nothing."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = pool_configurations([None], ["none", "token"], retains=False)

    def claim(self) -> frozenset[str]:
        """Return claims that include namespaces and bigrams, which cannot mix where nothing is kept."""
        claimed = {*DIMENSIONS, "bigrams", "forms"}
        if self.config.get("pool", "none") != "none":
            claimed |= {"pool", "engine"}
        return frozenset(claimed)

    def make_cache(self, on_node_evict: Callable[[int], None]) -> ChunkCache:
        """Build a cache over the pool, which never calls back."""
        return ChunkCache(self.pool, self._device)

    def audit(self) -> Sequence[str]:
        """Check the pool's internal state."""
        return self.audit_pool()


class OwnTree(OwnPrefixCache):
    """The base class for this package's radix trees; `foreign_node` is a node of another cache."""

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self._held: list[tuple[Any, Any]] = []
        self._kept: dict[int, Any] = {}
        if "events" in self.capabilities:
            self.cache.keep_events()
        page_size = self.number("page_size")
        self.foreign_node = self.build(page_size).insert(RadixKey([1] * page_size)).last_node

    @property
    def options(self) -> dict[str, str]:
        """The options of a cache besides sizes and pools; a variant may lack policies."""
        return {} if self.policy == "lru" else {"eviction_policy": self.policy}

    @property
    def policy(self) -> str:
        """The eviction policy that the configuration names; ``lru`` by default."""
        return str(self.config.get("policy", "lru"))

    @abstractmethod
    def build(self, page_size: int, pool: Any = None) -> Any:
        """Build a second cache of the same class."""

    def claim(self) -> frozenset[str]:
        """Return the claims of every tree: slots over a pool, and refusals unless the pool checks nothing."""
        claimed = {*DIMENSIONS, "bigrams", "hashes", "digests", "forms", "faults", "callbacks", "call_order"}
        claimed |= {"inspect", "lean_matches", "node_ids", "hit_counts"} | (
            {"refusals"} if self.is_checked else set()
        )
        if ranks_policy(self.policy):
            claimed.add("exact_lru" if self.policy == "lru" else "exact_policy")
        if self.config.get("events"):  # then nodes are hashed as they come, which not all are to be
            claimed.add("events")
        return frozenset(claimed | ({"pool"} if self.config.get("pool", "none") != "none" else set()))

    def do_match(self, step: int, operation: ops.Match) -> Result:
        """Match a key, and keep the node for `audit_departed`."""
        return self._keep_node(step, super().do_match(step, operation))

    def do_insert(self, step: int, operation: ops.Insert) -> Result:
        """Insert a key, and keep the node for `audit_departed`."""
        return self._keep_node(step, super().do_insert(step, operation))

    def _keep_node(self, step: int, result: Result) -> Result:
        node = self.node_of(step)
        self._kept[id(node)] = node
        return result

    def audit_departed(self) -> tuple[str, ...]:
        """Check once which memory each returned node that left the tree keeps alive; return the law's id."""
        left = [node for node in self._kept.values() if not self._is_inside(node)]
        for node in left:
            del self._kept[id(node)]
            check_departed(node)
        return ("X5",) if left else ()

    def _is_inside(self, node: Any) -> bool:
        return node is self.cache.root_node or node._owner is self.cache._tree.epoch

    def node_length(self, node: Any, key: ops.Key) -> int:
        """Return the length of a node's path in tokens, from its ancestors."""
        return path_length(self.cache.root_node, node, key)

    # -- holds and hashes ------------------------------------------------------------------------------

    def do_lock(self, step: int, operation: ops.Lock) -> Result:
        """Take a hold; the root is sometimes passed as ``None``, which must not matter (R6)."""
        node = self.node_of(operation.of)
        is_named_none = node is self.cache.root_node and step % 2
        token = self.cache.inc_lock_ref(None if is_named_none else node)
        self.keep_hold(step, node, token)
        if node.parent is not None:  # no root, old or new, is held
            self._held.append((node, token))
        return Locked(token)

    def do_unlock(self, step: int, operation: ops.Unlock) -> Result:
        released = super().do_unlock(step, operation)
        node, token = self.named_by(operation)
        if (node, token) in self._held:
            self._held.remove((node, token))
        return released

    def some_held_node(self) -> Any:
        """Return the node of the last outstanding hold; raise `UnsupportedError` if there is none."""
        if not self._held:
            raise UnsupportedError("nothing is held")
        return self._held[-1][0]

    def do_hash(self, step: int, operation: ops.Hash) -> Result:
        """Hash a node and then its ancestors, which must not matter (H2)."""
        node = self.node_of(operation.of)
        digests: list[str] = []
        while node is not None and node is not self.cache.root_node:
            digests = [*self.cache.compute_node_hash(node), *digests]
            node = node.parent
        return Hashes(tuple(digests))

    def do_reset(self, step: int, operation: ops.Reset) -> Result:
        self._held.clear()
        return super().do_reset(step, operation)

    # -- looking inside --------------------------------------------------------------------------------

    def do_take_events(self, step: int, operation: ops.TakeEvents) -> Result:
        if "events" not in self.capabilities:
            raise UnsupportedError("no events are kept")
        return take_events(self.cache)

    def view(self, node: Any, parent: int | None) -> NodeView:
        """Return the view of a node, given its parent's id."""
        return view_node(node, parent)

    def do_inspect(self, step: int, operation: ops.Inspect) -> Result:
        return Inspected(view_tree(self.cache.root_node, self.view))

    def do_malformed(self, step: int, operation: ops.Malformed) -> Result:
        return call_malformed(MALFORMED_CALLS, operation, self)


class Radix(OwnTree):
    """The adapter of `RadixCache`, over each slot allocator of this package and without a pool."""

    CACHE: ClassVar[type[RadixCache]] = RadixCache
    """The adapted class, which a variant replaces."""
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *pool_configurations([None], ["none", "token", "swa"]),
        *pool_configurations([None], ["token"], check_ownership=False),
        *pool_configurations([None], ["token"], events=True),
    )

    def claim(self) -> frozenset[str]:
        """Return all claims; those about slots only with a pool."""
        claimed = set(super().claim())
        if self.config.get("pool", "none") != "none":
            claimed.add("engine")
        if self.config.get("window") is not None:
            claimed |= {"swa", "exact_windows", "hold_tokens"}
        return frozenset(claimed)

    def build(self, page_size: int, pool: Any = None) -> RadixCache:
        """Build a second cache, without a window."""
        return RadixCache(page_size, None, pool)

    def make_cache(self, on_node_evict: Callable[[int], None]) -> RadixCache:
        window = self.config.get("window")
        return self.CACHE(
            self.number("page_size"),
            None if window is None else self.number("window"),
            self.pool,
            on_node_evict,
            **self.options,
        )

    def audit(self) -> Sequence[str]:
        """Check the tree, nodes that left it, and the pool, unless the last operation only read."""
        if not self.is_touched:
            return ()
        check_radix_cache(self.cache)
        if not self.cache.root_node.children:
            return (*self.audit_departed(), *self.audit_pool())
        laws = ["R5", "R6", "R7", "R8", "R9", "H2"]
        laws += [] if self.policy == "lru" else ["R11"]
        if self.pool is not None and self.is_checked:
            laws.append("R1")
        if self.cache.supports_swa:
            laws += ["S3", "S4", "S5", "S6"]
            laws += ["S2"] if self.config.get("pool") == "swa" else []
        return (*laws, *self.audit_departed(), *self.audit_pool())


class WindowedRadix(Radix):
    """The adapter of `RadixCache` with windows: of one page, and of several pages."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *pool_configurations([4, 6], ["none", "token", "swa"]),
        *pool_configurations([6], ["swa"], check_ownership=False),
        *pool_configurations([6], ["swa"], events=True),
    )


_POOLED = pool_configurations([None], ["token"])


class RankedRadix(Radix):
    """The adapter of `RadixCache` with every policy except ``lru``, for two page sizes and one window."""

    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *({**_POOLED[at % 2], "policy": policy} for at, policy in enumerate(POLICIES) if policy != "lru"),
        {**pool_configurations([4], ["swa"])[0], "policy": "lfu"},
    )


_STATE_SIZES = ("mamba_evictable_size", "mamba_protected_size")


class StatesOfCaller(OwnPrefixCache):
    """A mixin for the caller's own calls to the pool `states`, and for states in inserts and matches."""

    states: Any

    # -- track slots, called by who owns them ----------------------------------------------------------

    def do_alloc_track(self, step: int, operation: ops.AllocTrack) -> Result:
        slot = self.states.inner.alloc_track_slot()
        return NoRoom() if slot is None else Slots((slot,))

    def do_free_track(self, step: int, operation: ops.FreeTrack) -> Result:
        self.states.inner.free_track_slot(self.one(operation.slot))
        return Done()

    def do_write_state(self, step: int, operation: ops.WriteState) -> Result:
        write_state(self.states.inner, self.one(operation.slot), operation)
        return Done()

    def do_read_states(self, step: int, operation: ops.ReadStates) -> Result:
        return view_states(*self.states.inner.get_layer_state(operation.layer))

    # -- states in and out -----------------------------------------------------------------------------

    def state_of(self, node: Any) -> int | None:
        """Return the track slot of the state at a node's end."""
        return None if node.mamba_value is None else int(node.mamba_value)

    def states_of(self, operation: ops.Insert) -> dict[str, torch.Tensor]:
        """Return the arguments for an insert's track slot, a tensor of one or another integer dtype (M1)."""
        if operation.state is None:
            return {}
        slot = self.one(operation.state)
        return {"mamba_value": torch.tensor([slot], dtype=torch.int32 if slot % 2 else torch.int64)}


class Mamba(StatesOfCaller, OwnTree):
    """The adapter of `MambaRadixCache`, over the plain allocator and without a pool.

    ``track_slots`` is one more key of its configuration: how many the pool of states has. The cache gives its
    states back to `states`.
    """

    CACHE: ClassVar[type[MambaRadixCache]] = MambaRadixCache
    """The adapted class, which a variant replaces."""
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        *pool_configurations([None], ["token", "none"], track_slots=3),
        *pool_configurations([None], ["token"], track_slots=1),
        *pool_configurations([None], ["token"], track_slots=32),
        *pool_configurations([None], ["token"], track_slots=3, check_ownership=False),
        *pool_configurations([None], ["token"], track_slots=3, events=True),
    )

    def claim(self) -> frozenset[str]:
        """Return all claims about nodes and states; those of an engine only with slots."""
        claimed = super().claim() | {"mamba", "branching", "bare_inserts", "bare_holds"}
        claimed |= {"state_leaves", "lru_lists"}
        return claimed | {"engine"} if self.config.get("pool", "none") != "none" else claimed

    def build(self, page_size: int, pool: Any = None) -> MambaRadixCache:
        """Build a second cache, without states."""
        return MambaRadixCache(page_size, pool)

    def make_cache(self, on_node_evict: Callable[[int], None]) -> MambaRadixCache:
        inner = GDNPool(1, 1, 1, 1, 1, 1, 2, self._device, max_track_slots=self.number("track_slots"))
        self.states = RecordingStatePool(inner, lambda effect: self.effects.append(effect))
        return self.CACHE(self.number("page_size"), self.pool, self.states, on_node_evict, **self.options)

    def size_calls(self) -> list[tuple[str, Callable[[], int]]]:
        """Return the calls that read the sizes of both kinds of memory and the free room in both pools."""
        return [
            *super().size_calls(),
            *((name, getattr(self.cache, name)) for name in _STATE_SIZES),
            ("available_track_slots", self.states.inner.available_track_slots),
        ]

    def _set_fault(self, fault: ops.Fault | None) -> None:
        super()._set_fault(fault)
        self.states.fault = fault

    # -- looking inside --------------------------------------------------------------------------------

    def view(self, node: Any, parent: int | None) -> NodeView:
        return view_hybrid_node(node, parent)

    def do_inspect(self, step: int, operation: ops.Inspect) -> Result:
        lists = (self.cache.full_lru, self.cache.mamba_lru)
        full, with_state = (tuple(node.id for node in order) for order in lists)
        return Inspected(view_tree(self.cache.root_node, self.view), full, with_state)

    def audit(self) -> Sequence[str]:
        """Check the tree, both lists and the pools, unless the last operation only read."""
        if not self.is_touched:
            return ()
        check_mamba_radix_cache(self.cache)
        check_gdn_pool(self.states.inner)
        if not self.cache.root_node.children:
            return (*self.audit_departed(), *self.audit_pool())
        laws = ["R5", "R6", "R7", "R8", "R9", "H2", "M8"]
        laws += ["M4", "M5", "M6", "M7"] if len(self.cache.mamba_lru) else []
        laws += ["R1"] if self.pool is not None and self.is_checked else []
        laws += [] if self.policy == "lru" else ["R11"]
        return (*laws, *self.audit_departed(), *self.audit_pool())
