"""What the nodes of all trees have in common, seen on each kind."""

from __future__ import annotations

import pytest
import torch

from pymllm.mem_cache import MambaTreeNode, TreeNode
from pymllm.mem_cache.base_tree_node import BaseTreeNode

Kind = type[TreeNode] | type[MambaTreeNode]

each_kind = pytest.mark.parametrize("kind", [TreeNode, MambaTreeNode])


def make_node(kind: Kind, access: float, depth: int) -> BaseTreeNode:
    node = kind()
    node.last_access_time, node._depth = access, depth
    return node


@each_kind
@pytest.mark.parametrize(("older", "younger"), [((1, 9), (2, 3)), ((2, 3), (2, 4))])
def test_order_is_access_then_depth(kind: Kind, older: tuple[float, int], younger: tuple[float, int]) -> None:
    """R8: the access number decides, and the depth among nodes of one access."""
    assert make_node(kind, *older) < make_node(kind, *younger)
    assert not make_node(kind, *younger) < make_node(kind, *older)
    assert not make_node(kind, *older) < make_node(kind, *older)


@pytest.mark.parametrize(
    ("one", "other"), [(TreeNode(), 3), (MambaTreeNode(), 3), (TreeNode(), MambaTreeNode())]
)
def test_recency_is_compared_among_nodes_of_one_kind_only(one: BaseTreeNode, other: object) -> None:
    """X1, R8: a number has no recency, and a node of another cache one by another clock."""
    with pytest.raises(TypeError, match="not supported between"):
        one < other  # type: ignore[operator]  # noqa: B015
    with pytest.raises(TypeError, match="not supported between"):
        other < one  # type: ignore[operator]  # noqa: B015


@each_kind
def test_node_without_slots_is_evicted(kind: Kind) -> None:
    """A node has left its cache when its slots are gone."""
    node = kind()
    assert node.evicted
    node.value = torch.tensor([1])
    assert not node.evicted


@each_kind
def test_a_new_node_has_every_field_of_its_own(kind: Kind) -> None:
    """X3: no field is left for a later read to trip over, and no two nodes share their children."""
    one, other = kind(), kind()
    for name in BaseTreeNode.__slots__:
        assert hasattr(one, name)
    assert one.children == {}
    assert one.children is not other.children


@each_kind
def test_node_takes_no_other_field(kind: Kind) -> None:
    """Nodes are many and compact: a misspelt field is an error, not a dictionary for each node."""
    with pytest.raises(AttributeError):
        kind().lock_count = 1  # type: ignore[union-attr]
    assert not hasattr(kind(), "__dict__")
