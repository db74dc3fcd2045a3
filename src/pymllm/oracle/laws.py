"""The laws of the contract, as a registry: what each says, of whom, and how it is checked.

Ids never change their meaning. The sentences are short on purpose; the contract has the whole text.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pymllm.oracle.operations import KINDS
from pymllm.text_file import cut

__all__ = ["INVARIANTS", "LAWS", "Law", "Way", "find_audit_fault", "find_law", "laws_of"]


class Way(enum.Enum):
    """How a law is checked; every law in at least two ways."""

    STRUCTURE = "structure"
    """A walk through our own objects (`pymllm.invariants`, the engine's audits)."""
    ORACLE = "oracle"
    """Operations and outcomes alone, for anybody's implementation."""
    PLANT = "plant"
    """A planted fault that some test must notice."""


@dataclass(frozen=True, slots=True)
class Law:
    """One law.

    Parameters
    ----------
    id : str
        Such as ``"R6"``.
    sentence : str
        What it demands.
    source : str
        Section of the contract.
    ways : frozenset of Way
        How it is checked.
    kinds : tuple of str
        Kinds of implementation that it is about.
    needs : frozenset of str
        Capabilities without which it is not claimed.
    is_of_content : bool
        Whether it says nothing of a cache that keeps nothing (``retains`` is false in its configuration).
    is_of_splits : bool
        Whether it says nothing of a cache whose nodes never have several pages, so that none is split
        (``splits`` is false in its configuration).
    driven_kinds : frozenset of str
        Kinds of which it says something only where an engine drives them (capability ``engine``).
    """

    id: str
    sentence: str
    source: str
    ways: frozenset[Way]
    kinds: tuple[str, ...]
    needs: frozenset[str] = frozenset()
    is_of_content: bool = False
    is_of_splits: bool = False
    driven_kinds: frozenset[str] = frozenset()

    def is_claimed_by(self, capabilities: Collection[str], kind: str | None = None) -> bool:
        """Tell whether an adapter with these capabilities, and perhaps of this kind, is judged by it."""
        return self.needs_of(kind) <= set(capabilities)

    def needs_of(self, kind: str | None) -> frozenset[str]:
        """Return the capabilities that it takes to test it on adapters of a kind."""
        return self.needs | {"engine"} if kind in self.driven_kinds else self.needs

    def applies_to(
        self, config: Mapping[str, object], capabilities: Collection[str], kind: str | None = None
    ) -> bool:
        """Tell whether a program can test it on an adapter of this configuration with these capabilities."""
        is_empty = self.is_of_content and config.get("retains") is False
        is_whole = self.is_of_splits and config.get("splits") is False
        return self.is_claimed_by(capabilities, kind) and not is_empty and not is_whole


def _law(
    id: str,
    sentence: str,
    section: str,
    ways: str,
    kinds: str,
    needs: str = "",
    is_of_content: bool = False,
    is_of_splits: bool = False,
    driven_kinds: str = "",
) -> Law:
    chosen = {"s": Way.STRUCTURE, "o": Way.ORACLE, "p": Way.PLANT}
    return Law(
        id,
        sentence,
        f"contract, section {section}",
        frozenset(chosen[way] for way in ways),
        KINDS if kinds == "all" else tuple(kinds.split()),
        frozenset(needs.split()),
        is_of_content,
        is_of_splits,
        frozenset(driven_kinds.split()),
    )


_FOR_ALL = (
    _law("X1", "bad input is refused before anything changes", "0", "op", "all", "refusals"),
    _law(
        "X2",
        "what a pool did not take is still in the tree; calls come in order",
        "0",
        "op",
        "prefix blocks requests",
        "faults",
    ),
    _law("X3", "the same program gives the same outcomes", "0", "sop", "all"),
    _law(
        "X4",
        "an allocation that cannot be met changes nothing",
        "0",
        "op",
        "slots rows states prefix blocks requests",
        "pool",
    ),
    _law(
        "X5",
        "nothing of the caller's is kept, nothing of the tree's is handed out",
        "0",
        "sop",
        "prefix",
        "inspect",
    ),
    _law(
        "X6",
        "callbacks run on written books and may not re-enter",
        "0",
        "op",
        "prefix blocks",
        "callbacks faults",
    ),
    _law(
        "X7", "reset and clear make it as good as new", "0", "op", "slots rows states prefix blocks requests"
    ),
)
_SLOTS = (
    _law("A1", "slot 0 and page 0 are never handed out", "1", "sop", "slots prefix", "pool"),
    _law("A2", "free, pending and handed-out pages partition the pool", "1", "sop", "slots prefix", "pool"),
    _law(
        "A3",
        "an allocation gives distinct slots in whole pages, in order",
        "1",
        "op",
        "slots prefix",
        "pool",
    ),
    _law(
        "A4",
        "freed slots wait until a merge; sorted pools give the lowest first",
        "1",
        "sop",
        "slots",
        "pool merges",
    ),
    _law(
        "A5", "a page is freed once, and only by whom it was handed to", "1", "sop", "slots", "pool refusals"
    ),
    _law("A6", "groups do not nest, and end once", "1", "sop", "slots", "pool groups"),
    _law(
        "A7",
        "every slot has its own SWA half, until that is freed or moved",
        "1",
        "sop",
        "slots prefix",
        "pool swa",
    ),
)
_POOLS = (
    _law("P1", "rows 1 to max_reqs are handed out, row 0 is padding", "2", "sop", "rows"),
    _law("P2", "a freed row is zero, and is freed once", "2", "sop", "rows", "zeroed_rows"),
    _law("P3", "a write changes the named rows, exactly", "2", "sop", "rows buffers"),
    _law("P4", "states have the documented layout and dtype", "2", "sop", "states"),
    _law("P5", "track slots have one owner; copies are bit-exact, resets exact", "2", "sop", "states"),
)
_KEYS = (
    _law(
        "K1",
        "keys of other namespaces or widths never meet; containers do not matter",
        "3",
        "sop",
        "hashes prefix",
    ),
    _law("H1", "hash functions as documented", "3", "op", "hashes"),
    _law(
        "H2", "page hashes chain from the root, whatever was computed before", "3", "sop", "prefix", "hashes"
    ),
    _law(
        "H3",
        "namespaces seed their hashes so that nothing collides",
        "3",
        "op",
        "prefix",
        "hashes extra_key",
    ),
)
_RADIX = (
    _law("R1", "keys and values are cut to whole pages", "4", "sop", "prefix"),
    _law("R2", "a match is the longest usable cached prefix, slots in order", "4", "op", "prefix"),
    _law("R3", "an insert says what was there, and the whole key is there afterwards", "4", "sop", "prefix"),
    _law("R4", "the cache owns what it adopted, and nothing else", "4", "op", "prefix"),
    _law("R5", "an eviction takes enough, and not one leaf more", "4", "sop", "prefix"),
    _law("R6", "lock references balance, and a locked node stays", "4", "sop", "prefix"),
    _law("R7", "evictable and protected sizes are recounts", "4", "sop", "prefix"),
    _law("R8", "the least recent goes first", "4", "sop", "prefix", "exact_lru"),
    _law(
        "R9",
        "the tree is well formed, and no slot stands in it twice",
        "4",
        "sop",
        "prefix",
        is_of_content=True,
    ),
    _law("R10", "a split keeps the lower half's identity and every count", "4", "sop", "prefix", "inspect"),
)
_WINDOW = (
    _law("S1", "a prefix is usable if its last window is alive", "5", "sop", "prefix", "swa"),
    _law("S2", "a tombstone frees its SWA half and keeps the full one", "5", "sop", "prefix", "swa"),
    _law("S3", "a window eviction takes enough, the least recent first", "5", "sop", "prefix", "swa"),
    _law("S4", "every leaf is alive", "5", "sop", "prefix", "swa"),
    _law(
        "S5",
        "a hold locks exactly its window, and its token releases exactly that",
        "5",
        "sop",
        "prefix",
        "swa",
    ),
    _law("S6", "window lock references count the holds that cover a page", "5", "sop", "prefix", "swa"),
    _law(
        "S7",
        "a tombstone is revived by the rules, or the insert is refused whole",
        "5",
        "op",
        "prefix",
        "swa",
    ),
)
_STATES = (
    _law("M1", "a state belongs to the end of a key of whole pages", "7", "sop", "prefix", "mamba"),
    _law("M2", "a prefix is usable if it ends at a state", "7", "sop", "prefix", "mamba"),
    _law(
        "M3",
        "a split leaves the state with the lower half",
        "7",
        "op",
        "prefix",
        "mamba inspect",
        is_of_splits=True,
    ),
    _law("M4", "a state is locked by the holds at exactly its node", "7", "sop", "prefix", "mamba"),
    _law("M5", "an eviction of states takes enough, the least recent first", "7", "sop", "prefix", "mamba"),
    _law("M6", "states are counted one by one, KV in tokens", "7", "sop", "prefix", "mamba"),
    _law("M7", "a track slot has one owner, and is freed once", "7", "sop", "prefix", "mamba"),
    _law(
        "M8",
        "the two lists order exactly their members by recency",
        "7",
        "sop",
        "prefix",
        "mamba inspect lru_lists",
    ),
)
_BLOCKS = (
    _law(
        "C1",
        "free, referenced and cached blocks partition the pool; children go before their parents",
        "8",
        "sop",
        "blocks requests",
    ),
    _law(
        "C2",
        "slots are free, mapped to one block, or in a caller's hands",
        "8",
        "sop",
        "blocks requests",
        "mamba",
    ),
    _law(
        "C3",
        "a hash has the block that came first with it, below its very parent, and no other",
        "8",
        "sop",
        "blocks requests",
    ),
    _law(
        "C4",
        "the hash of a cached state names a block with a slot, and goes with that block only",
        "8",
        "sop",
        "blocks",
        "mamba",
    ),
    _law(
        "C5",
        "a batch gets one slot per block, evicts none of its own, and is met whole or not at all",
        "8",
        "op",
        "blocks",
        "mamba",
    ),
    _law(
        "C6",
        "only unreferenced blocks lose their slots to others, oldest first; free blocks have none",
        "8",
        "sop",
        "blocks requests",
        "mamba",
    ),
    _law("C7", "states are copied bit for bit, and nowhere else", "8", "op", "blocks requests", "mamba"),
    _law(
        "C8",
        "states are kept at block ends inside a chunk, and at prompt ends",
        "8",
        "sop",
        "requests",
        "mamba",
    ),
    _law("C9", "a reset restores the first state bit for bit", "8", "op", "blocks requests"),
)
_ENGINE = (
    _law("E1", "every read finds what a cold run would have written", "9", "sop", "prefix requests"),
    _law(
        "E2",
        "a live request's row names only what it owns or holds",
        "9",
        "sop",
        "prefix requests",
        driven_kinds="prefix",
    ),
    _law("E3", "every exit gives everything back", "9", "sop", "prefix requests", driven_kinds="prefix"),
    _law(
        "E4",
        "admission succeeds whenever free and evictable suffice",
        "9",
        "sop",
        "prefix requests",
        driven_kinds="prefix",
    ),
    _law(
        "E5",
        "padding lands in slot 0 and row 0, and nowhere else",
        "9",
        "sop",
        "rows buffers prefix requests",
        driven_kinds="prefix",
    ),
)

LAWS: tuple[Law, ...] = (*_FOR_ALL, *_SLOTS, *_POOLS, *_KEYS, *_RADIX, *_WINDOW, *_STATES, *_BLOCKS, *_ENGINE)
"""Every law of the sections whose classes exist, in the contract's order."""

INVARIANTS: dict[str, tuple[str, ...]] = {
    "lock references balance": ("R6", "S6"),
    "slot 0 is never handed out": ("A1", "P1", "P5"),
    "windows are valid": ("S1", "S4", "S5"),
    "full_lock_ref >= mamba_lock_ref": ("M4",),
}
"""What users ask for by name, and the laws that together say it."""


def find_law(id: str) -> Law:
    """Return a law by its id, in either case.

    Raises
    ------
    ValueError
        There is none.
    """
    for law in LAWS:
        if law.id == id.upper():
            return law
    raise ValueError(f"no law {id!r}; there are {', '.join(law.id for law in LAWS)}")


def laws_of(kind: str) -> tuple[Law, ...]:
    """Return the laws about a kind of implementation, in the contract's order."""
    return tuple(law for law in LAWS if kind in law.kinds)


_BELOW = {"requests": ("blocks",)}
"""What an implementation of a kind stands on, and may look at, too."""


def find_audit_fault(kind: str, named: Iterable[str]) -> str | None:
    """Say which law a walk from inside names that is none of the kind; nobody could say what it found."""
    known = dict.fromkeys(law.id for each in (kind, *_BELOW.get(kind, ())) for law in laws_of(each))
    unknown = next((law for law in named if law not in known), None)
    if unknown is None:
        return None
    return f"names {cut(repr(unknown))}, which is no law of kind {kind}; its laws are {', '.join(known)}"
