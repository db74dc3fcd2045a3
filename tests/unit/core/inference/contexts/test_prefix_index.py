"""Hashes of blocks, matching by them, and being sure: parents and tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator
from pymllm.core.inference.contexts.live_request import LiveRequest
from pymllm.core.inference.contexts.prefix_index import HashPage, PrefixIndex, block_hash
from pymllm.mem_cache.base_prefix_cache import hash_to_int64, hash_token_ids


def make_index(hash_page: HashPage | None = None, **options: Any) -> tuple[KVBlockAllocator, PrefixIndex]:
    allocator = KVBlockAllocator(SimpleNamespace(prefix_cache_lru_clock=0), 12, **options)
    return allocator, PrefixIndex(allocator, 2, hash_page)


def compute(allocator: KVBlockAllocator, index: PrefixIndex, tokens: list[int]) -> LiveRequest:
    """Let a request compute all of its prompt in blocks of its own."""
    blocks = allocator.allocate_memory_blocks(-(-len(tokens) // 2))
    assert blocks is not None
    live = LiveRequest(object(), np.array(tokens, np.uint32), blocks.tolist(), [])
    index.register(live, len(tokens))
    return live


def match(index: PrefixIndex, tokens: list[int]) -> list[int]:
    return index.match(np.array(tokens, np.uint32))[0]


@pytest.mark.parametrize(
    ("digest", "expected"), [("0" * 16, 1), ("8" + "0" * 15, 1), ("f" * 16, 2**63 - 1), ("0" * 15 + "5", 5)]
)
def test_a_block_hash_is_positive(digest: str, expected: int) -> None:
    """C3: 0 becomes 1, the sign goes."""
    assert block_hash(digest) == expected


@pytest.mark.notices("B136-blocks", "B143-blocks")
def test_whole_blocks_are_registered_under_the_chain_of_their_pages() -> None:
    """C3, H1: as `hash_token_ids` chains them."""
    allocator, index = make_index()
    live = compute(allocator, index, [1, 2, 3, 4, 5])
    first = hash_token_ids([1, 2])
    hashes = [hash_to_int64(first), hash_to_int64(hash_token_ids([3, 4], first))]
    assert [int(h) for h in allocator.block_hashes[live.blocks]] == [h & (2**63 - 1) for h in hashes] + [-1]
    assert match(index, [1, 2, 3, 4, 9, 9]) == live.blocks[:2]
    assert match(index, [1, 2, 3, 5]) == live.blocks[:1]
    assert match(index, [3, 4]) == []
    assert match(index, [1]) == []
    assert index.match(np.array([1, 2, 3], np.uint32))[1] == [first]


@pytest.mark.parametrize("length", range(1, 8))
def test_only_whole_blocks_are_hashed(length: int) -> None:
    """C3: a hash of the caller's own is never asked for a part of a block."""
    hashed: list[list[int]] = []

    def hash_page(page: Any, prior: str | None) -> str:
        hashed.append(page.tolist())
        return hash_token_ids(page, prior)

    allocator, index = make_index(hash_page)
    blocks = compute(allocator, index, [1, 2, 3, 4, 5, 6]).blocks
    tokens = [1, 2, 3, 4, 5, 6, 7][:length]
    hashed.clear()
    assert match(index, tokens) == blocks[: length // 2]
    assert hashed == [tokens[start : start + 2] for start in range(0, length - 1, 2)]


def test_a_page_whose_hash_is_taken_in_the_same_call_ends_the_chain() -> None:
    """C3: what follows it later is not registered below the block that has its hash."""
    allocator, index = make_index(lambda tokens, prior: f"{int(tokens[0]):016x}")
    live = compute(allocator, index, [1, 2, 1, 3])
    live.generated = [4, 5]
    live.blocks.append(9)
    allocator.allocate_memory_blocks(9)
    index.register(live, 6)
    assert allocator.kv_hash_to_block_id == {1: live.blocks[0]}
    assert match(index, [1, 2, 4, 5]) == live.blocks[:1]


@pytest.mark.notices("B137")
@pytest.mark.parametrize("prompt", [[7, 8], [1, 2, 7, 8], [3, 4]])
def test_an_equal_hash_is_no_hit(prompt: list[int]) -> None:
    """C3: with one hash for everything, the tokens and the parent still have to agree."""
    allocator, index = make_index(lambda tokens, prior: "1" * 16 if prior is None else "2" * 16)
    live = compute(allocator, index, [1, 2, 3, 4])
    assert match(index, [1, 2, 3, 4]) == live.blocks
    assert match(index, prompt) == live.blocks[: 1 if prompt[:2] == [1, 2] else 0]


@pytest.mark.notices("B280-requests")
def test_the_blocks_of_a_later_chunk_are_found_behind_the_earlier_ones() -> None:
    """C3: the parent of the first one is the block before it, which was registered long ago."""
    allocator, index = make_index()
    live = compute(allocator, index, [1, 2, 3, 4])
    live.generated = [5, 6]
    live.blocks += allocator.allocate_memory_blocks(1).tolist()
    index.register(live, 6)
    assert match(index, [1, 2, 3, 4, 5, 6]) == live.blocks


@pytest.mark.notices("B131")
def test_a_block_that_is_taken_again_is_no_hit_any_more() -> None:
    """C3, C1: neither under its old hash nor by its old tokens."""
    allocator, index = make_index()
    live = compute(allocator, index, [1, 2, 3, 4])
    allocator.release_memory_blocks(live.blocks)
    assert match(index, [1, 2, 3, 4]) == live.blocks
    assert allocator.allocate_memory_blocks(11) is not None
    assert match(index, [1, 2, 3, 4]) == []
