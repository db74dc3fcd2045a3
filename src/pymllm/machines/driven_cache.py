"""The interface of a prefix cache over an adapter: each call becomes an operation that is judged.

So whoever drives a `BasePrefixCache`, such as the simulated engine, can drive any adapter, and all that it
does is an ordinary history. Nodes are step numbers here, and the token of a hold is the step of its `Lock`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from pymllm.errors import AdapterError, UsageError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Header
from pymllm.history.operations import Key, Operation, Span
from pymllm.history.outcomes import Outcome
from pymllm.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    EvictResult,
    InsertResult,
    MatchResult,
    RadixKey,
)
from pymllm.mem_cache.memory_pool import GDNPool, ReqToTokenPool
from pymllm.oracle.judge import Judge
from pymllm.oracle.models.prefix_model import Path, path_of_key
from pymllm.oracle.models.slot_model import WindowModel
from pymllm.oracle.models.slot_ownership import Owner, TrackOwnership
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_pools import CacheKind, EnginePools

R = TypeVar("R")


class Carrier:
    """A translator of function calls into the operations of an adapter."""

    def __init__(self, do: Callable[[Operation], Outcome], judge: Judge[Any]) -> None:
        self.judge = judge
        self.steps = 0  # the number of the last operation, as the history counts them
        self.asked: Operation | None = None  # what somebody has asked for and got no answer to
        self._do = do
        self._told: dict[str, int] = {}

    def do(self, operation: Operation, *kinds: type[R]) -> R:
        """Carry out an operation, and return its result, which must have one of the given types.

        `UsageError`: it was rightly refused, who called asked for what the specification forbids.
        `AdapterError`: the adapter cannot carry it out.
        """
        self.asked = operation
        outcome = self._do(operation)
        self.steps += 1
        self._told = outcome.sizes
        result = outcome.result
        if isinstance(result, kinds):
            self.asked = None
            return result
        if isinstance(result, out.Failed):
            raise UsageError(f"{operation} was refused: {result.error}: {result.message}")
        raise AdapterError("driven by the engine", f"{operation} was answered by {result}")

    def size(self, name: str) -> int:
        """Return a size by its documented name: the adapter's report, or else the model's value."""
        if name in self._told:
            return self._told[name]
        sizes: dict[str, int] = self.judge.model.sizes()
        return sizes[name]


def _told(name: str) -> Callable[[Any], int]:
    """Return a method that returns a size by its documented name, as `Carrier.size` does."""
    return lambda driven: driven._carrier.size(name)


class DrivenCache(BasePrefixCache):
    """The documented interface of a prefix cache over a `Carrier`, with states if the adapter keeps them.

    Tokens are numbered in the order in which they first appear, so that programs are easy to read.
    """

    def __init__(self, carrier: Carrier, states: DrivenStates | None = None) -> None:
        self.states = states
        self._carrier = carrier
        self._tokens: dict[int, int] = {}
        self._paths: dict[int, Path] = {}
        self._states: dict[int, int | None] = {}

    def _key(self, key: RadixKey) -> Key:
        known = self._tokens
        return Key(tuple(known.setdefault(token, len(known) + 1) for token in key), key.extra_key)

    def path_of(self, node: int) -> Path:
        """Return the path of a node."""
        return self._paths[node]

    def path_of_key(self, key: RadixKey) -> Path:
        """Return the path of a key."""
        return path_of_key(self._key(key))

    def state_of(self, node: int) -> int | None:
        """Return the row of the state at a matched node, or ``None`` if the node has no state."""
        slot = self._states[node]
        return None if self.states is None or slot is None else self.states.row_of(slot)

    def reset(self) -> None:
        """Empty the cache."""
        self._carrier.do(ops.Reset(), out.Done)

    def match_prefix(self, key: RadixKey) -> MatchResult:
        """Match a key; the returned indices are int64 on the CPU."""
        wanted = self._key(key)
        result = self._carrier.do(ops.Match(wanted), out.Matched)
        step = self._carrier.steps
        self._paths[step] = path_of_key(wanted).upto(result.prefix_len)
        self._states[step] = result.state
        indices = torch.from_numpy(np.array(result.slots, dtype=np.int64))
        return MatchResult(indices, step, result.prefix_len, result.branching)

    def insert(self, key: RadixKey, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        """Insert a key; `InsertResult.last_node` is the node at the end of the key's whole pages.

        ``mamba_value`` is a row of `states`.
        """
        wanted = self._key(key)
        slots = None if value is None else self._carrier.judge.model.ownership.name(value.tolist())
        row = kwargs.pop("mamba_value", None)
        state = None if row is None or self.states is None else self.states.name(int(row))
        result = self._carrier.do(ops.Insert(wanted, slots, state=state, **kwargs), out.Inserted)
        step = self._carrier.steps
        self._paths[step] = self._carrier.judge.model.cache.whole(path_of_key(wanted))
        return InsertResult(result.prefix_len, step, result.state_exists, result.adopted)

    def evict(self, num_tokens: int, swa_num_tokens: int = 0) -> EvictResult:
        """Evict pages of the cache."""
        result = self._carrier.do(ops.Evict(num_tokens, swa_num_tokens), out.Evicted)
        return EvictResult(result.full, result.swa, result.states)

    def inc_lock_ref(self, node: int) -> int:
        """Take a hold on a node; its token is the step of its `Lock`."""
        self._carrier.do(ops.Lock(node), out.Locked)
        return self._carrier.steps

    def dec_lock_ref(self, node: int, **kwargs: Any) -> None:
        """Release the hold whose token is ``swa_boundary_id``, which determines ``node``."""
        self._carrier.do(ops.Unlock(kwargs["swa_boundary_id"]), out.Done)

    evictable_size = _told("evictable_size")
    swa_evictable_size = _told("swa_evictable_size")
    protected_size = _told("protected_size")
    swa_protected_size = _told("swa_protected_size")
    total_size = _told("total_size")


class DrivenStates:
    """The states of an engine by row; each call about a track slot becomes an operation.

    Working states are in rows ``1 .. rows``. The adapter may number its track slots as it likes, so each has
    another row here. What is copied into one is kept here and also written into the adapter's memory, as far
    as two small numbers tell it; before it is copied back, the judge compares what the adapter's memory has
    now.
    """

    def __init__(self, carrier: Carrier, rows: int, tracks: TrackOwnership) -> None:
        self._carrier = carrier
        self._ownership = tracks
        # Two layers, and heads and channels of more than one element, as the engine's own pools have.
        self._pool = GDNPool(rows, 2, 1, 2, 2, 2, 2, "cpu", max_track_slots=tracks.size)
        self._track_rows = range(rows + 1, rows + 1 + tracks.size)
        self._row_of: dict[int, int] = {}

    # -- rows and track slots ----------------------------------------------------------------------------
    def row_of(self, slot: int) -> int:
        """Return the row of an adapter's track slot, which must not be free."""
        return self._row_of[slot]

    def name(self, row: int) -> Span:
        """Return a span that names the track slot of a row by the step that gave it."""
        slot = next(slot for slot, place in self._row_of.items() if place == row)
        return self._ownership.given.name((slot,))[0]

    def cached_rows(self) -> list[int]:
        """Return the rows of all track slots that the cache owns."""
        return [self._row_of[slot] for slot in self._ownership.ends.slots.values()]

    # -- what an engine asks of a pool of states -----------------------------------------------------------
    @property
    def max_track_slots(self) -> int:
        """Number of track slots."""
        return self._ownership.size

    @property
    def recurrent_state(self) -> torch.Tensor:
        """States of all layers and rows."""
        return self._pool.recurrent_state

    @property
    def conv_state(self) -> torch.Tensor:
        """Convolution states of all layers and rows."""
        return self._pool.conv_state

    available_track_slots = _told("available_track_slots")

    def alloc_track_slot(self) -> int | None:
        """Allocate a track slot and return its row, or ``None`` if none is free."""
        result = self._carrier.do(ops.AllocTrack(), out.Slots, out.NoRoom)
        if not isinstance(result, out.Slots):
            return None
        (slot,) = result.slots
        # Rows of track slots that the cache has freed meanwhile are free as well.
        owned = {
            other: row
            for other, row in self._row_of.items()
            if other != slot and self._ownership.owner(other) is not Owner.POOL
        }
        row = next(row for row in self._track_rows if row not in owned.values())
        self._row_of = {**owned, slot: row}
        return row

    def free_track_slot(self, slot: int) -> None:
        """Free the track slot of a row."""
        self._carrier.do(ops.FreeTrack(self.name(slot)), out.Done)

    def copy_states(self, src_index: int, dst_index: int) -> None:
        """Copy a row to another, through the adapter's memory if either row is a track slot."""
        if src_index in self._track_rows:
            self._carrier.do(ops.ReadStates(0), out.States, out.Unsupported)
        self._pool.copy_states(src_index, dst_index)
        if dst_index in self._track_rows:
            # In -128 .. 127; those of two different states are most likely different.
            states = (self._pool.recurrent_state, self._pool.conv_state)
            recurrent, conv = (
                int(state[:, dst_index].sum(dtype=torch.int64)) % 256 - 128 for state in states
            )
            written = ops.WriteState(0, self.name(dst_index), recurrent, conv)
            self._carrier.do(written, out.Done, out.Unsupported)

    def reset_states(self, req_pool_indices: int) -> None:
        """Set a working state to zeros."""
        self._pool.reset_states(req_pool_indices)


class DrivenAllocator:
    """The slots of an adapter's pool of ``size`` tokens; each call becomes an operation.

    What no operation asks, namely who has a slot and which SWA slot is behind it, is told by the judge's
    ledger, which has followed all that was handed out, moved and given back. ``refuses`` is asked before each
    allocation of anything whether it is to find nothing, whatever is free.
    """

    def __init__(self, carrier: Carrier, size: int) -> None:
        self.size = size
        self.refuses: Callable[[], bool] | None = None
        self._carrier = carrier
        self._ownership = carrier.judge.model.ownership

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Allocate slots, int32 on the CPU; ``None`` if there are too few."""
        if need_size and self.refuses is not None and self.refuses():
            return None
        result = self._carrier.do(ops.Alloc(need_size), out.Slots, out.NoRoom)
        return _tensor_of(result.slots, np.int32) if isinstance(result, out.Slots) else None

    def free(self, indices: torch.Tensor) -> None:
        """Free slots."""
        self._carrier.do(ops.Free(self._name(indices)), out.Done)

    def free_swa(self, indices: torch.Tensor) -> None:
        """Free the SWA halves of slots."""
        self._carrier.do(ops.FreeSWA(self._name(indices)), out.Done)

    def _name(self, indices: torch.Tensor) -> tuple[Span, ...]:
        named: tuple[Span, ...] = self._ownership.name(indices.flatten().tolist())
        return named

    def is_handed_out(self, indices: torch.Tensor) -> torch.Tensor:
        """Return for each slot whether it is handed out."""
        held, page_size = self._ownership.full.held, self._ownership.page_size
        return _tensor_of([slot // page_size in held for slot in indices.tolist()], np.bool_)

    def translate_to_swa(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the SWA slot of each slot, 0 where it has been freed."""
        pool, page_size = self._ownership.pool, self._ownership.page_size
        half = pool.half if isinstance(pool, WindowModel) else {}
        found = [
            half[slot // page_size] * page_size + slot % page_size if slot // page_size in half else 0
            for slot in indices.tolist()
        ]
        return _tensor_of(found, np.int32)

    available_size = _told("available_size")
    full_available_size = _told("full_available_size")
    swa_available_size = _told("swa_available_size")


def driven_config(header: Header, **changes: Any) -> EngineConfig:
    """Return the configuration of an engine that fits an adapter, with every check on, and ``changes``.

    It has a window only where there are SWA halves to give back: over a plain pool, or over halves that no
    window ever frees alone, an engine has nothing to do with it.
    """
    capacity = _integer(header, "slots")
    sizes: dict[str, Any] = {}
    if "mamba" in header.capabilities:
        sizes = {"cache": "mamba", "track_slots": _integer(header, "track_slots")}
    if header.config["pool"] == "swa":
        swa_slots = _integer(header, "swa_slots")
        if header.config.get("window") is None:
            capacity = min(capacity, swa_slots)
        else:
            sizes = {"sliding_window_size": _integer(header, "window"), "swa_capacity": swa_slots}
    fields: dict[str, Any] = {
        "page_size": _integer(header, "page_size"),
        "capacity": capacity,
        **sizes,
        **changes,
    }
    return EngineConfig(content_check=True, check_every=1, **fields).rounded()


def _integer(header: Header, key: str) -> int:
    value = header.config[key]
    assert isinstance(value, int)  # or the adapter could not have been built
    return value


def make_driven_cache(carrier: Carrier, config: EngineConfig) -> DrivenCache:
    """Return the cache of an engine over an adapter, with states if the adapter keeps them."""
    tracks = carrier.judge.model.tracks
    return DrivenCache(carrier, None if tracks is None else DrivenStates(carrier, config.max_running, tracks))


def make_driven_pools(
    carrier: Carrier, cache: DrivenCache, config: EngineConfig, header: Header
) -> EnginePools:
    """Return the pools of an engine over an adapter, without audits, which the carrier makes."""
    allocator, model = DrivenAllocator(carrier, _integer(header, "slots")), carrier.judge.model.cache

    def cached_slots() -> list[torch.Tensor]:
        return [_tensor_of([slot for page in model.pages.values() for slot in page.slots], np.int64)]

    def path_slots(node: int) -> list[torch.Tensor]:
        return [_tensor_of(model.slots(cache.path_of(node)), np.int64)]

    kind = CacheKind(cache, _walk_nothing, cached_slots, path_slots)
    if cache.states is not None:
        kind = replace(
            kind,
            state_pool=cache.states,
            cached_states=cache.states.cached_rows,
            state_of=cache.state_of,
        )
    return EnginePools(
        kind,
        allocator,
        allocator if config.sliding_window_size is not None else None,
        ReqToTokenPool(config.max_running, config.max_context, config.device),
        _walk_nothing,
        is_driven=True,
    )


def _tensor_of(numbers: Sequence[int], dtype: type[np.generic]) -> torch.Tensor:
    """Return a host tensor made through NumPy, which takes a third of torch's time for a few numbers."""
    return torch.from_numpy(np.array(numbers, dtype=dtype))


def _walk_nothing() -> None:
    """Do nothing, since the examiner audits the adapter."""
