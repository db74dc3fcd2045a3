"""Bugs planted in the simulated engine: what a scheduler does wrong with sound pools and caches."""

from __future__ import annotations

from plant import Plant
from planting import Edit

from pymllm.errors import LockError, OwnershipError, StaleNodeError, UsageError

__all__ = ["PLANTS"]

_HERE = "tests/meta/test_noticers.py::"
_UNIT = "tests/unit/workloads/"
_RUNS = _UNIT + "test_engine.py::"
_TRANSFERS = _UNIT + "test_engine_memory.py::"
_ENGINE = "pymllm.workloads.engine:Engine"
_MEMORY = "pymllm.workloads.engine_memory:EngineMemory"
_LIVE = "pymllm.workloads.live_request:LiveRequest"

_OWNERSHIP = (
    Plant(
        "B10",
        ("R9", "E2"),
        (
            Edit(
                f"{_MEMORY}.finish",
                "self.give_back(live, adopted)",
                "forged = live.tokens[:aligned].copy()\n"
                "forged[-1:] ^= 1\n"
                "key = type(live.key(0))(forged, live.request.namespace)\n"
                "self.pools.kind.cache.insert(key, self._table[live.row, :aligned])\n"
                "self.give_back(live, adopted)",
            ),
        ),
        _TRANSFERS + "test_finish_gives_back_duplicates_and_tail",
        note="a caller inserts the same slots under a second key; the cache cannot know",
    ),
    Plant(
        "B97",
        ("A5", "E3"),
        (
            Edit(
                f"{_MEMORY}.give_back",
                "self.pools.allocator.free(own)",
                "self.pools.allocator.free(own[:1])\nself.pools.allocator.free(own[1:])",
            ),
        ),
        _RUNS + "test_request_may_finish_inside_its_first_chunk[radix-4]",
        shows_as=OwnershipError,
    ),
    Plant(
        "B98",
        ("E3",),
        (
            Edit(
                f"{_MEMORY}.give_back",
                "live.held_length, live.length, adopted)",
                "live.held_length, self.whole_pages(live.length), adopted)",
            ),
        ),
        _RUNS + "test_retracted_request_comes_back_and_finishes[radix-4]",
        note="the prefix is always whole pages here, so it is the tail that is rounded the wrong way",
    ),
    Plant(
        "B101",
        ("E2", "A5"),
        (
            Edit(
                f"{_MEMORY}._follow",
                "self.pools.rows.write((live.row, slice(held, match.prefix_len)), match.indices[held:])",
                "pass",
            ),
        ),
        _TRANSFERS + "test_duplicates_are_given_back_after_the_row_names_the_tree",
    ),
    Plant(
        "B104",
        ("A5", "E3"),
        (
            Edit(
                f"{_MEMORY}.give_back",
                "self.pools.allocator.free(own)",
                "self.pools.allocator.free(own)\nself.pools.allocator.free(own)",
            ),
        ),
        _RUNS + "test_aborted_request_leaves_nothing_behind[Stage.PREFILL-2-radix-4]",
        shows_as=OwnershipError,
    ),
    Plant(
        "B157",
        ("E2", "A5"),
        (
            Edit(
                f"{_MEMORY}._cut",
                "return torch.cat(pieces) if pieces else None",
                "return pieces[0] if pieces else None",
            ),
        ),
        _RUNS + "test_finished_requests_leave_nothing_behind[radix-4-6-True]",
        note="a row's duplicates are read as a view, and the row is rewritten before they are freed",
    ),
)

_LOCKS = (
    Plant(
        "B17",
        ("S5", "E3"),
        (
            Edit(
                f"{_MEMORY}._move_hold",
                "self.probe.unlock(live.held_node, live.lock_token, live.times)",
                "self.probe.unlock(live.held_node, None, live.times)",
            ),
        ),
        _RUNS + "test_finished_requests_leave_nothing_behind[radix-4-6]",
        shows_as=LockError,
    ),
    Plant(
        "B110",
        ("E3",),
        (
            Edit(
                f"{_MEMORY}._move_hold",
                "self.probe.unlock(live.held_node, live.lock_token, live.times)",
                "pass",
            ),
        ),
        _RUNS + "test_finished_requests_leave_nothing_behind[radix-4]",
    ),
    Plant(
        "B121",
        ("E3",),
        (Edit(f"{_ENGINE}._refuse", "self.memory.give_back(live)", "live.forget_memory()"),),
        _RUNS + "test_failed_admission_gives_everything_back[radix-4]",
        note="the pin is the hold of a request that is then refused",
    ),
    Plant(
        "B164",
        ("E2",),
        (
            Edit(
                f"{_MEMORY}.match_and_hold",
                "live.lock_token = self.probe.lock(match.last_node, live.times)",
                "self.probe.evict(live.prompt_length, 0, [live.times])\n"
                "live.lock_token = self.probe.lock(match.last_node, live.times)",
            ),
        ),
        _RUNS + "test_random_lives_break_no_law[0-radix-4-6]",
        shows_as=StaleNodeError,
    ),
)

_WINDOWS = (
    Plant(
        "B32",
        ("S1", "S7"),
        (
            Edit(
                f"{_MEMORY}._window_floor",
                "return (aligned - self._window) // self.page_size * self.page_size",
                "return (length - self._window) // self.page_size * self.page_size",
            ),
        ),
        _TRANSFERS + "test_window_halves_behind_the_window_are_returned[True]",
    ),
    Plant(
        "B37",
        ("E2",),
        (
            Edit(
                f"{_MEMORY}.release_windows",
                "self._swa_allocator.free_swa(self._table[named[0], named[1]])",
                "self._swa_allocator.free(self._table[named[0], named[1]])",
            ),
        ),
        _RUNS + "test_random_lives_break_no_law[0-radix-1-4]",
    ),
    Plant(
        "B38",
        ("S7",),
        (
            Edit(
                f"{_MEMORY}._insert",
                '"swa_evicted_seqlen": live.released_length}',
                '"swa_evicted_seqlen": live.released_length if live.length > live.prompt_length else 0}',
            ),
        ),
        _TRANSFERS + "test_window_halves_behind_the_window_are_returned[True]",
        shows_as=OwnershipError,
    ),
    Plant(
        "B47",
        ("S1", "S7"),
        (Edit(f"{_MEMORY}.share", "if self._releases_early:", "if True:"),),
        _TRANSFERS + "test_window_halves_behind_the_window_are_returned[False]",
    ),
)

_MEMORY_SHORT = (
    Plant(
        "B52",
        ("E4",),
        (
            Edit(
                f"{_MEMORY}.allocate",
                "self.probe.evict(max(0, tokens - full), swa_short, payers)",
                "self.probe.evict(max(0, tokens - full) // self.page_size, swa_short, payers)",
            ),
        ),
        _RUNS + "test_failed_admission_gives_everything_back[radix-4]",
    ),
    Plant(
        "B64",
        ("E4",),
        (Edit(f"{_MEMORY}.room", "evictable = cache.evictable_size()", "evictable = 0"),),
        _RUNS + "test_failed_admission_gives_everything_back[radix-1]",
    ),
    Plant(
        "B112",
        ("E3",),
        (
            Edit(
                f"{_ENGINE}._refuse",
                "self.memory.give_back(live)",
                "self.memory.give_back(live)\nself._pools.allocator.alloc(self.config.page_size)",
            ),
        ),
        _RUNS + "test_failed_admission_gives_everything_back[radix-1]",
    ),
    Plant(
        "B115",
        ("E4",),
        (
            Edit(
                f"{_MEMORY}.match_and_hold",
                "self.whole_pages(live.prompt_length - 1)",
                "self.whole_pages(live.prompt_length)",
            ),
        ),
        _RUNS + "test_full_hit_leaves_a_token_to_compute",
        shows_as=UsageError,
    ),
    Plant(
        "B134",
        ("E3", "E4"),
        (Edit(f"{_MEMORY}.room", "evictable = cache.evictable_size()", "evictable = cache.total_size()"),),
        _RUNS + "test_failed_admission_gives_everything_back[radix-1]",
        note="no swap here: the pages that a request is about to read count as evictable",
    ),
)

_LIFE_CYCLE = (
    Plant(
        "B29",
        ("E3",),
        (
            Edit(
                f"{_MEMORY}.match_and_hold",
                "live.held_node = match.last_node",
                "live.held_node = match.last_node\nself.probe.lock(match.last_node, live.times)",
            ),
        ),
        _TRANSFERS + "test_failed_admission_gives_its_hold_back",
    ),
    Plant(
        "B67",
        ("E3",),
        (
            Edit(
                f"{_ENGINE}._admit_next",
                "self.memory.give_back(live)\nself._abort(live)",
                "self._abort(live)",
            ),
        ),
        _RUNS + "test_aborted_request_leaves_nothing_behind[Stage.HELD-1-radix-1]",
        note="a queued request owns no state slot here, but it may own a hold",
    ),
    Plant(
        "B68",
        ("P2", "E2", "E3"),
        (
            Edit(f"{_LIVE}.forget_memory", "self.length = self.row = ", "self.length = "),
            Edit(
                f"{_MEMORY}.take_row",
                "rows = self.pools.rows.alloc(1)",
                "rows = [live.row] if live.row else self.pools.rows.alloc(1)",
            ),
        ),
        _RUNS + "test_retracted_request_comes_back_and_finishes[radix-4]",
        shows_as=OwnershipError,
        note="the slot is the request's row",
    ),
    Plant(
        "B79",
        ("R3",),
        (
            Edit(
                "pymllm.workloads.engine_loop:EngineLoop.step",
                "self._now_ms = max(self._now_ms, self._coming.arrival_ms)",
                "self._now_ms = max(self._now_ms, self._coming.arrival_ms)\nself._pools.kind.cache.reset()",
            ),
        ),
        _HERE + "test_an_idle_engine_keeps_what_is_cached",
        note="no step state to clear yet: the idle engine resets the cache",
    ),
    Plant(
        "B106",
        ("E2", "P2"),
        (
            Edit(
                f"{_MEMORY}.share",
                "aligned = self.whole_pages(live.length)",
                "aligned = self.whole_pages(live.length)\n"
                "self.pools.rows.free(live.row)\n"
                "[live.row] = self.pools.rows.alloc(1)",
            ),
        ),
        _RUNS + "test_request_may_be_retracted_between_its_chunks[radix-4]",
    ),
    Plant(
        "B109",
        ("E3",),
        (
            Edit(
                f"{_ENGINE}._abort",
                "self.memory.give_back(live)",
                "self._pools.rows.free(live.row)\nlive.forget_memory()",
            ),
        ),
        _RUNS + "test_aborted_request_leaves_nothing_behind[Stage.PREFILL-2-radix-4]",
    ),
    Plant(
        "B113",
        ("E3",),
        (
            Edit(
                f"{_MEMORY}.give_back",
                "own = self._cut(live, live.held_length, live.length, adopted)",
                "own = self._cut(live, live.held_length, live.length, adopted) if live.held_length else None",
            ),
        ),
        _RUNS + "test_aborted_request_leaves_nothing_behind[Stage.PREFILL-2-chunk-4]",
        note="not registered means not cached yet: such a request leaves without giving its slots back",
    ),
)

_PADDING = (
    Plant(
        "B148",
        ("E5",),
        (
            Edit(
                "pymllm.workloads.engine_forward:padded",
                "np.zeros(-len(values) % BATCH_MULTIPLE, dtype=values.dtype)",
                "np.full(-len(values) % BATCH_MULTIPLE, -1, dtype=values.dtype)",
            ),
        ),
        _UNIT + "test_engine_forward.py::test_batch_is_padded_with_slot_and_row_zero",
    ),
    Plant(
        "B152",
        ("E5",),
        (
            Edit(
                "pymllm.workloads.engine_forward:padded",
                "np.zeros(-len(values) % BATCH_MULTIPLE, dtype=values.dtype)",
                "np.repeat(values[-1:], -len(values) % BATCH_MULTIPLE)",
            ),
        ),
        _UNIT + "test_engine_forward.py::test_batch_is_padded_with_slot_and_row_zero",
    ),
    Plant(
        "B154",
        ("E3",),
        (
            Edit(
                f"{_ENGINE}._decode",
                "batch = self.decoding",
                "batch = self.decoding\n"
                "if not hasattr(self, 'dummy'):\n"
                "    self.dummy = self.memory.allocate(self.config.page_size, [batch.requests[0].times])",
            ),
        ),
        _RUNS + "test_finished_requests_leave_nothing_behind[radix-4]",
    ),
)

PLANTS = (*_OWNERSHIP, *_LOCKS, *_WINDOWS, *_MEMORY_SHORT, *_LIFE_CYCLE, *_PADDING)
