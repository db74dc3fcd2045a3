"""Faults that were written down in 2026: most of windows, and of what a refusal or a clean-up leaves."""

from __future__ import annotations

from dataclasses import replace

from pymllm.adapters.cabinet.bugs import plant
from pymllm.adapters.cabinet.planting import Edit

__all__ = ["FAULTS"]

_SWA = "pymllm.mem_cache.swa_allocator:SWATokenToKVPoolAllocator"
_CACHE = "pymllm.mem_cache.radix_cache:RadixCache"
_TREE = "pymllm.mem_cache.radix_tree:RadixTree"
_WINDOW = "pymllm.mem_cache.sliding_window:SlidingWindow"
_MEMORY = "pymllm.workloads.engine_memory:EngineMemory"
_CONTEXT = "pymllm.core.inference.contexts.request_context:RequestContext"

_POOLS = (
    plant(
        "B166",
        ("A7", "A6", "A2"),
        ("swa-slots",),
        (
            Edit(
                f"{_SWA}.free_swa",
                "self._swa.give_loosely(halves)",
                "if self._full.group_open:\n"
                "    self.later = [*getattr(self, 'later', ()), pages]\n"
                "    return\n"
                "self._swa.give_loosely(halves)",
            ),
            Edit(
                f"{_SWA}.free_group_end",
                "self._full.end_group_with(self._swa)",
                "later, self.later = getattr(self, 'later', ()), ()\n"
                "for pages in later:\n"
                "    halves = self._half_of[pages]\n"
                "    self._full.forget(self._half_of, pages)\n"
                "    self._swa.give_loosely(halves[halves != 0])\n"
                "self._full.end_group_with(self._swa)",
            ),
        ),
    ),
    plant(
        "B167",
        ("A7", "A6", "A1", "A2"),
        ("swa-slots",),
        (
            Edit(
                f"{_SWA}.free_swa",
                "self._full.forget(self._half_of, pages)",
                "after = pages[-1:] + 1\n"
                "self._full.forget(self._half_of, pages)\n"
                "self._full.forget(self._half_of, after[after < len(self._half_of)])",
            ),
        ),
        note="halves go by whole pages here, so it is the next page's mapping that is erased",
    ),
    plant(
        "B169",
        ("A7",),
        ("swa-slots",),
        (Edit("pymllm.mem_cache.slot_store:SlotStore.free_with", "self.forget(table, pages)", "pass"),),
        note="every allocation gives all of its slots a half, so the old mapping shows while they are free",
    ),
    plant(
        "B181",
        ("P3",),
        ("kv-buffers",),
        (
            Edit(
                "pymllm.mem_cache.kv_pool:KVPool._write_rows",
                "index = index.to(self.device, torch.int64)",
                "index = index.to(self.device, torch.int64)\n"
                "mirrored = index - 2 * (index % self.page_size) + self.page_size - 1\n"
                "index = torch.where(index < self.page_size, index, mirrored)",
            ),
        ),
        settings={"page_size": 4},
        note="there is no move: every write puts the tokens of a page into it backwards",
    ),
    plant(
        "B182",
        # The halves come out of their turn, as if a call before them had changed it.
        ("A7", "A4", "X1", "X4", "X7"),
        ("swa-slots",),
        (
            Edit(
                f"{_SWA}.translate_to_swa",
                "return self._full.slots_at(self._half_of.take(pages), offsets, indices.shape)",
                "raw = indices.to(self.device, torch.int32)\n"
                "return torch.where(raw < self.swa_size + self.page_size, raw, 0)",
            ),
        ),
        note="one rank: the window pool is what has numbers of its own",
    ),
)

_TREES = (
    plant(
        "B175",
        ("H2",),
        ("radix",),
        (
            Edit(
                f"{_TREE}.page_hashes",
                "at.hash_values = _chain(at._raw, len(at._raw) * self.page_size // at._length, prior)",
                "at.hash_values = _chain(at._raw, len(at._raw) * self.page_size // at._length, prior)\n"
                "if above:\n"
                "    above += at.hash_values",
            ),
        ),
        note="the caller that extends the list is the tree, when it hashes a child",
    ),
    plant(
        "B176",
        ("R10",),
        ("radix",),
        (Edit(f"{_CACHE}.match_prefix", "node.hit_count += 1", "pass"),),
        note="eviction goes by recency alone here; R10 counts the hits of each page",
    ),
    plant(
        "B179",
        ("R6", "R7"),
        ("radix",),
        (Edit(f"{_TREE}.hold", "node._holds += 1", "node._holds += 1\nif node._holds > 1:\n    return"),),
        note="the hold that is never taken is the second one at a node",
    ),
    plant(
        "B185",
        ("M2",),
        ("mamba",),
        (
            Edit(
                "pymllm.mem_cache.mamba_radix_cache:MambaRadixCache.match_prefix",
                "last, last._depth, branching)",
                "last, last._depth)",
            ),
        ),
        note="the field is the length at which prompts part",
    ),
    plant(
        "B193",
        ("S1", "R2", "S7"),
        ("radix-window",),
        (
            Edit(
                f"{_WINDOW}.usable_part",
                "if from_root or run >= self.size:",
                "if from_root or run >= self.size + self.tree.page_size:",
            ),
            Edit(
                f"{_WINDOW}.usable_part",
                "run + walk.shared >= self.size):",
                "run + walk.shared >= self.size + self.tree.page_size):",
            ),
        ),
        note="no draft model: a lookup asks for one page more than a window",
    ),
    plant(
        "B194",
        ("R2",),
        ("radix",),
        (
            Edit(
                f"{_CACHE}.match_prefix",
                "walk = tree.walk(PagedKey.of(key, self.page_size))",
                "PagedKey.of(key, self.page_size)\n"
                "shorter = type(key)(key.token_ids[:-1], key.extra_key)\n"
                "walk = tree.walk(PagedKey.of(shorter, self.page_size))",
            ),
        ),
        settings={"page_size": 4},
        note="one token is dropped before the key is cut down to whole pages",
    ),
    plant(
        "B200",
        ("S5", "S6"),
        ("radix-window",),
        (
            Edit(
                f"{_WINDOW}.release",
                "for covered in self._window_of(node):",
                "covered_nodes = self._window_of(node)\n"
                "if node._depth > self.span and len(covered_nodes) > 1:\n"
                "    del covered_nodes[-1]\n"
                "for covered in covered_nodes:",
            ),
        ),
        note="what stays is the window lock of the node at the window's far end",
    ),
)

_ENGINES = (
    plant(
        "B170",
        ("E4", "S3"),
        ("radix-window",),
        (
            Edit(
                f"{_MEMORY}.allocate",
                "self.probe.evict(max(0, tokens - full), swa_short, payers)",
                "self.probe.evict(max(0, tokens - full, swa_short), 0, payers)",
            ),
        ),
        settings={"pool": "swa"},
    ),
    plant(
        "B172",
        ("E2", "E3", "A5"),
        ("radix-window",),
        (
            Edit(
                f"{_MEMORY}._follow",
                "self.pools.rows.write((live.row, slice(held, match.prefix_len)), match.indices[held:])",
                "if min(result.prefix_len, live.queried_length) <= held:\n"
                "    self.pools.rows.write((live.row, slice(held, match.prefix_len)), match.indices[held:])",
            ),
        ),
        settings={"pool": "swa"},
    ),
    plant(
        "B173",
        ("R6", "E3", "E2"),
        ("radix",),
        (
            Edit(
                f"{_MEMORY}.match_and_hold",
                "live.lock_token = self.probe.lock(match.last_node, live.times)",
                "is_whole = match.prefix_len == live.queried_length\n"
                "live.lock_token = None if is_whole else self.probe.lock(match.last_node, live.times)",
            ),
        ),
        note="the request that takes no hold is the one that hits as much as it may",
    ),
    plant(
        "B178",
        ("E2", "R4", "E3", "A5", "R9"),  # R9: what is freed is in the tree, for whoever walks it
        ("radix-window",),
        (
            Edit(
                f"{_MEMORY}._insert",
                "return result",
                "known = result.prefix_len\n"
                "adopted = tuple((max(first, known), end) for first, end in result.adopted if end > known)\n"
                "return InsertResult(known, result.last_node, result.mamba_exist, adopted)",
            ),
        ),
        settings={"pool": "swa"},
    ),
    plant(
        "B187",
        ("E2", "R6", "E3"),
        ("radix",),
        (
            Edit(
                f"{_MEMORY}._follow",
                "self._move_hold(live, result.last_node, aligned)",
                "live.held_length = aligned",
            ),
        ),
        note="the request goes on as if the node were held, and it is not",
    ),
    plant(
        "B202",
        ("E3", "E4"),
        ("radix",),
        (
            Edit(
                f"{_MEMORY}.extend",
                "if new is None:",
                "if new is None:\n    self.pools.allocator.alloc(self.page_size)",
            ),
        ),
        note="a piece of a prompt that finds too little room keeps one page of it",
    ),
)

_BLOCKS = (
    plant(
        "B188",
        ("E4", "E1", "C7"),
        ("requests",),
        (Edit(f"{_CONTEXT}._resume", "range(most, 0, -1)", "range(live.matched, 0, -1)"),),
        note="no draft model: what the lookup ignores is the token that must be left to compute",
    ),
    plant(
        "B199",
        ("C1", "E2", "X6"),
        ("blocks", "requests"),
        (
            Edit(
                "pymllm.core.inference.contexts.kv_block_allocator:KVBlockAllocator.retain_memory_blocks",
                "self._forest.activate(block)",
                "pass",
            ),
        ),
        note="the pinned block stays where evictions look for their victims",
    ),
    plant(
        "B205",
        ("R10", "X2"),
        ("radix-window",),
        (
            Edit(
                f"{_CACHE}._insert_windowed",
                "walk = self._tree.walk(paged)",
                "walk = self._tree.walk(paged)\nfor node in walk.path:\n    node.hit_count += 1",
            ),
        ),
        note="what counts hits before it knows whether it is refused is an insert with a window",
    ),
)

FAULTS = (
    *_POOLS,
    *_TREES,
    *(replace(fault, searchers=("life-cycle machine",)) for fault in _ENGINES),
    *_BLOCKS,
)
