"""Situations that a search through block allocators must reach, and how the less obvious ones are noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pymllm.oracle.block_model import BlockModel, Registration
from pymllm.oracle.block_slot_model import BlockSlotModel
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.history import Header

__all__ = [
    "expected_situations",
    "note_alloc_slots",
    "note_drop",
    "note_evict_slots",
    "note_register",
    "note_release",
    "note_victims",
]

_ALWAYS = frozenset(
    {
        "the pool is exhausted",
        "an allocation fails",
        "nothing is asked for",
        "a block is retained twice in one call",
        "a block is released twice in one call",
        "a shared block stays with its other holder",
        "a block without a hash becomes free",
        "the clock goes back",
        "a reset with blocks held",
    }
)
_REFUSALS = frozenset(
    {
        "the dummy is refused",
        "a free block is refused",
        "a block outside is refused",
        "a good block stays with a bad one",
        "more is released than is held",
        "hashes that are missing or none are refused",
        "another hash is refused",
        "a stamp outside is refused",
        "a malformed call is refused",
    }
)
_CACHING = frozenset(
    {
        "a chain is registered",
        "a block is registered below one of another call",
        "a hash is taken",
        "a parent is not registered",
        "a parent is not registered although its hash is another's",
        "a registered block is registered again",
    }
)
_LRU = frozenset(
    {
        "a cached block is evicted",
        "an older parent waits for its child",
        "a chain goes from its end",
        "equally old blocks wait for eviction",
        "a cached block is taken up again",
        "a cached block is spared for its held child",
        "an allocation fails although blocks are cached",
        "a reset with blocks cached",
    }
)
_REF_ZERO = frozenset({"a block goes with its descendants", "a held descendant is deregistered"})
_OBSERVER = frozenset({"an observer raises", "an observer calls the allocator"})
_SLOTS = frozenset(
    {
        "a batch names a block twice",
        "a block keeps its slot",
        "a batch cannot be met",
        "a block without a hash loses its slot",
        "a block without a slot is dropped",
        "an entry without a hash is passed over",
        "a drop names a block twice",
        "a state is restored",
        "nothing is restored",
    }
)
_SLOTS_CACHING = frozenset(
    {
        "a block loses its slot with its hash",
        "a state is dropped with its hash",
        "a hash of another block is dropped with a block",
    }
)
_SLOTS_EVICTED = frozenset(
    {
        "a slot is evicted for want of room",
        "slots are taken by a caller",
        "every slot is in hand",
        "a state is saved into a slot in hand",
        "too few slots can be evicted",
    }
)
_SEVERAL_EVICTED = frozenset(
    {
        "an older slot is spared for its block is in the batch",
        "an older slot is spared for its block is held",
        "the older of several slots goes",
        "the lower of equally old blocks loses its slot",
        "a reset with slots in use and in hand",
    }
)
_SLOT_REFUSALS = frozenset(
    {
        "a name without a slot is refused",
        "a name that is not the block's hash is refused",
        "a drop outside is refused",
        "a store outside is refused",
        "a store without a slot is refused",
        "a save of what is not live is refused",
        "a restore to what is not live is refused",
    }
)


def expected_situations(header: Header) -> frozenset[str]:
    """Return what a long run of this configuration, with these capabilities, must reach."""
    claims, config = frozenset(header.capabilities), header.config
    is_caching, is_lru = config.get("caching") is not False, config.get("policy") == "lru"
    has_slots, is_faulty, refuses = "mamba" in claims, "faults" in claims, "refusals" in claims
    slots = config.get("slots")
    several = has_slots and isinstance(slots, int) and slots > 1
    keeps = is_caching and is_lru
    groups: tuple[tuple[bool, frozenset[str]], ...] = (
        (True, _ALWAYS),
        (refuses, _REFUSALS),
        (is_caching, _CACHING),
        (keeps, _LRU),
        (is_caching and not is_lru, _REF_ZERO),
        (is_faulty, _OBSERVER),
        (is_faulty and keeps, frozenset({"the observer of an eviction raises"})),
        (has_slots, _SLOTS),
        (several, frozenset({"several states are saved at once"})),
        (has_slots and is_caching, _SLOTS_CACHING),
        (has_slots and keeps, _SLOTS_EVICTED),
        (several and keeps, _SEVERAL_EVICTED),
        (has_slots and not keeps, frozenset({"too few slots can be evicted"})),
        (has_slots and refuses, _SLOT_REFUSALS),
    )
    return frozenset().union(*(names for applies, names in groups if applies))


def note_victims(evidence: Evidence, blocks: BlockModel, victims: Sequence[int]) -> None:
    """Note what is worth reaching in evictions that are about to be followed."""
    evictable, stamps, leaves = blocks.evictable(), blocks.stamps, blocks.leaves()
    older = [block for block in evictable if victims[0] in leaves and stamps[block] < stamps[victims[0]]]
    parents = [blocks.parent_of.get(block) for block in victims]
    met = {
        "a cached block is evicted": True,
        "an older parent waits for its child": any(blocks.children(block) for block in older),
        "a chain goes from its end": any(parent in victims for parent in parents),
        "equally old blocks wait for eviction": len({stamps[leaf] for leaf in leaves}) < len(leaves),
        "a cached block is spared for its held child": set(blocks.cached) - evictable,
    }
    for situation, truth in met.items():
        evidence.meet(situation, truth)


def note_release(evidence: Evidence, blocks: BlockModel, released: Sequence[int]) -> None:
    """Note what is worth reaching in a release that is about to be followed."""
    counts = Counter(released)
    idle = [block for block, times in counts.items() if blocks.refs[block] == times]
    below = {it for block in idle if block in blocks.hash_of for it in blocks.subtree(block)[1:]}
    met = {
        "a block is released twice in one call": len(released) > len(counts),
        "a shared block stays with its other holder": len(idle) < len(counts),
        "a block without a hash becomes free": any(block not in blocks.hash_of for block in idle),
        "a block goes with its descendants": not blocks.is_lru and below,
        "a held descendant is deregistered": not blocks.is_lru and below.difference(idle),
    }
    for situation, truth in met.items():
        evidence.meet(situation, truth)


def note_register(evidence: Evidence, blocks: BlockModel, made: Sequence[Registration]) -> None:
    """Note what is worth reaching in a registration that was followed."""
    here = {entry.block for entry in made}
    parents = [blocks.parent_of[entry.block] for entry in made if entry.is_new]
    reasons = {entry.why_not for entry in made}
    met = {
        "a chain is registered": any(parent in here for parent in parents),
        "a block is registered below one of another call": any(
            parent is not None and parent not in here for parent in parents
        ),
        "a hash is taken": "taken" in reasons,
        "a parent is not registered": "orphan" in reasons,
        "a parent is not registered although its hash is another's": "usurped" in reasons,
        "a registered block is registered again": "known" in reasons,
    }
    for situation, truth in met.items():
        evidence.meet(situation, truth)


def note_alloc_slots(
    evidence: Evidence, slots: BlockSlotModel, blocks: BlockModel, wanted: Sequence[int], missing: int
) -> None:
    """Note what is worth reaching in a batch that is about to be followed, of which so many take a slot."""
    victims = slots.victims(wanted)
    met = {
        "a batch names a block twice": len(wanted) > len({*wanted}),
        "a block keeps its slot": any(block in slots.slot_of for block in wanted),
        "a slot is evicted for want of room": missing,
        "an older slot is spared for its block is in the batch": missing
        and any(block in wanted for block in slots.victims()[:missing]),
    }
    for situation, truth in met.items():
        evidence.meet(situation, truth)
    if missing:
        _note_order(evidence, slots, blocks, victims, missing)


def note_evict_slots(
    evidence: Evidence, slots: BlockSlotModel, blocks: BlockModel, victims: Sequence[int], count: int
) -> None:
    """Note what is worth reaching in an eviction of slots that is about to be followed."""
    evidence.meet("slots are taken by a caller", count)
    if count:
        _note_order(evidence, slots, blocks, victims, count)


def _note_order(
    evidence: Evidence, slots: BlockSlotModel, blocks: BlockModel, victims: Sequence[int], count: int
) -> None:
    stamps, last = blocks.stamps, victims[count - 1]
    spared = [block for block in slots.slot_of if blocks.refs[block] and stamps[block] < stamps[last]]
    left = [stamps[block] for block in victims[count:]]
    evidence.meet("an older slot is spared for its block is held", spared)
    evidence.meet("the older of several slots goes", any(stamp > stamps[last] for stamp in left))
    evidence.meet("the lower of equally old blocks loses its slot", stamps[last] in left)


def note_drop(
    evidence: Evidence, slots: BlockSlotModel, blocks: Sequence[int], hashes: Sequence[int]
) -> None:
    """Note what is worth reaching where states are about to be dropped."""
    others = {value for block, value in slots.named.items() if block not in blocks}
    evidence.meet("a block without a slot is dropped", any(block not in slots.slot_of for block in blocks))
    evidence.meet("a drop names a block twice", len(blocks) > len({*blocks}))
    evidence.meet("a state is dropped with its hash", any(block in slots.named for block in blocks))
    evidence.meet("a hash of another block is dropped with a block", others.intersection(hashes))
