"""How pymllm examines the cache of `stranger_cache.py`: operations in, results and effects out.

::

    pymllm verify --adapter stranger_adapter:StrangerCache
    pymllm faults --cabinet stranger_faults:TABLE
    pytest test_stranger_cache.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from stranger_cache import PageCache, Prefix

from pymllm.adapters.base import BaseAdapter
from pymllm.history.files import Config
from pymllm.history.operations import Alloc, Evict, Free, Insert, Key, Lock, Match, Reset, Unlock
from pymllm.history.outcomes import Done, Effect, Evicted, Inserted, Locked, Matched, NoRoom, Result, Slots


class StrangerCache(BaseAdapter):
    """A `PageCache`. It has no namespaces, no window, and refuses nothing, so it claims none of these."""

    KIND = "prefix"
    CONFIGURATIONS: ClassVar[tuple[Config, ...]] = tuple(
        # window: None or its tokens; pool: "none", "token" or "swa"; slots: tokens, so few that they run out
        {"page_size": size, "window": None, "pool": "token", "slots": 24 * size, "swa_slots": 0}
        for size in (1, 2)
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.cache = PageCache(int(config["page_size"] or 0), int(config["slots"] or 0))
        self.paths: dict[int, Prefix] = {}  # what a step matched, inserted or held

    def claim(self) -> frozenset[str]:
        """Claim slots of its own, the strict order of recency, and that an engine can drive it."""
        return frozenset({"pool", "exact_lru", "engine"})

    def sizes(self) -> dict[str, int]:
        """Count tokens, by the documented names."""
        size, held = self.cache.page_size, sum(map(bool, self.cache.holds.values()))
        total = size * len(self.cache.pages)
        sizes = {"total_size": total, "protected_size": size * held, "evictable_size": total - size * held}
        return {**sizes, "available_size": len(self.cache.free)}

    def whole(self, key: Key) -> Prefix:
        """Return the whole pages of a key; no tuples come, since bigrams are not claimed."""
        length = len(key.tokens) // self.cache.page_size * self.cache.page_size
        return tuple(token for token in key.tokens[:length] if isinstance(token, int))

    def do_alloc(self, step: int, operation: Alloc) -> Result:
        """Hand out slots."""
        slots = self.cache.allocate(operation.tokens)
        return NoRoom() if slots is None else Slots(tuple(slots))

    def do_free(self, step: int, operation: Free) -> Result:
        """Take slots back from the caller, a page as a whole whichever of its slots are named.

        This is no effect: the caller knows.
        """
        size = self.cache.page_size
        pages = dict.fromkeys(slot // size for slot in self.numbers(operation.slots))
        self.cache.free += [page * size + at for page in pages for at in range(size)]
        return Done()

    def do_match(self, step: int, operation: Match) -> Result:
        """Match; the step stands for the prefix that was found."""
        slots = self.cache.match(self.whole(operation.key))
        self.paths[step] = self.whole(operation.key)[: len(slots)]
        return Matched(tuple(slots), len(slots), len(slots))

    def do_insert(self, step: int, operation: Insert) -> Result:
        """Insert; adopted is what was not there."""
        path = self.paths[step] = self.whole(operation.key)
        known = self.cache.insert(path, self.numbers(operation.slots or ()))
        return Inserted(known, ((known, len(path)),) if known < len(path) else (), len(path))

    def do_evict(self, step: int, operation: Evict) -> Result:
        """Evict; what goes back to the pool without the caller's doing is an effect."""
        return Evicted(len(self.give_up(operation.tokens)))

    def do_reset(self, step: int, operation: Reset) -> Result:
        """Empty the cache, whatever is held."""
        self.cache.holds.clear()
        self.give_up(len(self.cache.pages) * self.cache.page_size)
        return Done()

    def give_up(self, count: int) -> list[int]:
        """Evict, and tell of it."""
        gone = self.cache.evict(count)
        self.effects += [Effect("free", tuple(gone))] if gone else []
        return gone

    def do_lock(self, step: int, operation: Lock) -> Result:
        """Hold what a step stands for; a match of nothing stands for the root, which any lock may name."""
        self.paths[step] = self.paths[operation.of]
        self.cache.hold(self.paths[step])
        return Locked()

    def do_unlock(self, step: int, operation: Unlock) -> Result:
        """Release the hold of a step."""
        self.cache.hold(self.paths[operation.lock], -1)
        return Done()
