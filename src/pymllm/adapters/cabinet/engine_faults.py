"""Faults of the simulated engine as an owner: what it hands over, holds and gives back."""

from __future__ import annotations

from dataclasses import replace

from pymllm.adapters.cabinet.bugs import plant
from pymllm.adapters.cabinet.planting import Edit

__all__ = ["FAULTS"]

_ENGINE = "pymllm.workloads.engine:Engine"
_MEMORY = "pymllm.workloads.engine_memory:EngineMemory"

_OWNERSHIP = (
    plant(
        "B10",
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
    plant(
        "B97",
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
    plant(
        "B98",
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
    plant(
        "B101",
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
    plant(
        "B104",
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
    plant(
        "B157",
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
    plant(
        "B17",
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
    plant(
        "B110",
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
    plant(
        "B121",
        ("E3", "E4"),
        ("radix",),
        (Edit(f"{_ENGINE}._refuse", "self.memory.give_back(live)", "live.forget_memory()"),),
        note="the pin is the hold of a request that is then refused",
    ),
    plant(
        "B164",
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
    plant(
        "B32",
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
    plant(
        "B37",
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
    plant(
        "B38",
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
