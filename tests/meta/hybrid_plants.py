"""Bugs planted where KV and recurrent states go together: the hybrid cache, and an engine that uses it."""

from __future__ import annotations

from plant import Plant
from planting import Edit

__all__ = ["PLANTS"]

_TREE = "tests/unit/mem_cache/test_mamba_radix_cache.py::"
_ENGINE = "tests/unit/workloads/test_engine_states.py::"
_CACHE = "pymllm.mem_cache.mamba_radix_cache:MambaRadixCache"
_CACHED = "pymllm.mem_cache.cached_states:CachedStates"
_MEMORY = "pymllm.workloads.engine_memory:EngineMemory"
_STATES = "pymllm.workloads.engine_states:EngineStates"

_IN_THE_TREE = (
    Plant(
        "B11",
        ("M2",),
        (
            Edit(
                f"{_CACHE}.match_prefix",
                "path = walk.path",
                "path = walk.path\n"
                "del path[next((at for at, node in enumerate(path) if node.mamba_value is None), None) :]",
            ),
        ),
        _TREE + "TestMatch::test_a_longer_match_passes_over_nodes_without_a_state",
    ),
    Plant(
        "B22",
        ("M4",),
        (
            Edit(
                f"{_CACHE}._split",
                "self.full_lru.insert_mru(upper)",
                "self.full_lru.insert_mru(upper)\nupper.mamba_lock_ref = node.mamba_lock_ref",
            ),
        ),
        _TREE + "TestLocks::test_split_of_a_held_node_keeps_the_state_lock_below",
    ),
    Plant(
        "B59",
        ("M8",),
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
        _TREE + "TestRecencyAndIds::test_lists_follow_the_recency",
    ),
    Plant(
        "B73",
        ("M6",),
        (Edit(f"{_CACHED}.adopt", "self.evictable += 1", "self.evictable += node._length"),),
        _TREE + "TestLocks::test_sizes_count_tokens_and_states",
    ),
    Plant(
        "B74",
        ("M1",),
        (
            Edit(
                f"{_CACHE}.insert",
                "return InsertResult(walk.length, last, exists, adopted)",
                "others = [node for node in walk.path if node is not last]\n"
                "exists = exists or any(node.mamba_value is not None for node in others)\n"
                "return InsertResult(walk.length, last, exists, adopted)",
            ),
        ),
        _TREE + "TestInsert::test_state_of_an_ancestor_does_not_count",
    ),
)

_IN_THE_ENGINE = (
    Plant(
        "B70",
        ("E1", "M1"),
        (
            Edit(
                f"{_STATES}._stops",
                "live.prompt_length // self._page_size * self._page_size",
                "live.prompt_length",
            ),
        ),
        _ENGINE + "test_a_longer_prompt_begins_where_the_shorter_one_ended[4]",
        note="the cache refuses a state with a key that is not whole pages, so it is the engine that cuts "
        "the key and keeps the state",
    ),
    Plant(
        "B71",
        ("M1", "M2", "E1"),
        (
            Edit(
                f"{_MEMORY}._insert",
                'options["mamba_value"] = self.states.save(live)',
                'options["mamba_value"] = self.states.save(live)\naligned -= self.page_size',
            ),
        ),
        _ENGINE + "test_a_longer_prompt_begins_where_the_shorter_one_ended[1]",
        note="no second component shortens a key: the engine cuts a page off after it has saved the state",
    ),
    Plant(
        "B89",
        ("E2", "M1"),
        (
            Edit(
                f"{_MEMORY}._follow",
                "if result.adopted == ((held, aligned),):",
                "if self.states is not None:",
            ),
        ),
        _ENGINE + "test_state_that_is_there_already_stays_the_callers",
        note="the engine takes the node that its insert returned for its own, duplicates and all",
    ),
)

PLANTS = (*_IN_THE_TREE, *_IN_THE_ENGINE)
