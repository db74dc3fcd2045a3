"""Nodes of each kind on their own: what they have, how they compare, and what they say of themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pymllm.mem_cache import MambaTreeNode, RadixKey, TreeNode
from pymllm.mem_cache.tree.node import BaseTreeNode

Kind = type[TreeNode] | type[MambaTreeNode]

each_kind = pytest.mark.parametrize("kind", [TreeNode, MambaTreeNode])


def make_node(kind: Kind, access: float, depth: int) -> Any:
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
def test_node_takes_no_other_field(kind: Kind) -> None:
    """Nodes are many and compact: a misspelt field is an error, not a dictionary for each node."""
    with pytest.raises(AttributeError):
        kind().lock_count = 1  # type: ignore[union-attr]
    assert not hasattr(kind(), "__dict__")


_NOWHERE = dict.fromkeys(("parent", "key", "value", "hash_values"))
_LINKS = dict.fromkeys(("prev", "next", "mamba_prev", "mamba_next", "mamba_value"))
_UNUSED = {"children": {}, "evicted": True, "hit_count": 0, "lock_ref": 0, "last_access_time": 0.0}


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (TreeNode, {"swa_boundary_id": None, "swa_lock_ref": 0, "swa_tombstone": False}),
        (MambaTreeNode, {"full_lock_ref": 0, "mamba_lock_ref": 0, "mamba_tombstone": False, **_LINKS}),
    ],
)
def test_a_new_node_is_nowhere_and_has_nothing(kind: Kind, own: dict[str, object]) -> None:
    """Whoever builds one finds it as a cache does."""
    node, expected = kind(), {**_NOWHERE, **_UNUSED, **own}
    assert {name: getattr(node, name) for name in expected} == expected


@each_kind
def test_a_key_can_be_set(kind: Kind) -> None:
    """Whoever builds a node of their own gives it an edge."""
    node = kind()
    node.key = key = RadixKey([1, 2])
    assert node.key is key


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


def test_repr_of_a_node_with_a_state_is_short() -> None:
    """`repr` tells a node by id, size, state and locks, whatever its key."""
    node = make_node(MambaTreeNode, 1.0, 4)
    shown = "MambaTreeNode(id=1, tokens=0, depth=4, state={}, full_lock_ref=0, mamba_lock_ref=0)"
    assert repr(node) == shown.format("none")
    node.mamba_value, node._track_slot = torch.tensor([3]), 3
    assert repr(node) == shown.format(3)


def test_a_new_node_holds_no_state() -> None:
    """The documented attributes, before a cache has filed it."""
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
