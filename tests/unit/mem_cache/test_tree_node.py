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


def test_a_new_node_holds_nothing() -> None:
    """Section 4: the documented attributes, before a cache has filed it; an alive node has a window."""
    node = TreeNode()
    found = {name: getattr(node, name) for name in ("children", "parent", "value", "key", "hash_values")}
    assert found == {"children": {}, "parent": None, "value": None, "key": None, "hash_values": None}
    counts = [node.lock_ref, node.swa_lock_ref, node.hit_count, node.last_access_time, node.id]
    assert counts == [0, 0, 0, 0.0, 1]
    assert (node.swa_tombstone, node.swa_boundary_id) == (False, None)
