"""Faults of the simulated engine: as an owner of slots, holds and rows, and as a scheduler."""

from __future__ import annotations

from dataclasses import replace

from pymllm.adapters.cabinet.bugs import plant

_ENGINE = "pymllm.workloads.engine:Engine"
_MEMORY = "pymllm.workloads.engine_memory:EngineMemory"
_STATES = "pymllm.workloads.engine_memory:EngineStates"
_LIVE = "pymllm.workloads.live_request:LiveRequest"

_FAULTS = (
    # -- what it hands over, holds and gives back ------------------------------------------------------------
    plant(
        "B10",
        "R9 E2",
        "radix",
        note="a caller inserts the same slots under a second key; the cache cannot know",
    ).edit(
        f"{_MEMORY}.finish",
        "self.give_back(live, adopted)",
        "forged = live.tokens[:aligned].copy()\n"
        "forged[-1:] ^= 1\n"
        "key = type(live.key(0))(forged, live.request.namespace)\n"
        "self.pools.kind.cache.insert(key, self._table[live.row, :aligned])\n"
        "self.give_back(live, adopted)",
    ),
    plant("B17", "S5 E3", "radix-window").edit(
        f"{_MEMORY}._move_hold",
        "self.probe.unlock(live.held_node, live.lock_token, live.times)",
        "self.probe.unlock(live.held_node, None, live.times)",
    ),
    plant("B97", "A5 E3", "radix").edit(
        f"{_MEMORY}.give_back",
        "self.pools.allocator.free(own)",
        "self.pools.allocator.free(own[:1])\nself.pools.allocator.free(own[1:])",
    ),
    plant(
        "B98",
        "E3",
        "radix",
        note="the prefix is always whole pages here, so it is the tail that is rounded the wrong way",
    ).edit(
        f"{_MEMORY}.give_back",
        "live.held_length, live.length, adopted)",
        "live.held_length, self.whole_pages(live.length), adopted)",
    ),
    plant("B101", "E2 A5", "radix").edit(
        f"{_MEMORY}._follow",
        "self.pools.rows.write((live.row, slice(held, match.prefix_len)), match.indices[held:])",
        "pass",
    ),
    plant("B104", "A5 E3", "radix").edit(
        f"{_MEMORY}.give_back",
        "self.pools.allocator.free(own)",
        "self.pools.allocator.free(own)\nself.pools.allocator.free(own)",
    ),
    plant("B110", "E3 E4", "radix").edit(
        f"{_MEMORY}._move_hold", "self.probe.unlock(live.held_node, live.lock_token, live.times)", "pass"
    ),
    plant("B121", "E3 E4", "radix", note="the pin is the hold of a request that is then refused").edit(
        f"{_ENGINE}._refuse", "self.memory.give_back(live)", "live.forget_memory()"
    ),
    plant(
        "B157",
        "E2 E3",
        "radix",
        note="a row's duplicates are read as a view, and the row is rewritten before they are freed",
    ).edit(
        f"{_MEMORY}._cut",
        "return torch.cat(pieces) if pieces else None",
        "return pieces[0] if pieces else None",
    ),
    plant("B164", "E2", "radix").edit(
        f"{_MEMORY}.match_and_hold",
        "live.lock_token = self.probe.lock(match.last_node, live.times)",
        "self.probe.evict(live.prompt_length, 0, [live.times])\n"
        "live.lock_token = self.probe.lock(match.last_node, live.times)",
    ),
    plant(
        "B173",
        "R6 E3 E2",
        "radix",
        note="the request that takes no hold is the one that hits as much as it may",
    ).edit(
        f"{_MEMORY}.match_and_hold",
        "live.lock_token = self.probe.lock(match.last_node, live.times)",
        "is_whole = match.prefix_len == live.queried_length\n"
        "live.lock_token = None if is_whole else self.probe.lock(match.last_node, live.times)",
    ),
    plant(
        "B187", "E2 R6 E3", "radix", note="the request goes on as if the node were held, and it is not"
    ).edit(
        f"{_MEMORY}._follow", "self._move_hold(live, result.last_node, aligned)", "live.held_length = aligned"
    ),
    # -- windows and states ----------------------------------------------------------------------------------
    plant("B32", "S1 S7", "radix-window", settings={"pool": "swa", "page_size": 4}).edit(
        f"{_MEMORY}._window_floor",
        "return (aligned - self._window) // self.page_size * self.page_size",
        "return (length - self._window) // self.page_size * self.page_size",
    ),
    # E3: what was freed early is freed again at the end
    plant("B37", "E2 E3", "radix-window", settings={"pool": "swa"}).edit(
        f"{_MEMORY}.release_windows",
        "self._swa_allocator.free_swa(self._table[named[0], named[1]])",
        "self._swa_allocator.free(self._table[named[0], named[1]])",
    ),
    plant("B38", "S7 E2", "radix-window", settings={"pool": "swa"}).edit(
        f"{_MEMORY}._insert",
        '"swa_evicted_seqlen": live.released_length}',
        '"swa_evicted_seqlen": live.released_length if live.length > live.prompt_length else 0}',
    ),
    plant(
        "B70",
        "E1 M1",
        "mamba",
        note=(
            "the cache refuses a state with a key that is not whole pages, so it is the engine that cuts "
            "the key and keeps the state"
        ),
    ).edit(
        f"{_STATES}._stops", "live.prompt_length // self._page_size * self._page_size", "live.prompt_length"
    ),
    plant(
        "B71",
        "M1 M2",
        "mamba",
        note="no second component shortens a key: the engine cuts a page off after it has saved the state",
    ).edit(
        f"{_MEMORY}._insert",
        'options["mamba_value"] = self.states.save(live)',
        'options["mamba_value"] = self.states.save(live)\n'
        "aligned -= self.page_size if aligned > self.page_size else 0",
    ),
    # E3: the duplicates that it takes for the tree's nobody gives back
    plant(
        "B89",
        "E2 M1 E3",
        "mamba",
        note="the engine takes the node that its insert returned for its own, duplicates and all",
    ).edit(f"{_MEMORY}._follow", "if result.adopted == ((held, aligned),):", "if self.states is not None:"),
    plant("B170", "E4 S3", "radix-window", settings={"pool": "swa"}).edit(
        f"{_MEMORY}.allocate",
        "self.probe.evict(max(0, tokens - full), swa_short, payers)",
        "self.probe.evict(max(0, tokens - full, swa_short), 0, payers)",
    ),
    plant("B172", "E2 E3 A5", "radix-window", settings={"pool": "swa"}).edit(
        f"{_MEMORY}._follow",
        "self.pools.rows.write((live.row, slice(held, match.prefix_len)), match.indices[held:])",
        "if min(result.prefix_len, live.queried_length) <= held:\n"
        "    self.pools.rows.write((live.row, slice(held, match.prefix_len)), match.indices[held:])",
    ),
    # R9: what is freed is in the tree, for whoever walks it
    plant("B178", "E2 R4 E3 A5 R9", "radix-window", settings={"pool": "swa"}).edit(
        f"{_MEMORY}._insert",
        "return result",
        "known = result.prefix_len\n"
        "adopted = tuple((max(first, known), end) for first, end in result.adopted if end > known)\n"
        "return InsertResult(known, result.last_node, result.mamba_exist, adopted)",
    ),
    # -- short memory ----------------------------------------------------------------------------------------
    plant("B52", "E4", "radix").edit(
        f"{_MEMORY}.allocate",
        "self.probe.evict(max(0, tokens - full), swa_short, payers)",
        "self.probe.evict(max(0, tokens - full) // self.page_size, swa_short, payers)",
    ),
    plant("B64", "E4", "radix").edit(
        f"{_MEMORY}.room", "evictable = cache.evictable_size()", "evictable = 0"
    ),
    plant("B112", "E3", "radix").edit(
        f"{_ENGINE}._refuse",
        "self.memory.give_back(live)",
        "self.memory.give_back(live)\nself._pools.allocator.alloc(self.config.page_size)",
    ),
    plant("B115", "E4", "radix").edit(
        f"{_MEMORY}.match_and_hold",
        "self.whole_pages(live.prompt_length - 1)",
        "self.whole_pages(live.prompt_length)",
    ),
    plant(
        "B134",
        "E3 E4",
        "radix",
        note="no swap here: the pages that a request is about to read count as evictable",
    ).edit(f"{_MEMORY}.room", "evictable = cache.evictable_size()", "evictable = cache.total_size()"),
    plant(
        "B202", "E3 E4", "radix", note="a piece of a prompt that finds too little room keeps one page of it"
    ).edit(
        f"{_MEMORY}.extend",
        "if new is None:",
        "if new is None:\n    self.pools.allocator.alloc(self.page_size)",
    ),
    # -- lives that end --------------------------------------------------------------------------------------
    plant("B29", "E3 E4", "radix").edit(
        f"{_MEMORY}.match_and_hold",
        "live.held_node = match.last_node",
        "live.held_node = match.last_node\nself.probe.lock(match.last_node, live.times)",
    ),
    # E4: what it holds for ever is room that the others lack
    plant(
        "B67", "E3 E4", "radix", note="a queued request owns no state slot here, but it may own a hold"
    ).edit(f"{_ENGINE}._admit_next", "self.memory.give_back(live)\nself._abort(live)", "self._abort(live)"),
    plant("B68", "E2 E3", "radix", note="the slot is the request's row")
    .edit(f"{_LIVE}.forget_memory", "self.length = self.row = ", "self.length = ")
    .edit(
        f"{_MEMORY}.take_row",
        "rows = self.pools.rows.alloc(1)",
        "rows = [live.row] if live.row else self.pools.rows.alloc(1)",
    ),
    plant("B79", "R3", "radix", note="no step state to clear yet: the idle engine resets the cache").edit(
        "pymllm.workloads.engine_loop:EngineLoop.step",
        "self._now_ms = max(self._now_ms, self._coming.arrival_ms)",
        "self._now_ms = max(self._now_ms, self._coming.arrival_ms)\nself._pools.kind.cache.reset()",
    ),
    plant("B106", "E2 P2", "radix").edit(
        f"{_MEMORY}.share",
        "aligned = self.whole_pages(live.length)",
        "aligned = self.whole_pages(live.length)\n"
        "self.pools.rows.free(live.row)\n"
        "[live.row] = self.pools.rows.alloc(1)",
    ),
    plant("B109", "E3 E4", "radix").edit(
        f"{_ENGINE}._abort",
        "self.memory.give_back(live)",
        "self._pools.rows.free(live.row)\nlive.forget_memory()",
    ),
    plant(
        "B113",
        "E3 E4",
        "chunk radix",
        note="not registered means not cached yet: such a request leaves without giving its slots back",
    ).edit(
        f"{_MEMORY}.give_back",
        "own = self._cut(live, live.held_length, live.length, adopted)",
        "own = self._cut(live, live.held_length, live.length, adopted) if live.held_length else None",
    ),
    # -- padding ---------------------------------------------------------------------------------------------
    plant("B148", "E5", "radix").edit(
        "pymllm.workloads.engine_forward:padded",
        "batch[count:] = values, padding",
        "batch[count:] = values, -1",
    ),
    plant("B152", "E5 E1", "radix").edit(
        "pymllm.workloads.engine_forward:padded",
        "batch[count:] = values, padding",
        "batch[count:] = values, values[-1:]",
    ),
    plant("B154", "E3", "radix").edit(
        f"{_ENGINE}._decode",
        "batch = self.decoding",
        "batch = self.decoding\n"
        "if not hasattr(self, 'dummy'):\n"
        "    self.dummy = self.memory.allocate(self.config.page_size, [batch.requests[0].times])",
    ),
)

FAULTS = tuple(replace(fault, searchers=("life-cycle machine",)) for fault in _FAULTS)
