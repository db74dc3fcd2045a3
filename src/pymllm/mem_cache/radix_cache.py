"""The radix tree prefix cache, plain and with sliding windows.

Here are the public calls. What it shares with the cache of hybrid models is in
`pymllm.mem_cache.tree.tree_cache`, the tree itself in `pymllm.mem_cache.tree.radix_tree`, what a window adds
in `pymllm.mem_cache.tree.sliding_window` and `pymllm.mem_cache.tree.window_insert`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from pymllm.mem_cache.arguments import as_int, as_size
from pymllm.mem_cache.base_prefix_cache import EvictResult, InsertResult, MatchResult, RadixKey
from pymllm.mem_cache.cache_events import Part
from pymllm.mem_cache.tree.eviction import LeafPlan
from pymllm.mem_cache.tree.eviction_policy import EvictionPolicy, as_policy
from pymllm.mem_cache.tree.node import RankedTreeNode, TreeNode
from pymllm.mem_cache.tree.radix_tree import PagedKey
from pymllm.mem_cache.tree.sliding_window import SlidingWindow, WindowPlan, WindowVictims
from pymllm.mem_cache.tree.slot_exchange import read_incoming_slots
from pymllm.mem_cache.tree.tree_cache import TreeCache
from pymllm.mem_cache.tree.victims import Victims
from pymllm.mem_cache.tree.window_insert import WindowInsert
from pymllm.mem_cache.uploads import as_tensor, bring

__all__ = ["RadixCache", "TreeNode"]

logger = logging.getLogger(__name__)


class RadixCache(TreeCache[TreeNode]):
    """A prefix cache that shares KV between requests, in a radix tree over whole pages.

    Parameters
    ----------
    page_size : int
        Tokens per KV page; keys and values are cut down to whole pages. Must be the pool's.
    sliding_window_size : int, optional
        Tokens that the model's window layers look back (W). With it, nodes may lose their window KV alone
        (tombstones) and a match must end in a whole window of alive tokens.
    token_to_kv_pool_allocator : allocator, optional
        Owner of the slots: ``free(indices)`` is required; ``free_pages``, ``free_swa``, ``free_swa_pages``,
        ``move_swa`` and ``translate_to_swa`` are used where present, ``page_size``, ``device`` and
        ``check_ownership`` honoured. Without one, slots are plain numbers on the CPU and simply forgotten.
    on_node_evict : callable, optional
        Called with the id of each evicted node, after the eviction is complete; errors are raised once all
        have run, interrupts at once. It may ask for sizes, hashes and `pretty_print`; any other call on the
        cache from inside it is a ``RuntimeError`` (X6).
    eviction_policy : str or EvictionPolicy
        Which unlocked leaf goes next: a name of `POLICIES`, such as ``lru`` or ``lfu``, or an object with a
        method ``rank``. Window KV alone goes least recently used first, whatever the policy.

    Attributes
    ----------
    root_node : TreeNode
        The empty prefix; another one after each `reset`.
    eviction_policy : EvictionPolicy
        The policy as an object.

    Raises
    ------
    TypeError
        A size is not an int, the allocator has no ``free``, the callback cannot be called, or the policy is
        neither a name nor an object with a method ``rank``.
    ValueError
        A page or window of less than one token, another page size than the pool's, or no policy's name.

    Notes
    -----
    Not thread-safe: one scheduler thread owns a cache. A second one is refused where it meets a call that is
    inside a pool or callback; that is best effort, and no protection. Neither copied nor pickled. Tokens
    outside ``0 .. 2**32 - 1`` are refused, because every key is compared in the encoding that the hashes
    document. Laws: X, R and S of the specification.

    A call that finds no memory has changed nothing; of an eviction, what pools have taken by then is gone,
    and no more. After an interrupt in the middle of a call (``KeyboardInterrupt``) one thing is promised:
    `reset`, and then ``clear`` of the pool, succeed, and both are as new.
    """

    _NODES: ClassVar[tuple[Any, Any]] = (TreeNode, RankedTreeNode)

    def __init__(
        self,
        page_size: int = 1,
        sliding_window_size: int | None = None,
        token_to_kv_pool_allocator: Any = None,
        on_node_evict: Callable[[int], Any] | None = None,
        eviction_policy: str | EvictionPolicy = "lru",
    ) -> None:
        self.sliding_window_size = (
            None if sliding_window_size is None else as_size("sliding_window_size", sliding_window_size)
        )
        policy = as_policy(eviction_policy)
        windows: WindowVictims | None = None
        if self.sliding_window_size is not None:
            windows = WindowVictims(policy)
        victims: Victims[TreeNode] = Victims(policy) if windows is None else windows
        # A window moves slots between nodes one by one.
        super().__init__(page_size, token_to_kv_pool_allocator, on_node_evict, victims, windows is None)
        self._window: SlidingWindow | None = None
        if windows is not None and self.sliding_window_size is not None:
            self._window = SlidingWindow(self._tree, windows, self.sliding_window_size)

    # -- sizes ---------------------------------------------------------------------------------------

    @property
    def supports_swa(self) -> bool:
        """Whether the cache has a sliding window."""
        return self._window is not None

    def swa_evictable_size(self) -> int:
        """Return the number of live tokens that no hold's window covers, in O(1) (S6); 0 without a window."""
        return self._window.evictable_tokens if self._window is not None else 0

    def swa_protected_size(self) -> int:
        """Return the number of live tokens that a hold's window covers, in O(1) (S6); 0 without a window."""
        return self._window.protected_tokens if self._window is not None else 0

    # -- the calls -----------------------------------------------------------------------------------

    def reset(self) -> None:
        """Return every slot to the pool, held or not, and start empty.

        Raises
        ------
        Exception
            What the pool raised; the cache is empty all the same (X7).
        MemoryError, torch.OutOfMemoryError
            There was no memory for the call, here or in the pool; nothing has changed.

        Notes
        -----
        Old nodes become stale, node ids go on counting, no callback runs. Cost: O(tree).

        After an interrupt in the middle of a call, this one included, it gives back what the pool still
        counts as handed out; what the pool refuses then is logged, and the pool's ``clear`` brings it back.
        """
        self._guard.let_reset_in()
        self._start_over()

    def match_prefix(self, key: RadixKey) -> MatchResult:
        """Find the longest usable cached prefix of ``key``.

        Parameters
        ----------
        key : RadixKey
            Tokens and namespace; what is left over after the last whole page is ignored.

        Returns
        -------
        MatchResult
            ``indices`` are a copy. With a window the prefix ends in a whole window of alive tokens, or is all
            alive (S1).

        Raises
        ------
        TypeError, ValueError
            ``key`` is no `RadixKey`, or its tokens are not integers in ``0 .. 2**32 - 1``.

        Notes
        -----
        Refreshes the recency of the returned path only, and splits a node only where the returned prefix ends
        inside it; the rest of that node keeps its age. Cost: one comparison of the key's bytes, O(nodes) in
        Python, one copy of the slots.
        Laws: R2, R8, R10, S1.
        """
        self._guard.refuse("match_prefix")
        tree = self._tree
        walk = tree.walk(PagedKey.of(key, self.page_size))
        path, into_partial = walk.path, walk.shared > 0
        if self._window is not None:
            path, into_partial = self._window.usable_part(walk)
        split = None
        if into_partial:
            assert walk.partial is not None
            split = tree.prepare_split(walk.partial, walk.shared)
            path.append(split.upper)
        last = path[-1] if path else tree.root
        result = MatchResult(tree.gather(path), last, last._depth)
        # All is made that can fail.
        if split is not None:
            (self._window or tree).split(split)
        tree.stamp(path)
        for node in path:
            node.hit_count += 1
        return result

    def insert(
        self,
        key: RadixKey,
        value: torch.Tensor | None = None,
        *,
        prev_prefix_len: int = 0,
        swa_evicted_seqlen: int = 0,
        priority: int = 0,
        **kwargs: Any,
    ) -> InsertResult:
        """Cache the slots of the whole pages of ``key``.

        Parameters
        ----------
        key : RadixKey
            Tokens and namespace.
        value : torch.Tensor, optional
            One KV slot per token, any integer dtype, shape ``(len(key),)``; copied. Each page of the key lies
            in one page of the pool, in order. Without a pool it may be left out: the token ids then serve as
            slots.
        prev_prefix_len : int
            Windows: tokens before it are not to be revived; their whole pages must be cached. Without a
            window it changes nothing, but is a length within the key all the same.
        swa_evicted_seqlen : int
            Windows: length, in whole pages, up to which the caller has freed the window halves of ``value``.
            Without a window as above.
        priority : int
            How much the request matters, more is more: each node of the key's path has the highest that
            it was given. The policy ``lru`` does not look at it.
        **kwargs
            Options of other caches, such as ``mamba_value``. The documented interface is open here, so that
            an engine can drive all caches alike: every name is accepted and ignored, a misspelt one too.

        Returns
        -------
        InsertResult
            ``adopted`` names what the cache now owns. Everything else that was passed in, duplicates of
            ``[.., prefix_len)`` and the tail after the last whole page, is still the caller's to free (R4).

        Raises
        ------
        TypeError, ValueError
            A key or value that does not fit, a length that is no int or outside ``0 .. len(key)``, or a page
            of slots that is not one page of the pool (where the pool checks ownership; elsewhere only the
            first and the last page are looked at, and one that is mixed up in between is kept as the page
            that begins at its first slot).
        OwnershipError
            Windows, where the pool checks ownership: window halves that are still there before
            ``swa_evicted_seqlen``, or gone after it. Where the pool was built with ``check_ownership=True``:
            slots to adopt that are not handed out, that this or another cache over the pool has already, or
            that the key names twice; the error has the slot, the node that has it, and the steps.

        Notes
        -----
        Slots already cached are not overwritten, but for tombstones that are revived (S7). With a window the
        insert is refused as a whole, and nothing changes, where the key would not be usable afterwards.
        Cost: as `match_prefix`, and one copy of what is new. Laws: R1, R3, R4, R8, S7, X2.
        """
        self._guard.refuse("insert")
        paged = PagedKey.of(key, self.page_size)
        length, on_host = len(key.token_ids), self._tree.keeps_pages
        slots = read_incoming_slots(value, length, paged, self.page_size, self.pool, on_host)
        protected = _length_within("prev_prefix_len", prev_prefix_len, length)
        evicted = _length_within("swa_evicted_seqlen", swa_evicted_seqlen, length)
        if type(priority) is not int:
            priority = as_int("priority", priority)
        if self._window is None:
            return self._insert(self._tree, paged, slots, priority)
        result = self._insert_windowed(paged, as_tensor(slots), protected, evicted)
        if self._ranked is not None and result.last_node._depth == paged.length:  # it was not refused
            self._ranked.matter(result.last_node, priority)
        return result

    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        """Return tokens to the pool, in the order of the policy.

        Parameters
        ----------
        num_tokens : int
            Tokens to remove: whole unlocked leaves go until at least so many are gone (R5).
        swa_num_tokens : int
            Windows: alive tokens to free, those of removed leaves included. Inner nodes lose their window KV
            and stay as tombstones; a tombstone that becomes a leaf goes too (S3, S4). Ignored without a
            window.

        Returns
        -------
        EvictResult
            What really went; less than asked for only when nothing more is unlocked.

        Raises
        ------
        Exception
            What the pool raised; what it has not taken is still cached. Or the first error of
            ``on_node_evict``, after every callback has run (X2). An interrupt from inside a callback
            (``KeyboardInterrupt``, ``SystemExit``) is not kept back: it leaves at once, and the rest of the
            callbacks do not run; the eviction itself is complete.

        Notes
        -----
        Cost: O(1) per node taken, whatever else is cached or locked, and one call each to ``free_swa`` and
        ``free``. Another policy than ``lru`` ranks what was used since the last eviction, O(log n) each.
        """
        window, pool = self._window, self.pool
        plan = LeafPlan(self._tree, pool) if window is None else WindowPlan(window, pool)
        return self._evict(plan, num_tokens, swa_num_tokens)

    def inc_lock_ref(self, node: TreeNode | None) -> int | None:
        """Hold ``node`` and its ancestors, so that none of them is evicted.

        Parameters
        ----------
        node : TreeNode or None
            The ``last_node`` of a match or insert; ``None`` and the root are no-ops.

        Returns
        -------
        int or None
            ``swa_boundary_id``, which `dec_lock_ref` needs back; ``None`` without a window, and where the
            window covers the whole path.

        Raises
        ------
        StaleNodeError
            The node is not in this cache (any more).
        ValueError
            Windows: the prefix is not usable.

        Notes
        -----
        With a window, the window KV of exactly the pages that cover the last W tokens is protected; the
        node at the window's edge is split for that. Cost: O(depth). Laws: R6, S5, S6.
        """
        self._guard.refuse("inc_lock_ref")
        if not self._tree.check_node(node, TreeNode):
            return None
        assert node is not None
        if self._window is not None:
            return self._window.hold(node)
        self._tree.hold(node)
        return None

    def dec_lock_ref(self, node: TreeNode | None, swa_boundary_id: int | None = None, **kwargs: Any) -> None:
        """Release one hold that was taken at ``node``.

        Parameters
        ----------
        node : TreeNode or None
            The node that was held; ``None`` and the root, also one from before a `reset`, are no-ops.
        swa_boundary_id : int or None
            What `inc_lock_ref` returned; ignored without a window.
        **kwargs
            Options of other caches, ignored, whatever they are called.

        Raises
        ------
        StaleNodeError
            The node is not in this cache (any more).
        LockError
            No hold is outstanding at exactly this node, or the id is not the one of its hold.

        Notes
        -----
        Undoes exactly what the hold did, whatever was split, inserted or evicted in between. Cost: O(depth).
        Laws: R6, S5.
        """
        self._guard.refuse("dec_lock_ref")
        if not self._tree.check_node(node, TreeNode):
            return
        assert node is not None
        self._tree.check_held(node)
        if self._window is not None:
            self._window.check_token(node, swa_boundary_id)
            self._window.release(node)
        else:
            self._tree.release(node)

    # -- what the calls are made of ------------------------------------------------------------------

    def _note_parts(self, node: TreeNode) -> None:
        if self._window is not None and not node.swa_tombstone:
            self._tree.note_stored(node, Part.WINDOW)

    def _forget(self, owned: Sequence[TreeNode]) -> None:
        if self._window is not None:
            self._window.clear()

    def _insert_windowed(
        self, paged: PagedKey, slots: torch.Tensor, protected: int, evicted: int
    ) -> InsertResult:
        assert self._window is not None
        walk = self._tree.walk(paged)
        if protected // self.page_size * self.page_size > walk.length:
            raise ValueError(
                f"prev_prefix_len is {protected}: give no more whole pages of {self.page_size} "
                f"than are cached ({walk.length} tokens)"
            )
        if evicted % self.page_size:
            raise ValueError(f"swa_evicted_seqlen is {evicted}: give whole pages of {self.page_size}")
        if not paged.length:
            return InsertResult(0, self._tree.root)
        protected = -(-protected // self.page_size) * self.page_size
        slots = bring(slots, self.device)
        with self._guard:
            return WindowInsert(
                self._window, self.pool, paged, walk, slots, protected, evicted, self._owner
            ).run()


def _length_within(name: str, value: int, key_length: int) -> int:
    """Return a length, which must not exceed the key's."""
    length = as_int(name, value)
    if not 0 <= length <= key_length:
        raise ValueError(f"{name} is {length}: give 0 .. {key_length}, the length of the key")
    return length
