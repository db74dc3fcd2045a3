"""Faults where KV and recurrent states go together: the hybrid cache, and an engine that uses it."""

from __future__ import annotations

from dataclasses import replace

from pymllm.adapters.cabinet.bugs import plant
from pymllm.adapters.cabinet.planting import Edit

__all__ = ["FAULTS"]

_CACHE = "pymllm.mem_cache.mamba_radix_cache:MambaRadixCache"
_CACHED = "pymllm.mem_cache.cached_states:CachedStates"
_MEMORY = "pymllm.workloads.engine_memory:EngineMemory"
_STATES = "pymllm.workloads.engine_memory:EngineStates"

_IN_THE_TREE = (
    plant(
        "B11",
        ("M2", "R2"),
        ("mamba",),
        (
            Edit(
                f"{_CACHE}.match_prefix",
                "path = walk.path",
                "path = walk.path\n"
                "del path[next((at for at, node in enumerate(path) if node.mamba_value is None), None) :]",
            ),
        ),
    ),
    plant(
        "B22",
        ("M4",),
        ("mamba",),
        (
            Edit(
                f"{_CACHE}._split",
                "self.full_lru.insert_behind(upper, node)",
                "self.full_lru.insert_behind(upper, node)\nupper.mamba_lock_ref = node.mamba_lock_ref",
            ),
        ),
    ),
    plant(
        "B59",
        ("M8",),
        ("mamba",),
        (
            Edit(
                f"{_CACHED}.adopt",
                "self.lru.insert_mru(node)",
                "others = list(self.lru)\n"
                "self.lru.insert_mru(node)\n"
                "for other in reversed(others):\n"
                "    self.lru.touch_mru(other)",
            ),
        ),
    ),
    plant(
        "B73",
        ("M6",),
        ("mamba",),
        (Edit(f"{_CACHED}.adopt", "self.evictable += 1", "self.evictable += node._length"),),
    ),
    plant(
        "B74",
        ("M1",),
        ("mamba",),
        (
            Edit(
                f"{_CACHE}.insert",
                "result = InsertResult(walk.length, last, exists, adopted)",
                "others = [node for node in walk.path if node is not last]\n"
                "above = any(node.mamba_value is not None for node in others)\n"
                "result = InsertResult(walk.length, last, exists or above, adopted)",
            ),
        ),
    ),
)

_IN_THE_ENGINE = (
    plant(
        "B70",
        ("E1", "M1"),
        ("mamba",),
        (
            Edit(
                f"{_STATES}._stops",
                "live.prompt_length // self._page_size * self._page_size",
                "live.prompt_length",
            ),
        ),
        note="the cache refuses a state with a key that is not whole pages, so it is the engine that cuts "
        "the key and keeps the state",
    ),
    plant(
        "B71",
        ("M1", "M2"),
        ("mamba",),
        (
            Edit(
                f"{_MEMORY}._insert",
                'options["mamba_value"] = self.states.save(live)',
                'options["mamba_value"] = self.states.save(live)\n'
                "aligned -= self.page_size if aligned > self.page_size else 0",
            ),
        ),
        note="no second component shortens a key: the engine cuts a page off after it has saved the state",
    ),
    plant(
        "B89",
        ("E2", "M1", "E3"),  # E3: the duplicates that it takes for the tree's nobody gives back
        ("mamba",),
        (
            Edit(
                f"{_MEMORY}._follow",
                "if result.adopted == ((held, aligned),):",
                "if self.states is not None:",
            ),
        ),
        note="the engine takes the node that its insert returned for its own, duplicates and all",
    ),
)

FAULTS = (*_IN_THE_TREE, *(replace(fault, searchers=("life-cycle machine",)) for fault in _IN_THE_ENGINE))
