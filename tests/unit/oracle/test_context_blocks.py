"""Blocks of a context: free, referenced or cached, found by content, and evicted from the leaves."""

from __future__ import annotations

from pymllm.oracle.cold_runs import ColdRuns, Prefix
from pymllm.oracle.context_blocks import ContextBlocks


def prefixes(*tokens: int) -> list[Prefix]:
    found: list[Prefix] = []
    COLD.extend(found, tokens)
    return found


COLD = ColdRuns(1, 0, 0)
ONE, TWO, THREE = prefixes(1, 2, 3)
OTHER = prefixes(9)[0]


def chain(keeps: bool = True) -> ContextBlocks:
    """Blocks 0, 1 and 2 hold 1, 2, 3; block 3 holds 9."""
    blocks = ContextBlocks(6, keeps)
    blocks.retain((0, 1, 2))
    for block, prefix in enumerate((ONE, TWO, THREE)):
        blocks.register(block, prefix, block - 1 if block else None)
    blocks.retain((3,))
    blocks.register(3, OTHER, None)
    return blocks


def test_released_blocks_are_cached_and_go_children_first() -> None:
    """C1: in the order of their release; a parent only after its children."""
    blocks = chain()
    assert (blocks.free, blocks.room(), blocks.room((0,))) == (2, 2, 2)
    assert blocks.release((0, 1, 2)) == []
    assert blocks.release((3,)) == []
    assert (blocks.free, blocks.room(), blocks.room((0, 1))) == (2, 6, 4)
    assert blocks.victims(4) == [2, 1, 0, 3]
    blocks.retain((0,))
    assert blocks.victims(3) == [2, 1, 3]
    blocks.forget((2, 1))
    assert (blocks.free, blocks.is_free(2), blocks.is_free(0), blocks.is_free(3)) == (4, True, False, False)


def test_ref_zero_frees_what_nobody_references() -> None:
    """C1: at once, and what is shared stays."""
    blocks = chain(keeps=False)
    blocks.retain((0,))
    assert blocks.release((0, 1, 2)) == [1, 2]
    assert blocks.find([ONE, TWO]) == [0]
    assert blocks.release((0,)) == [0]
    assert blocks.find([ONE]) == []


def test_a_block_without_a_hash_is_free_after_its_last_reference() -> None:
    """C1: nothing is known of it."""
    blocks = ContextBlocks(2, True)
    blocks.retain((0, 0))
    assert blocks.release((0,)) == []
    assert blocks.release((0,)) == [0]
    assert not blocks.is_free(2)
    assert not blocks.is_free(-1)


def test_a_hit_needs_the_tokens_and_the_very_parent() -> None:
    """C3: a hash that collides is not enough."""
    blocks = chain()
    assert blocks.find([ONE, TWO, THREE]) == [0, 1, 2]
    assert blocks.find([TWO]) == []
    weak = ColdRuns(1, 0, 0, hash_digits=1)
    known: dict[str, Prefix] = {}
    for token in range(40):
        found: list[Prefix] = []
        weak.extend(found, (token,))
        twin = known.setdefault(found[0].digest, found[0])
        if twin is not found[0]:
            blocks = ContextBlocks(2, True)
            blocks.retain((0,))
            blocks.register(0, twin, None)
            assert blocks.by_hash[found[0].hash] == 0
            assert blocks.find(found) == []
            return
    raise AssertionError("40 tokens have 16 hashes")
