"""Nodes as an implementation shows them, read page by page: what is a well-formed tree, and what is not."""

from __future__ import annotations

from collections.abc import Iterable

from pymllm.history.codec import Record
from pymllm.history.operations import Token
from pymllm.history.outcomes import NodeView
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.prefix_pages import Path, Space

__all__ = ["SeenPage", "SeenTree", "read_nodes"]

_NUMBERS = {int}


class SeenPage(Record, frozen=True):
    """One page of one node: its slots, the node, and which page of the node it is."""

    slots: tuple[int, ...]
    node: NodeView
    number: int


class SeenTree(Record, frozen=True):
    """Every page under its path, and every node under the path at its end."""

    pages: dict[Path, SeenPage]
    ends: dict[Path, NodeView]


def read_nodes(evidence: Evidence, nodes: Iterable[NodeView], page_size: int) -> SeenTree:
    """Walk nodes, parents before their children, and refuse what is no tree (R9, K1, X3, X5)."""
    tree = SeenTree({}, {})
    ends: dict[int, Path] = {}
    for node in nodes:
        if node.id in ends:
            evidence.refuse("X3", "ids of nodes", "distinct ones", f"{node.id} twice")
        end = _end_of(evidence, node, ends)
        ends[node.id], tree.ends[end] = end, node
        _check_shape(evidence, node, page_size)
        first = len(end.tokens) - len(node.tokens)
        for number, length in enumerate(range(first + page_size, len(end.tokens) + 1, page_size)):
            path = end if length == len(end.tokens) else end.upto(length)
            if path in tree.pages:
                evidence.refuse("R9", f"page {path}", "one node that spells it", "two")
            at = number * page_size
            tree.pages[path] = SeenPage(node.slots[at : at + page_size], node, number)
    return tree


def _end_of(evidence: Evidence, node: NodeView, ends: dict[int, Path]) -> Path:
    width = _width_of(node.tokens)
    if width is None:
        evidence.refuse("R9", f"tokens of node {node.id}", "some, of one width", node.tokens)
    space = node.extra_key, width
    if node.parent is None:
        return Path(Space(*space), node.tokens)
    above = ends.get(node.parent)
    if above is None:
        evidence.refuse("R9", f"parent of node {node.id}", "a node that was shown", node.parent)
    if above.space != space:
        evidence.refuse("K1", f"namespace and width of node {node.id}", tuple(above.space), space)
    return above.longer_by(node.tokens)


def _check_shape(evidence: Evidence, node: NodeView, page_size: int) -> None:
    length = len(node.tokens)
    if len(node.slots) != length or length % page_size:
        sizes = f"{length} tokens and {len(node.slots)} slots"
        evidence.refuse("R9", f"node {node.id}", f"as many slots as tokens, in pages of {page_size}", sizes)
    if node.kept_bytes not in (None, 8 * length):
        evidence.refuse("X5", f"bytes that the slots of node {node.id} keep", 8 * length, node.kept_bytes)


def _width_of(tokens: Iterable[Token]) -> int | None:
    """Return the width of tokens; ``None`` where there are none, or several widths."""
    if {*map(type, tokens)} == _NUMBERS:  # as most are
        return 1
    widths = {len(token) if isinstance(token, tuple) else 1 for token in tokens}
    return widths.pop() if len(widths) == 1 else None
