"""Inserts into a windowed tree, which revive tombstones, add dead and live pages, or fail (law S7).

The whole call is planned on the untouched tree. Then the pool is asked, window halves first, and only what it
has done is written into the tree (X2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from pymllm.errors import OwnershipError
from pymllm.mem_cache.base_prefix_cache import InsertResult
from pymllm.mem_cache.page_owners import Adoption, Owner, Run
from pymllm.mem_cache.tree.node import TreeNode
from pymllm.mem_cache.tree.radix_tree import PagedKey, Split, Walk
from pymllm.mem_cache.tree.sliding_window import SlidingWindow
from pymllm.mem_cache.tree.slot_exchange import return_pages


class _Revival(NamedTuple):
    """Tombstoned pages of one node that get window KV again."""

    node: TreeNode
    runs: list[Run]
    moves: bool  # the locked node keeps its full slots and takes the incoming window halves


class _Carving(NamedTuple):
    """A prepared revival: its runs, their slots, the splits, and the nodes to revive."""

    runs: list[Run]
    moves: bool
    own: list[torch.Tensor]  # the slots that the runs have until now
    splits: list[Split[TreeNode]]
    pieces: list[tuple[TreeNode, torch.Tensor | None]]  # what lives again, and its new slots


class WindowInsert:
    """One insert into a windowed tree.

    ``window``: the windows of the tree. ``pool``: gets back what is displaced; ``move_swa`` is used where it
    has one. ``key``: the whole pages of the key. ``walk``: how far the key is cached. ``slots``: incoming
    slots, ``int64``, on the tree's device, at least ``key.length`` of them; never kept. ``protected``,
    ``evicted``: law S7's p, up to whole pages, and e. ``owner``: the cache, where its pool watches the owners
    of its pages.
    """

    def __init__(
        self,
        window: SlidingWindow,
        pool: Any,
        key: PagedKey,
        walk: Walk[TreeNode],
        slots: torch.Tensor,
        protected: int,
        evicted: int,
        owner: Owner | None = None,
    ) -> None:
        self._window = window
        self._tree = window.tree
        self._pool = pool
        self._key = key
        self._walk = walk
        self._slots = slots
        self._evicted = evicted
        self._owner = owner
        self._dead_until = min(max(evicted, walk.length), key.length)  # new pages before it are tombstones
        self._revivals = list(self._plan_revivals(max(protected, evicted)))

    def run(self) -> InsertResult:
        """Carry out the insert; change nothing if the key would not be usable afterwards."""
        walk = self._walk
        if not self._is_usable_afterwards():
            usable, _ = self._window.usable_part(replace(walk, partial=None, shared=0))
            return InsertResult(walk.length, usable[-1] if usable else self._tree.root)
        adoption = None if self._owner is None else self._prepare_adoption(self._owner)
        if getattr(self._pool, "check_ownership", False) and hasattr(self._pool, "translate_to_swa"):
            self._check_window_halves()
        cut = self._cut_partial()
        end = self._end_of_prefix(cut)
        revivals = [self._carve(revival, cut) for revival in self._revivals]
        replaced = [revival for revival in revivals if not revival.moves]
        moved = [revival for revival in revivals if revival.moves]
        leaves = self._make_leaves(end)
        last = leaves[-1] if leaves else end
        runs = [run for revival in replaced for run in revival.runs]
        if leaves:
            runs.append((walk.length, self._key.length))
        result = InsertResult(walk.length, last, adopted=_merged(runs))
        source = target = displaced = None
        if moved:
            source = torch.cat([self._slots[first:end] for each in moved for first, end in each.runs])
            target = torch.cat([own for each in moved for own in each.own])
        if replaced:
            displaced = torch.cat([own for each in replaced for own in each.own])
        # All is made that can fail; what is left are the pool's calls, and after each what it has done (X2).
        if moved:
            self._pool.move_swa(source, target)
            self._split_now(cut)
            cut = None
            self._revive(moved)
        if displaced is not None and self._pool is not None:
            return_pages(self._pool, self._tree, displaced)
        self._split_now(cut)
        self._revive(replaced)
        self._grow(end, leaves)
        if adoption is not None:
            adoption.note()
        return result

    def _prepare_adoption(self, owner: Owner) -> Adoption:
        """Return the planned adoption of slots that the cache will own, or raise an error."""
        adopted = [(self._walk.length, self._key.length)]
        lent: list[Run] = []
        for revival in self._revivals:
            (lent if revival.moves else adopted).extend(revival.runs)
        return owner.prepare(self._slots, adopted, lent)

    def _split_now(self, cut: Split[TreeNode] | None) -> None:
        """Split the partial node, whose upper half may then be split in turn."""
        if cut is not None:
            self._window.split(cut)

    def _check_window_halves(self) -> None:
        """Raise an error for slots with window halves before e, or without them after it."""
        halves = self._pool.translate_to_swa(self._slots[: self._key.length]).cpu().numpy()
        start = self._walk.length
        if halves[start : self._dead_until].any():
            at = start + int(np.flatnonzero(halves[start : self._dead_until])[0])
            raise OwnershipError(
                f"token {at} is before swa_evicted_seqlen, but slot {int(self._slots[at])} still has its "
                "window half: free_swa it first"
            )
        runs = [run for revival in self._revivals for run in revival.runs]
        for first, end in (*runs, (self._dead_until, self._key.length)):
            gone = np.flatnonzero(halves[first:end] == 0) + first
            if len(gone):
                raise self._half_gone(int(gone[0]), int(gone[-1]))

    def _half_gone(self, first: int, last: int) -> OwnershipError:
        """Return the error for tokens that need window KV but have lost their window halves."""
        size = self._tree.page_size
        bound = (last // size + 1) * size
        return OwnershipError(
            f"token {first} is to have window KV, but slot {int(self._slots[first])} has no window half: "
            f"swa_evicted_seqlen is {self._evicted}; give {bound} or more, and free_swa all halves before it"
        )

    # -- planning ------------------------------------------------------------------------------------

    def _pieces(self) -> Iterator[tuple[TreeNode, int, int]]:
        """Yield the cached nodes of the key, each with its range of the key."""
        for node in self._walk.path:
            yield node, node._depth - node._length, node._depth
        if self._walk.partial is not None and self._walk.shared:
            yield self._walk.partial, self._walk.length - self._walk.shared, self._walk.length

    def _plan_revivals(self, floor: int) -> Iterator[_Revival]:
        can_move = hasattr(self._pool, "move_swa")
        for node, start, end in self._pieces():
            if not node.swa_tombstone or end <= floor or (node.lock_ref and not can_move):
                continue
            runs = self._foreign_runs(node, start, max(start, floor), end)
            if runs:
                yield _Revival(node, runs, moves=bool(node.lock_ref))

    def _foreign_runs(self, node: TreeNode, node_start: int, start: int, end: int) -> list[Run]:
        """Return the runs of pages whose incoming slots differ from the node's own slots."""
        assert node.value is not None
        own = node.value[start - node_start : end - node_start]
        pages = (own != self._slots[start:end]).view(-1, self._tree.page_size).all(1).cpu().numpy()
        edges = np.flatnonzero(np.diff(pages, prepend=False, append=False)) * self._tree.page_size + start
        bounds = edges.tolist()
        return list(zip(bounds[::2], bounds[1::2], strict=True))

    def _is_usable_afterwards(self) -> bool:
        run, from_root = 0, True
        for length, alive in self._pages_afterwards():
            if length:
                run = run + length if alive else 0
                from_root = from_root and alive
        return from_root or run >= self._window.size

    def _pages_afterwards(self) -> Iterator[tuple[int, bool]]:
        """Yield the stretches of the key in order: the tokens, and whether they will be alive."""
        runs = {revival.node.id: revival.runs for revival in self._revivals}
        for node, start, end in self._pieces():
            if not node.swa_tombstone:
                yield end - start, True
                continue
            for first, last in runs.get(node.id, ()):
                yield first - start, False
                yield last - first, True
                start = last
            yield end - start, False
        yield self._dead_until - self._walk.length, False
        yield self._key.length - self._dead_until, True

    # -- carrying out --------------------------------------------------------------------------------

    def _cut_partial(self) -> Split[TreeNode] | None:
        """Prepare the split of a node that is only partly in the key."""
        walk = self._walk
        if walk.partial is None or not walk.shared:
            return None
        return self._tree.prepare_split(walk.partial, walk.shared)

    def _carve(self, revival: _Revival, cut: Split[TreeNode] | None) -> _Carving:
        """Prepare splits that make each run a node of its own, from the last run to the first."""
        node, tree = revival.node, self._tree
        assert node.value is not None
        start = node._depth - node._length
        own = [node.value[first - start : end - start] for first, end in revival.runs]
        rest = cut.upper if cut is not None and node is cut.node else node
        splits, pieces = [], []
        for first, end in reversed(revival.runs):
            if end < rest._depth:
                splits.append(tree.prepare_split(rest, end - (rest._depth - rest._length)))
                rest = splits[-1].upper
            piece, above = rest, first - (rest._depth - rest._length)
            if above:
                splits.append(tree.prepare_split(rest, above))
                rest = splits[-1].upper
            pieces.append((piece, None if revival.moves else self._slots[first:end].clone()))
        return _Carving(revival.runs, revival.moves, own, splits, pieces)

    def _revive(self, carvings: list[_Carving]) -> None:
        """Mark tombstones as alive again, after the pool has done its part."""
        for carving in carvings:
            for split in carving.splits:
                self._window.split(split)
            for node, slots in carving.pieces:
                if slots is not None:
                    node.value = slots
                self._window.enter(node)

    def _make_leaves(self, parent: TreeNode) -> list[TreeNode]:
        """Return nodes for the uncached tokens: dead pages, then live ones."""
        leaves = []
        start = self._walk.length
        for end in (self._dead_until, self._key.length):
            if start < end:
                parent = self._tree.make_leaf(parent, self._key, self._slots[start:end].clone())
                parent.swa_tombstone = end == self._dead_until
                leaves.append(parent)
                start = end
        return leaves

    def _grow(self, end: TreeNode, leaves: list[TreeNode]) -> None:
        """Make the cached path, which ends with ``end``, the most recent, and append the new leaves."""
        tree = self._tree
        tree.stamp(tree.path_to(end))
        for leaf in leaves:
            tree.append(leaf)
            if not leaf.swa_tombstone:
                self._window.enter(leaf)

    def _end_of_prefix(self, cut: Split[TreeNode] | None) -> TreeNode:
        """Return the node that will end where the cached prefix does."""
        if cut is not None:
            return cut.upper
        return self._walk.path[-1] if self._walk.path else self._tree.root


def _merged(runs: list[Run]) -> tuple[Run, ...]:
    merged: list[Run] = []
    for first, end in runs:
        if merged and merged[-1][1] == first:
            merged[-1] = merged[-1][0], end
        else:
            merged.append((first, end))
    return tuple(merged)
