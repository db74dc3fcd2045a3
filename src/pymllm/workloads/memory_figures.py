"""What an engine's memory says of itself: how much is in use now, and what was done so far."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MemoryCounts", "MemoryUse"]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """How much is in use at one time.

    Parameters
    ----------
    held_tokens : int
        Tokens that no eviction could free.
    stored_tokens : int
        Those and everything cached.
    states : int or None
        Cached states; ``None`` without states.
    """

    held_tokens: int
    stored_tokens: int
    states: int | None


@dataclass(frozen=True, slots=True)
class MemoryCounts:
    """What was done so far; `EngineReport` says what each field means."""

    evict_calls: int
    evicted_tokens: int
    evicted_swa_tokens: int
    dead_window_tokens: int | None
    evicted_states: int | None
    skipped_snapshots: int | None
    cache_operations: int
    invariant_checks: int
