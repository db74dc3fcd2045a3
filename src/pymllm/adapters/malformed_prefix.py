"""Arguments that no caller may pass to a radix cache, by what is wrong with them (X1).

The words are for programs in any language, too: torch and our caches are loaded by the first call on one of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pymllm.adapters.base import UnsupportedError

if TYPE_CHECKING:
    import torch

    from pymllm.mem_cache.base_prefix_cache import RadixKey

__all__ = ["MALFORMED_CALLS", "call_malformed"]


def call_malformed(target: Any, call: str, wrong: str) -> None:
    """Make a call with an argument that must be refused.

    Parameters
    ----------
    target : Radix
        The adapter whose cache is called.
    call, wrong : str
        As of `pymllm.history.operations.Malformed`.

    Raises
    ------
    UnsupportedError
        There is no such call, or it cannot be made now.
    """
    if (call, wrong) not in MALFORMED_CALLS:
        raise UnsupportedError(f"{call} with {wrong}")
    MALFORMED_CALLS[call, wrong](target)


# -- keys and slots ------------------------------------------------------------------------------------

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

_BAD_SLOTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "float slots": lambda slots: slots.float(),
    "bool slots": lambda slots: slots.bool(),
    "complex slots": lambda slots: 1j * slots,
    "a list of slots": lambda slots: slots.tolist(),
}


def _match_bad_key(make: Callable[[int], Any]) -> Callable[[Any], object]:
    return lambda target: target.cache.match_prefix(make(target.cache.page_size))


def _insert_bad_key(make: Callable[[int], Any]) -> Callable[[Any], object]:
    return lambda target: target.cache.insert(make(target.cache.page_size), _some_slots(target))


def _insert_bad_slots(spoil: Callable[[torch.Tensor], Any]) -> Callable[[Any], object]:
    return lambda target: target.cache.insert(_some_key(target), spoil(_some_slots(target)))


def _insert_bad_length(name: str, wrong: Any) -> Callable[[Any], object]:
    def call(target: Any) -> None:
        if not _has_window(target):
            raise UnsupportedError(f"{name} is ignored without a window")
        target.cache.insert(_some_key(target), _some_slots(target), **{name: wrong})

    return call


def _insert_bad_state(make: Callable[[int], Any]) -> Callable[[Any], object]:
    def call(target: Any) -> None:
        if _is_radix(target.cache):
            raise UnsupportedError("mamba_value is ignored without states")
        target.cache.insert(_some_key(target), _some_slots(target), mamba_value=make(FIRST_TRACK_SLOT))

    return call


def _has_window(target: Any) -> bool:
    return _is_radix(target.cache) and target.cache.supports_swa


def _some_key(target: Any) -> RadixKey:
    return _key([1] * target.cache.page_size)


def _some_slots(target: Any) -> torch.Tensor:
    """Return the slots of the first page, whoever owns it: the call does not get as far as to take them."""
    import torch

    return torch.arange(target.cache.page_size, 2 * target.cache.page_size)


def _ones(*shape: int) -> torch.Tensor:
    import torch

    return torch.ones(shape, dtype=torch.int64)


def _key(*arguments: Any) -> RadixKey:
    from pymllm.mem_cache.base_prefix_cache import RadixKey

    return RadixKey(*arguments)


def _is_radix(cache: object) -> bool:
    from pymllm.mem_cache.radix_cache import RadixCache

    return isinstance(cache, RadixCache)


# -- states --------------------------------------------------------------------------------------------

FIRST_TRACK_SLOT = 2
"""The lowest track slot of a pool with one working row; the call does not get as far as to take it."""

_BAD_STATES: dict[str, Callable[[int], Any]] = {
    "a number for a state": lambda slot: slot,
    "a list for a state": lambda slot: [slot],
    "a float state": lambda slot: _tensor([float(slot)]),
    "a bool state": lambda slot: _tensor([True]),
    "two states": lambda slot: _tensor([slot, slot + 1]),
    "no state in a tensor": lambda slot: _tensor([]).long(),
    "a state of no dimension": lambda slot: _tensor(slot),
}


def _tensor(value: Any) -> torch.Tensor:
    import torch

    return torch.tensor(value)


# -- amounts, nodes and tokens -------------------------------------------------------------------------


def _evict(*amounts: Any) -> Callable[[Any], object]:
    return lambda target: target.cache.evict(*amounts)


def _with_node(method: str, choose: Callable[[Any], Any]) -> Callable[[Any], object]:
    return lambda target: getattr(target.cache, method)(choose(target))


def _unlock_with(token: Any) -> Callable[[Any], object]:
    def call(target: Any) -> None:
        if not _has_window(target):
            raise UnsupportedError("tokens are ignored without a window")
        target.cache.dec_lock_ref(target.some_held_node(), token)

    return call


_BAD_NODES: dict[str, Callable[[Any], Any]] = {
    "a number for a node": lambda target: 1,
    "a node of another cache": lambda target: target.foreign_node,
}

# -- arguments of the constructor ----------------------------------------------------------------------


def _build(page_size: Any) -> Callable[[Any], object]:
    return lambda target: target.build(page_size)


def _build_with_empty_window(target: Any) -> None:
    from pymllm.mem_cache.radix_cache import RadixCache

    if not isinstance(target.cache, RadixCache):
        raise UnsupportedError("there are no windows")
    RadixCache(1, 0)


def _build_over_other_pages(target: Any) -> None:
    if target.pool is None:
        raise UnsupportedError("there is no pool")
    target.build(2 * target.cache.page_size, target.pool)


MALFORMED_CALLS: dict[tuple[str, str], Callable[[Any], object]] = {
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
"""What to call, by call and by what is wrong with it."""
