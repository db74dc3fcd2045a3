"""The table of claims that each operation needs before an implementation must do it.

The smoke test takes its needs from here, and so does law X9, by which every claimed operation is carried out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache

from pymllm.history.codec import name_of
from pymllm.history.operations import (
    DIMENSIONS,
    OPERATIONS_OF,
    Fault,
    Insert,
    Key,
    Malformed,
    Namespace,
    Operation,
    values_of,
)
from pymllm.text_file import cut

_HALVES = "free_swa move_swa read_halves"
_TRANSFERS = "begin_transfer end_transfer"
_LIVE = "store_state write_live save_live restore_live read_states read_live"

_NEEDS: dict[str, dict[str, str]] = {
    "slots": {
        "swa": _HALVES,
        "merges": "merge",
        "groups": "begin_group end_group",
        "transfers": _TRANSFERS,
    },
    "prefix": {
        "pool": "alloc free",
        "swa": _HALVES,
        "mamba": "alloc_track free_track write_state read_states",
        "hashes": "hash",
        "events": "take_events",
        "inspect": "inspect",
        "faults": "fault",
    },
    "blocks": {
        "transfers": _TRANSFERS,
        "events": "take_events",
        "mamba": f"alloc_slots evict_slots find_slots name_states drop_states {_LIVE}",
        "inspect": "inspect",
        "faults": "fault",
    },
    "requests": {
        "inspect": "inspect",
        "faults": "fault",
        "truncate": "truncate",
        "transfers": "transfer_request end_transfer",
        "events": "take_events",
    },
    "index": {"inspect": "inspect rebuild"},
}
"""The operations that need a claim, by kind and claim."""

_OPTIONAL = {
    "slots": "clear move_swa",
    "rows": "clear",
    "states": "clear",
    "buffers": "move_kv",
    "prefix": f"{_HALVES} write_state read_states",
}
"""Operations that the specification leaves to each implementation, by kind."""

_FAILING = {
    "prefix": "free free_swa move_swa free_state callback reenter",
    "blocks": "callback reenter",
    "requests": "allocate_blocks no_blocks allocate_slots store_states restore_state forward",
}
"""Calls that a `Fault` can make fail, by kind."""

_RANGES = {
    "array": (0, 2**32),
    **dict.fromkeys(("int32", "tensor32"), (-(2**31), 2**31)),
    **dict.fromkeys(("int64", "tensor64"), (-(2**63), 2**63)),
}


@lru_cache(maxsize=1024)
def _need_of(kind: str, operation: type[Operation]) -> str:
    name = name_of(operation)
    needs = _NEEDS.get(kind, {}).items()
    return next((claim for claim, names in needs if name in names.split()), "")


def is_optional(kind: str, operation: type[Operation]) -> bool:
    """Tell whether an implementation may leave out an operation, whatever it claims."""
    return name_of(operation) in _OPTIONAL.get(kind, "").split()


def needs_of(kind: str, operation: Operation, claims: Collection[str]) -> tuple[str, ...]:
    """Return the claims that an implementation needs for this form of an operation.

    Parameters
    ----------
    kind : str
        Of the implementation.
    operation : Operation
        One of that kind.
    claims : collection of str
        What the implementation claims: a key without a state is something else to who has states.
    """
    return tuple(dict.fromkeys(_each_need(kind, operation, claims)))


def _each_need(kind: str, operation: Operation, claims: Collection[str]) -> Iterator[str]:
    if need := _need_of(kind, type(operation)):
        yield need
    if kind == "index":
        yield from _needs_of_event(operation)
    if isinstance(operation, Insert) and operation.state is None and "mamba" in claims:
        yield "bare_inserts"
    key = getattr(operation, "key", None)
    if isinstance(key, Key):
        yield from dimensions_of(key.extra_key)
        if any(isinstance(token, tuple) for token in key.tokens):
            yield "bigrams"


def _needs_of_event(operation: Operation) -> Iterator[str]:
    if getattr(operation, "early", False):
        yield "early_exit"
    if getattr(operation, "group", 0):
        yield "layer_groups"
    if getattr(operation, "medium", ""):
        yield "media"
    if getattr(operation, "number", None) is not None:
        yield "event_numbers"
    yield from dimensions_of(getattr(operation, "extra_key", None))


def dimensions_of(extra_key: Namespace) -> Iterator[str]:
    """Yield the claims for the dimensions in which a namespace has a value."""
    for claim, value in zip(DIMENSIONS, values_of(extra_key), strict=False):
        if value is not None:
            yield claim


def can_be_given(kind: str, operation: Operation) -> bool:
    """Tell whether every implementation of a kind can receive this form of an operation.

    It cannot be given what nobody may pass, no call to let fail that there is not, and no token that does not
    fit its container.
    """
    if isinstance(operation, Malformed):
        return False
    if isinstance(operation, Fault):
        return operation.call in _FAILING.get(kind, "").split()
    key = getattr(operation, "key", None)
    if not isinstance(key, Key) or key.form not in _RANGES:
        return True
    low, high = _RANGES[key.form]
    return all(low <= each < high for token in key.tokens for each in _numbers_of(token))


def _numbers_of(token: int | tuple[int, ...]) -> tuple[int, ...]:
    return token if isinstance(token, tuple) else (token,)


def find_wrong_limit(kind: str, limits: object) -> str | None:
    """Return words for an error in declared limits, which must be reasons by operation name."""
    known = [name_of(operation) for operation in OPERATIONS_OF[kind]]
    if not isinstance(limits, Mapping):
        return f"are {cut(repr(limits))}; they must be a dict with a reason for each operation"
    for name, reason in limits.items():
        if name not in known:
            return f"name {cut(repr(name))}, which is no operation of {kind}; there are {', '.join(known)}"
        if not isinstance(reason, str) or not reason.strip():
            return f"give {cut(repr(reason))} as the reason for {name}; it must be a sentence"
    return None
