"""Faults of the block allocator, its index and cached states, and of the requests that use them."""

from __future__ import annotations

from pymllm.adapters.cabinet.bugs import plant

_CONTEXTS = "pymllm.core.inference.contexts."
_ALLOCATOR = f"{_CONTEXTS}kv_block_allocator:KVBlockAllocator"
_HASHES = f"{_CONTEXTS}block_hashes:BlockHashes"
_INDEX = f"{_CONTEXTS}prefix_index:PrefixIndex"
_CONTEXT = f"{_CONTEXTS}request_context:RequestContext"
_SLOTS = f"{_CONTEXTS}block_slots:BlockSlots"
_STATES = f"{_CONTEXTS}mamba_slot_allocator:MambaSlotAllocator"

FAULTS = (
    # -- references ------------------------------------------------------------------------------------------
    plant("B104-blocks", "E3", "requests").edit(
        f"{_CONTEXT}.release",
        "self.kv_block_allocator._give_back(given_back)",
        "self.kv_block_allocator._give_back(given_back)\n"
        "self.kv_block_allocator.release_memory_blocks(live.blocks)",
    ),
    # X6: an observer that raises is told of a block that the books still have
    plant("B118", "C1 X6", "blocks").edit(
        f"{_ALLOCATOR}._plan_release",
        "left = (self._ref_counts[given] - times).astype(np.int32)",
        "left = self._ref_counts[given] - 1",
    ),
    plant("B119", "C1", "blocks requests").edit(
        f"{_ALLOCATOR}._evict_lru_blocks",
        "self._drop([self._forest.pop_oldest() for _ in range(count)])",
        "oldest = sorted(self._forest._idle, key=lambda block: (self._timestamps[block], block))\n"
        "for block in oldest[:count]:\n"
        "    self._forest._forget(block)\n"
        "self._drop(oldest[:count])",
    ),
    plant("B121-blocks", "X4 C1 X2 E3", "requests").edit(
        f"{_CONTEXT}._match", "undo.callback(self.kv_block_allocator._let_go, blocks)", "pass"
    ),
    plant("B124-blocks", "X6 C6 C1", "blocks requests").edit(
        f"{_ALLOCATOR}._drop",
        "hashes = self._known.forget(blocks)",
        "hashes = set(self._known.of_block[blocks].tolist()) - {NO_HASH}\n"
        "self._observer.run(self.on_blocks_deregistered, blocks, hashes)\n"
        "self._known.forget(blocks)\n"
        "hashes = set()",
    ),
    # C3: they can be registered, too
    plant("B133", "C1 E4 C3", "blocks requests")
    .edit(f"{_ALLOCATOR}._as_occupied", "(blocks >= self.dummy_block_idx)", "(blocks > self.dummy_block_idx)")
    .edit(f"{_ALLOCATOR}._as_occupied", "if is_free.any():", "if is_free[blocks < blocks.max()].any():")
    .edit(f"{_ALLOCATOR}._plan_release", "if short.any():", "if short[given < self.dummy_block_idx].any():"),
    plant(
        "B164-blocks",
        "X6 C1",
        "requests",
        note="room is made before the match is held, and is empty again when it is used",
    ).edit(
        f"{_CONTEXT}._match",
        "self.kv_block_allocator.retain_memory_blocks(blocks)",
        "new = self._allocate(self._blocks_for(prompt.size) - len(blocks))\n"
        "self.kv_block_allocator.release_memory_blocks(new or [])\n"
        "self.kv_block_allocator.retain_memory_blocks(blocks)",
    ),
    plant(
        "B199",
        "C1 E2 X6",
        "blocks requests",
        note="the pinned block stays where evictions look for their victims",
    ).edit(f"{_ALLOCATOR}.retain_memory_blocks", "self._forest.activate(block)", "pass"),
    # -- the index -------------------------------------------------------------------------------------------
    # C6: nobody is told of the children that it forgets
    plant("B122", "C1 C3 C6", "blocks requests").edit(
        f"{_HASHES}._register",
        "if hash_value in self.to_block or (",
        "if self.to_block.get(hash_value, block) != block or (",
    ),
    plant("B125", "C1 C3 X2", "blocks requests").edit(
        f"{_HASHES}.forget", "del self.to_block[hash_value]", "pass"
    ),
    plant(
        "B127",
        "C3 C1",
        "blocks requests",
        note="the second block counts as cached, but the index does not have it",
    )
    .edit(
        f"{_HASHES}._register",
        "if hash_value in self.to_block or (parent != NO_BLOCK and parent not in self._forest):",
        "if parent != NO_BLOCK and parent not in self._forest:",
    )
    .edit(
        f"{_HASHES}._register",
        "self.to_block[hash_value] = block",
        "self.to_block.setdefault(hash_value, block)",
    ),
    plant("B130", "C3 E4", "requests").edit(
        f"{_CONTEXT}.add_request",
        "self._live_by_id[id(req)] = live",
        "self._live_by_id[id(req)] = live\nself._index.register(live, prompt.size)",
    ),
    plant("B131", "C3 C6", "blocks requests")
    .edit(f"{_ALLOCATOR}._drop", "hashes = self._known.forget(blocks)", "hashes = set()")
    .edit(
        f"{_INDEX}.match",
        "found = len(blocks) if is_same.all() else int(is_same.argmin())",
        "found = len(blocks)",
    ),
    plant("B136-blocks", "C3", "blocks requests").edit(
        f"{_CONTEXTS}prefix_index:block_hash",
        "hash_to_int64(digest) & _LARGEST",
        "hash_to_int64(digest) & 0xFF",
    ),
    # X4: with a wrong hit a request fits where there is no room
    plant("B137", "C3 X4", "requests", settings={"hash_digits": 1}).edit(
        f"{_INDEX}.match",
        "found = len(blocks) if is_same.all() else int(is_same.argmin())",
        "found = len(blocks)",
    ),
    plant("B143-blocks", "C3", "blocks requests")
    .edit(f"{_INDEX}.match", "digests[-1] if digests else None", "None")
    .edit(f"{_INDEX}.register", "live.page_hashes[-1] if place else None", "None"),
    # -- cached states ---------------------------------------------------------------------------------------
    plant(
        "B76",
        "X2 C7",
        "requests",
        note="the slot is mapped before the copy, and stays so where the copy fails",
    ).edit(f"{_STATES}._commit", "self._invalidate_one_by_one(kept)", "pass"),
    plant("B80", "C8", "requests").edit(
        f"{_STATES}.compute_and_store_offsets", "first = start + skipped", "first = skipped"
    ),
    plant("B82", "C5 C2", "blocks requests").edit(
        f"{_SLOTS}._claim_slots",
        "return self._books.claim(self.free_count, self._choose_victims(missing, keep))",
        "free = self._books.claim(self.free_count, keep[:0])\n"
        "self._books.take(free)\n"
        "rest = self._books.claim(0, self._choose_victims(missing, keep))\n"
        "slots, places = np.append(free.slots, rest.slots), np.append(free.places, rest.places)\n"
        "return rest._replace(slots=slots, places=places)",
    ),
    plant("B85", "C5", "blocks").edit(
        f"{_SLOTS}._evictable",
        "return blocks[~np.isin(blocks, kept)] if kept.size else blocks",
        "return blocks",
    ),
    plant("B86", "C8 E4", "requests").edit(
        f"{_STATES}._blocks_ending_at",
        "depth // self.context.block_size_tokens - 1",
        "depth // self.context.mamba_chunk_size - 1",
    ),
    plant("B88", "C7", "blocks requests").edit(
        f"{_CONTEXTS}slot_states:SlotStates.restore_to_live", "return False", "return True"
    ),
    plant("B128", "C4", "blocks requests").edit(
        f"{_SLOTS}.on_kv_blocks_deregistered",
        "self._invalidate_blocks_batch(block_ids_list)",
        "self._invalidate_blocks_batch(block_ids_list)\n"
        "for value in hashes_to_delete:\n"
        "    self.hash_to_block_id.pop(value, None)",
    ),
    # -- requests with states --------------------------------------------------------------------------------
    # C1: it holds hits behind the last state, which a right one does not. E4: it needs blocks for them.
    plant(
        "B76-requests",
        "E1 E2 C1 E4",
        "requests",
        note="the context restores without a look, and takes no notice of a restore that did not happen",
    )
    .edit(f"{_CONTEXT}._resume", " if slots.has_state(live.blocks[count - 1])", "")
    .edit(
        f"{_CONTEXT}._resume",
        "if found and slots.restore_to_live(live.row, live.blocks[found - 1]):",
        "if found:\n    slots.restore_to_live(live.row, live.blocks[found - 1])",
    ),
    # E4: requests that are set aside cannot go on
    plant("B79-requests", "C1 C6 E4", "requests").edit(
        f"{_CONTEXTS}dynamic_context:DynamicInferenceContext.step",
        "batch = self.begin_step()",
        "batch = self.begin_step()\n"
        "if not batch.requests:\n"
        "    self.kv_block_allocator.reset()\n"
        "    self.mamba_slot_allocator.reset()",
    ),
    # C3: what is left in a row looks like a hit
    plant("B107-requests", "E2 C3", "requests").edit(
        f"{_CONTEXTS}request_rows:RequestRows.close", "self._table[live.row] = _NONE", "pass"
    ),
    plant("B115-requests", "E4 E1", "requests").edit(
        f"{_CONTEXT}._resume", "(live.prompt.size - 1) //", "live.prompt.size //"
    ),
    plant(
        "B148-requests",
        "E5 E2",
        "requests",
        note="-1 instead of the dummy block is the last row but some of the last block",
    ).edit(
        f"{_CONTEXTS}forward_batch:plan_step",
        "blocks[positions < live.matched * block_size] = dummy_block",
        "blocks[positions < live.matched * block_size] = -1",
    ),
    plant(
        "B188",
        "E4 E1 C7",
        "requests",
        note="no draft model: what the lookup ignores is the token that must be left to compute",
    ).edit(f"{_CONTEXT}._resume", "range(most, 0, -1)", "range(live.matched, 0, -1)"),
)
