"""The laws of block allocators in the judge: their order, expected results, and coverage goals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from pymllm.history.files import Config
from pymllm.history.operations import (
    AllocBlocks,
    AllocSlots,
    BeginTransfer,
    DropStates,
    EndTransfer,
    EvictSlots,
    Fault,
    FindSlots,
    Inspect,
    NameStates,
    Operation,
    ReadLive,
    ReadStates,
    RegisterBlocks,
    ReleaseBlocks,
    Reset,
    RestoreLive,
    RetainBlocks,
    SaveLive,
    SetClock,
    StampBlocks,
    StoreState,
    TakeEvents,
    WriteLive,
)
from pymllm.history.outcomes import BlockBooks, Done, Slots, States, ToldEvents
from pymllm.oracle.laws.event_goals import met_by_events
from pymllm.oracle.laws.goal import CACHING, Condition, Met, make_goals
from pymllm.oracle.laws.law import Asked, KindLaws
from pymllm.oracle.models.block_model import BlockModel
from pymllm.oracle.models.blocks import (
    NO_SLOTS,
    RAISED,
    BlocksModel,
    SeenBlocks,
    SeenLoss,
    SeenRegistration,
    SeenSlots,
    SeenStates,
)
from pymllm.oracle.models.kind_model import DONE, NO_ROOM, REFUSED


def _is_several(config: Config) -> bool:
    slots = config.get("slots")
    return isinstance(slots, int) and slots > 1


LRU = Condition("policy lru", lambda config: config.get("policy") == "lru")
_KEEPING = Condition("policy lru or release", lambda config: config.get("policy") != "ref_zero")
_REF_ZERO = Condition("policy ref_zero", lambda config: config.get("policy") == "ref_zero")
_SEVERAL = Condition("several state slots", _is_several)

_goals = partial(make_goals, "blocks")

GOALS = (
    *_goals(
        ("the pool is exhausted", "C1", "B154"),
        ("an allocation fails", "C1 X4", "B121"),
        ("nothing is asked for", "C1"),
        ("a block is retained twice in one call", "C1", "B118"),
        ("a block is released twice in one call", "C1", "B118"),
        ("a shared block stays with its other holder", "C1", "B118"),
        ("a block without a hash becomes free", "C1", "B28"),
        ("the clock goes back", "C1 C6", "B55"),
        ("a reset with blocks held", "C9", "B79"),
    ),
    *_goals(
        ("the dummy is refused", "C1", "B133"),
        ("a block outside is refused", "X1"),
        ("a stamp outside is refused", "X1"),
        needs="refuses_foreign",
    ),
    *_goals(
        ("a free block is refused", "C1 X1"),
        ("a good block stays with a bad one", "X1"),
        ("more is released than is held", "C1", "B104"),
        needs="refuses_double_free",
    ),
    *_goals(("a malformed call is refused", "X1"), needs="refuses_malformed"),
    *_goals(
        ("hashes that are missing or none are refused", "C3 X1"),
        ("another hash is refused", "C3", "B122"),
        needs="refuses_bad_arguments",
    ),
    *_goals(("a registered block is registered again", "C3", "B122"), when=(CACHING,)),
    *_goals(
        ("a chain is registered", "C3", "B143"),
        ("a block is registered below one of another call", "C3", "B161"),
        ("a hash is taken", "C3", "B127"),
        ("a parent is not registered", "C3", "B161"),
        ("a parent is not registered although its hash is another's", "C3", "B161"),
        when=(CACHING,),
        unless="trusted_hashes",
    ),
    *_goals(("a hash has a second block", "C3", "B127"), needs="trusted_hashes", when=(CACHING,)),
    *_goals(
        ("a block goes before another of its hash", "C1 C3", "B128"),
        needs="trusted_hashes",
        when=(CACHING, _KEEPING),
    ),
    *_goals(
        ("a cached block is evicted", "C1 C4", "B125 B131"),
        ("an allocation takes free blocks and cached ones", "C1", "B82"),
        ("a cached block is taken up again", "C1", "B28"),
        ("an allocation fails although blocks are cached", "C1 X4", "B121 B134"),
        ("a reset with blocks cached", "C9", "B79"),
        when=(CACHING, _KEEPING),
    ),
    *_goals(("equally old blocks wait for eviction", "C1", "B53"), when=(CACHING, LRU)),
    *_goals(
        ("an older parent waits for its child", "C1", "B119"),
        ("a chain goes from its end", "C1", "B119"),
        ("a chain of three goes from its end", "C1", "B119"),
        ("a cached block is spared for its held child", "C1", "B119"),
        when=(CACHING, LRU),
        unless="trusted_hashes",
    ),
    *_goals(
        ("a block goes with its descendants", "C1 C3"),
        ("three generations go at once", "C1 C3"),
        ("a held descendant is deregistered", "C1 C3"),
        when=(CACHING, _REF_ZERO),
        unless="trusted_hashes",
    ),
    *_goals(
        ("blocks are released under transfer", "C1"),
        ("every block is under transfer", "C1"),
        ("a transfer ends before its blocks are released", "C1"),
        ("a transfer ends whose blocks nobody has", "C1"),
        ("a block is in two transfers", "C1"),
        ("an allocation fails for blocks under transfer", "C1 X4"),
        ("a reset ends a transfer", "C1 C9"),
        needs="transfers",
    ),
    *_goals(
        ("a cached block is transferred", "C1"),
        ("a chain of cached blocks is spared for a transfer", "C1"),
        needs="transfers",
        when=(CACHING, LRU),
    ),
    *_goals(
        ("a release takes no reference of a transfer", "C1"),
        ("the end of a transfer that is over is refused", "C1"),
        needs="transfers refuses_double_free",
    ),
    *_goals(
        ("an observer raises", "X2", "B124"),
        ("an observer calls the allocator", "X6", "B124"),
        needs="faults",
    ),
    *_goals(
        ("the observer of an eviction raises", "X2", "B124"),
        needs="faults",
        when=(CACHING, LRU),
    ),
    *_goals(
        ("a batch names a block twice", "C5"),
        ("a block keeps its slot", "C5"),
        ("a batch cannot be met", "C5", "B82"),
        ("too few slots can be evicted", "C6", "B82"),
        ("a block without a hash loses its slot", "C6"),
        ("a block without a slot is dropped", "C4"),
        ("an entry without a hash is passed over", "C4"),
        ("a drop names a block twice", "C4"),
        ("a state is restored", "C7", "B76 B86"),
        ("nothing is restored", "C7", "B76"),
        needs="mamba",
    ),
    *_goals(
        ("several states are saved at once", "C7"),
        needs="mamba",
        when=(_SEVERAL,),
    ),
    *_goals(
        ("a block loses its slot with its hash", "C4 C6", "B128"),
        ("a state is dropped with its hash", "C4"),
        ("a hash of another block is dropped with a block", "C4", "B128"),
        needs="mamba",
        when=(CACHING,),
    ),
    *_goals(
        ("a slot is evicted for want of room", "C5 C6"),
        ("slots are taken by a caller", "C2 C6"),
        ("every slot is in hand", "C2", "B82"),
        ("a state is saved into a slot in hand", "C2 C7"),
        needs="mamba",
        when=(CACHING, LRU),
    ),
    *_goals(
        ("an older slot is spared for its block is in the batch", "C5", "B85"),
        ("an older slot is spared for its block is held", "C6", "B85"),
        ("the older of several slots goes", "C6"),
        ("the lower of equally old blocks loses its slot", "C6", "B53"),
        ("a reset with slots in use and in hand", "C9", "B79"),
        needs="mamba",
        when=(CACHING, LRU, _SEVERAL),
    ),
    *_goals(
        ("a name without a slot is refused", "C4"),
        ("a name that is not the block's hash is refused", "C4"),
        ("a store without a slot is refused", "C7"),
        ("a save of what is not live is refused", "X1"),
        ("a restore to what is not live is refused", "X1"),
        needs="mamba refuses_bad_arguments",
    ),
    *_goals(
        ("a drop outside is refused", "X1"),
        ("a store outside is refused", "X1"),
        needs="mamba refuses_foreign",
    ),
)
"""Coverage goals that a search for violations must reach on block allocators."""


def _met_by_alloc(before: BlocksModel, operation: AllocBlocks, seen: SeenLoss) -> Met:
    is_last = operation.count and operation.count >= len(before.blocks.free)
    return {
        "the observer of an eviction raises": seen.fate == RAISED,
        "nothing is asked for": not operation.count,
        "the pool is exhausted": is_last and seen.fate == DONE,
        **_met_by_loss(before, seen),
        **_met_by_victims(before, seen.lost),
    }


def _met_by_victims(before: BlocksModel, victims: Sequence[int]) -> Met:
    if not victims:
        return {}
    blocks, stamps, above = before.blocks, before.blocks.stamps, before.blocks.parent_of
    evictable = blocks.evictable()
    leaves = evictable.difference(above.values())
    older = [block for block in evictable if stamps[block] < stamps[victims[0]]]
    parents = [above[block] for block in victims]
    grandparents = [above[parent] for parent in parents if parent is not None and parent in victims]
    return {
        "a cached block is evicted": True,
        "an older parent waits for its child": any(blocks.children(block) for block in older),
        "a chain goes from its end": any(parent in victims for parent in parents),
        "a chain of three goes from its end": any(block in victims for block in grandparents),
        "an allocation takes free blocks and cached ones": blocks.free,
        "equally old blocks wait for eviction": len({stamps[leaf] for leaf in leaves}) < len(leaves),
        "a cached block is spared for its held child": set(blocks.cached) - evictable,
        "a chain of cached blocks is spared for a transfer": any(
            blocks.callers_refs(block) == 0 and above[block] in blocks.cached
            for block in _transferred(blocks)
        ),
        "a block goes before another of its hash": any(
            blocks.hash_of[block] == value and other not in victims
            for block in victims
            for other, value in blocks.hash_of.items()
        ),
    }


def _met_by_loss(before: BlocksModel, seen: SeenLoss) -> Met:
    slot_of = () if before.slots is None else before.slots.slot_of
    states = [block for block in seen.lost if block in slot_of]
    return {
        "a block without a hash loses its slot": len(seen.hashes) < len(seen.lost) and states,
        "a block loses its slot with its hash": seen.hashes and states,
        "an observer raises": seen.fate == RAISED,
        "an observer calls the allocator": seen.fate == DONE and seen.struck,
    }


def _transferred(blocks: BlockModel) -> list[int]:
    """Return the registered blocks that are under transfer."""
    return [block for block, count in blocks.transfers.items() if count and block in blocks.hash_of]


def _met_by_failure(before: BlocksModel, operation: AllocBlocks, seen: SeenLoss) -> Met:
    blocks = before.blocks
    return {
        "an allocation fails": True,
        "an allocation fails although blocks are cached": blocks.evictable(),
        "an allocation fails for blocks under transfer": any(
            count and not blocks.callers_refs(block) for block, count in blocks.transfers.items()
        ),
    }


def _met_by_begin(before: BlocksModel, operation: BeginTransfer, seen: SeenBlocks) -> Met:
    blocks = before.blocks
    busy = {*seen.blocks, *(block for block, count in blocks.transfers.items() if count)}
    return {
        "every block is under transfer": len(busy) == blocks.usable,
        "a block is in two transfers": any(blocks.transfers[block] for block in seen.blocks),
        "a cached block is transferred": not all(blocks.refs[block] for block in seen.blocks),
    }


def _met_by_end(before: BlocksModel, operation: EndTransfer, seen: SeenLoss) -> Met:
    blocks = before.blocks
    return {
        "a transfer ends before its blocks are released": any(map(blocks.callers_refs, seen.blocks)),
        "a transfer ends whose blocks nobody has": any(blocks.refs[block] == 1 for block in seen.blocks),
        **_met_by_loss(before, seen),
    }


def _met_by_retain(before: BlocksModel, operation: RetainBlocks, seen: SeenBlocks) -> Met:
    blocks, refs = seen.blocks, before.blocks.refs
    return {
        "a block is retained twice in one call": len(blocks) > len({*blocks}),
        "a cached block is taken up again": not all(refs[block] for block in blocks),
    }


def _met_by_release(before: BlocksModel, operation: ReleaseBlocks, seen: SeenLoss) -> Met:
    blocks, released = before.blocks, Counter(seen.blocks)
    idle = [block for block, times in released.items() if blocks.refs[block] == times]
    is_alone = blocks.policy == "ref_zero"  # and takes with it what is below
    below = {it for block in idle if block in blocks.hash_of for it in blocks.subtree(block)[1:]}
    return {
        "blocks are released under transfer": any(blocks.transfers[block] for block in released),
        "a block is released twice in one call": len(seen.blocks) > len(released),
        "a shared block stays with its other holder": len(idle) < len(released),
        "a block without a hash becomes free": any(block not in blocks.hash_of for block in idle),
        "a block goes with its descendants": is_alone and below,
        "three generations go at once": is_alone and any(blocks.parent_of[it] in below for it in below),
        "a held descendant is deregistered": is_alone and below.difference(idle),
        **_met_by_loss(before, seen),
    }


def _met_by_misuse(before: BlocksModel, operation: Operation, seen: SeenBlocks) -> Met:
    refs = before.blocks.refs
    is_release = isinstance(operation, ReleaseBlocks)
    return {
        "a good block stays with a bad one": seen.bad and len({*seen.blocks}) > seen.bad,
        "a release takes no reference of a transfer": is_release
        and all(0 < times <= refs.get(block, 0) for block, times in Counter(seen.blocks).items()),
    }


def _met_by_registration(before: BlocksModel, operation: RegisterBlocks, seen: SeenRegistration) -> Met:
    here, reasons = {*seen.blocks}, {entry.why_not for entry in seen.made}
    parents = {entry.parent for entry in seen.made if not entry.why_not}
    return {
        "a chain is registered": parents & here,
        "a block is registered below one of another call": parents - here - {None},
        "a hash is taken": "taken" in reasons,
        "a parent is not registered": "orphan" in reasons,
        "a parent is not registered although its hash is another's": "usurped" in reasons,
        "a registered block is registered again": "known" in reasons,
        "a hash has a second block": any(
            entry.hash in before.blocks.block_of for entry in seen.made if not entry.why_not
        ),
    }


def _met_by_clock(before: BlocksModel, operation: SetClock, seen: SeenBlocks) -> Met:
    return {"the clock goes back": operation.clock < before.blocks.clock}


def _met_by_batch(before: BlocksModel, operation: AllocSlots, seen: SeenSlots) -> Met:
    slots, wanted = before.slotted(), seen.blocks
    return {
        "a batch names a block twice": len(wanted) > len({*wanted}),
        "a block keeps its slot": any(block in slots.slot_of for block in wanted),
        "a slot is evicted for want of room": seen.turn,
        "an older slot is spared for its block is in the batch": any(
            block in wanted for block in slots.victims()[: seen.missing]
        ),
        **_met_by_turn(before, seen),
    }


def _met_by_slots(before: BlocksModel, operation: EvictSlots, seen: SeenSlots) -> Met:
    return {"slots are taken by a caller": operation.count, **_met_by_turn(before, seen)}


def _met_by_turn(before: BlocksModel, seen: SeenSlots) -> Met:
    if not seen.turn:
        return {}
    blocks, stamps = before.blocks, before.blocks.stamps
    last, left = stamps[seen.turn[-1]], [stamps[block] for block in seen.victims[seen.missing :]]
    spared = [block for block in before.slotted().slot_of if blocks.refs[block] and stamps[block] < last]
    return {
        "an older slot is spared for its block is held": spared,
        "the older of several slots goes": any(stamp > last for stamp in left),
        "the lower of equally old blocks loses its slot": last in left,
    }


def _met_by_shortage(before: BlocksModel, operation: Operation, seen: SeenSlots) -> Met:
    slots, is_batch = before.slotted(), isinstance(operation, AllocSlots)
    return {
        "a batch cannot be met": is_batch,
        "too few slots can be evicted": not is_batch,
        "every slot is in hand": len(slots.in_hand) == slots.total,
    }


def _met_by_names(before: BlocksModel, operation: NameStates, seen: SeenBlocks) -> Met:
    return {"an entry without a hash is passed over": any(value <= 0 for value in operation.hashes)}


def _met_by_drop(before: BlocksModel, operation: DropStates, seen: SeenBlocks) -> Met:
    slots, blocks = before.slotted(), seen.blocks
    others = {value for block, value in slots.named.items() if block not in blocks}
    return {
        "a block without a slot is dropped": any(block not in slots.slot_of for block in blocks),
        "a drop names a block twice": len(blocks) > len({*blocks}),
        "a state is dropped with its hash": any(block in slots.named for block in blocks),
        "a hash of another block is dropped with a block": others.intersection(operation.hashes),
    }


def _met_by_save(before: BlocksModel, operation: SaveLive, seen: SeenSlots) -> Met:
    in_hand = before.slotted().in_hand.intersection(seen.slots)
    return {
        "several states are saved at once": len(seen.slots) > 1,
        "a state is saved into a slot in hand": in_hand,
    }


def _met_by_restore(before: BlocksModel, operation: RestoreLive, seen: SeenStates) -> Met:
    return {"nothing is restored": seen.slot is None, "a state is restored": seen.slot is not None}


def _met_by_reset(before: BlocksModel, operation: Reset, seen: SeenBlocks) -> Met:
    blocks, slots = before.blocks, before.slots
    return {
        "a reset with blocks held": blocks.held,
        "a reset ends a transfer": before.transfers,
        "a reset with blocks cached": blocks.cached,
        "a reset with slots in use and in hand": slots and slots.slot_of and slots.in_hand,
    }


def _law_of_loss(before: BlocksModel, operation: Operation, seen: SeenLoss) -> str:
    return "X2" if seen.fate == RAISED else "C1"


def _law_of_batch(before: BlocksModel, operation: Operation, seen: SeenSlots) -> str:
    is_batch = isinstance(operation, AllocSlots)
    if seen.fate == NO_SLOTS:
        return "C5" if is_batch else "C6"
    return "C6" if is_batch and seen.turn else "C2"


BLOCKS = KindLaws(
    order="X1 X7 X4 X6 X8 C1 C3 C5 C6 X2 C2 C4 C7 C9",
    asked={
        AllocBlocks: Asked(Slots, "C1", _law_of_loss),
        RetainBlocks: Asked(Done, "C1"),
        ReleaseBlocks: Asked(Done, "C1", _law_of_loss),
        BeginTransfer: Asked(Done, "C1"),
        EndTransfer: Asked(Done, "C1", _law_of_loss),
        RegisterBlocks: Asked(Done, "C3"),
        StampBlocks: Asked(Done, "C1"),
        SetClock: Asked(Done, "C1"),
        AllocSlots: Asked(Slots, "C5", _law_of_batch),
        EvictSlots: Asked(Slots, "C6", _law_of_batch),
        FindSlots: Asked(None, "C2"),
        NameStates: Asked(Done, "C4"),
        DropStates: Asked(Done, "C4"),
        StoreState: Asked(Done, "C7"),
        WriteLive: Asked(Done, "C7"),
        SaveLive: Asked(Done, "C7"),
        RestoreLive: Asked(None, "C7"),
        ReadStates: Asked(States, "C7", "C2"),
        ReadLive: Asked(States, "C7", "C2"),
        Inspect: Asked(BlockBooks, "C1", "C2"),
        Fault: Asked(Done, "C1", "C2"),
        Reset: Asked(Done, "X7", "C9"),
        TakeEvents: Asked(ToldEvents, "X10", "C2", is_test=False),
    },
    sizes_law="C2",
    sizes={
        **{(law, "free_count"): "C6" for law in ("C1", "C3")},
        **{
            (law, name): "C1"
            for law in ("C2", "C4", "C5", "C6", "C7")
            for name in ("pool_avail", "evictable_blocks")
        },
    },
    met={
        (AllocBlocks, DONE): _met_by_alloc,
        (AllocBlocks, RAISED): _met_by_alloc,
        (AllocBlocks, NO_ROOM): _met_by_failure,
        (RetainBlocks, DONE): _met_by_retain,
        (RetainBlocks, REFUSED): _met_by_misuse,
        (ReleaseBlocks, DONE): _met_by_release,
        (ReleaseBlocks, RAISED): _met_by_release,
        (ReleaseBlocks, REFUSED): _met_by_misuse,
        (BeginTransfer, DONE): _met_by_begin,
        (BeginTransfer, REFUSED): _met_by_misuse,
        (EndTransfer, DONE): _met_by_end,
        (EndTransfer, RAISED): _met_by_end,
        (RegisterBlocks, DONE): _met_by_registration,
        (RegisterBlocks, REFUSED): _met_by_misuse,
        (SetClock, DONE): _met_by_clock,
        (AllocSlots, DONE): _met_by_batch,
        (AllocSlots, NO_SLOTS): _met_by_shortage,
        (AllocSlots, REFUSED): _met_by_misuse,
        (EvictSlots, DONE): _met_by_slots,
        (EvictSlots, NO_SLOTS): _met_by_shortage,
        (NameStates, DONE): _met_by_names,
        (DropStates, DONE): _met_by_drop,
        (SaveLive, DONE): _met_by_save,
        (RestoreLive, DONE): _met_by_restore,
        (Reset, DONE): _met_by_reset,
        (TakeEvents, DONE): met_by_events,
    },
    counts_all=False,
)
