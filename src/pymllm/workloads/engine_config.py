"""The configuration of an engine: its sizes, limits and checks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

BLOCKS = "blocks"
"""The name of the cache that is a context of blocks (`DynamicInferenceContext`) rather than a tree."""

CACHES_OF_STATES = frozenset({"mamba", BLOCKS})
"""The names of caches that keep recurrent states beside KV."""

EVICTION_POLICIES = ("lru", "ref_zero")
"""The values of `PrefixCachingEvictionPolicy`."""

_TRACK_SLOTS_PER_REQUEST = 4
_MAMBA_CHUNK_SIZE = 128
_PAUSED_SHARE = 4

_OF_BLOCKS = ("mamba_chunk_size", "paused_capacity")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and switches of one simulated engine.

    - ``cache``: Name of the prefix cache in `pymllm.workloads.engine_pools.CACHE_MAKERS`: ``"radix"``,
      ``"chunk"`` or ``"mamba"``; or ``"blocks"`` for a `BlockEngine`.
    - ``page_size``: Tokens per page, or per block.
    - ``sliding_window_size``: Attention window in tokens; ``None`` for full attention only.
    - ``capacity``: KV slots in tokens; `rounded` cuts it down to whole pages.
    - ``swa_capacity``: Slots of the sliding-window half, cut down likewise; ``None`` takes ``capacity``. Only
      with a window.
    - ``track_slots``: States that a cache of states may keep; ``None`` takes four per running request. Only
      with ``"mamba"`` and ``"blocks"``, which have no window.
    - ``mamba_chunk_size``: The kernel has a state after each multiple of this many tokens of what it
      computes; ``None`` takes 128. This and the next two only with ``"blocks"``.
    - ``eviction_policy``: ``"lru"``, which ``None`` takes, or ``"ref_zero"``: what becomes of blocks that
      nobody references.
    - ``paused_capacity``: KV slots in tokens that paused requests may keep; ``None`` takes a quarter of
      ``capacity``.
    - ``max_running``: Most requests that own a row at one time.
    - ``max_context``: Most tokens with KV in one request; the row table is ``(max_running + 1, max_context)``
      int32. A request that needs more is rejected.
    - ``chunk_tokens``: Prompt tokens computed per iteration, over all requests.
    - ``iteration_ms``: Virtual milliseconds that an iteration takes.
    - ``decode_headroom``: Admission leaves room for this many further tokens (or as many as remain) of each
      running request, which damps a cycle of admitting and retracting.
    - ``release_window_early``: With a window: return SWA halves behind the window before a prompt's chunk is
      cached (less memory, fewer later hits) instead of leaving that to eviction.
    - ``content_check``: Write fingerprints into small KV pools and compare whatever is read back (laws E1,
      E2, E5).
    - ``check_every``: Check the cache's invariants after every n-th cache operation, and the allocator's and
      the requests' once per iteration; 0 checks nothing.
    - ``seed``: Shown with the result; also seeds the garbage that padded writes carry.
    - ``device``: Device of pools and tables.

    `ValueError` where a size is zero or negative, ``swa_capacity`` comes without a window, ``track_slots``
    without a cache of states, or what only blocks have with another cache; or where a cache of states has a
    window.
    """

    cache: str = "radix"
    page_size: int = 1
    sliding_window_size: int | None = None
    capacity: int = 1_000_000
    swa_capacity: int | None = None
    track_slots: int | None = None
    mamba_chunk_size: int | None = None
    eviction_policy: str | None = None
    paused_capacity: int | None = None
    max_running: int = 256
    max_context: int = 131_072
    chunk_tokens: int = 8192
    iteration_ms: float = 50.0
    decode_headroom: int = 16
    release_window_early: bool = False
    content_check: bool = False
    check_every: int = 0
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("page_size", "capacity", "max_running", "max_context", "chunk_tokens", "iteration_ms"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("sliding_window_size", "swa_capacity", "mamba_chunk_size"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value}; it must be above 0, or None")
        for name in ("decode_headroom", "check_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 0 or more")
        self._check_states()
        if self.swa_capacity is not None and self.sliding_window_size is None:
            raise ValueError("swa_capacity is for a sliding window; give sliding_window_size too")
        for name in ("capacity", "swa_capacity"):
            value = getattr(self, name)
            if value is not None and value < self.page_size:
                raise ValueError(f"{name} is {value}; it must hold at least one page of {self.page_size}")

    def _check_states(self) -> None:
        for name in ("track_slots", "paused_capacity"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value}; it must be 0 or more, or None")
        if self.track_slots is not None and not self.has_states:
            names = " and ".join(map(repr, sorted(CACHES_OF_STATES)))
            raise ValueError(f"track_slots is for caches {names}; cache {self.cache!r} keeps no states")
        for name in _OF_BLOCKS:
            if getattr(self, name) is not None and self.cache != BLOCKS:
                raise ValueError(f"{name} is for cache {BLOCKS!r}; cache {self.cache!r} has no blocks")
        if self.eviction_policy is not None and self.cache == "chunk":
            raise ValueError(f"eviction_policy is {self.eviction_policy!r}; cache 'chunk' evicts nothing")
        if self.cache == BLOCKS and self.eviction_policy not in (None, *EVICTION_POLICIES):
            raise ValueError(
                f"eviction_policy is {self.eviction_policy!r}; it must be one of {EVICTION_POLICIES}"
            )
        if self.has_states and self.sliding_window_size is not None:
            raise ValueError(
                f"sliding_window_size is {self.sliding_window_size}; cache {self.cache!r} has no window"
            )

    @property
    def has_states(self) -> bool:
        """Whether the cache keeps recurrent states beside KV."""
        return self.cache in CACHES_OF_STATES

    def rounded(self) -> EngineConfig:
        """Return the configuration with capacities in whole pages, and with derived settings filled in."""
        capacity = self.capacity // self.page_size * self.page_size
        swa_capacity = self.swa_capacity
        if self.sliding_window_size is not None:
            swa_capacity = (swa_capacity or capacity) // self.page_size * self.page_size
        track_slots = self.track_slots
        if self.has_states and track_slots is None:
            track_slots = _TRACK_SLOTS_PER_REQUEST * self.max_running
        return replace(
            self,
            capacity=capacity,
            swa_capacity=swa_capacity,
            max_context=min(self.max_context, capacity),
            track_slots=track_slots,
            **(self._block_defaults(capacity) if self.cache == BLOCKS else {}),
        )

    def _block_defaults(self, capacity: int) -> dict[str, Any]:
        paused = capacity // _PAUSED_SHARE if self.paused_capacity is None else self.paused_capacity
        return {
            "mamba_chunk_size": self.mamba_chunk_size or _MAMBA_CHUNK_SIZE,
            "eviction_policy": self.eviction_policy or EVICTION_POLICIES[0],
            "paused_capacity": min(paused, capacity) // self.page_size * self.page_size,
        }
