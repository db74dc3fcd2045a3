"""Nodes that are no tree."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pymllm.errors import InvariantViolation
from pymllm.history.outcomes import NodeView
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.node_views import SeenPage, read_nodes
from pymllm.oracle.prefix_pages import Path, Space

UPPER = NodeView(1, None, (7, 7, 8, 8), "a", (2, 3, 4, 5), kept_bytes=32)
LOWER = NodeView(2, 1, (9, 9), "a", (6, 7))


def test_pages_and_ends_are_found_by_their_paths() -> None:
    """R9: a path is the whole prefix from the root."""
    tree = read_nodes(Evidence(), [UPPER, LOWER], 2)
    whole = Path(Space("a"), (7, 7, 8, 8, 9, 9))
    assert tree.ends == {whole.upto(4): UPPER, whole: LOWER}
    assert tree.pages == {
        whole.upto(2): SeenPage((2, 3), UPPER, 0),
        whole.upto(4): SeenPage((4, 5), UPPER, 1),
        whole: SeenPage((6, 7), LOWER, 0),
    }


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"id": 1}, "X3"),
        ({"parent": 5}, "R9"),
        ({"tokens": ()}, "R9"),
        ({"tokens": (9, (9, 9))}, "R9"),
        ({"tokens": (9,)}, "R9"),
        ({"tokens": (9, 9, 9), "slots": (6, 7, 8)}, "R9"),
        ({"slots": (6,)}, "R9"),
        ({"parent": None, "tokens": (7, 7)}, "R9"),
        ({"extra_key": None}, "K1"),
        ({"tokens": ((9, 9), (9, 9))}, "K1"),
        ({"kept_bytes": 48}, "X5"),
    ],
)
def test_what_is_no_tree_is_refused(changes: dict[str, Any], law: str) -> None:
    """R9, K1, X3, X5: whole pages, one node each, below a parent of the same namespace."""
    with pytest.raises(InvariantViolation) as refused:
        read_nodes(Evidence(), [UPPER, dataclasses.replace(LOWER, **changes)], 2)
    assert refused.value.law == law


@pytest.mark.parametrize("tokens", [(), (9, (9, 9))])
def test_a_node_without_a_width_is_named(tokens: tuple[Any, ...]) -> None:
    """R9: with what it has."""
    with pytest.raises(InvariantViolation) as refused:
        read_nodes(Evidence(), [UPPER, dataclasses.replace(LOWER, tokens=tokens)], 2)
    assert refused.value.message == "tokens of node 2"
    assert (refused.value.expected, refused.value.observed) == ("some, of one width", str(tokens))
