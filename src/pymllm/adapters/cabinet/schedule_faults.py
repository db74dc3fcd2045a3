"""Faults of the simulated engine as a scheduler: short memory, lives that end, padding."""

from __future__ import annotations

from dataclasses import replace

from pymllm.adapters.cabinet.fault import Fault
from pymllm.adapters.cabinet.planting import Edit

__all__ = ["FAULTS"]

_ENGINE = "pymllm.workloads.engine:Engine"
_MEMORY = "pymllm.workloads.engine_memory:EngineMemory"
_LIVE = "pymllm.workloads.live_request:LiveRequest"

_MEMORY_SHORT = (
    Fault(
        "B52",
        "Pages passed where tokens are expected",
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
    Fault(
        "B64",
        "Free ratio ignores what could be evicted",
        ("E4",),
        ("radix",),
        (Edit(f"{_MEMORY}.room", "evictable = cache.evictable_size()", "evictable = 0"),),
    ),
    Fault(
        "B112",
        "Blocks allocated, then the batch is dropped",
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
    Fault(
        "B115",
        "Full hit leaves nothing to compute",
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
    Fault(
        "B134",
        "Blocks to be swapped in are counted as free",
        ("E3", "E4"),
        ("radix",),
        (Edit(f"{_MEMORY}.room", "evictable = cache.evictable_size()", "evictable = cache.total_size()"),),
        note="no swap here: the pages that a request is about to read count as evictable",
    ),
)

_LIFE_CYCLE = (
    Fault(
        "B29",
        "Retrieve raises the count and never lowers it",
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
    Fault(
        "B67",
        "Queued request aborted after it already owns a slot",
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
    Fault(
        "B68",
        "Freed ping-pong slots still referenced by the request",
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
    Fault(
        "B79",
        "Idle dummy step wipes the prefix cache",
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
    Fault(
        "B106",
        "Slot of a chunked request freed between chunks",
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
    Fault(
        "B109",
        "Abort does not reach the chunked request",
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
    Fault(
        "B113",
        "Sequence removed before its blocks are registered",
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
    Fault(
        "B148",
        "Padding id -1 used as an index",
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
    Fault(
        "B152",
        "Padded graph rows keep the previous batch's row numbers",
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
    Fault(
        "B154",
        "Padding dummy allocated lazily fails when it is needed",
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
