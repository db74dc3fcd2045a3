"""Faults of the simulated engine as a scheduler: short memory, lives that end, padding."""

from __future__ import annotations

from dataclasses import replace

from pymllm.adapters.cabinet.bugs import plant
from pymllm.adapters.cabinet.planting import Edit

__all__ = ["FAULTS"]

_ENGINE = "pymllm.workloads.engine:Engine"
_MEMORY = "pymllm.workloads.engine_memory:EngineMemory"
_LIVE = "pymllm.workloads.live_request:LiveRequest"

_MEMORY_SHORT = (
    plant(
        "B52",
        ("E4",),
        ("radix",),
        (
            Edit(
                f"{_MEMORY}.allocate",
                "self.probe.evict(max(0, tokens - full), swa_short, payers)",
                "self.probe.evict(max(0, tokens - full) // self.page_size, swa_short, payers)",
            ),
        ),
    ),
    plant(
        "B64",
        ("E4",),
        ("radix",),
        (Edit(f"{_MEMORY}.room", "evictable = cache.evictable_size()", "evictable = 0"),),
    ),
    plant(
        "B112",
        ("E3",),
        ("radix",),
        (
            Edit(
                f"{_ENGINE}._refuse",
                "self.memory.give_back(live)",
                "self.memory.give_back(live)\nself._pools.allocator.alloc(self.config.page_size)",
            ),
        ),
    ),
    plant(
        "B115",
        ("E4",),
        ("radix",),
        (
            Edit(
                f"{_MEMORY}.match_and_hold",
                "self.whole_pages(live.prompt_length - 1)",
                "self.whole_pages(live.prompt_length)",
            ),
        ),
    ),
    plant(
        "B134",
        ("E3", "E4"),
        ("radix",),
        (Edit(f"{_MEMORY}.room", "evictable = cache.evictable_size()", "evictable = cache.total_size()"),),
        note="no swap here: the pages that a request is about to read count as evictable",
    ),
)

_LIFE_CYCLE = (
    plant(
        "B29",
        ("E3", "E4"),
        ("radix",),
        (
            Edit(
                f"{_MEMORY}.match_and_hold",
                "live.held_node = match.last_node",
                "live.held_node = match.last_node\nself.probe.lock(match.last_node, live.times)",
            ),
        ),
    ),
    plant(
        "B67",
        ("E3", "E4"),  # what it holds for ever is room that the others lack
        ("radix",),
        (
            Edit(
                f"{_ENGINE}._admit_next",
                "self.memory.give_back(live)\nself._abort(live)",
                "self._abort(live)",
            ),
        ),
        note="a queued request owns no state slot here, but it may own a hold",
    ),
    plant(
        "B68",
        ("E2", "E3"),
        ("radix",),
        (
            Edit(f"{_LIVE}.forget_memory", "self.length = self.row = ", "self.length = "),
            Edit(
                f"{_MEMORY}.take_row",
                "rows = self.pools.rows.alloc(1)",
                "rows = [live.row] if live.row else self.pools.rows.alloc(1)",
            ),
        ),
        note="the slot is the request's row",
    ),
    plant(
        "B79",
        ("R3",),
        ("radix",),
        (
            Edit(
                "pymllm.workloads.engine_loop:EngineLoop.step",
                "self._now_ms = max(self._now_ms, self._coming.arrival_ms)",
                "self._now_ms = max(self._now_ms, self._coming.arrival_ms)\nself._pools.kind.cache.reset()",
            ),
        ),
        note="no step state to clear yet: the idle engine resets the cache",
    ),
    plant(
        "B106",
        ("E2", "P2"),
        ("radix",),
        (
            Edit(
                f"{_MEMORY}.share",
                "aligned = self.whole_pages(live.length)",
                "aligned = self.whole_pages(live.length)\n"
                "self.pools.rows.free(live.row)\n"
                "[live.row] = self.pools.rows.alloc(1)",
            ),
        ),
    ),
    plant(
        "B109",
        ("E3", "E4"),
        ("radix",),
        (
            Edit(
                f"{_ENGINE}._abort",
                "self.memory.give_back(live)",
                "self._pools.rows.free(live.row)\nlive.forget_memory()",
            ),
        ),
    ),
    plant(
        "B113",
        ("E3", "E4"),
        ("chunk", "radix"),
        (
            Edit(
                f"{_MEMORY}.give_back",
                "own = self._cut(live, live.held_length, live.length, adopted)",
                "own = self._cut(live, live.held_length, live.length, adopted) if live.held_length else None",
            ),
        ),
        note="not registered means not cached yet: such a request leaves without giving its slots back",
    ),
)

_PADDING = (
    plant(
        "B148",
        ("E5",),
        ("radix",),
        (
            Edit(
                "pymllm.workloads.engine_forward:padded",
                "batch[count:] = values, padding",
                "batch[count:] = values, -1",
            ),
        ),
    ),
    plant(
        "B152",
        ("E5", "E1"),
        ("radix",),
        (
            Edit(
                "pymllm.workloads.engine_forward:padded",
                "batch[count:] = values, padding",
                "batch[count:] = values, values[-1:]",
            ),
        ),
    ),
    plant(
        "B154",
        ("E3",),
        ("radix",),
        (
            Edit(
                f"{_ENGINE}._decode",
                "batch = self.decoding",
                "batch = self.decoding\n"
                "if not hasattr(self, 'dummy'):\n"
                "    self.dummy = self.memory.allocate(self.config.page_size, [batch.requests[0].times])",
            ),
        ),
    ),
)

FAULTS = tuple(
    replace(fault, searchers=("life-cycle machine",)) for fault in (*_MEMORY_SHORT, *_LIFE_CYCLE, *_PADDING)
)
