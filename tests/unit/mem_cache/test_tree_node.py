"""`TreeNode` on its own: what it says of itself."""

from __future__ import annotations

from pymllm.mem_cache import RadixKey, TreeNode


def _node(access: float, depth: int) -> TreeNode:
    node = TreeNode()
    node.last_access_time, node._depth = access, depth
    return node


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
