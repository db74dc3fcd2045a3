"""A doubly-linked list through the nodes of a `MambaRadixCache`, most recent first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from reprlib import repr as short_repr
from typing import Any, ClassVar

from pymllm.errors import UsageError
from pymllm.mem_cache.ownership import OneOwner
from pymllm.mem_cache.tree.node import MambaTreeNode


class LRUList(OneOwner):
    """A list of nodes by recency, in which each node stores its own neighbours.

    Parameters
    ----------
    mamba : bool
        Link through ``mamba_prev`` and ``mamba_next`` instead of ``prev`` and ``next``, and take a node for
        unlocked when its ``mamba_lock_ref`` is 0, not its ``full_lock_ref``.

    Attributes
    ----------
    mamba : bool
        As given.
    head, tail : MambaTreeNode
        Sentinels: the most recent member follows ``head``, the least recent precedes ``tail``.

    Raises
    ------
    TypeError
        ``mamba`` is neither True nor False.

    Notes
    -----
    A node may be in one list of each mode at a time. Cost: O(1) per node touched; the two ``get_lru_*`` walk
    from the old end over what does not qualify, so `MambaRadixCache` chooses its victims otherwise. Law: M8.

    Examples
    --------
    >>> lru, old, new = LRUList(), MambaTreeNode(), MambaTreeNode()
    >>> lru.insert_mru(old)
    >>> lru.insert_mru(new)
    >>> lru.get_lru_unlocked() is old
    True
    >>> lru.touch_mru(old)
    >>> lru.get_lru_unlocked() is new
    True
    """

    _INSTEAD: ClassVar[str] = "list() of it has its members"

    def __init__(self, mamba: bool = False) -> None:
        if not isinstance(mamba, bool):
            raise TypeError(f"mamba must be True or False, got {type(mamba).__name__} {short_repr(mamba)}")
        self.mamba = mamba
        self.head = MambaTreeNode()
        self.tail = MambaTreeNode()
        self._size = 0
        self._prev = "mamba_prev" if mamba else "prev"
        self._next = "mamba_next" if mamba else "next"
        self._lock = "mamba_lock_ref" if mamba else "full_lock_ref"
        # A member names its list: with a set of members instead, evicting one leaf takes 0.3 us more.
        self._home = "_mamba_list" if mamba else "_list"
        # Fields by their own name, twice: by a name looked up, in and out again takes 0.9 us and not 0.42.
        self._put_behind, self._cut = (_put_state, _cut_state) if mamba else (_put_any, _cut_any)
        self._move = _move_states if mamba else _move_any
        setattr(self.head, self._next, self.tail)
        setattr(self.tail, self._prev, self.head)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, node: Any) -> bool:
        return isinstance(node, MambaTreeNode) and getattr(node, self._home) is self

    def __iter__(self) -> Iterator[MambaTreeNode]:
        """Yield the members, the most recent first."""
        at = getattr(self.head, self._next)
        while at is not self.tail:
            yield at
            at = getattr(at, self._next)

    def __reversed__(self) -> Iterator[MambaTreeNode]:
        """Yield the members, the least recent first."""
        at = getattr(self.tail, self._prev)
        while at is not self.head:
            yield at
            at = getattr(at, self._prev)

    def insert_mru(self, node: MambaTreeNode) -> None:
        """Insert ``node`` as the most recent member.

        Raises
        ------
        UsageError
            It is a member already, of this list or of another one of the same mode, or a sentinel.
        """
        if not isinstance(node, MambaTreeNode):
            raise _no_node(node)
        if getattr(node, self._next) is not None or getattr(node, self._prev) is not None:
            if node in self:
                raise UsageError(f"node {node.id} is in the list already: touch_mru moves a member")
            raise UsageError(
                f"node {node.id} is in another list of this mode, or the sentinel of one: "
                "remove it there, or insert a node of your own"
            )
        self.insert_behind(node, self.head)

    def remove(self, node: MambaTreeNode) -> None:
        """Remove ``node`` from the list.

        Raises
        ------
        UsageError
            It is no member.
        """
        self._check_member(node)
        self.take_out(node)

    def clear(self) -> None:
        """Remove all members, and clear their links.

        From both ends, as far as links lead: an interrupt may have left them cut.
        """
        for end, step in ((self.head, self._next), (self.tail, self._prev)):
            node = getattr(end, step)
            while node is not None and node is not self.head and node is not self.tail:
                following = getattr(node, step)
                for name in (self._prev, self._next, self._home):
                    setattr(node, name, None)
                node = following
        self._size = 0
        setattr(self.head, self._next, self.tail)
        setattr(self.tail, self._prev, self.head)

    def touch_mru(self, node: MambaTreeNode) -> None:
        """Make a member the most recent.

        Raises
        ------
        UsageError
            It is no member.
        """
        self._check_member(node)
        if getattr(self.head, self._next) is not node:
            self._cut(node)
            self._put_behind(node, self.head)

    def touch_node_and_parents_mru(self, node: MambaTreeNode, root: MambaTreeNode) -> None:
        """Make ``node`` and its ancestors the most recent members, each child before its parent.

        Parameters
        ----------
        node : MambaTreeNode
            Where to begin, a member; ancestors that are none are passed over.
        root : MambaTreeNode
            Where to stop; it is not touched.

        Raises
        ------
        UsageError
            ``node`` is no member, or ``root`` is not above it; nothing has moved then.

        Notes
        -----
        From ``root`` itself there is nothing to touch, member or not. For a path whose end may be no member
        there is `touch_path_mru`.
        """
        for given in (node, root):
            if not isinstance(given, MambaTreeNode):
                raise _no_node(given)
        path, at = [], node
        while at is not root:
            path.append(at)
            if at.parent is None:
                raise UsageError(f"node {root.id} is no ancestor of node {node.id}: give the root above it")
            at = at.parent
        if path:
            self._check_member(node)
        self.touch_path_mru(path[::-1])

    def touch_path_mru(self, path: Sequence[MambaTreeNode]) -> None:
        """Make the nodes of a path the most recent members, the last node first.

        For those who have walked the path already: `touch_node_and_parents_mru` without its way up.
        """
        newer, forward, home = self.head, self._next, self._home
        for node in reversed(path):
            if getattr(node, home) is self:
                if getattr(newer, forward) is not node:  # of a path touched before, only its end moves
                    self._cut(node)
                    self._put_behind(node, newer)
                newer = node

    def touch_stretch_mru(self, newest: MambaTreeNode, oldest: MambaTreeNode) -> None:
        """Make consecutive members the most recent, in their present order.

        For those who know that: the nodes of a path that were last used together stand together. Cost: O(1),
        of which a path of 1,000 nodes is one. Law: M8.
        """
        self._move(newest, oldest, self.head)

    def insert_behind(self, node: MambaTreeNode, newer: MambaTreeNode) -> None:
        """Insert ``node``, which is in no such list, after a member or the head."""
        self._put_behind(node, newer)
        setattr(node, self._home, self)
        self._size += 1

    def take_out(self, node: MambaTreeNode) -> None:
        """Remove a node that is known to be a member."""
        self._cut(node)
        setattr(node, self._home, None)
        self._size -= 1

    def get_lru_leaf_unlocked(self) -> MambaTreeNode | None:
        """Return the least recent member without children and without a lock, or ``None``."""
        for node in reversed(self):
            if not node.children and not getattr(node, self._lock):
                return node
        return None

    def get_lru_unlocked(self) -> MambaTreeNode | None:
        """Return the least recent member without a lock, or ``None``."""
        for node in reversed(self):
            if not getattr(node, self._lock):
                return node
        return None

    def _check_member(self, node: MambaTreeNode) -> None:
        if not isinstance(node, MambaTreeNode):
            raise _no_node(node)
        if getattr(node, self._home) is not self:
            raise UsageError(f"node {node.id} is not in the list: insert_mru it first")


def _no_node(given: Any) -> TypeError:
    return TypeError(f"node is a {type(given).__name__}: give a MambaTreeNode")


def _put_any(node: MambaTreeNode, newer: MambaTreeNode) -> None:
    """Insert ``node`` after ``newer``, a member or the head."""
    older = newer.next
    assert older is not None
    newer.next = older.prev = node
    node.prev, node.next = newer, older


def _put_state(node: MambaTreeNode, newer: MambaTreeNode) -> None:
    older = newer.mamba_next
    assert older is not None
    newer.mamba_next = older.mamba_prev = node
    node.mamba_prev, node.mamba_next = newer, older


def _cut_any(node: MambaTreeNode) -> None:
    """Link a member's neighbours with each other, and clear the member's links."""
    newer, older = node.prev, node.next
    assert newer is not None
    assert older is not None
    newer.next, older.prev = older, newer
    node.prev = node.next = None


def _cut_state(node: MambaTreeNode) -> None:
    newer, older = node.mamba_prev, node.mamba_next
    assert newer is not None
    assert older is not None
    newer.mamba_next, older.mamba_prev = older, newer
    node.mamba_prev = node.mamba_next = None


def _move_any(newest: MambaTreeNode, oldest: MambaTreeNode, newer: MambaTreeNode) -> None:
    """Move a stretch of members behind ``newer``, which is outside it, and close the gap."""
    older = newer.next
    if older is newest:
        return
    before, after = newest.prev, oldest.next
    assert before is not None
    assert after is not None
    assert older is not None
    before.next, after.prev = after, before
    newer.next, newest.prev = newest, newer
    older.prev, oldest.next = oldest, older


def _move_states(newest: MambaTreeNode, oldest: MambaTreeNode, newer: MambaTreeNode) -> None:
    older = newer.mamba_next
    if older is newest:
        return
    before, after = newest.mamba_prev, oldest.mamba_next
    assert before is not None
    assert after is not None
    assert older is not None
    before.mamba_next, after.mamba_prev = after, before
    newer.mamba_next, newest.mamba_prev = newest, newer
    older.mamba_prev, oldest.mamba_next = oldest, older
