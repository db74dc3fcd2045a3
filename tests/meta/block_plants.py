"""Bugs planted in the allocator of KV blocks and in the index that finds a prompt's blocks."""

from __future__ import annotations

from plant import Plant
from planting import Edit

from pymllm.errors import OwnershipError

__all__ = ["PLANTS"]

_CONTEXTS = "pymllm.core.inference.contexts."
_UNIT = "tests/unit/core/inference/contexts/"
_ALLOCATOR = f"{_CONTEXTS}kv_block_allocator:KVBlockAllocator"
_HASHES = f"{_CONTEXTS}block_hashes:BlockHashes"
_INDEX = f"{_CONTEXTS}prefix_index:PrefixIndex"
_CONTEXT = f"{_CONTEXTS}request_context:RequestContext"
_BLOCK_TESTS = f"{_UNIT}test_kv_block_allocator.py::"
_INDEX_TESTS = f"{_UNIT}test_prefix_index.py::"
_REQUEST_TESTS = f"{_UNIT}test_request_context.py::"

_REFERENCES = (
    Plant(
        "B118",
        ("C1",),
        (
            Edit(
                f"{_ALLOCATOR}.release_memory_blocks",
                "self._ref_counts[given] -= times.astype(np.int32)",
                "self._ref_counts[given] -= 1",
            ),
        ),
        _BLOCK_TESTS + "test_a_block_named_twice_counts_twice",
    ),
    Plant(
        "B119",
        ("C1",),
        (
            Edit(
                f"{_ALLOCATOR}._evict_lru_blocks",
                "self._drop([self._forest.pop_oldest() for _ in range(count)])",
                "oldest = sorted(self._forest._idle, key=lambda block: (self._timestamps[block], block))\n"
                "for block in oldest[:count]:\n"
                "    self._forest._forget(block)\n"
                "self._drop(oldest[:count])",
            ),
        ),
        _BLOCK_TESTS + "test_an_ancestor_is_never_evicted_before_its_descendants",
    ),
    Plant(
        "B133",
        ("C1", "X1"),
        (
            Edit(
                f"{_ALLOCATOR}._as_occupied",
                "(blocks >= self.dummy_block_idx)",
                "(blocks > self.dummy_block_idx)",
            ),
            Edit(
                f"{_ALLOCATOR}._as_occupied", "if is_free.any():", "if is_free[blocks < blocks.max()].any():"
            ),
            Edit(
                f"{_ALLOCATOR}.release_memory_blocks",
                "if short.any():",
                "if short[given < self.dummy_block_idx].any():",
            ),
        ),
        _BLOCK_TESTS + "test_nobody_shares_releases_or_registers_what_is_not_held",
    ),
    Plant(
        "B124",
        ("X2", "C1"),
        (
            Edit(
                f"{_ALLOCATOR}._drop",
                "hashes = self._known.forget(index)",
                "hashes = set(self._known.of_block[index].tolist()) - {NO_HASH}\n"
                "self._observer.run(self.on_blocks_deregistered, blocks, hashes)\n"
                "self._known.forget(index)",
            ),
            Edit(
                f"{_ALLOCATOR}._drop",
                "self._is_free[free] = True",
                "self._is_free[free] = True\nhashes = set()",
            ),
        ),
        _BLOCK_TESTS + "test_an_observer_that_raises_finds_the_books_written",
        system="blocks",
    ),
    Plant(
        "B104",
        ("E3",),
        (
            Edit(
                f"{_CONTEXT}.release",
                "self.kv_block_allocator.release_memory_blocks(live.blocks)",
                "self.kv_block_allocator.release_memory_blocks(live.blocks)\n"
                "self.kv_block_allocator.release_memory_blocks(live.blocks)",
            ),
        ),
        _REQUEST_TESTS + "test_every_exit_gives_everything_back",
        shows_as=OwnershipError,
        system="blocks",
    ),
    Plant(
        "B121",
        ("E3", "X4"),
        (
            Edit(
                f"{_CONTEXT}._match",
                "undo.callback(self.kv_block_allocator.release_memory_blocks, list(blocks))",
                "pass",
            ),
        ),
        _REQUEST_TESTS + "test_a_request_that_finds_no_room_leaves_no_trace",
        system="blocks",
    ),
    Plant(
        "B164",
        ("X6",),
        (
            Edit(
                f"{_CONTEXT}._match",
                "self.kv_block_allocator.retain_memory_blocks(blocks)",
                "new = self._allocate(self._blocks_for(prompt.size) - len(blocks))\n"
                "self.kv_block_allocator.release_memory_blocks(new or [])\n"
                "self.kv_block_allocator.retain_memory_blocks(blocks)",
            ),
        ),
        _REQUEST_TESTS + "test_what_was_found_is_not_evicted_to_make_room",
        shows_as=OwnershipError,
        note="room is made before the match is held, and is empty again when it is used",
        system="blocks",
    ),
)

_INDEXED = (
    Plant(
        "B122",
        ("C1", "C3"),
        (
            Edit(
                f"{_HASHES}._register",
                "if hash_value in self.to_block or (",
                "if self.to_block.get(hash_value, block) != block or (",
            ),
        ),
        _BLOCK_TESTS + "test_registering_again_changes_nothing",
    ),
    Plant(
        "B125",
        ("C1", "C3"),
        (Edit(f"{_HASHES}.forget", "del self.to_block[hash_value]", "pass"),),
        _BLOCK_TESTS + "test_eviction_takes_the_oldest_and_the_lowest_id_among_equals",
    ),
    Plant(
        "B127",
        ("C3",),
        (
            Edit(
                f"{_HASHES}._register",
                "if hash_value in self.to_block or (parent != NO_BLOCK and parent not in self._forest):",
                "if parent != NO_BLOCK and parent not in self._forest:",
            ),
            Edit(
                f"{_HASHES}._register",
                "self.to_block[hash_value] = block",
                "self.to_block.setdefault(hash_value, block)",
            ),
        ),
        _BLOCK_TESTS + "test_first_registration_of_a_hash_wins",
        note="the second block counts as cached, but the index does not have it",
    ),
    Plant(
        "B130",
        ("C3",),
        (
            Edit(
                f"{_CONTEXT}.add_request",
                "self._live_by_id[id(req)] = live",
                "self._live_by_id[id(req)] = live\nself._index.register(live, prompt.size)",
            ),
        ),
        _UNIT + "test_dynamic_context.py::test_nothing_is_registered_before_it_is_computed",
    ),
    Plant(
        "B131",
        ("C3",),
        (
            Edit(f"{_ALLOCATOR}._drop", "hashes = self._known.forget(index)", "hashes = set()"),
            Edit(f"{_INDEX}.match", "if not np.array_equal(self._tokens[block], page):", "if False:"),
        ),
        _INDEX_TESTS + "test_a_block_that_is_taken_again_is_no_hit_any_more",
    ),
    Plant(
        "B136",
        ("C3",),
        (
            Edit(
                f"{_CONTEXTS}prefix_index:block_hash",
                "hash_to_int64(digest) & _LARGEST",
                "hash_to_int64(digest) & 0xFF",
            ),
        ),
        _INDEX_TESTS + "test_whole_blocks_are_registered_under_the_chain_of_their_pages",
        system="blocks",
    ),
    Plant(
        "B137",
        ("C3",),
        (Edit(f"{_INDEX}.match", "if not np.array_equal(self._tokens[block], page):", "if False:"),),
        _INDEX_TESTS + "test_an_equal_hash_is_no_hit",
    ),
    Plant(
        "B143",
        ("C3",),
        (
            Edit(f"{_INDEX}.match", "digests[-1] if digests else None", "None"),
            Edit(f"{_INDEX}.register", "live.page_hashes[-1] if place else None", "None"),
        ),
        _INDEX_TESTS + "test_whole_blocks_are_registered_under_the_chain_of_their_pages",
        system="blocks",
    ),
)

PLANTS = (*_REFERENCES, *_INDEXED)
