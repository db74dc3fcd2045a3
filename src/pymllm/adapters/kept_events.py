"""The events of this package's caches, converted to the form of a history."""

from __future__ import annotations

from typing import Any

from pymllm.history.outcomes import CacheEvent, ToldEvents
from pymllm.mem_cache.cache_events import AllCleared, BlocksRemoved


def take_events(teller: Any) -> ToldEvents:
    """Take the events of a cache, allocator or context, and return them in the form of a history."""
    return ToldEvents(tuple(map(_as_record, teller.take_events())))


def _as_record(event: Any) -> CacheEvent:
    if isinstance(event, AllCleared):
        return CacheEvent("cleared")
    if isinstance(event, BlocksRemoved):
        return CacheEvent("removed", str(event.part), event.hashes)
    told = event.parent, event.tokens, event.namespace
    return CacheEvent("stored", str(event.part), event.hashes, *told)
