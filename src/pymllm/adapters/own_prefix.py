"""The common part of the adapters of this package's prefix caches: pools, keys, nodes and faults."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pymllm.adapters.base import BaseAdapter, UnsupportedError
from pymllm.adapters.failing_calls import InjectedFault, RecordingPool, record_around
from pymllm.adapters.key_forms import clobber, make_indices, make_radix_key
from pymllm.adapters.simple import PrefixAdapter
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm.invariants import check_swa_allocator, check_token_allocator
from pymllm.mem_cache.memory_pool import SWATokenToKVPoolAllocator, TokenToKVPoolAllocator
from pymllm.mem_cache.slots.store_choice import checks_alone

_SIZES = ("evictable_size", "protected_size", "total_size", "swa_evictable_size", "swa_protected_size")
_READING = (ops.Inspect, ops.ReadHalves, ops.ReadStates, ops.Fault)
_POOL_SIZES = ("available_size", "full_available_size", "swa_available_size")


class LaterFault(Exception):
    """The error of each failing callback after the first, which callers must never see (X2)."""


def pool_configurations(
    windows: Sequence[int | None], pools: Sequence[str], **more: int | str | bool | None
) -> tuple[Config, ...]:
    """Return a configuration for each page size, window and pool, with pools small enough to run out."""
    return tuple(
        {
            **{"page_size": page_size, "window": window, "pool": pool},
            **{"slots": 24 * scale, "swa_slots": 18 * scale, **more},
        }
        for page_size, scale in ((1, 1), (4, 2))
        for window in windows
        for pool in pools
    )


class CallersPool(BaseAdapter):
    """The calls of a caller to the `pool` below a prefix cache; the pool records slots that a cache frees.

    It reads ``pool``, ``slots``, ``swa_slots`` and ``check_ownership``, as `OwnPrefixCache` says.
    """

    pool: RecordingPool | None

    def make_pool(self) -> RecordingPool | None:
        """Build the pool that the configuration names."""
        kind, page_size = self.config.get("pool", "none"), self.number("page_size")
        if kind == "none":
            return None
        # What an insert is to refuse, the pool's trackers tell it; those of a GPU are asked only on request.
        # One that checks nothing does not sort either, as in a server.
        switches: dict[str, Any] = {"need_sort": self.is_checked, "check_ownership": self.is_checked}
        if not self.is_watched:
            switches["check_ownership"] = checks_alone(self.is_checked, self._device)
        inner: TokenToKVPoolAllocator | SWATokenToKVPoolAllocator
        if kind == "token":
            inner = TokenToKVPoolAllocator(self.number("slots"), self._device, page_size, **switches)
        elif kind == "swa":
            sizes = self.number("slots"), self.number("swa_slots")
            inner = SWATokenToKVPoolAllocator(*sizes, self._device, page_size, **switches)
        else:
            raise ValueError(f"pool is {kind!r}; it must be none, token or swa")
        return record_around(inner, lambda effect: self.effects.append(effect))

    @property
    def is_checked(self) -> bool:
        """Whether the pool checks the ownership of returned slots, which is the default."""
        return self.config.get("check_ownership") is not False

    @property
    def is_watched(self) -> bool:
        """Whether the pool tracks the pages that the cache owns, if the configuration asks for checks."""
        return self.config.get("check_ownership") is True

    @property
    def _device(self) -> str:
        return str(self.config.get("device", "cpu"))

    # -- the pool, called by who owns the slots --------------------------------------------------------

    def do_alloc(self, step: int, operation: ops.Alloc) -> out.Result:
        inner = self._pool_of_caller()
        slots = inner.alloc(operation.tokens)
        if slots is None:
            return out.NoRoom()
        halves = inner.translate_to_swa(slots).tolist() if hasattr(inner, "translate_to_swa") else ()
        return out.Slots(tuple(slots.tolist()), tuple(halves))

    def do_read_halves(self, step: int, operation: ops.ReadHalves) -> out.Result:
        halves = self._pool_of_caller("translate_to_swa").translate_to_swa(
            make_indices(self.numbers(operation.slots), "int64")
        )
        return out.Slots((), tuple(halves.tolist()))

    def do_free(self, step: int, operation: ops.Free) -> out.Result:
        self._pool_of_caller().free(make_indices(self.numbers(operation.slots), operation.form))
        return out.Done()

    def do_free_swa(self, step: int, operation: ops.FreeSWA) -> out.Result:
        inner = self._pool_of_caller(needs="free_swa")
        inner.free_swa(make_indices(self.numbers(operation.slots), operation.form))
        return out.Done()

    def do_move_swa(self, step: int, operation: ops.MoveSWA) -> out.Result:
        inner = self._pool_of_caller(needs="move_swa")
        ends = (self.numbers(operation.source), self.numbers(operation.target))
        inner.move_swa(*(make_indices(numbers, "int64") for numbers in ends))
        return out.Done()

    def _pool_of_caller(self, needs: str = "alloc") -> Any:
        if self.pool is None:
            raise UnsupportedError("there is no pool")
        if not hasattr(self.pool.inner, needs):
            raise UnsupportedError("the pool has no SWA halves")
        return self.pool.inner


class OwnPrefixCache(CallersPool, PrefixAdapter, ABC):
    """The adapter of a `BasePrefixCache` of this package, the `cache`, over a recording `pool` or none.

    Keys of its configuration: ``page_size``; ``window`` in tokens, or ``None``; ``pool``: ``none``, ``token``
    or ``swa``; ``slots`` and ``swa_slots``, sizes of the pools in tokens; ``check_ownership``. Left out,
    there is no window, no pool, and ownership is checked; asked for, the pool watches as well which pages the
    cache has, as in debugging. Unchecked, the pool is a queue that neither
    checks nor sorts, and what only trackers could refuse is not refused: a tree over it claims no refusals.
    `is_touched` says whether the last operation may have changed anything; looking inside after one that
    only read would take a third of a machine's time.
    """

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        self.is_touched = True
        self._fault: ops.Fault | None = None
        self._callbacks_run = 0
        self.pool = self.make_pool()
        self.cache = self.make_cache(self._on_node_evict)
        # Sizes are told after every operation: what to ask for them is looked up once.
        self._asked = self.size_calls()

    @abstractmethod
    def make_cache(self, on_node_evict: Callable[[int], None]) -> Any:
        """Build the cache under examination, over `pool`."""

    def node_length(self, node: Any, key: ops.Key) -> int | None:
        """Return the length of the path that ends at a node, if nodes have paths."""
        return None

    def state_of(self, node: Any) -> int | None:
        """Return the track slot of a node's state, if nodes have states."""
        return None

    def states_of(self, operation: ops.Insert) -> dict[str, torch.Tensor]:
        """Return the arguments of an insert besides KV, by name."""
        return {}

    # -- watching --------------------------------------------------------------------------------------

    def apply(self, step: int, operation: ops.Operation) -> out.Outcome:
        """Carry out an operation, and forget any fault armed for it."""
        self._callbacks_run = 0
        self.is_touched = not isinstance(operation, _READING)
        outcome = super().apply(step, operation)
        if self._fault is not None and not isinstance(operation, ops.Fault):
            self._set_fault(None)
        return outcome

    def _set_fault(self, fault: ops.Fault | None) -> None:
        self._fault = fault
        if self.pool is not None:
            self.pool.fault = fault

    def _on_node_evict(self, node_id: int) -> None:
        self._callbacks_run += 1
        fault = self._fault
        is_due = fault is not None and self._callbacks_run >= fault.nth
        note = self._reenter() if is_due and fault is not None and fault.call == "reenter" else ""
        self.effects.append(out.Effect("callback", node=node_id, note=note, sizes=self.sizes()))
        if is_due and fault is not None and fault.call == "callback":
            is_first = self._callbacks_run == fault.nth
            raise InjectedFault("the callback") if is_first else LaterFault("a later callback")

    def _reenter(self) -> str:
        try:
            self.cache.match_prefix(make_radix_key(ops.Key((1,))))
        except Exception as error:  # which one is what is asked
            return type(error).__name__
        return ""

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the cache, and the free room in the pool."""
        return {name: ask() for name, ask in self._asked}

    def size_calls(self) -> list[tuple[str, Callable[[], int]]]:
        """Return the name of each size, with the call that reads it."""
        inner = None if self.pool is None else self.pool.inner
        of_pool = [name for name in _POOL_SIZES if hasattr(inner, name)]
        return [
            *((name, getattr(self.cache, name)) for name in _SIZES),
            *((name, getattr(inner, name)) for name in of_pool),
        ]

    def audit_pool(self) -> tuple[str, ...]:
        """Check the pool and the table between its halves; return the ids of the checked laws."""
        if self.pool is None or not self.is_touched:
            return ()
        if isinstance(self.pool.inner, SWATokenToKVPoolAllocator):
            check_swa_allocator(self.pool.inner)
            return ("A1", "A2", "A7")
        check_token_allocator(self.pool.inner)
        return ("A1", "A2")

    # -- keys in and out -------------------------------------------------------------------------------

    def do_match(self, step: int, operation: ops.Match) -> out.Result:
        """Match a key, and then overwrite the passed key and the returned indices (X5)."""
        key = make_radix_key(operation.key)
        result = self.cache.match_prefix(key)
        clobber(key.token_ids)
        slots, dtype = tuple(result.indices.tolist()), str(result.indices.dtype).removeprefix("torch.")
        clobber(result.indices)
        node = self._nodes[step] = result.last_node
        length = self.node_length(node, operation.key)
        branching = result.mamba_branching_seqlen
        return out.Matched(slots, result.prefix_len, length, dtype, self.state_of(node), branching)

    def do_insert(self, step: int, operation: ops.Insert) -> out.Result:
        """Insert a key, and then overwrite the arguments (X5)."""
        key, value = make_radix_key(operation.key), self._value_of(operation)
        states = self.states_of(operation)
        more = {"priority": operation.priority} if operation.priority else {}
        result = self.cache.insert(
            key,
            value,
            prev_prefix_len=operation.prev_prefix_len,
            swa_evicted_seqlen=operation.swa_evicted_seqlen,
            **states,
            **more,
        )
        for given in (key.token_ids, value, *states.values()):
            if given is not None:
                clobber(given)
        self._nodes[step] = result.last_node
        length = self.node_length(result.last_node, operation.key)
        return out.Inserted(result.prefix_len, tuple(result.adopted), length, result.mamba_exist)

    def _value_of(self, operation: ops.Insert) -> torch.Tensor | None:
        if operation.slots is None:
            return None
        return make_indices(self.numbers(operation.slots), operation.form).to(self._device)

    def do_evict(self, step: int, operation: ops.Evict) -> out.Result:
        result = self.cache.evict(operation.tokens, operation.secondary)
        return out.Evicted(result.full_evicted, result.swa_evicted, result.mamba_evicted)

    def reset(self) -> None:
        self.cache.reset()

    # -- holds -----------------------------------------------------------------------------------------

    def lock(self, node: Any) -> Any:
        return self.cache.inc_lock_ref(node)

    def do_unlock(self, step: int, operation: ops.Unlock) -> out.Result:
        """Release a hold; a missing token is passed in either of two ways."""
        node, token = self.named_by(operation)
        if token is None and operation.lock % 2:
            self.cache.dec_lock_ref(node)
        else:
            self.cache.dec_lock_ref(node, swa_boundary_id=token)
        return out.Done()

    # -- faults ----------------------------------------------------------------------------------------

    def do_fault(self, step: int, operation: ops.Fault) -> out.Result:
        """Arm a fault for a call in the next operation."""
        if "faults" not in self.capabilities:
            raise UnsupportedError("nothing fails here")
        self._set_fault(operation)
        return out.Done()
