"""States as nodes show them, and the order of the two lists of nodes (M1, M3, M4, M8)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pymllm.history.outcomes import Inspected, NodeView
from pymllm.oracle.prefix_books import PrefixBooks
from pymllm.oracle.prefix_pages import Path
from pymllm.oracle.state_ends import StateEnds

__all__ = ["look_at_states"]


def look_at_states(books: PrefixBooks, ends: StateEnds, shown: Inspected, known: Collection[Path]) -> None:
    """Compare each node's state and its locks, and each list of nodes, with the model.

    Parameters
    ----------
    books : PrefixBooks
        Its nodes have been compared already.
    ends : StateEnds
        The states of its model.
    shown : Inspected
        What was looked at.
    known : collection of Path
        Where nodes ended at the last look.
    """
    nodes, held = books.nodes.ends, [hold.path for hold in books.model.holds.values()]
    for path, node in nodes.items():
        _compare_state(books, ends, path, node, held)
    missing = [path.tokens for path in ends.slots if path not in nodes]
    books.forbid("M1", "states at whose place no node ends", missing)
    with_state = {path: nodes[path] for path in ends.slots if path in nodes}
    _note_splits(books, with_state, known, held)
    _compare_list(books, "full_lru", shown.full_lru, nodes)
    _compare_list(books, "mamba_lru", shown.mamba_lru, with_state)


def _compare_state(
    books: PrefixBooks, ends: StateEnds, path: Path, node: NodeView, held: Sequence[Path]
) -> None:
    expected = ends.slots.get(path)
    locks = 0 if expected is None else held.count(path)
    if node.state != expected:
        law = "M3" if node.state in ends.slots.values() and "M3" in books.laws else "M1"
        books.evidence.refuse(law, f"state at the end of {path.tokens}", expected, node.state)
    if node.state_lock_ref is None:
        return
    if node.state_lock_ref != locks:
        books.evidence.refuse("M4", f"mamba_lock_ref at {path.tokens}", locks, node.state_lock_ref)
    books.count("M4", locks)


def _note_splits(
    books: PrefixBooks, nodes: Mapping[Path, NodeView], known: Collection[Path], held: Sequence[Path]
) -> None:
    """Count the splits since the last look that left a state with the lower half (M3)."""
    for path, node in nodes.items():
        upper = path.upto(len(path.tokens) - len(node.tokens))
        if path in known and upper.tokens and upper not in known:
            books.count("M3")
            books.evidence.meet("a split of a held node leaves its state", held.count(path))


def _compare_list(
    books: PrefixBooks, name: str, ids: Sequence[int] | None, members: Mapping[Path, NodeView]
) -> None:
    """Test that a list has exactly its members, the most recent first (M8)."""
    if ids is None:
        return
    pages = books.model.pages
    # No two nodes are in one place of the order, so ids never decide.
    order = sorted([(pages[path].access, len(path.tokens), node.id) for path, node in members.items()])
    expected = tuple(node for _, _, node in reversed(order))
    if ids != expected and "M8" in books.laws:
        books.evidence.refuse("M8", f"ids in {name}", expected, ids)
    books.count("M8", len(expected) > 1)
