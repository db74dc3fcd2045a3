"""`MambaTreeNode` on its own: what it has, and what it says of itself."""

from __future__ import annotations

import torch

from pymllm.mem_cache import MambaTreeNode, RadixKey


def make_node(access: float, depth: int) -> MambaTreeNode:
    node = MambaTreeNode()
    node.last_access_time, node._depth = access, depth
    return node


def test_tombstone_has_slots_and_no_state() -> None:
    """M5: neither an evicted node nor one with a state is a tombstone."""
    node = MambaTreeNode()
    assert not node.mamba_tombstone
    node.value = torch.tensor([1])
    assert node.mamba_tombstone
    node.mamba_value = torch.tensor([0])
    assert not node.mamba_tombstone


def test_track_slot_becomes_a_tensor_when_asked_for() -> None:
    """M1: int64 of shape (1,), made once; None without a state."""
    node = MambaTreeNode()
    assert node.mamba_value is None
    node._track_slot = 7
    value = node.mamba_value
    assert value is node.mamba_value
    assert value is not None
    assert (value.dtype, value.tolist()) == (torch.int64, [7])


def test_track_slot_is_where_the_slots_are() -> None:
    """M1: on the allocator's device; one without memory stands in for another one."""
    node = MambaTreeNode()
    node.value, node._track_slot = torch.empty(2, dtype=torch.int64, device="meta"), 7
    assert node.mamba_value is not None
    assert node.mamba_value.device.type == "meta"


def test_assigned_state_is_the_nodes_track_slot() -> None:
    """M1: what is given by hand counts in both forms, None takes the state away."""
    node = MambaTreeNode()
    node.mamba_value = torch.tensor([5])
    assert node._track_slot == 5
    node.mamba_value = None
    assert node._track_slot is None


def test_tree_and_cache_count_one_lock() -> None:
    """R6: what the shared tree counts as lock_ref is full_lock_ref itself, not a copy of it."""
    node = MambaTreeNode()
    node.lock_ref += 2
    assert node.full_lock_ref == 2
    node.full_lock_ref -= 1
    assert node.lock_ref == 1


def test_description_names_locks_and_state() -> None:
    """`describe` shows what a reader of the printed tree looks for, a state only where there is one."""
    node = make_node(7.0, 2)
    node.key, node.full_lock_ref = RadixKey([5, 6], "lora"), 2
    assert node.describe() == "#1 RadixKey(5, 6; extra_key='lora') last_access_time=7 full_lock_ref=2"
    node.mamba_value, node._track_slot, node.mamba_lock_ref = torch.tensor([9]), 9, 1
    assert node.describe().endswith("full_lock_ref=2 state=9 mamba_lock_ref=1")


def test_repr_is_short() -> None:
    """`repr` tells a node by id, size, state and locks, whatever its key."""
    node = make_node(1.0, 4)
    shown = "MambaTreeNode(id=1, tokens=0, depth=4, state={}, full_lock_ref=0, mamba_lock_ref=0)"
    assert repr(node) == shown.format("none")
    node.mamba_value, node._track_slot = torch.tensor([3]), 3
    assert repr(node) == shown.format(3)


def test_a_new_node_holds_nothing() -> None:
    """Section 7: the documented attributes, before a cache has filed it."""
    node = MambaTreeNode()
    found = {name: getattr(node, name) for name in ("children", "parent", "value", "key", "hash_values")}
    assert found == {"children": {}, "parent": None, "value": None, "key": None, "hash_values": None}
    counts = [node.full_lock_ref, node.mamba_lock_ref, node.hit_count, node.last_access_time, node.id]
    assert counts == [0, 0, 0, 0.0, 1]
    assert (node.mamba_value, node.mamba_tombstone) == (None, False)
    assert [node.prev, node.next, node.mamba_prev, node.mamba_next] == [None] * 4


def test_a_tensor_for_a_known_slot_is_kept_as_it_is() -> None:
    """M7: the number is known, and is not read from a device again."""
    node = MambaTreeNode()
    node._track_slot = 5
    node.mamba_value = given = torch.empty(1, dtype=torch.int64, device="meta")
    assert node.mamba_value is given
    assert node._track_slot == 5
