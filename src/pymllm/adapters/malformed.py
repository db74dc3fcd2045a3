"""Malformed calls, which an implementation must refuse (X1), by call and by mistake.

Programs in other languages use the same words. Torch and our caches are loaded by the first call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from pymllm.adapters.base import UnsupportedError
from pymllm.history.operations import Malformed
from pymllm.history.outcomes import Done

_Call = Callable[[Any], object]
Calls = Mapping[tuple[str, str], _Call]
"""A function that makes each malformed call, given an adapter or the adapted object."""


def call_malformed(calls: Calls, operation: Malformed, target: Any) -> Done:
    """Make a malformed call; raise `UnsupportedError` if the adapter cannot make it."""
    call = calls.get((operation.call, operation.wrong))
    if call is None:
        raise UnsupportedError(f"{operation.call} with {operation.wrong}")
    call(target)
    return Done()


def _torch() -> Any:
    return importlib.import_module("torch")


def _radix_cache() -> Any:
    return importlib.import_module("pymllm.mem_cache.radix_cache").RadixCache


def _key(*arguments: Any) -> Any:
    return importlib.import_module("pymllm.mem_cache.base_prefix_cache").RadixKey(*arguments)


# -- keys, slots and states of prefix caches -----------------------------------------------------------------

_BAD_KEYS: dict[str, Callable[[int], Any]] = {
    "a list for a key": lambda size: [1] * size,
    "float tokens": lambda size: _key([1.5] * size),
    "string tokens": lambda size: _key(["1"] * size),
    "a token below 0": lambda size: _key([*[1] * (size - 1), -1]),
    "a token of 33 bits": lambda size: _key([*[1] * (size - 1), 2**32]),
    "tuples of two lengths": lambda size: _key([(1, 2), (1, 2, 3)] * size),
    "tuples of one token": lambda size: _key([(1,)] * size),
    "a list of lists": lambda size: _key([[1] * size] * size),
    "an array of two dimensions": lambda size: _key(_ones(size, size).numpy()),
    "a tensor of two dimensions": lambda size: _key(_ones(size, size)),
    "a tensor of no dimension": lambda size: _key(_ones()),
    "a float namespace": lambda size: _key([1] * size, 1.5),
}

_BAD_SLOTS: dict[str, Callable[[Any], Any]] = {
    "float slots": lambda slots: slots.float(),
    "bool slots": lambda slots: slots.bool(),
    "complex slots": lambda slots: 1j * slots,
    "a list of slots": lambda slots: slots.tolist(),
}

_BAD_STATES: dict[str, Callable[[int], Any]] = {
    "a number for a state": lambda slot: slot,
    "a list for a state": lambda slot: [slot],
    "a float state": lambda slot: _torch().tensor([float(slot)]),
    "a bool state": lambda slot: _torch().tensor([True]),
    "two states": lambda slot: _torch().tensor([slot, slot + 1]),
    "no state in a tensor": lambda slot: _torch().tensor([]).long(),
    "a state of no dimension": lambda slot: _torch().tensor(slot),
}

FIRST_TRACK_SLOT = 2
"""The lowest track slot of a pool with one working row, in a call that is refused before it is used."""


def _match_bad_key(make: Callable[[int], Any]) -> _Call:
    return lambda target: target.cache.match_prefix(make(target.cache.page_size))


def _insert_bad_key(make: Callable[[int], Any]) -> _Call:
    return lambda target: target.cache.insert(make(target.cache.page_size), _some_slots(target))


def _insert_bad_slots(spoil: Callable[[Any], Any]) -> _Call:
    return lambda target: target.cache.insert(_some_key(target), spoil(_some_slots(target)))


def _insert_bad_length(name: str, wrong: Any) -> _Call:
    def call(target: Any) -> None:
        if not _has_window(target):
            raise UnsupportedError(f"{name}, which a cache without a window ignores")
        target.cache.insert(_some_key(target), _some_slots(target), **{name: wrong})

    return call


def _insert_bad_state(make: Callable[[int], Any]) -> _Call:
    def call(target: Any) -> None:
        if isinstance(target.cache, _radix_cache()):
            raise UnsupportedError("mamba_value, which a cache without states ignores")
        target.cache.insert(_some_key(target), _some_slots(target), mamba_value=make(FIRST_TRACK_SLOT))

    return call


def _has_window(target: Any) -> bool:
    return isinstance(target.cache, _radix_cache()) and target.cache.supports_swa


def _some_key(target: Any) -> Any:
    return _key([1] * target.cache.page_size)


def _some_slots(target: Any) -> Any:
    """Return the slots of the first page, for a call that is refused before it uses them."""
    return _torch().arange(target.cache.page_size, 2 * target.cache.page_size)


def _ones(*shape: int) -> Any:
    return _torch().ones(shape, dtype=_torch().int64)


# -- amounts, nodes, tokens and constructors of prefix caches ------------------------------------------------


def _evict(*amounts: Any) -> _Call:
    return lambda target: target.cache.evict(*amounts)


def _with_node(method: str, choose: Callable[[Any], Any]) -> _Call:
    return lambda target: getattr(target.cache, method)(choose(target))


def _unlock_with(token: Any) -> _Call:
    def call(target: Any) -> None:
        if not _has_window(target):
            raise UnsupportedError("tokens of locks, which a cache without a window ignores")
        target.cache.dec_lock_ref(target.some_held_node(), token)

    return call


_BAD_NODES: dict[str, Callable[[Any], Any]] = {
    "a number for a node": lambda target: 1,
    "a node of another cache": lambda target: target.foreign_node,
}


def _build(page_size: Any) -> _Call:
    return lambda target: target.build(page_size)


def _build_with_empty_window(target: Any) -> None:
    if not isinstance(target.cache, _radix_cache()):
        raise UnsupportedError("a window, which this cache never has")
    _radix_cache()(1, 0)


def _build_over_other_pages(target: Any) -> None:
    if target.pool is None:
        raise UnsupportedError("a pool, which this cache does not have")
    target.build(2 * target.cache.page_size, target.pool)


MALFORMED_CALLS: Final[Calls] = {
    **{("match", wrong): _match_bad_key(make) for wrong, make in _BAD_KEYS.items()},
    **{("insert", wrong): _insert_bad_key(make) for wrong, make in _BAD_KEYS.items()},
    **{("insert", wrong): _insert_bad_slots(spoil) for wrong, spoil in _BAD_SLOTS.items()},
    ("insert", "a float prev_prefix_len"): _insert_bad_length("prev_prefix_len", 0.5),
    ("insert", "a bool swa_evicted_seqlen"): _insert_bad_length("swa_evicted_seqlen", True),
    **{("insert", wrong): _insert_bad_state(make) for wrong, make in _BAD_STATES.items()},
    ("evict", "a float amount"): _evict(1.5),
    ("evict", "a string for an amount"): _evict("1"),
    ("evict", "no amount"): _evict(None),
    ("evict", "a bool window amount"): _evict(0, True),
    **{("lock", wrong): _with_node("inc_lock_ref", choose) for wrong, choose in _BAD_NODES.items()},
    **{("unlock", wrong): _with_node("dec_lock_ref", choose) for wrong, choose in _BAD_NODES.items()},
    **{("hash", wrong): _with_node("compute_node_hash", choose) for wrong, choose in _BAD_NODES.items()},
    ("hash", "no node"): _with_node("compute_node_hash", lambda target: None),
    ("unlock", "a token that nobody was given"): _unlock_with(10**9),
    ("unlock", "a negative token"): _unlock_with(-1),
    ("unlock", "a bool for a token"): _unlock_with(True),
    ("build", "pages of no token"): _build(0),
    ("build", "pages of a float"): _build(1.5),
    ("build", "a window of no token"): _build_with_empty_window,
    ("build", "a pool of other pages"): _build_over_other_pages,
}
"""Malformed calls of prefix caches, given the adapter of a radix tree."""

# -- block allocators ----------------------------------------------------------------------------------------


def _of_ids(call: str, method: str, owner: Callable[[Any], Any]) -> dict[tuple[str, str], _Call]:
    """Return calls of a method that takes ids, each with an argument that is no id."""
    wrong: dict[str, Callable[[], Any]] = {
        "float ids": lambda: [0.0],
        "bool ids": lambda: [True],
        "a tensor of floats": lambda: _torch().zeros(1),
        "a string": lambda: "0",
        "no ids": lambda: None,
    }

    def spoil(make: Callable[[], Any]) -> _Call:
        return lambda adapter: getattr(owner(adapter), method)(make())

    return {(call, name): spoil(make) for name, make in wrong.items()}


def _pool(adapter: Any) -> Any:
    return adapter.pool


def _slots(adapter: Any) -> Any:
    if adapter.slots is None:
        raise UnsupportedError("cached states")
    return adapter.slots


def _store(spoil: Callable[[Any, Any], tuple[Any, Any, Any]]) -> _Call:
    """Return a call that stores into a block with a slot; ``spoil`` makes its arguments wrong."""

    def call(adapter: Any) -> None:
        slots = _slots(adapter)
        blocks = [block for block in slots.slot_to_block.tolist() if block >= 0]
        if not blocks:
            raise UnsupportedError("a store, as no block has a slot")
        slots.store_from_tensors(blocks[0], *spoil(slots.ssm_states[0, 0] + 1, slots.conv_states[0, 0] + 1))

    return call


MALFORMED_BLOCKS: Final[Calls] = {
    ("alloc_blocks", "a negative count"): lambda it: it.pool.allocate_memory_blocks(-1),
    ("alloc_blocks", "a float count"): lambda it: it.pool.allocate_memory_blocks(1.0),
    ("alloc_blocks", "a bool count"): lambda it: it.pool.allocate_memory_blocks(True),
    **_of_ids("retain_blocks", "retain_memory_blocks", _pool),
    **_of_ids("release_blocks", "release_memory_blocks", _pool),
    **_of_ids("begin_transfer", "begin_transfer", _pool),
    **_of_ids("stamp_blocks", "update_timestamps", _pool),
    ("register_blocks", "float ids"): lambda it: it.pool.register_kv_block_hashes([0.0], [1]),
    ("register_blocks", "a float hash"): lambda it: it.pool.register_kv_block_hashes([0], [1.0]),
    ("register_blocks", "a hash too many"): lambda it: it.pool.register_kv_block_hashes([], [1]),
    ("register_blocks", "a parent too many"): lambda it: it.pool.register_kv_block_hashes([], [], [0]),
    **_of_ids("alloc_slots", "allocate_slots_batch", _slots),
    **_of_ids("drop_states", "_invalidate_blocks_batch", _slots),
    ("drop_states", "a float id"): lambda it: _slots(it).invalidate_block(0.0),
    ("evict_slots", "a negative count"): lambda it: _slots(it)._evict_lru_slots_batch(-1),
    ("evict_slots", "a float count"): lambda it: _slots(it)._evict_lru_slots_batch(0.0),
    ("find_slots", "a float id"): lambda it: _slots(it).get_slot(0.0),
    ("find_slots", "a bool id"): lambda it: _slots(it).has_state(True),
    ("name_states", "a hash too many"): lambda it: _slots(it).register_block_hashes_batch([], [1]),
    ("name_states", "a float hash"): lambda it: _slots(it).register_block_hashes_batch([0], [1.0]),
    ("store_state", "a shorter state"): _store(lambda ssm, conv: (0, ssm, conv[:-1])),
    ("store_state", "another dtype"): _store(lambda ssm, conv: (0, ssm.double(), conv)),
    ("store_state", "a list"): _store(lambda ssm, conv: (0, ssm, conv.tolist())),
    ("store_state", "a float layer"): _store(lambda ssm, conv: (0.0, ssm, conv)),
    ("save_live", "a slot twice"): lambda it: _slots(it).store_from_live_batch([0, 0], [0, 0]),
    ("save_live", "a slot outside"): lambda it: _slots(it).store_from_live_batch([-1], [0]),
    ("save_live", "a float request"): lambda it: _slots(it).store_from_live_batch([0], [0.0]),
    ("restore_live", "a float request"): lambda it: _slots(it).restore_to_live(0.0, 0),
    ("restore_live", "a float id"): lambda it: _slots(it).restore_to_live(0, 0.0),
}
"""Malformed calls of block allocators and their state slots, given the adapter."""
