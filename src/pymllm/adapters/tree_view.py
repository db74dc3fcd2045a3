"""What the nodes of a radix tree look like from outside, read from their documented attributes only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymllm.history.operations import Key, Token
from pymllm.history.outcomes import NodeView

__all__ = ["ASTRAY", "path_length", "view_hybrid_node", "view_node", "view_tree"]

ASTRAY = -1
"""Length of a path that spells no prefix of its key, or leads to another root."""


def view_node(node: Any, parent: int | None) -> NodeView:
    """Tell what a `TreeNode` looks like; ``parent`` is its parent's id, ``None`` for a root."""
    # Both are made when they are asked for: once is half of what a look at a node took.
    hashes, key, value = node.hash_values, node.key, node.value
    return NodeView(
        id=node.id,
        parent=parent,
        tokens=tuple(key),
        extra_key=key.extra_key,
        slots=tuple(value.tolist()),
        is_alive=not node.swa_tombstone,
        lock_ref=node.lock_ref,
        swa_lock_ref=node.swa_lock_ref,
        hit_count=node.hit_count,
        last_access=float(node.last_access_time),
        boundary=node.swa_boundary_id,
        page_hashes=None if hashes is None else tuple(hashes),
        kept_bytes=value.untyped_storage().nbytes(),
    )


def view_hybrid_node(node: Any, parent: int | None) -> NodeView:
    """Tell what a `MambaTreeNode` looks like."""
    hashes, key, value, state = node.hash_values, node.key, node.value, node.mamba_value
    return NodeView(
        id=node.id,
        parent=parent,
        tokens=tuple(key),
        extra_key=key.extra_key,
        slots=tuple(value.tolist()),
        lock_ref=node.full_lock_ref,
        hit_count=node.hit_count,
        last_access=float(node.last_access_time),
        page_hashes=None if hashes is None else tuple(hashes),
        kept_bytes=value.untyped_storage().nbytes(),
        state=None if state is None else int(state),
        state_lock_ref=node.mamba_lock_ref,
    )


def view_tree(root: Any, view: Callable[[Any, int | None], NodeView] = view_node) -> tuple[NodeView, ...]:
    """Return every node below a root, parents before their children.

    Parameters
    ----------
    root : object
        Left out itself.
    view : callable
        `view_node` or `view_hybrid_node`.
    """
    views: list[NodeView] = []
    pending: list[tuple[Any, int | None]] = [(child, None) for child in root.children.values()]
    for node, parent in pending:
        views.append(view(node, parent))
        pending += [(child, node.id) for child in node.children.values()]
    return tuple(views)


def path_length(root: Any, node: Any, key: Key) -> int:
    """Return the length of a node's path, whose tokens must begin ``key``'s; `ASTRAY` otherwise."""
    chain = []
    while node is not root:
        if node is None or node.key is None:
            return ASTRAY
        chain.append(node)
        node = node.parent
    length = 0
    for node in reversed(chain):
        tokens: tuple[Token, ...] = tuple(node.key)
        if tokens != key.tokens[length : length + len(tokens)]:
            return ASTRAY
        length += len(tokens)
    return length
