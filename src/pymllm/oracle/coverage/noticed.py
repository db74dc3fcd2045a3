"""How the less obvious situations are noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pymllm.oracle.evidence import Evidence
from pymllm.oracle.models.block_model import BlockModel, BlockSlotModel, Registration


def note_victims(evidence: Evidence, blocks: BlockModel, victims: Sequence[int]) -> None:
    """Note what is worth reaching in evictions that are about to be followed."""
    evictable, stamps, leaves = blocks.evictable(), blocks.stamps, blocks.leaves()
    older = [block for block in evictable if victims[0] in leaves and stamps[block] < stamps[victims[0]]]
    parents = [blocks.parent_of.get(block) for block in victims]
    above = [blocks.parent_of.get(parent) for parent in parents if parent is not None and parent in victims]
    met = {
        "a cached block is evicted": True,
        "an older parent waits for its child": any(blocks.children(block) for block in older),
        "a chain goes from its end": any(parent in victims for parent in parents),
        "a chain of three goes from its end": any(block in victims for block in above),
        "an allocation takes free blocks and cached ones": blocks.free,
        "equally old blocks wait for eviction": len({stamps[leaf] for leaf in leaves}) < len(leaves),
        "a cached block is spared for its held child": set(blocks.cached) - evictable,
    }
    evidence.meet_each(met)


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
        "three generations go at once": not blocks.is_lru
        and any(blocks.parent_of.get(block) in below for block in below),
        "a held descendant is deregistered": not blocks.is_lru and below.difference(idle),
    }
    evidence.meet_each(met)


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
    evidence.meet_each(met)


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
    evidence.meet_each(met)
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
