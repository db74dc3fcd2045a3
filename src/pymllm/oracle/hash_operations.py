"""The operations of keys and of the hashes of their pages (kind ``hashes``)."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.oracle.keys import Key
from pymllm.oracle.slot_init import built_through_slots

__all__ = [
    "HASH_OPERATIONS",
    "HashBytes",
    "HashInt64",
    "HashPage",
    "PickToken",
    "SliceKey",
]


@built_through_slots
@dataclass(frozen=True, slots=True)
class SliceKey:
    """Slice a key (K1); answered by `Tokens`."""

    key: Key
    start: int | None
    stop: int | None


@built_through_slots
@dataclass(frozen=True, slots=True)
class PickToken:
    """Index a key with one integer (K1); answered by `Tokens`."""

    key: Key
    at: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class HashPage:
    """Hash the tokens of a page, chained to a prior hash (H1); answered by `Hashes`."""

    key: Key
    prior: str | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class HashInt64:
    """Turn a hex digest into a signed 64-bit integer (H1); answered by `Number`."""

    digest: str


@built_through_slots
@dataclass(frozen=True, slots=True)
class HashBytes:
    """Hash bytes, given in hex, to an unsigned 64-bit integer (H1); answered by `Number`."""

    data: str


HASH_OPERATIONS: tuple[type, ...] = (SliceKey, PickToken, HashPage, HashInt64, HashBytes)
"""Those that no other kind has."""
