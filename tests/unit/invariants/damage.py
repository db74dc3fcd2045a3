"""Damage to trackers and trees, written as the statements that do it, and the law that is named for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pymllm.errors import InvariantViolation

__all__ = ["OF_ANY_TREE", "law_of"]

# What can go wrong in the tree of any prefix cache; `it` has the cache over a pool, and a trunk of its tree
# that ends in a held leaf and in a free one, of two pages each.
OF_ANY_TREE = [
    ("it.free.parent = it.cache.root_node", "R9"),
    ("it.free._owner = None", "R9"),
    ("it.free.value = None", "R9"),
    ("it.free.value = it.free.value[1:]", "R9"),
    ("it.trunk.children[b'elsewhere'] = it.trunk.children.pop(it.free._filed_under)", "R9"),
    ("it.free.key = RadixKey(it.free.key.token_ids, 'lora')", "K1"),
    ("it.free.id = it.trunk.id", "X3"),
    ("it.held.hit_count = -1", "R10"),
    ("it.trunk.last_access_time = 1.0", "R8"),
    ("it.tree.evictable_tokens += 2", "R7"),
    ("it.tree.protected_tokens -= 2", "R7"),
    ("it.tree.victims.leaves.discard(it.free)", "R5"),
    ("it.tree.victims.leaves.discard(it.free); it.tree.victims.leaves.add(it.held)", "R5"),
    ("it.free._order = None", "R5"),
    ("it.trunk._only_child = it.free", "R9"),
    ("it.held.hash_values.pop()", "H2"),
    ("it.free.value = it.free.value * torch.tensor([0, 1, 1, 1])", "R9"),
    ("it.free.value = it.held.value.clone()", "R9"),
    ("it.free.value = it.free.value.flip(0)", "R1"),
    ("it.pool.free(it.free.value[:2])", "R9"),
]


def law_of(check: Callable[[Any], object], damaged: Any, message: str | None = None) -> str:
    """The law that a check finds broken, with a message like this, if any."""
    with pytest.raises(InvariantViolation, match=message) as caught:
        check(damaged)
    return caught.value.law
