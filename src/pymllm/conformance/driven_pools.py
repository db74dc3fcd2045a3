"""The pools of an engine that drives an adapter: slots come from the adapter, rows are our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pymllm.conformance.driven_cache import Carrier, DrivenCache
from pymllm.conformance.driven_states import DrivenStates
from pymllm.history.files import Header
from pymllm.history.operations import Alloc, Free, FreeSWA, Span
from pymllm.history.outcomes import Done, NoRoom, Slots
from pymllm.mem_cache.memory_pool import ReqToTokenPool
from pymllm.oracle.slot_model import WindowModel
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_pools import CacheKind, EnginePools

__all__ = ["DrivenAllocator", "driven_config", "make_driven_cache", "make_driven_pools"]


class DrivenAllocator:
    """The slots of an adapter's pool, each call an operation.

    What no operation asks, namely who has a slot and which SWA slot is behind it, is told by the judge's
    ledger, which has followed all that was handed out, moved and given back.

    Parameters
    ----------
    carrier : Carrier
        Of an adapter with a pool.
    size : int
        Slots of the pool, in tokens.

    Attributes
    ----------
    refuses : callable or None
        Asked before each allocation of anything whether it is to find nothing, whatever is free.
    """

    def __init__(self, carrier: Carrier, size: int) -> None:
        self.size = size
        self.refuses: Callable[[], bool] | None = None
        self._carrier = carrier
        self._ledger = carrier.judge.ledger

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Hand out slots, int32 on the CPU, or ``None``."""
        if need_size and self.refuses is not None and self.refuses():
            return None
        result = self._carrier.do(Alloc(need_size), Slots, NoRoom)
        return _tensor_of(result.slots, np.int32) if isinstance(result, Slots) else None

    def free(self, indices: torch.Tensor) -> None:
        """Take slots back."""
        self._carrier.do(Free(self._name(indices)), Done)

    def free_swa(self, indices: torch.Tensor) -> None:
        """Take the SWA halves of slots back."""
        self._carrier.do(FreeSWA(self._name(indices)), Done)

    def _name(self, indices: torch.Tensor) -> tuple[Span, ...]:
        return self._ledger.name(indices.flatten().tolist())

    def is_handed_out(self, indices: torch.Tensor) -> torch.Tensor:
        """Tell for each slot whether it is not free."""
        held, page_size = self._ledger.full.held, self._ledger.page_size
        return _tensor_of([slot // page_size in held for slot in indices.tolist()], np.bool_)

    def translate_to_swa(self, indices: torch.Tensor) -> torch.Tensor:
        """Name the SWA slot behind each slot, 0 where it is gone."""
        pool, page_size = self._ledger.pool, self._ledger.page_size
        half = pool.half if isinstance(pool, WindowModel) else {}
        found = [
            half[slot // page_size] * page_size + slot % page_size if slot // page_size in half else 0
            for slot in indices.tolist()
        ]
        return _tensor_of(found, np.int32)

    def available_size(self) -> int:
        """Count the tokens that `alloc` can still serve."""
        return self._carrier.size("available_size")

    def full_available_size(self) -> int:
        """Count the free tokens of the full half."""
        return self._carrier.size("full_available_size")

    def swa_available_size(self) -> int:
        """Count the free tokens of the SWA half."""
        return self._carrier.size("swa_available_size")


def driven_config(header: Header, **changes: Any) -> EngineConfig:
    """Return the sizes of an engine that suits an adapter, with every check on.

    Parameters
    ----------
    header : Header
        Its ``slots``, ``swa_slots``, ``page_size``, ``window``, ``pool`` and ``track_slots`` count.
    **changes
        Other fields of the `EngineConfig`.

    Returns
    -------
    EngineConfig
        With a window only where there are SWA halves to give back: over a plain pool, or over halves that
        no window ever frees alone, an engine has nothing to do with it.
    """
    capacity = _integer(header, "slots")
    sizes: dict[str, Any] = {}
    if "mamba" in header.capabilities:
        sizes = {"cache": "mamba", "track_slots": _integer(header, "track_slots")}
    if header.config["pool"] == "swa":
        swa_slots = _integer(header, "swa_slots")
        if header.config["window"] is None:
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
    """Make the cache of an engine over an adapter, with states where the adapter keeps any.

    Parameters
    ----------
    carrier : Carrier
        Of the adapter.
    config : EngineConfig
        As `driven_config` gives it.
    """
    tracks = carrier.judge.books.tracks
    return DrivenCache(carrier, None if tracks is None else DrivenStates(carrier, config.max_running, tracks))


def make_driven_pools(
    carrier: Carrier, cache: DrivenCache, config: EngineConfig, header: Header
) -> EnginePools:
    """Make the pools of an engine over an adapter.

    Parameters
    ----------
    carrier : Carrier
        Of the adapter.
    cache : DrivenCache
        As `make_driven_cache` gives it.
    config : EngineConfig
        As `driven_config` gives it.
    header : Header
        Of the adapter's history.

    Notes
    -----
    The adapter is audited by whoever carries its operations out, so these pools have nothing to walk.
    """
    allocator, model = DrivenAllocator(carrier, _integer(header, "slots")), carrier.judge.model

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
    )


def _tensor_of(numbers: Sequence[int], dtype: type[np.generic]) -> torch.Tensor:
    """Make a tensor on the host, by NumPy, which takes a third of torch's time for a few numbers."""
    return torch.from_numpy(np.array(numbers, dtype=dtype))


def _walk_nothing() -> None:
    """Leave the walk to the examiner."""
