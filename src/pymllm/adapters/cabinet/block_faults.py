"""Faults of the allocator of KV blocks, and of the index that finds a prompt's blocks."""

from __future__ import annotations

from pymllm.adapters.cabinet.bugs import plant
from pymllm.adapters.cabinet.planting import Edit

__all__ = ["FAULTS"]

_CONTEXTS = "pymllm.core.inference.contexts."
_ALLOCATOR = f"{_CONTEXTS}kv_block_allocator:KVBlockAllocator"
_HASHES = f"{_CONTEXTS}block_hashes:BlockHashes"
_INDEX = f"{_CONTEXTS}prefix_index:PrefixIndex"
_CONTEXT = f"{_CONTEXTS}request_context:RequestContext"

_REFERENCES = (
    plant(
        "B118",
        ("C1", "X6"),  # an observer that raises is told of a block that the books still have
        ("blocks",),
        (
            Edit(
                f"{_ALLOCATOR}._plan_release",
                "left = (self._ref_counts[given] - times).astype(np.int32)",
                "left = self._ref_counts[given] - 1",
            ),
        ),
    ),
    plant(
        "B119",
        ("C1",),
        ("blocks", "requests"),
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
    ),
    plant(
        "B133",
        ("C1", "E4", "C3"),  # C3: they can be registered, too
        ("blocks", "requests"),
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
                f"{_ALLOCATOR}._plan_release",
                "if short.any():",
                "if short[given < self.dummy_block_idx].any():",
            ),
        ),
    ),
    plant(
        "B124-blocks",
        ("X6", "C6", "C1"),
        ("blocks", "requests"),
        (
            Edit(
                f"{_ALLOCATOR}._drop",
                "hashes = self._known.forget(blocks)",
                "hashes = set(self._known.of_block[blocks].tolist()) - {NO_HASH}\n"
                "self._observer.run(self.on_blocks_deregistered, blocks, hashes)\n"
                "self._known.forget(blocks)\n"
                "hashes = set()",
            ),
        ),
    ),
    plant(
        "B104-blocks",
        ("E3",),
        ("requests",),
        (
            Edit(
                f"{_CONTEXT}.release",
                "self.kv_block_allocator._give_back(given_back)",
                "self.kv_block_allocator._give_back(given_back)\n"
                "self.kv_block_allocator.release_memory_blocks(live.blocks)",
            ),
        ),
    ),
    plant(
        "B121-blocks",
        ("X4", "C1", "X2", "E3"),
        ("requests",),
        (
            Edit(
                f"{_CONTEXT}._match",
                "undo.callback(self.kv_block_allocator._let_go, blocks)",
                "pass",
            ),
        ),
    ),
    plant(
        "B164-blocks",
        ("X6", "C1"),
        ("requests",),
        (
            Edit(
                f"{_CONTEXT}._match",
                "self.kv_block_allocator.retain_memory_blocks(blocks)",
                "new = self._allocate(self._blocks_for(prompt.size) - len(blocks))\n"
                "self.kv_block_allocator.release_memory_blocks(new or [])\n"
                "self.kv_block_allocator.retain_memory_blocks(blocks)",
            ),
        ),
        note="room is made before the match is held, and is empty again when it is used",
    ),
)

_INDEXED = (
    plant(
        "B122",
        ("C1", "C3", "C6"),  # C6: nobody is told of the children that it forgets
        ("blocks", "requests"),
        (
            Edit(
                f"{_HASHES}._register",
                "if hash_value in self.to_block or (",
                "if self.to_block.get(hash_value, block) != block or (",
            ),
        ),
    ),
    plant(
        "B125",
        ("C1", "C3", "X2"),
        ("blocks", "requests"),
        (Edit(f"{_HASHES}.forget", "del self.to_block[hash_value]", "pass"),),
    ),
    plant(
        "B127",
        ("C3", "C1"),
        ("blocks", "requests"),
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
        note="the second block counts as cached, but the index does not have it",
    ),
    plant(
        "B130",
        ("C3", "E4"),
        ("requests",),
        (
            Edit(
                f"{_CONTEXT}.add_request",
                "self._live_by_id[id(req)] = live",
                "self._live_by_id[id(req)] = live\nself._index.register(live, prompt.size)",
            ),
        ),
    ),
    plant(
        "B131",
        ("C3", "C6"),
        ("blocks", "requests"),
        (
            Edit(f"{_ALLOCATOR}._drop", "hashes = self._known.forget(blocks)", "hashes = set()"),
            Edit(
                f"{_INDEX}.match",
                "found = len(blocks) if is_same.all() else int(is_same.argmin())",
                "found = len(blocks)",
            ),
        ),
    ),
    plant(
        "B136-blocks",
        ("C3",),
        ("blocks", "requests"),
        (
            Edit(
                f"{_CONTEXTS}prefix_index:block_hash",
                "hash_to_int64(digest) & _LARGEST",
                "hash_to_int64(digest) & 0xFF",
            ),
        ),
    ),
    plant(
        "B137",
        ("C3", "X4"),  # with a wrong hit a request fits where there is no room
        ("requests",),
        (
            Edit(
                f"{_INDEX}.match",
                "found = len(blocks) if is_same.all() else int(is_same.argmin())",
                "found = len(blocks)",
            ),
        ),
        settings={"hash_digits": 1},
    ),
    plant(
        "B143-blocks",
        ("C3",),
        ("blocks", "requests"),
        (
            Edit(f"{_INDEX}.match", "digests[-1] if digests else None", "None"),
            Edit(f"{_INDEX}.register", "live.page_hashes[-1] if place else None", "None"),
        ),
    ),
)

FAULTS = (*_REFERENCES, *_INDEXED)
