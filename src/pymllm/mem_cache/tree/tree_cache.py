"""The base class of both radix caches: a tree over a pool, and the order of their changes.

Whatever can fail is made first, then the pools are asked, and what they have done is written down. While code
of others runs, a pool's or a callback's, a guard keeps it out of the cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

import torch

from pymllm.mem_cache.arguments import as_callback, as_device, as_int, as_page_size, as_pool
from pymllm.mem_cache.base_prefix_cache import BasePrefixCache, EvictResult, InsertResult
from pymllm.mem_cache.cache_events import CacheEvent, EventLog, Part
from pymllm.mem_cache.ownership import OneOwner, refuse_other_thread
from pymllm.mem_cache.page_owners import Owner, PageOwners
from pymllm.mem_cache.tree.eviction import LeafPlan
from pymllm.mem_cache.tree.eviction_policy import EvictionPolicy, is_lru
from pymllm.mem_cache.tree.node import BaseTreeNode
from pymllm.mem_cache.tree.radix_tree import PagedKey, RadixTree, RankedTree
from pymllm.mem_cache.tree.slot_exchange import (
    SHORTAGES,
    Slots,
    copy_for_tree,
    counts_in_pages,
    return_what_is_left,
)
from pymllm.mem_cache.tree.victims import Victims
from pymllm.mem_cache.uploads import as_tensor

NodeT = TypeVar("NodeT", bound=BaseTreeNode)

_IN_A_POOL: Final = "a pool that the cache was calling"

_CALLING: Final = frozenset({__name__, "pymllm.mem_cache.radix_cache", "pymllm.mem_cache.mamba_radix_cache"})
"""Modules with the calls during which a user's code may run."""


class CallGuard:
    """A guard that keeps code which runs during a cache's call from calling the cache (X6).

    It is the context that such code runs in, with what the tree then does with a pool's answer. ``inside``:
    whose code runs now, in words: a pool's, unless `runs` says otherwise. ``unsettled``: a pool has been
    given slots that may still be in the tree; outside of a call only where an interrupt has left it, until a
    `reset` (X7). It remembers which thread runs that code, so that a refusal can tell a callback from a
    second thread. That is best effort: two threads that meet where no pool and no callback runs are not
    noticed. Cost: 0.2 us for both ends.
    """

    __slots__ = ("_thread", "_was_unsettled", "inside", "unsettled")

    def __init__(self) -> None:
        self.inside: str | None = None
        self.unsettled = self._was_unsettled = False
        self._thread = 0

    def __enter__(self) -> Self:
        self._thread = get_ident()
        self._was_unsettled = self.unsettled
        self.unsettled = True
        self.inside = _IN_A_POOL
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):  # an interrupt does not tell what a pool has taken
            self.unsettled = self._was_unsettled
        self.inside = None

    @property
    def is_in_a_pool(self) -> bool:
        """Whether the cache is returning slots that are still in the tree to a pool."""
        return self.inside == _IN_A_POOL

    def runs(self, whose: str) -> None:
        """Record that code other than a pool's is running, so that no slots are with a pool."""
        self.inside, self.unsettled = whose, self._was_unsettled

    def settle(self) -> None:
        """Record that no pool has received anything that is in the tree."""
        self.unsettled = self._was_unsettled = False

    def let_reset_in(self) -> None:
        """Raise an error for a ``reset`` during another call, unless an interrupt has left `inside` set.

        Then this thread is in no call of the cache but the one that asks. Another thread's reset is refused.
        """
        if self.inside is not None and self._thread == get_ident() and not self._is_amid_a_call():
            self.inside, self.unsettled = None, True
        self.refuse("reset")

    def _is_amid_a_call(self) -> bool:
        at: FrameType | None = sys._getframe(3)  # above the reset
        while at is not None:
            is_ours = at.f_globals.get("__name__") in _CALLING
            if is_ours and getattr(at.f_locals.get("self"), "_guard", None) is self:
                return True
            at = at.f_back
        return False

    def refuse(self, call: str) -> None:
        """Raise an error for a call on the cache from inside a callback or a pool's call."""
        inside = self.inside
        if inside is not None:
            refuse_other_thread(call, "cache", self._thread, f"is inside {inside}")
            raise RuntimeError(
                f"{call} was called from {inside}: only sizes, hashes and pretty_print may be, "
                "do it after the cache has returned"
            )


class TreeCache(OneOwner, BasePrefixCache, Generic[NodeT]):
    """A prefix cache over a radix tree, with the calls that are equal for all kinds.

    A kind says which nodes it has (``_NODES``: for recency alone, and for another policy), in which orders
    they wait (`victims`), what it keeps beside the tree, and how an eviction is planned.
    """

    _INSTEAD: ClassVar[str] = "build a new one with the same arguments, and insert again"
    _NODES: ClassVar[tuple[Any, Any]]

    def __init__(
        self,
        page_size: int,
        pool: Any,
        on_node_evict: Callable[[int], Any] | None,
        victims: Victims[NodeT],
        may_keep_pages: bool = True,
    ) -> None:
        self.page_size = as_page_size(page_size, pool)
        self.pool = as_pool(pool)
        self.on_node_evict = as_callback(on_node_evict)
        self.eviction_policy: EvictionPolicy = victims.policy
        self.device = as_device(getattr(pool, "device", "cpu"))
        keeps_pages = may_keep_pages and counts_in_pages(pool, self.page_size, self.device)
        make_node, make_ranked = self._NODES
        self._tree: RadixTree[NodeT]
        self._ranked: RankedTree | None = None
        if is_lru(victims.policy):
            self._tree = RadixTree(make_node, self.page_size, self.device, keeps_pages, victims)
        else:
            ranked: Any = RankedTree(make_ranked, self.page_size, self.device, keeps_pages, victims)
            self._tree = self._ranked = ranked
        self._guard = CallGuard()
        self._owner: Owner | None = None
        if isinstance(owners := getattr(pool, "owners", None), PageOwners):
            self._owner = owners.join(self, self._tree, self._guard)

    @property
    def root_node(self) -> NodeT:
        """The root: the node of the empty prefix."""
        return self._tree.root

    def evictable_size(self) -> int:
        """Return the number of tokens in unlocked nodes, in O(1) (R7)."""
        return self._tree.evictable_tokens

    def protected_size(self) -> int:
        """Return the number of tokens in locked nodes, in O(1) (R7)."""
        return self._tree.protected_tokens

    def total_size(self) -> int:
        """Return the number of cached tokens, including tombstoned ones, in O(1) (R7)."""
        return self._tree.evictable_tokens + self._tree.protected_tokens

    def compute_node_hash(self, node: NodeT) -> list[str]:
        """Return the hashes of the pages of ``node``, each chained to the page before and to the namespace.

        Parameters
        ----------
        node : node
            A node of this cache; the root has no pages.

        Returns
        -------
        list of str
            One SHA-256 per page, 64 hex digits; also kept in ``node.hash_values``.

        Raises
        ------
        TypeError, StaleNodeError
            ``node`` is not a node of this cache (any more).

        Notes
        -----
        Computed once per node, missing ancestors first. Cost: O(tokens hashed). Laws: H2, H3.
        """
        kind = self._NODES[0]
        if node is None:
            raise TypeError(f"node is None: give a {kind.__name__} of this cache")
        return self._tree.page_hashes(node) if self._tree.check_node(node, kind) else []

    def keep_events(self, are_kept: bool = True) -> None:
        """Record an event of each block that is stored or removed from now on (beyond the reference).

        Parameters
        ----------
        are_kept : bool
            False: keep none, and forget those that nobody took.

        Raises
        ------
        RuntimeError
            Called from a pool or a callback amid a call.

        Notes
        -----
        First come events of what is cached already, so that events since this call tell all that is there.
        A block is a page, its hash that of `compute_node_hash`. Kept events are the caller's to take: they
        pile up. Cost: O(tokens hashed); where none are kept, one comparison for each node that comes or goes.
        Law: X10.
        """
        self._guard.refuse("keep_events")
        if not are_kept:
            self._tree.log = None
            return
        tree = self._tree
        nodes = list(tree.nodes())
        for node in nodes:
            tree.page_hashes(node)
        tree.log = EventLog(self.page_size)
        for node in nodes:
            tree.note_stored(node, Part.KV)
            self._note_parts(node)

    def take_events(self) -> list[CacheEvent]:
        """Return the events since the last call, oldest first, and forget them (beyond the reference).

        Returns
        -------
        list of CacheEvent
            `BlocksStored`, `BlocksRemoved` and `AllCleared` of `pymllm.mem_cache.cache_events`; none unless
            `keep_events` was called.

        Raises
        ------
        RuntimeError
            Called from a pool or a callback amid a call.

        Notes
        -----
        Each block is told once when it comes, after its parent, and once when it goes, before it; a split
        changes no block, and is not told. Cost: O(tokens told). Law: X10.
        """
        self._guard.refuse("take_events")
        return [] if self._tree.log is None else self._tree.log.take()

    def _note_parts(self, node: NodeT) -> None:
        """Record in the event log a node's memory besides KV, of which this class has none."""

    def pretty_print(self) -> None:
        """Print the tree to standard output, one line per node, children indented below their parent.

        Below 32 levels the indentation stays, and a line begins with its level, ``[33]``: what is printed is
        linear in the nodes, however deep they are.
        """
        print(f"{type(self).__name__}: {self._sizes()}, page {self.page_size}")
        for line in self._tree.outline():
            print(line)

    def _sizes(self) -> str:
        return f"{self.total_size()} tokens, {self.evictable_size()} evictable"

    # -- inserts -------------------------------------------------------------------------------------

    def _insert(
        self, layer: Any, paged: PagedKey, slots: Slots, priority: int, track_slot: int | None = None
    ) -> InsertResult:
        """Add the uncached part of a key, and any given state at the end of a node without one.

        ``layer``: the tree, or what keeps something of its nodes beside it, and appends, splits and stamps
        them.
        """
        tree = self._tree
        walk = tree.walk(paged)
        path, split, adoption = walk.path, None, None
        if walk.shared:
            assert walk.partial is not None
            split = tree.prepare_split(walk.partial, walk.shared)
            path.append(split.upper)
        last = path[-1] if path else tree.root
        adopted: tuple[tuple[int, int], ...] = ()
        if walk.length < paged.length:
            last = tree.make_leaf(last, paged, copy_for_tree(tree, slots, walk.length, paged.length))
            adopted = ((walk.length, paged.length),)
        exists = track_slot is not None and getattr(last, "_track_slot", None) is not None
        if self._owner is not None:
            adoption = self._owner.prepare(as_tensor(slots), adopted)
            if track_slot is not None and not exists:
                self._owner.refuse_state(track_slot, layer.lru)
        result = InsertResult(walk.length, last, exists, adopted)
        # All is made that can fail.
        if split is not None:
            layer.split(split)
        layer.stamp(path)
        if adopted:
            layer.append(last)
            if adoption is not None:
                adoption.note()
        if track_slot is not None and not exists:
            layer.adopt(last, track_slot)
        elif adopted:
            tree.victims.place(last)
        if self._ranked is not None:
            self._ranked.matter(last, priority)
        return result

    # -- evictions -----------------------------------------------------------------------------------

    def _evict(self, plan: LeafPlan[NodeT], num_tokens: int, swa_num_tokens: int) -> EvictResult:
        """Fill an eviction plan, return the memory to the pools, update the tree, and call back (X2)."""
        self._guard.refuse("evict")
        wanted, wanted_parts = as_int("num_tokens", num_tokens), as_int("swa_num_tokens", swa_num_tokens)
        try:
            if self._ranked is None:
                plan.fill(wanted, wanted_parts)
            else:
                with self._guard as guard:
                    guard.runs("a rank of its eviction policy")
                    plan.fill(wanted, wanted_parts)
            result = EvictResult(plan.tokens, plan.alive_tokens, plan.states)
            with self._guard:
                plan.commit()
        except Exception:  # after an interrupt there is nothing to be put back, but a reset
            plan.call_off()
            raise
        if self.on_node_evict is not None:
            self._notify(plan.removed)
        return result

    def _notify(self, removed: Sequence[NodeT]) -> None:
        """Call ``on_node_evict`` with the id of every node in order; raise the first error at the end.

        Only an ``Exception`` waits for the rest: an interrupt leaves at once, as it does everywhere.
        """
        callback, errors = self.on_node_evict, []
        with self._guard as guard:
            guard.runs("on_node_evict")
            for node in removed:
                try:
                    callback(node.id)
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    # -- starting again ------------------------------------------------------------------------------

    def _start_over(self) -> None:
        """Return everything to the pools, held or not, and empty the tree; raise the first error last."""
        tree = self._tree
        owned = list(tree.nodes())
        start = tree.prepare_start()
        is_settled, slots = not self._guard.unsettled, None
        if owned and self.pool is not None and is_settled:
            slots = tree.gather(owned)
        errors: list[Exception] = []
        with self._guard:
            try:
                if is_settled:
                    self._return_all(owned, slots, errors)
                else:
                    self._return_what_is_left(owned)
            except SHORTAGES:
                raise
            except BaseException:
                self._start_with(start, owned)
                raise
            self._start_with(start, owned)
        if errors:
            raise errors[0]

    def _return_all(
        self, owned: Sequence[NodeT], slots: torch.Tensor | None, errors: list[Exception]
    ) -> None:
        """Return everything to the pools and collect their errors (X7), except a shortage of memory."""
        if slots is not None:
            collect_error(errors, self.pool.free, slots)

    def _return_what_is_left(self, owned: Sequence[NodeT]) -> None:
        """Return the slots that an interrupted call left in the tree, as far as the pools take them."""
        if self.pool is not None:
            return_what_is_left(self.pool, self._tree, owned)

    def _start_with(self, start: Any, owned: Sequence[NodeT]) -> None:
        """Make the cache empty; nothing here can fail."""
        self._tree.start_with(start, owned)
        self._forget(owned)
        self._guard.settle()

    def _forget(self, owned: Sequence[NodeT]) -> None:
        """Forget everything outside the tree."""


def collect_error(errors: list[Exception], call: Callable[[Any], Any], argument: Any) -> None:
    """Make a call and collect its error, except a shortage of memory."""
    try:
        call(argument)
    except SHORTAGES:
        raise
    except Exception as error:
        errors.append(error)
