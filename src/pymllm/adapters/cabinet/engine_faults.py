"""Faults of the simulated engine as an owner: what it hands over, holds and gives back."""

from __future__ import annotations

from dataclasses import replace

from pymllm.adapters.cabinet.fault import Fault
from pymllm.adapters.cabinet.planting import Edit

__all__ = ["FAULTS"]

_ENGINE = "pymllm.workloads.engine:Engine"
_MEMORY = "pymllm.workloads.engine_memory:EngineMemory"

_OWNERSHIP = (
    Fault(
        "B10",
        "Two nodes own the same physical pages",
        ("R9", "E2"),
        ("radix",),
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
        note="a caller inserts the same slots under a second key; the cache cannot know",
    ),
    Fault(
        "B97",
        "Two adjacent frees share a page",
        ("A5", "E3"),
        ("radix",),
        (
            Edit(
                f"{_MEMORY}.give_back",
                "self.pools.allocator.free(own)",
                "self.pools.allocator.free(own[:1])\nself.pools.allocator.free(own[1:])",
            ),
        ),
    ),
    Fault(
        "B98",
        "Retract rounds up and leaks the page",
        ("E3",),
        ("radix",),
        (
            Edit(
                f"{_MEMORY}.give_back",
                "live.held_length, live.length, adopted)",
                "live.held_length, self.whole_pages(live.length), adopted)",
            ),
        ),
        note="the prefix is always whole pages here, so it is the tail that is rounded the wrong way",
    ),
    Fault(
        "B101",
        "Duplicates freed while the request's row still names them",
        ("E2", "A5"),
        ("radix",),
        (
            Edit(
                f"{_MEMORY}._follow",
                "self.pools.rows.write((live.row, slice(held, match.prefix_len)), match.indices[held:])",
                "pass",
            ),
        ),
    ),
    Fault(
        "B104",
        "Blocks recycled repeatedly",
        ("A5", "E3"),
        ("radix",),
        (
            Edit(
                f"{_MEMORY}.give_back",
                "self.pools.allocator.free(own)",
                "self.pools.allocator.free(own)\nself.pools.allocator.free(own)",
            ),
        ),
    ),
    Fault(
        "B157",
        "Pinned staging buffer rewritten while it is being copied",
        ("E2", "E3"),
        ("radix",),
        (
            Edit(
                f"{_MEMORY}._cut",
                "return torch.cat(pieces) if pieces else None",
                "return pieces[0] if pieces else None",
            ),
        ),
        note="a row's duplicates are read as a view, and the row is rewritten before they are freed",
    ),
)

_LOCKS = (
    Fault(
        "B17",
        "Temporary lock released without its boundary token",
        ("S5", "E3"),
        ("radix-window",),
        (
            Edit(
                f"{_MEMORY}._move_hold",
                "self.probe.unlock(live.held_node, live.lock_token, live.times)",
                "self.probe.unlock(live.held_node, None, live.times)",
            ),
        ),
    ),
    Fault(
        "B110",
        "Chunked prefill leak, three tries",
        ("E3", "E4"),
        ("radix",),
        (
            Edit(
                f"{_MEMORY}._move_hold",
                "self.probe.unlock(live.held_node, live.lock_token, live.times)",
                "pass",
            ),
        ),
    ),
    Fault(
        "B121",
        "Pin not rolled back when the allocation fails",
        ("E3", "E4"),
        ("radix",),
        (Edit(f"{_ENGINE}._refuse", "self.memory.give_back(live)", "live.forget_memory()"),),
        note="the pin is the hold of a request that is then refused",
    ),
    Fault(
        "B164",
        "Matched block is also the head of the free queue",
        ("E2",),
        ("radix",),
        (
            Edit(
                f"{_MEMORY}.match_and_hold",
                "live.lock_token = self.probe.lock(match.last_node, live.times)",
                "self.probe.evict(live.prompt_length, 0, [live.times])\n"
                "live.lock_token = self.probe.lock(match.last_node, live.times)",
            ),
        ),
    ),
)

_WINDOWS = (
    Fault(
        "B32",
        "Window eviction reaches the last leaf when page_size > window",
        ("S1", "S7"),
        ("radix-window",),
        (
            Edit(
                f"{_MEMORY}._window_floor",
                "return (aligned - self._window) // self.page_size * self.page_size",
                "return (length - self._window) // self.page_size * self.page_size",
            ),
        ),
        settings={"pool": "swa", "page_size": 4},
    ),
    Fault(
        "B37",
        "Out-of-window KV is freed and then cached",
        ("E2", "E3"),  # what was freed early is freed again at the end
        ("radix-window",),
        (
            Edit(
                f"{_MEMORY}.release_windows",
                "self._swa_allocator.free_swa(self._table[named[0], named[1]])",
                "self._swa_allocator.free(self._table[named[0], named[1]])",
            ),
        ),
        settings={"pool": "swa"},
    ),
    Fault(
        "B38",
        "Eviction boundary not forwarded for unfinished requests",
        ("S7", "E2"),
        ("radix-window",),
        (
            Edit(
                f"{_MEMORY}._insert",
                '"swa_evicted_seqlen": live.released_length}',
                '"swa_evicted_seqlen": live.released_length if live.length > live.prompt_length else 0}',
            ),
        ),
        settings={"pool": "swa"},
    ),
)

FAULTS = tuple(
    replace(fault, searchers=("life-cycle machine",)) for fault in (*_OWNERSHIP, *_LOCKS, *_WINDOWS)
)
