"""The operations of prefix caches (kind ``prefix``), beside those of the pool under them."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.oracle.keys import Key
from pymllm.oracle.slot_init import built_through_slots
from pymllm.oracle.spans import Span

__all__ = [
    "PREFIX_OPERATIONS",
    "Evict",
    "Hash",
    "Insert",
    "Lock",
    "Match",
    "Unlock",
]


@built_through_slots
@dataclass(frozen=True, slots=True)
class Match:
    """Find the longest usable cached prefix (R2); answered by `Matched`."""

    key: Key


@built_through_slots
@dataclass(frozen=True, slots=True)
class Insert:
    """Cache a key (R3, R4, S7); answered by `Inserted`.

    Parameters
    ----------
    key : Key
        The key, an unaligned tail included.
    slots : tuple of Span, or None
        One slot per token; ``None`` lets a cache without a pool store the token ids (R1).
    prev_prefix_len, swa_evicted_seqlen : int
        As in the documented interface.
    form : str
        As of `Free`.
    state : Span or None
        The track slot with the state after the key's last token (M1): exactly one, of an `AllocTrack`.
    """

    key: Key
    slots: tuple[Span, ...] | None = None
    prev_prefix_len: int = 0
    swa_evicted_seqlen: int = 0
    form: str = "int64"
    state: Span | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class Evict:
    """Evict ``tokens`` and, of the second kind of memory, ``secondary``; answered by `Evicted`.

    The second kind is counted in tokens of the window's half (S3), or in states (M5); laws: R5, S3, M5.
    """

    tokens: int
    secondary: int = 0


@built_through_slots
@dataclass(frozen=True, slots=True)
class Lock:
    """Take a hold at the node that step ``of`` returned (R6, S5); answered by `Locked`."""

    of: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class Unlock:
    """Release a hold (R6, S5).

    Parameters
    ----------
    lock : int
        The step of its `Lock`.
    at : int or None
        Passes the node of another `Match`, `Insert` or `Lock` instead.
    token : int or None
        Passes the token of another `Lock` instead; 0 passes none at all.
    """

    lock: int
    at: int | None = None
    token: int | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class Hash:
    """Compute the page hashes of the node that step ``of`` returned (H2, H3); answered by `Hashes`.

    Those of its whole path, from the root.
    """

    of: int


PREFIX_OPERATIONS: tuple[type, ...] = (Match, Insert, Evict, Lock, Unlock, Hash)
"""Those that no other kind has."""
