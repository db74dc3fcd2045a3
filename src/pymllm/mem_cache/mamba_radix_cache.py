"""The prefix cache of hybrid models, with the KV of attention layers and states of recurrent ones.

Here are the public calls. What it shares with the cache of plain models is in
`pymllm.mem_cache.tree.tree_cache`, the tree itself in `pymllm.mem_cache.tree.radix_tree`, what states add in
`pymllm.mem_cache.tree.cached_states`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from pymllm.mem_cache.arguments import as_int, as_pool
from pymllm.mem_cache.base_prefix_cache import EvictResult, InsertResult, MatchResult, RadixKey
from pymllm.mem_cache.cache_events import Part
from pymllm.mem_cache.tree.cached_states import CachedStates, StatePlan, StateVictims
from pymllm.mem_cache.tree.eviction_policy import EvictionPolicy, as_policy
from pymllm.mem_cache.tree.lru_list import LRUList
from pymllm.mem_cache.tree.node import MambaTreeNode, RankedMambaTreeNode
from pymllm.mem_cache.tree.radix_tree import PagedKey
from pymllm.mem_cache.tree.slot_exchange import (
    SHORTAGES,
    read_incoming_slots,
    read_track_slot,
    try_to_return,
)
from pymllm.mem_cache.tree.tree_cache import TreeCache, collect_error

__all__ = ["LRUList", "MambaRadixCache", "MambaTreeNode"]

logger = logging.getLogger(__name__)


class MambaRadixCache(TreeCache[MambaTreeNode]):
    """A prefix cache that shares KV and recurrent states between requests with equal prompt prefixes.

    A recurrent layer's state holds good after exactly the token it was taken at. So a prefix can be resumed
    from where a node ends that has a state, and KV beyond it is computed again. States are few and
    large: they are evicted in an order of their own, and may go while the KV stays.

    Parameters
    ----------
    page_size : int
        Tokens per KV page; keys and values are cut down to whole pages. Must be the allocator's.
    token_to_kv_pool_allocator : allocator, optional
        Owner of the KV slots: ``free(indices)`` is required; ``free_pages`` is used where present,
        ``page_size``, ``device`` and ``check_ownership`` are honoured. Without one, slots are plain numbers
        on the CPU.
    mamba_pool : pool, optional
        Owner of the track slots: ``free_track_slot(slot)`` is required. The cache copies no state: its
        user copies a working state into a track slot and hands that over. Without one, track slots are plain
        numbers.
    on_node_evict : callable, optional
        Called with the id of each evicted node, after the eviction is complete. It may ask for sizes, hashes
        and `pretty_print`; any other call on the cache from inside it is a ``RuntimeError`` (X6).
    eviction_policy : str or EvictionPolicy
        Which unlocked leaf goes next, as of `RadixCache`. States alone go least recently used first, whatever
        the policy.

    Attributes
    ----------
    page_size, pool, mamba_pool, on_node_evict
        As given.
    eviction_policy : EvictionPolicy
        The policy as an object.
    root_node : MambaTreeNode
        The empty prefix; another one after each `reset`.
    full_lru, mamba_lru : LRUList
        Every node but the root, and every node with a state, most recent first (M8). For looking only.

    Raises
    ------
    TypeError
        An allocator without ``free``, a pool without ``free_track_slot``, a callback that is none, or a
        policy that is neither a name nor an object with a method ``rank``.
    ValueError
        A page of less than one token, another page size than the allocator's, or no policy's name.

    Notes
    -----
    Not thread-safe, and neither copied nor pickled, as `RadixCache`: one scheduler thread owns a cache.
    Finding the next victim is O(1): neither locked nor inner nodes are looked at.
    Laws: X, R and M of the specification.

    What holds after a call that found no memory, or was interrupted, is as for `RadixCache`: `reset`, and
    then ``clear`` of both pools, succeed and make all of them new.

    Examples
    --------
    >>> from pymllm.mem_cache import GDNPool, RadixKey, TokenToKVPoolAllocator
    >>> kv = TokenToKVPoolAllocator(64, device="cpu", page_size=4)
    >>> states = GDNPool(2, 1, 1, 4, 4, 8, 4, device="cpu", max_track_slots=2)
    >>> cache = MambaRadixCache(4, kv, states)
    >>> prompt, working_row = list(range(8)), 1
    >>> slots, track_slot = kv.alloc(8), states.alloc_track_slot()  # the prompt was prefilled into both
    >>> states.copy_states(working_row, track_slot)
    >>> done = cache.insert(RadixKey(prompt), slots, mamba_value=torch.tensor([track_slot]))
    >>> done.adopted, done.mamba_exist  # the cache owns all of it now
    (((0, 8),), False)
    >>> hit = cache.match_prefix(RadixKey([*prompt, 50, 51, 52, 53]))
    >>> hit.prefix_len, hit.last_node.mamba_value.tolist()  # copy this state to the next working row
    (8, [3])
    >>> cache.evict(0, 1)  # one state; it was a leaf's, so its KV goes, too
    EvictResult(full_evicted=8, swa_evicted=0, mamba_evicted=1)
    >>> kv.available_size(), states.available_track_slots()
    (64, 2)
    """

    _NODES: ClassVar[tuple[Any, Any]] = (MambaTreeNode, RankedMambaTreeNode)

    def __init__(
        self,
        page_size: int = 1,
        token_to_kv_pool_allocator: Any = None,
        mamba_pool: Any = None,
        on_node_evict: Callable[[int], Any] | None = None,
        eviction_policy: str | EvictionPolicy = "lru",
    ) -> None:
        self.mamba_pool = as_pool(mamba_pool, "mamba_pool", "free_track_slot")
        victims = StateVictims(as_policy(eviction_policy))
        super().__init__(page_size, token_to_kv_pool_allocator, on_node_evict, victims)
        self._states = CachedStates(self._tree, victims)

    # -- sizes ---------------------------------------------------------------------------------------

    @property
    def full_lru(self) -> LRUList:
        """Every node except the root, most recent first."""
        return self._states.full_lru

    @property
    def mamba_lru(self) -> LRUList:
        """Every node with a state, most recent first."""
        return self._states.lru

    def mamba_evictable_size(self) -> int:
        """Return the number of states that no hold protects, in O(1) (M6)."""
        return self._states.evictable

    def mamba_protected_size(self) -> int:
        """Return the number of states that a hold at their node protects, in O(1) (M4, M6)."""
        return self._states.protected

    # -- the calls -----------------------------------------------------------------------------------

    def reset(self) -> None:
        """Return every KV slot and every track slot, held or not, and start empty.

        Raises
        ------
        Exception
            The first that a pool raised; both pools are asked for everything, and the cache is empty all
            the same (X7).
        MemoryError, torch.OutOfMemoryError
            There was no memory for the call, here or in a pool; what the pools have taken is gone from the
            cache, and no more.

        Notes
        -----
        Old nodes become stale, node ids go on counting, no callback runs. After an interrupt in the middle
        of a call it is as `RadixCache.reset`. Cost: O(tree).
        """
        self._guard.let_reset_in()
        self._start_over()

    def match_prefix(self, key: RadixKey) -> MatchResult:
        """Find the longest cached prefix of ``key`` that ends at a state.

        Parameters
        ----------
        key : RadixKey
            Tokens and namespace; what is left over after the last whole page is ignored.

        Returns
        -------
        MatchResult
            ``indices`` are a copy; ``last_node.mamba_value`` is the track slot to restore from.
            ``mamba_branching_seqlen`` is the number of tokens whose KV is cached where that is more: a state
            taken there would save the next request of this kind the most.

        Raises
        ------
        TypeError, ValueError
            ``key`` is no `RadixKey`, or its tokens are not integers in ``0 .. 2**32 - 1``.

        Notes
        -----
        Refreshes the recency of the returned path only, and never splits a node, since states end nodes.
        Cost: one comparison of the key's bytes, O(nodes) in Python, one copy of the slots.
        Laws: R2, R8, R10, M2.
        """
        self._guard.refuse("match_prefix")
        walk = self._tree.walk(PagedKey.of(key, self.page_size))
        path = walk.path
        while path and path[-1]._track_slot is None:
            path.pop()
        last = path[-1] if path else self._tree.root
        branching = walk.length if walk.length > last._depth else None
        result = MatchResult(self._tree.gather(path), last, last._depth, branching)
        # All is made that can fail.
        self._states.stamp(path)
        for node in path:
            node.hit_count += 1
        return result

    def insert(
        self,
        key: RadixKey,
        value: torch.Tensor | None = None,
        *,
        mamba_value: torch.Tensor | None = None,
        priority: int = 0,
        **kwargs: Any,
    ) -> InsertResult:
        """Cache the KV slots of the whole pages of ``key``, and perhaps the state at its end.

        Parameters
        ----------
        key : RadixKey
            Tokens and namespace.
        value : torch.Tensor, optional
            One KV slot per token, any integer dtype, shape ``(len(key),)``; copied. Each page of the key lies
            in one page of the pool, in order. Without a pool it may be left out: the token ids then serve as
            slots.
        mamba_value : torch.Tensor, optional
            Track slot of the state after the key's last token, any integer dtype, shape ``(1,)``; copied. The
            key must then be page-aligned and not empty. The slot is the caller's: from the pool's
            ``alloc_track_slot``, and not in the cache already. The latter is the caller's duty, as with KV
            (R1, M7): two nodes with one track slot free it twice, and the second time the pool refuses. Over
            a KV pool that was built with ``check_ownership=True`` the insert is refused.
        priority : int
            How much the request matters, as of `RadixCache.insert`.
        **kwargs
            Options of other caches, ignored.

        Returns
        -------
        InsertResult
            ``adopted`` names the KV that the cache now owns; all else that was passed in is still the
            caller's to free (R4). ``mamba_exist`` is True where the key's end had a state already: the
            track slot is still the caller's then, and the cache's otherwise.

        Raises
        ------
        TypeError, ValueError
            A key, value or state that does not fit; a state whose key is empty or not page-aligned; or a page
            of slots that is not one page of the pool (where the pool checks ownership; elsewhere only the
            first and the last page are looked at, and one that is mixed up in between is kept as the page
            that begins at its first slot).
        OwnershipError
            Slots as of `RadixCache.insert`, where the pool was built with ``check_ownership=True``. Or a
            track slot that is 0, negative, 2**63 or more, or not handed out (the last where the pool has
            ``is_track_slot_handed_out``, as `GDNPool` has).

        Notes
        -----
        Slots already cached are not overwritten. A state that arrives at a node under a hold is protected at
        once. Cost: as `match_prefix`, and one copy of what is new; the number of the track slot is read, so
        hand it over on the host, or the call waits for the device. Laws: R1, R3, R4, R8, M1, M3, M4, M7.
        """
        self._guard.refuse("insert")
        paged = PagedKey.of(key, self.page_size)
        length, on_host = len(key.token_ids), self._tree.keeps_pages
        slots = read_incoming_slots(value, length, paged, self.page_size, self.pool, on_host)
        if type(priority) is not int:
            priority = as_int("priority", priority)
        track_slot = None
        if mamba_value is not None:
            track_slot = read_track_slot(mamba_value, self.mamba_pool)
            if not paged.length or paged.length != length:
                raise ValueError(
                    f"mamba_value comes with a key of {length} tokens: a state belongs to the end of a key "
                    f"of whole pages of {self.page_size}, at least one"
                )
        return self._insert(self._states, paged, slots, priority, track_slot)

    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        """Return KV to its pool in the order of the policy, and states in order of recency.

        Parameters
        ----------
        num_tokens : int
            Tokens to remove: whole unlocked leaves go, with their states, until at least so many are gone
            (R5).
        swa_num_tokens : int
            States to free, which others call ``mamba_num``, those of removed leaves included: an inner node
            loses its state and keeps its KV, an unlocked leaf goes whole; an unlocked node without a state
            that becomes a leaf goes too (M5).

        Returns
        -------
        EvictResult
            What really went, ``full_evicted`` in tokens and ``mamba_evicted`` in states; less than asked for
            only when nothing more is unlocked.

        Raises
        ------
        Exception
            What a pool raised; what it has not taken is still cached. Or the first error of
            ``on_node_evict``, after every callback has run (X2).

        Notes
        -----
        Cost: O(1) per node or state taken, whatever else is cached or locked; one ``free_track_slot`` per
        state and one ``free``.
        """
        plan = StatePlan(self._states, self.pool, self.mamba_pool)
        return self._evict(plan, num_tokens, swa_num_tokens)

    def inc_lock_ref(self, node: MambaTreeNode | None) -> None:
        """Hold ``node``: its KV, its ancestors' KV, and its own state.

        Parameters
        ----------
        node : MambaTreeNode or None
            The ``last_node`` of a match or insert; ``None`` and the root are no-ops.

        Raises
        ------
        TypeError, StaleNodeError
            The node is not in this cache (any more).

        Notes
        -----
        A state that arrives at the node later is protected too. Cost: O(depth). Laws: R6, M4.
        """
        self._guard.refuse("inc_lock_ref")
        if self._tree.check_node(node, MambaTreeNode):
            assert node is not None
            self._states.hold(node)
            self._tree.hold(node)

    def dec_lock_ref(self, node: MambaTreeNode | None, **kwargs: Any) -> None:
        """Release one hold that was taken at ``node``.

        Parameters
        ----------
        node : MambaTreeNode or None
            The node that was held; ``None`` and the root, also one from before a `reset`, are no-ops.
        **kwargs
            ``swa_boundary_id`` and other options of other caches, ignored.

        Raises
        ------
        TypeError, StaleNodeError
            The node is not in this cache (any more).
        LockError
            No hold is outstanding at exactly this node.

        Notes
        -----
        Cost: O(depth). Laws: R6, M4.
        """
        self._guard.refuse("dec_lock_ref")
        if self._tree.check_node(node, MambaTreeNode):
            assert node is not None
            self._tree.check_held(node)
            self._states.release(node)
            self._tree.release(node)

    # -- what the calls are made of ------------------------------------------------------------------

    def _note_parts(self, node: MambaTreeNode) -> None:
        if node._track_slot is not None:
            self._tree.note_stored(node, Part.STATE)

    def _sizes(self) -> str:
        states = self._states
        return f"{super()._sizes()}, {len(states.lru)} states, {states.evictable} evictable"

    def _return_all(
        self, owned: Sequence[MambaTreeNode], slots: torch.Tensor | None, errors: list[Exception]
    ) -> None:
        """Return all memory to both pools; if one lacks memory, drop the states that went from the tree."""
        taken = []
        try:
            for node in owned:
                if node._track_slot is not None:
                    if self.mamba_pool is not None:
                        collect_error(errors, self.mamba_pool.free_track_slot, node._track_slot)
                    taken.append(node)
            super()._return_all(owned, slots, errors)
        except SHORTAGES:
            for node in taken:
                self._states.give_up(node)
            raise

    def _return_what_is_left(self, owned: Sequence[MambaTreeNode]) -> None:
        if self.mamba_pool is not None:
            for node in owned:
                if node._track_slot is not None:
                    try_to_return(self.mamba_pool.free_track_slot, node._track_slot)
        super()._return_what_is_left(owned)

    def _forget(self, owned: Sequence[MambaTreeNode]) -> None:
        self._states.clear(owned)
