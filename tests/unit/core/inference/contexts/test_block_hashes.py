"""Hashes of blocks: who gets one, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pymllm.core.inference.contexts.block_forest import BlockForest
from pymllm.core.inference.contexts.block_hashes import BlockHashes, as_hashes
from pymllm.errors import UsageError


def make_hashes(blocks: int = 6) -> BlockHashes:
    forest = BlockForest(np.ones(blocks, np.int32), np.zeros(blocks, np.int64))
    return BlockHashes(blocks, forest)


def test_a_chain_ends_where_a_hash_is_taken() -> None:
    """C3: what follows the twin stays unregistered."""
    hashes = make_hashes()
    hashes.register_chain([0], [10])
    hashes.register_chain([1, 2], [10, 20])
    assert hashes.to_block == {10: 0}
    assert hashes.of_block.tolist() == [10, -1, -1, -1, -1, -1]


def test_a_parent_of_the_same_call_is_meant_before_another_with_its_hash() -> None:
    """C3: by identity, not by equal hashes."""
    hashes = make_hashes()
    hashes.register_below([0, 1], [10, 20], [0, 10])
    hashes.register_below([2, 3], [10, 30], [0, 10])
    assert hashes.to_block == {10: 0, 20: 1}
    hashes.register_below([4], [40], [99])
    assert hashes.to_block == {10: 0, 20: 1}, "nobody has the hash 99"


def test_forgetting_returns_the_hashes_and_never_none() -> None:
    """C3: -1 stands for none and is no hash."""
    hashes = make_hashes()
    hashes.register_chain([0, 1], [10, 20])
    assert hashes.forget([1, 5]) == {20}
    assert hashes.to_block == {10: 0}
    hashes.clear()
    assert hashes.to_block == {}
    assert (hashes.of_block == -1).all()


def test_one_block_has_one_hash() -> None:
    """C3, X1: a second one is refused, be the first registered or of the same call."""
    hashes = make_hashes()
    hashes.register_chain([0], [10])
    hashes.check([0, 1, 1], [10, 20, 20])
    with pytest.raises(UsageError, match="block 0 has hash 10, not 11"):
        hashes.check([0], [11])
    with pytest.raises(UsageError, match="block 1 has hash 20, not 21"):
        hashes.check([1, 1], [20, 21])


@pytest.mark.parametrize(
    ("values", "error"), [([1], ValueError), ([1, 0], ValueError), ([1, 2.5], TypeError), ("ab", TypeError)]
)
def test_hashes_are_positive_integers_one_for_each(values: Any, error: type[Exception]) -> None:
    """C3, X1."""
    with pytest.raises(error):
        as_hashes("hashes", values, 2, lowest=1)


def test_zero_may_stand_for_no_parent() -> None:
    """C3: parent_hashes has 0 for a first block."""
    assert as_hashes("parent_hashes", np.array([0, 7]), 2, lowest=0) == [0, 7]
    assert as_hashes("hashes", [], 0, lowest=1) == []
