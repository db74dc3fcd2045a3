"""The allocator of KV blocks, with their references and with the hashes of their contents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.core.inference.contexts.host_numbers import host_integers
from pymllm.core.inference.contexts.registered_blocks import (
    NO_HASH,
    BlockForest,
    BlockHashes,
    PrefixCachingEvictionPolicy,
    as_hashes,
)
from pymllm.errors import OwnershipError
from pymllm.mem_cache.arguments import LAST_INT32, as_int, as_size
from pymllm.mem_cache.cache_events import CacheEvent, EventLog
from pymllm.mem_cache.ownership import OneOwner, refuse_other_thread

__all__ = ["BlockIds", "KVBlockAllocator", "PrefixCachingEvictionPolicy"]

BlockIds = Sequence[int] | torch.Tensor | NDArray[np.integer]


class BlockObserver:
    """A guard that runs an observer on updated trackers and keeps its code from changing them (X2, X6)."""

    def __init__(self) -> None:
        self._is_running = False
        self._thread = 0

    def run(
        self, observer: Callable[[list[int], set[int]], None] | None, blocks: list[int], hashes: set[int]
    ) -> None:
        """Call ``observer`` with the removed blocks and hashes; its error is passed on."""
        if observer is None:
            return
        self._thread = get_ident()
        self._is_running = True
        try:
            observer(blocks, hashes)
        finally:
            self._is_running = False

    def refuse(self, name: str) -> None:
        """Raise an error for a call from inside the observer."""
        if self._is_running:
            refuse_other_thread(name, "allocator", self._thread, "is inside on_blocks_deregistered")
            raise RuntimeError(
                f"{name} was called from inside on_blocks_deregistered, which may only read: "
                "act after the call that it was told about"
            )


class _Release(NamedTuple):
    """The effects of a release, computed before anything changes."""

    given: NDArray[np.int64]
    """The distinct blocks."""
    left: NDArray[np.int32]
    """The number of references that each block then has."""
    registered: list[int]
    """The registered blocks that then have no references."""
    gone: list[int]
    """The unregistered blocks that then have no references."""


class KVBlockAllocator(OneOwner):
    """An allocator of the blocks of a KV buffer, which shares blocks by reference and records their contents.

    Each block is free, referenced, or cached (registered under a hash and referenced by nobody). The last
    block is a dummy that takes padded writes and belongs to nobody.

    Parameters
    ----------
    context : object
        Offers ``prefix_cache_lru_clock``, an int; read whenever a block is stamped.
    pool_size : int
        Blocks, the dummy included; at least 2.
    paused_limit : int
        The most blocks that paused requests may keep; the context sees to it.
    enable_prefix_caching : bool
        False: nothing is ever registered, so a block without references is free.
    prefix_caching_eviction_policy : PrefixCachingEvictionPolicy
        Or its value, ``"lru"`` or ``"ref_zero"``.

    Attributes
    ----------
    pool_avail : int
        Free blocks; cached ones do not count.
    dummy_block_idx : int
        ``pool_size - 1``.
    block_ref_counts : torch.Tensor
        ``[pool_size]`` int32, references, those of transfers among them.
    block_hashes : torch.Tensor
        ``[pool_size]`` int64, the hash under which a block is registered, -1 for none.
    block_timestamps : torch.Tensor
        ``[pool_size]`` int64, the context's clock when the block was last allocated or stamped.
    block_parents : torch.Tensor
        ``[pool_size]`` int32 (beyond the reference): the block before a registered block, -1 for a first one
        and for blocks that are not registered.
    kv_hash_to_block_id : dict of int to int
        The registered block of each hash.
    on_blocks_deregistered : callable or None
        Called with (list of block ids, set of their hashes) once blocks were deregistered or became free; ids
        without a hash are in the list, -1 is never in the set.

    Raises
    ------
    TypeError
        A size is not an int, or ``enable_prefix_caching`` not a bool.
    ValueError
        A size is too small or too large, or the policy is unknown.

    Notes
    -----
    All trackers are on the host, wherever the KV is; the tensors are for reading. Not thread-safe: one
    scheduler thread owns an allocator. An observer runs on updated trackers and may read them; from inside
    it, every call that would change something is a ``RuntimeError``, and an error that it raises reaches
    the caller after the trackers are updated.

    Laws: C1, C3, C9, X1, X2, X3, X4, X6, X7.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> allocator = KVBlockAllocator(SimpleNamespace(prefix_cache_lru_clock=0), pool_size=4)
    >>> blocks = allocator.allocate_memory_blocks(2)
    >>> blocks.tolist()
    [0, 1]
    >>> allocator.register_kv_block_hashes(blocks, [11, 22])
    >>> allocator.release_memory_blocks(blocks)
    >>> allocator.pool_avail, allocator.evictable_blocks
    (1, 2)
    """

    def __init__(
        self,
        context: Any,
        pool_size: int,
        paused_limit: int = 0,
        enable_prefix_caching: bool = True,
        prefix_caching_eviction_policy: PrefixCachingEvictionPolicy = PrefixCachingEvictionPolicy.LRU,
    ) -> None:
        self.context = context
        self.pool_size = as_size("pool_size", pool_size, 2, LAST_INT32)
        self.paused_limit = as_size("paused_limit", paused_limit, minimum=0)
        if not isinstance(enable_prefix_caching, bool):
            raise TypeError(f"enable_prefix_caching must be a bool, got {enable_prefix_caching!r}")
        self.enable_prefix_caching = enable_prefix_caching
        self.prefix_caching_eviction_policy = PrefixCachingEvictionPolicy(prefix_caching_eviction_policy)
        self.dummy_block_idx = self.pool_size - 1
        self.on_blocks_deregistered: Callable[[list[int], set[int]], None] | None = None
        self._observer = BlockObserver()

        # NumPy views of the same memory: a torch call costs ten times a small NumPy one.
        self._ref_counts = np.empty(self.pool_size, np.int32)
        self._timestamps = np.empty(self.pool_size, np.int64)
        self._transfers = np.empty(self.pool_size, np.int32)  # references that transfers hold
        self._last_transfer = 0
        self._is_free = np.empty(self.pool_size, np.bool_)  # the dummy, which nobody has, counts as free here
        # A stack: the last is handed out first. Of int64, which names blocks without being converted.
        self._free = np.empty(self.dummy_block_idx, np.int64)
        self._all_free = np.arange(self.dummy_block_idx - 1, -1, -1)  # kept: `reset` must not want memory
        self._forest = BlockForest(self._ref_counts, self._timestamps)
        self._known = BlockHashes(self.pool_size, self._forest)
        self.block_ref_counts = torch.from_numpy(self._ref_counts)
        self.block_hashes = torch.from_numpy(self._known.of_block)
        self.block_timestamps = torch.from_numpy(self._timestamps)
        self.block_parents = torch.from_numpy(self._forest.parents)
        self.kv_hash_to_block_id = self._known.to_block
        self.reset()

    def __repr__(self) -> str:
        """Return the pool's size, and the numbers of free and of cached blocks."""
        return (
            f"KVBlockAllocator(pool_size={self.pool_size}, "
            f"policy={self.prefix_caching_eviction_policy.value!r}, pool_avail={self.pool_avail}, "
            f"evictable={self.evictable_blocks})"
        )

    @property
    def evictable_blocks(self) -> int:
        """Return the number of cached blocks without a referenced descendant (beyond the reference).

        ``pool_avail + evictable_blocks`` is the largest n that `allocate_memory_blocks` can meet. Cost: a
        counter. Law: C1.
        """
        return self._forest.evictable

    def allocate_memory_blocks(self, n: int) -> torch.Tensor | None:
        """Allocate blocks with one reference each, evicting cached ones if too few are free.

        Parameters
        ----------
        n : int
            Blocks to take; 0 takes none.

        Returns
        -------
        torch.Tensor or None
            Shape ``(n,)``, int32, on the host, memory of its own; stamped with the clock. ``None`` if fewer
            than n are free or evictable; nothing has changed then.

        Raises
        ------
        TypeError
            ``n`` or the context's clock is not an int.
        ValueError
            ``n`` is negative, or the clock does not fit 64 bits.
        RuntimeError
            Called from inside an observer.

        Notes
        -----
        Victims are the least recently used blocks without registered children, the lowest id among equals. If
        the observer of their eviction raises, they are free and nothing was handed out.
        Cost: O(n), O(log blocks) per victim. Laws: C1, X2, X4.
        """
        count = as_size("n", n, minimum=0)
        clock = self._clock()
        self._observer.refuse("allocate_memory_blocks")
        if count - self.pool_avail > self.evictable_blocks:
            return None
        # Had before the first change: what needs memory comes first.
        blocks = np.empty(count, np.int32)
        taken = torch.from_numpy(blocks)
        self._take(count, clock, blocks)
        return taken

    def _take(self, count: int, clock: int, blocks: NDArray[np.int32]) -> None:
        """Write free blocks with one reference each to ``blocks``, evicting others if too few are free."""
        if count > self.pool_avail:
            self._evict_lru_blocks(count - self.pool_avail)
        index = self._free[self.pool_avail - count : self.pool_avail]
        blocks[:] = index[::-1]
        self.pool_avail -= count
        self._is_free[index] = False
        self._ref_counts[index] = 1
        self._timestamps[index] = clock

    def retain_memory_blocks(self, ids: BlockIds) -> None:
        """Add one reference to blocks that are referenced or cached.

        Parameters
        ----------
        ids : sequence of int or tensor of integers
            Blocks; one that is named twice gets two references.

        Raises
        ------
        OwnershipError
            A block is free, the dummy, or outside the pool.
        TypeError
            Something is not an integer.
        RuntimeError
            Called from inside an observer.

        Notes
        -----
        Moves no stamp. On an error nothing has changed. Cost: O(ids). Laws: C1, X1.
        """
        self._observer.refuse("retain_memory_blocks")
        blocks = self._as_occupied("retain", ids)
        if not blocks.size:
            return
        given, times = np.unique(blocks, return_counts=True)
        held = self._ref_counts[given]
        raised = (held + times).astype(np.int32)
        first: list[int] = given[held == 0].tolist()
        self._ref_counts[given] = raised
        for block in first:
            self._forest.activate(block)

    def release_memory_blocks(self, blocks: BlockIds) -> None:
        """Remove a reference from blocks; without references a block is cached if registered, else free.

        Parameters
        ----------
        blocks : sequence of int or tensor of integers
            Blocks; one that is named twice loses two references.

        Raises
        ------
        OwnershipError
            More is released than is held, or a block is the dummy or outside the pool.
        TypeError
            Something is not an integer.
        RuntimeError
            Called from inside an observer.

        Notes
        -----
        Under REF_ZERO a registered block without references is deregistered together with its registered
        descendants, and free. The observer is told of all that was deregistered or became free. On an
        ownership error nothing has changed. Cost: O(blocks), and O(descendants) under REF_ZERO.
        Laws: C1, C6, X1, X2.
        """
        self._observer.refuse("release_memory_blocks")
        self._give_back(self._plan_release(blocks))

    def begin_transfer(self, ids: BlockIds) -> int:
        """Hold blocks for a use outside the context, until `end_transfer` (beyond the reference).

        Parameters
        ----------
        ids : sequence of int or tensor of integers
            Blocks that are referenced or cached; one that is named twice is held once.

        Returns
        -------
        int
            The number of the transfer, for `end_transfer`. No other transfer of this allocator ever has it.

        Raises
        ------
        OwnershipError
            A block is free, the dummy, or outside the pool.
        TypeError
            Something is not an integer.
        RuntimeError
            Called from inside an observer.

        Notes
        -----
        A transfer has a reference of its own to each block, which no release takes away: a block that is
        given up meanwhile is neither free nor evictable. On an error nothing has changed. Cost: O(ids).
        Laws: C1, X1, X2.
        """
        self._observer.refuse("begin_transfer")
        blocks = np.unique(self._as_occupied("transfer", ids))
        more = self._transfers[blocks] + 1
        self.retain_memory_blocks(blocks)
        self._transfers[blocks] = more
        self._last_transfer += 1
        self._under_way[self._last_transfer] = blocks
        return self._last_transfer

    def end_transfer(self, transfer: int) -> None:
        """Release the blocks of a transfer, whose use has ended (beyond the reference).

        Parameters
        ----------
        transfer : int
            What `begin_transfer` returned. Whether the transfer succeeded, failed or was aborted makes no
            difference.

        Raises
        ------
        OwnershipError
            No such transfer is under way: it has ended, in a `reset` perhaps, or never began.
        TypeError
            ``transfer`` is not an integer.
        RuntimeError
            Called from inside an observer.

        Notes
        -----
        As `release_memory_blocks`: what nobody else references is cached if registered, else free. Laws: C1,
        C6, X1, X2.
        """
        self._observer.refuse("end_transfer")
        number = as_int("transfer", transfer)
        if number not in self._under_way:
            raise OwnershipError(
                f"transfer {number} is not under way: end each one once, by the number that begin_transfer "
                "returned, and none after a reset"
            )
        blocks = self._under_way[number]
        release, left = self._plan_loss(blocks, 1), self._transfers[blocks] - 1
        self._transfers[blocks] = left
        del self._under_way[number]
        self._give_back(release)

    def register_kv_block_hashes(
        self, ids: BlockIds, hashes: Sequence[int] | torch.Tensor, parent_hashes: Any = None
    ) -> None:
        """Register the contents of blocks under hashes.

        Parameters
        ----------
        ids : sequence of int or tensor of integers
            Referenced blocks whose KV is written, each after its parent.
        hashes : sequence of int or tensor of integers
            One for each block, ``1 .. 2**63 - 1``.
        parent_hashes : sequence of int or tensor of integers, optional
            The hash of each block's parent, 0 for a first block. ``None``: the first entry is a first block
            and each other follows the one before it.

        Raises
        ------
        OwnershipError
            A block is free, the dummy, or outside the pool.
        UsageError
            A block is registered under another hash already.
        TypeError
            Something is not an integer.
        ValueError
            Different lengths, or a hash out of range.
        RuntimeError
            Called from inside an observer.

        Notes
        -----
        The first registration of a hash wins: a block whose hash names another one stays as it is, and so
        does every block whose very parent is not registered, be its parent's hash known or not. An entry
        that is registered already is passed over. Without prefix caching nothing is registered.
        On an error nothing has changed. Cost: O(ids). Laws: C3, X1.
        """
        self._observer.refuse("register_kv_block_hashes")
        blocks = self._as_occupied("register", ids).tolist()
        own = as_hashes("hashes", hashes, len(blocks), lowest=1)
        above = None if parent_hashes is None else as_hashes("parent_hashes", parent_hashes, len(blocks), 0)
        self._known.check(blocks, own)
        if not self.enable_prefix_caching:
            return
        if above is None:
            self._known.register_chain(blocks, own)
        else:
            self._known.register_below(blocks, own, above)

    def update_timestamps(self, ids: BlockIds) -> None:
        """Set the timestamps of blocks to the context's clock.

        Parameters
        ----------
        ids : sequence of int or tensor of integers
            Blocks of the pool.

        Raises
        ------
        IndexError
            A block is outside the pool.
        TypeError
            Something is not an integer, be it the context's clock.
        ValueError
            The clock does not fit 64 bits.
        RuntimeError
            Called from inside an observer.

        Notes
        -----
        Cost: O(ids). Laws: X1, X3.
        """
        self._observer.refuse("update_timestamps")
        blocks = host_integers("ids", ids, self.pool_size)
        clock = self._clock()
        self._stamp(blocks, clock, self._lowered(blocks, clock))

    def reset(self) -> None:
        """Make every block free, held or not, as in a new allocator, and end all transfers.

        The observer is not called.

        Raises
        ------
        RuntimeError
            Called from inside an observer.

        Notes
        -----
        Whoever keeps something by block, such as a `MambaSlotAllocator`, is to be reset too.
        Cost: O(pool_size). Laws: C9, X7.
        """
        self._observer.refuse("reset")
        self._ref_counts[:] = 0
        self._transfers[:] = 0
        self._under_way: dict[int, NDArray[np.int64]] = {}
        self._timestamps[:] = 0
        self._is_free[:] = True
        self._free[:] = self._all_free
        self.pool_avail = self.dummy_block_idx
        self._known.clear()
        self._forest.clear()

    def keep_events(self, are_kept: bool = True) -> None:
        """Record an event of each block registered or deregistered from now on (beyond the reference).

        Parameters
        ----------
        are_kept : bool
            False: keep none, and forget those that nobody took.

        Raises
        ------
        RuntimeError
            Called from inside an observer.

        Notes
        -----
        First come events of what is registered already. They tell hashes and parents; tokens are told by
        a context, whose `RequestContext.keep_events` this is for. Kept events are the caller's to take: they
        pile up. Cost: O(registered); where none are kept, one comparison for each block. Law: X10.
        """
        self._keep_events(EventLog(0) if are_kept else None)

    def _keep_events(self, log: EventLog | None) -> None:
        self._observer.refuse("keep_events")
        self._known.keep_events(log)

    def take_events(self) -> list[CacheEvent]:
        """Return the events since the last call, oldest first, and forget them (beyond the reference).

        Returns
        -------
        list of CacheEvent
            `BlocksStored`, `BlocksRemoved` and `AllCleared` of `pymllm.mem_cache.cache_events`, a block in
            each; none unless `keep_events` was called.

        Notes
        -----
        Stored blocks come after their parents. Cost: O(events). Law: X10.
        """
        return [] if self._known.log is None else self._known.log.take()

    def free_among(self, ids: BlockIds) -> list[int]:
        """Return the blocks among these that are free, or the dummy block (beyond the reference).

        Cost: O(ids). Law: C6.
        """
        blocks = host_integers("ids", ids, self.pool_size)
        free: list[int] = blocks[self._is_free[blocks]].tolist()
        return free

    def _plan_release(self, blocks: BlockIds) -> _Release:
        """Return the effects of a release, or raise an error; nothing changes."""
        given, times = np.unique(self._as_occupied("release", blocks), return_counts=True)
        held = self._ref_counts[given]
        if self._under_way:
            held = held - self._transfers[given]
        short = held < times
        if short.any():
            first = int(np.argmax(short))
            raise OwnershipError(
                f"block {given[first]} has {held[first]} references, "
                f"{times[first]} are released; release each once"
            )
        return self._plan_loss(given, times)

    def _plan_loss(self, given: NDArray[np.int64], times: NDArray[np.int64] | int) -> _Release:
        """Return the effects of removing existing references."""
        left = (self._ref_counts[given] - times).astype(np.int32)
        idle = given[left == 0]
        is_registered = self._known.of_block[idle] != NO_HASH
        return _Release(given, left, idle[is_registered].tolist(), idle[~is_registered].tolist())

    def _give_back(self, release: _Release, rewritten: Sequence[int] = ()) -> None:
        """Carry out a planned release, which needs no further memory and so cannot stop halfway.

        ``rewritten``: blocks that get other content; with what is registered below, they lose their hashes.
        """
        given, left, registered, gone = release
        self._ref_counts[given] = left
        for block in registered:
            self._forest.deactivate(block)
        if self.prefix_caching_eviction_policy is PrefixCachingEvictionPolicy.REF_ZERO:
            for block in registered:
                if block in self._forest:
                    gone += self._forest.remove_subtree(block)
        for block in rewritten:
            if block in self._forest:
                gone += self._forest.remove_subtree(block)
        self._drop(gone)

    def _let_go(self, blocks: list[int]) -> None:
        """Undo `retain_memory_blocks` for registered blocks, without allocating memory."""
        for block in blocks:
            self._ref_counts[block] -= 1
            self._forest.deactivate(block)

    def _last_taken(self, count: int) -> list[int]:
        """Return the blocks of the last allocation, which still lie above the top of the stack.

        Read one by one, since a copy of a tensor might not be had, and who then would free the blocks?
        """
        end = self.pool_avail
        return [self._free.item(place) for place in range(end + count - 1, end - 1, -1)]

    def _untake(self, count: int) -> None:
        """Undo the last allocation, whose blocks no caller has received.

        Their stamps are those of no time, as the clock may be set back, too.
        """
        index = self._free[self.pool_avail : self.pool_avail + count]
        self._is_free[index] = True
        self._ref_counts[index] = 0
        self._timestamps[index] = 0
        self.pool_avail += count

    def _lowered(self, blocks: NDArray[np.int64], clock: int) -> list[int]:
        """Return the blocks that a stamp would make older than they are."""
        lowered: list[int] = blocks[self._timestamps[blocks] > clock].tolist()
        return lowered

    def _stamp(self, blocks: NDArray[np.int64], clock: int, lowered: list[int]) -> None:
        """Set the timestamps of blocks, some of which (given) become older."""
        self._timestamps[blocks] = clock
        for block in lowered:
            self._forest.restamp(block)

    def _clock(self) -> int:
        """Return the context's clock, checked so that it cannot make a call fail halfway."""
        clock = as_int("prefix_cache_lru_clock", self.context.prefix_cache_lru_clock)
        if not -(2**63) <= clock < 2**63:
            raise ValueError(f"prefix_cache_lru_clock is {clock}, which a stamp of 64 bits cannot hold")
        return clock

    def _evict_lru_blocks(self, count: int) -> None:
        """Free ``count`` evictable blocks, least recent first and children before parents."""
        self._drop([self._forest.pop_oldest() for _ in range(count)])

    def _drop(self, blocks: list[int]) -> None:
        """Deregister blocks that left the forest, free the unreferenced ones, and call the observer."""
        if not blocks:
            return
        # Block by block, since an array of them, or of their hashes, might not be had when half is done.
        hashes = self._known.forget(blocks)
        references, free, is_free = self._ref_counts.item, self._free, self._is_free
        end = self.pool_avail
        for block in blocks:
            if not references(block):
                free[end] = block
                is_free[block] = True
                end += 1
        self.pool_avail = end
        self._observer.run(self.on_blocks_deregistered, blocks, hashes)

    def _as_occupied(self, act: str, ids: BlockIds) -> NDArray[np.int64]:
        """Return the ids of blocks, which must be referenced or cached."""
        blocks = host_integers("ids", ids)
        outside = (blocks < 0) | (blocks >= self.dummy_block_idx)
        if outside.any():
            raise OwnershipError(
                f"cannot {act} block {blocks[np.argmax(outside)]}: blocks 0..{self.dummy_block_idx - 1} "
                f"can be held, {self.dummy_block_idx} is the dummy"
            )
        is_free = self._is_free[blocks]
        if is_free.any():
            raise OwnershipError(f"cannot {act} block {blocks[np.argmax(is_free)]}: it is free; allocate it")
        return blocks
