"""What can go wrong in the tree of any prefix cache, each with the law that it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from pymllm.mem_cache import RadixKey

__all__ = ["OF_ANY_TREE", "Family"]


class Family(Protocol):
    """A cache over a pool: a trunk that ends in a held leaf and in a free one, of two pages each."""

    pool: Any
    cache: Any
    trunk: Any
    held: Any
    free: Any

    @property
    def tree(self) -> Any:
        """The cache's tree."""


def name_another_parent(it: Family) -> None:
    it.free.parent = it.cache.root_node


def mark_as_gone(it: Family) -> None:
    it.free._owner = None


def empty_a_node(it: Family) -> None:
    it.free.value = None


def drop_a_slot(it: Family) -> None:
    it.free.value = it.free.value[1:]


def file_elsewhere(it: Family) -> None:
    it.trunk.children[b"elsewhere"] = it.trunk.children.pop(it.free._filed_under)


def change_the_namespace(it: Family) -> None:
    it.free.key = RadixKey(it.free.key.token_ids, "lora")


def reuse_an_id(it: Family) -> None:
    it.free.id = it.trunk.id


def miscount_the_hits(it: Family) -> None:
    it.held.hit_count = -1


def make_a_child_younger(it: Family) -> None:
    it.trunk.last_access_time = 1.0


def miscount_evictable(it: Family) -> None:
    it.tree.evictable_tokens += 2


def miscount_protected(it: Family) -> None:
    it.tree.protected_tokens -= 2


def forget_a_leaf(it: Family) -> None:
    it.tree.victims.leaves.discard(it.free)


def confuse_two_leaves(it: Family) -> None:
    it.tree.victims.leaves.discard(it.free)
    it.tree.victims.leaves.add(it.held)


def deny_that_a_leaf_waits(it: Family) -> None:
    it.free._order = None


def pass_a_child_off_as_the_only_one(it: Family) -> None:
    it.trunk._only_child = it.free


def lose_a_hash(it: Family) -> None:
    it.held.hash_values.pop()


def hold_padding(it: Family) -> None:
    it.free.value = it.free.value * torch.tensor([0, 1, 1, 1])


def hold_a_slot_twice(it: Family) -> None:
    it.free.value = it.held.value.clone()


def swap_slots_of_a_page(it: Family) -> None:
    it.free.value = it.free.value.flip(0)


def free_a_cached_slot(it: Family) -> None:
    it.pool.free(it.free.value[:2])


OF_ANY_TREE: list[tuple[str, Callable[[Any], None]]] = [
    ("R9", name_another_parent),
    ("R9", mark_as_gone),
    ("R9", empty_a_node),
    ("R9", drop_a_slot),
    ("R9", file_elsewhere),
    ("K1", change_the_namespace),
    ("X3", reuse_an_id),
    ("R10", miscount_the_hits),
    ("R8", make_a_child_younger),
    ("R7", miscount_evictable),
    ("R7", miscount_protected),
    ("R5", forget_a_leaf),
    ("R5", confuse_two_leaves),
    ("R5", deny_that_a_leaf_waits),
    ("R9", pass_a_child_off_as_the_only_one),
    ("H2", lose_a_hash),
    ("R9", hold_padding),
    ("R9", hold_a_slot_twice),
    ("R1", swap_slots_of_a_page),
    ("R9", free_a_cached_slot),
]
