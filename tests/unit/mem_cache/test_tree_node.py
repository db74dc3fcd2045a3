"""`TreeNode` on its own: order, and what it says of itself."""

from __future__ import annotations

import pytest
import torch

from pymllm.mem_cache import RadixKey, TreeNode


def _node(access: float, depth: int) -> TreeNode:
    node = TreeNode()
    node.last_access_time, node._depth = access, depth
    return node


@pytest.mark.parametrize(("older", "younger"), [((1, 9), (2, 3)), ((2, 3), (2, 4))])
def test_order_is_access_then_depth(older: tuple[float, int], younger: tuple[float, int]) -> None:
    """R8: the access number decides, and the depth among nodes of one access."""
    assert _node(*older) < _node(*younger)
    assert not _node(*younger) < _node(*older)


def test_node_without_slots_is_evicted() -> None:
    """A node has left its cache when its slots are gone."""
    node = TreeNode()
    assert node.evicted
    node.value = torch.tensor([1])
    assert not node.evicted


def test_description_names_locks_and_tombstone() -> None:
    """`describe` shows what a reader of the printed tree looks for."""
    node = _node(7.0, 2)
    node.key, node.lock_ref = RadixKey([5, 6], "lora"), 2
    assert node.describe() == "#1 RadixKey(5, 6; extra_key='lora') last_access_time=7 lock_ref=2"
    node.swa_lock_ref, node.swa_tombstone = 1, True
    assert node.describe().endswith("lock_ref=2 tombstone swa_lock_ref=1")


def test_repr_is_short() -> None:
    """`repr` tells a node by id and size, whatever its key."""
    assert repr(_node(1.0, 4)) == "TreeNode(id=1, tokens=0, depth=4, lock_ref=0)"


def test_recency_is_compared_among_nodes_only() -> None:
    """X1, R8: a number has no recency."""
    with pytest.raises(TypeError, match="not supported between"):
        TreeNode() < 3  # type: ignore[operator]  # noqa: B015
