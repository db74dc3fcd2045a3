"""The model of block allocators: the expected outcomes, and the state of blocks, slots and cached states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pymllm.errors import ProgramError
from pymllm.history.files import Header
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
from pymllm.history.outcomes import BlockBooks, Effect, Outcome, Slots, States
from pymllm.history.spans import GivenNumbers
from pymllm.oracle.models import read_policy
from pymllm.oracle.models.block_model import BlockModel, BlockSlotModel, Registration
from pymllm.oracle.models.block_states import PARTS, BlockStates, StateCells
from pymllm.oracle.models.expected_cells import Content
from pymllm.oracle.models.kind_model import (
    DONE,
    MALFORMED_ERRORS,
    NO_ROOM,
    REFUSED,
    KindModel,
    Misuse,
    Seen,
)
from pymllm.oracle.models.told_events import EventFold, SeenEvents

NO_SLOTS, RAISED = "no slots", "raised"
"""Results of operations: too few slots; and an operation whose observer was made to raise."""

_WAYS = ("one by one", "batch", "deregistered")
_OWNED = ("OwnershipError",)
_NOT_FOR_SLOTS = ("OwnershipError", "UsageError", "IndexError")
_NO_STATES = ("UsageError", "OwnershipError")

_NEEDED = {"a free block is refused": "refuses_double_free"}
_TOO_OFTEN = Misuse("more is released than is held", "C1", _OWNED, needs="refuses_double_free")
_OVER = Misuse("the end of a transfer that is over is refused", "C1", _OWNED, needs="refuses_double_free")
_MISNAMED = Misuse("hashes that are missing or none are refused", "C3", MALFORMED_ERRORS)
_RENAMED = Misuse("another hash is refused", "C3", MALFORMED_ERRORS)
_STAMP_OUTSIDE = Misuse(
    "a stamp outside is refused", "X1", ("IndexError", "OwnershipError"), needs="refuses_foreign"
)
_FIND_OUTSIDE = Misuse(
    "", "X1", MALFORMED_ERRORS, name="a search of slots outside the pool", needs="refuses_foreign"
)
_HOMELESS = Misuse("a name without a slot is refused", "C4", MALFORMED_ERRORS)
_STRANGE = Misuse("a name that is not the block's hash is refused", "C4", MALFORMED_ERRORS)
_UNEVEN = Misuse("", "C4", MALFORMED_ERRORS, name="names of blocks outside, or of another number")
_DROP_OUTSIDE = Misuse("a drop outside is refused", "X1", MALFORMED_ERRORS, needs="refuses_foreign")
_STORE_OUTSIDE = Misuse("a store outside is refused", "X1", MALFORMED_ERRORS, needs="refuses_foreign")
_STORE_NOWHERE = Misuse("a store without a slot is refused", "C7", _NO_STATES)
_NOT_LIVE = Misuse("a save of what is not live is refused", "X1", MALFORMED_ERRORS)
_NO_TARGET = Misuse("a restore to what is not live is refused", "X1", MALFORMED_ERRORS)
_NOTHING_THERE = Misuse(
    "", "X1", MALFORMED_ERRORS, name="a restore of a block outside the pool", needs="refuses_foreign"
)


def _told(outcome: Outcome) -> Sequence[int]:
    """Return the slots in an outcome, or no slots if it failed."""
    return outcome.result.slots if isinstance(outcome.result, Slots) else ()


def _is_hash(number: int) -> bool:
    return 0 < number < 2**63


@dataclass(slots=True)
class SeenBlocks(Seen):
    """An operation as read: the named blocks in order, and how many of them may not be named there."""

    blocks: Sequence[int] = ()
    bad: int = 0


@dataclass(slots=True)
class SeenLoss(SeenBlocks):
    """An operation that may lose blocks, with each call of the observer and the sizes seen in it.

    ``lost`` are those that are deregistered or free: of an allocation those that were told of, since whose
    turn it is may be open. ``inside`` are the sizes while the last call is made, none where these could not
    have gone; ``after`` are those that the outcome tells, and ``is_freed`` says whether as many blocks became
    free as must. ``struck`` is the call in which a fault was to happen.
    """

    lost: Sequence[int] = ()
    hashes: Mapping[int, int] = field(default_factory=dict)
    missing: int = 0
    calls: Sequence[Effect] = ()
    struck: Effect | None = None
    inside: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)
    is_freed: bool = True


@dataclass(slots=True)
class SeenRegistration(SeenBlocks):
    """A registration, with the result that each entry must have."""

    made: Sequence[Registration] = ()


@dataclass(slots=True)
class SeenSlots(SeenBlocks):
    """A request for slots: the blocks that may lose theirs, in order, and the number that must."""

    victims: Sequence[int] = ()
    missing: int = 0
    slots: Sequence[int] = ()  # that were named
    new: Sequence[int] = ()  # that blocks without one were given

    @property
    def turn(self) -> Sequence[int]:
        """The blocks that must lose their slots."""
        return self.victims[: self.missing]


@dataclass(slots=True)
class SeenStates(SeenBlocks):
    """A write, a read or a copy of states: a slot, and the contents that it must have afterwards."""

    slot: int | None = None
    contents: Sequence[Content] = ()
    cells: StateCells | None = None
    read: dict[tuple[str, int], Content] = field(default_factory=dict)


class BlocksModel(KindModel):
    """The model of a block allocator with its slots and states; it copies the allocator's own choices.

    The configuration has ``blocks`` beside the dummy, ``policy`` (``lru``, ``release`` or ``ref_zero``), and
    ``caching``, true unless it is false; where ``mamba`` is claimed, also ``slots`` and what `BlockStates`
    reads.

    Attributes
    ----------
    suspected : str
        The law that is broken where something differs that the last operation did not change.
    untested : dict of str to None
        Laws of operations whose traces nobody has looked for yet.
    fresh : BlockBooks or None
        The views before anything else was asked for.
    """

    KIND: ClassVar[str] = "blocks"

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        if "callbacks" not in self.claims:
            raise ProgramError(
                f"{header.adapter} does not claim callbacks, and nothing else says which blocks go: claim "
                "them, and tell of each block that loses its hash or becomes free, as BlockAdapter's "
                "lost(blocks, hashes) does; without an observer compare the books of before and after a call"
            )
        is_caching = self.config.get("caching") is not False
        self.blocks = BlockModel(
            self.number("blocks"), read_policy(self.config), is_caching, "trusted_hashes" in self.claims
        )
        has_slots = "mamba" in self.claims
        self.slots = BlockSlotModel(self.number("slots"), self.blocks) if has_slots else None
        self.states = BlockStates(header.config) if has_slots else None
        self.given_slots = GivenNumbers()  # ``given`` has the blocks
        self.suspected = ""
        self.untested: dict[str, None] = {}
        self.fresh: BlockBooks | None = None
        self.events = EventFold(None, lambda above, event, hash, tokens: (hash, above and above[0]))
        self.transfers: dict[int, list[int]] = {}  # blocks of those under way, by the step that began each
        self.ended: dict[int, None] = {}  # the steps that began the others
        self._was_used = False
        self._armed: Fault | None = None  # what is to happen in the next operation

    def sizes(self) -> dict[str, int]:
        """Return the sizes of blocks and, where there are slots, ``free_count``."""
        sizes = {"pool_avail": len(self.blocks.free), "evictable_blocks": len(self.blocks.evictable())}
        return sizes if self.slots is None else {**sizes, "free_count": self.slots.free_count}

    def slotted(self) -> BlockSlotModel:
        """Return the model of slots; raise `ProgramError` if there are none."""
        if self.slots is None:
            raise ProgramError("cached states are not claimed")
        return self.slots

    def cells(self) -> BlockStates:
        """Return the expected states; raise `ProgramError` if cached states are not claimed."""
        if self.states is None:
            raise ProgramError("cached states are not claimed")
        return self.states

    def end_step(self, operation: Operation, told: Mapping[str, int]) -> None:
        """Forget a fault that was armed for this operation only."""
        if not isinstance(operation, Fault):
            self._armed = None

    def follow_refused(self, step: int, operation: Operation, seen: Seen) -> None:
        """Record a refused operation as suspect: it must have changed nothing, including states."""
        self._leave_traces("X1", "X1")
        if self.states is not None:
            self.states.suspect("X1")

    def _leave_traces(self, law: str, suspect: str = "") -> None:
        """Record that a later inspection has yet to test the effects of an operation."""
        self.untested[law] = None
        self.suspected = suspect
        self._was_used = True

    # -- reading -------------------------------------------------------------------------------------------

    def read(self, operation: Operation, outcome: Outcome) -> SeenBlocks:
        """Read the outcome of an operation that names no blocks."""
        return SeenBlocks(outcome.result)

    @staticmethod
    def refused(outcome: Outcome, *wrong: Misuse) -> SeenBlocks:
        """Return an operation as read that must be refused."""
        return SeenBlocks(outcome.result, REFUSED, wrong)

    def _named(
        self, blocks: Sequence[int], outcome: Outcome, wrong: Sequence[Misuse] = (), bad: int = 0
    ) -> SeenBlocks:
        fate = REFUSED if wrong else DONE
        return SeenBlocks(outcome.result, fate, tuple(wrong), blocks, bad)

    def _misuse(self, blocks: Sequence[int], law: str, errors: tuple[str, ...]) -> list[Misuse]:
        faults = self.blocks.faults_of(blocks)
        return [Misuse(fault, law, errors, _NEEDED.get(fault, "refuses_foreign")) for fault in faults]

    def is_outside(self, blocks: Sequence[int]) -> bool:
        """Tell whether any block is neither in the pool nor the dummy block."""
        return any(block not in range(self.blocks.usable + 1) for block in blocks)

    # -- events --------------------------------------------------------------------------------------------

    def read_take_events(self, operation: TakeEvents, outcome: Outcome) -> Seen:
        """Read events, next to the registered hashes, each with the hash of its parent."""
        if "events" not in self.claims:
            raise ProgramError("events are not claimed")
        hash_of, parent_of = self.blocks.hash_of, self.blocks.parent_of
        above = {block: None if it is None else hash_of[it] for block, it in parent_of.items()}
        return self.events.read(outcome, {"kv": {(it, above[block]) for block, it in hash_of.items()}})

    def follow_take_events(self, step: int, operation: TakeEvents, seen: SeenEvents) -> None:
        """Record the events that were emitted."""
        self.events.follow(seen)

    # -- faults --------------------------------------------------------------------------------------------

    def read_fault(self, operation: Fault, outcome: Outcome) -> SeenBlocks:
        """Read the fault to arm for the next operation."""
        if operation.call not in ("callback", "reenter") or operation.nth < 1:
            raise ProgramError(
                f"{operation}: of blocks only a callback can raise or re-enter, from the first on"
            )
        return self.read(operation, outcome)

    def follow_fault(self, step: int, operation: Fault, seen: SeenBlocks) -> None:
        """Remember the fault for the next operation."""
        self._armed = operation

    # -- blocks --------------------------------------------------------------------------------------------

    def read_alloc_blocks(self, operation: AllocBlocks, outcome: Outcome) -> SeenLoss:
        """Read the blocks that an allocation evicted."""
        count, blocks = operation.count, self.blocks
        if count < 0:
            raise ProgramError(f"a number of blocks is not negative, got {count}: use Malformed")
        missing, evictable = max(0, count - len(blocks.free)), len(blocks.evictable())
        if missing > evictable:
            return SeenLoss(outcome.result, NO_ROOM, (), missing=missing)
        victims = [block for effect in outcome.effects if effect.call == "callback" for block in effect.slots]
        inside = {}
        turns = zip(victims, blocks.turns(victims), strict=False)
        if victims and all(block in leaves for block, leaves in turns):
            free = len(blocks.free) + len(victims)
            inside = {"pool_avail": free, "evictable_blocks": evictable - len(victims)}
        return self._read_loss((), victims, inside, outcome, missing)

    def _read_loss(
        self,
        blocks: Sequence[int],
        lost: Sequence[int],
        inside: Mapping[str, int],
        outcome: Outcome,
        missing: int = 0,
    ) -> SeenLoss:
        calls = [effect for effect in outcome.effects if effect.call == "callback"]
        fault, hash_of = self._armed, self.blocks.hash_of
        struck = None if fault is None or len(calls) < fault.nth else calls[fault.nth - 1]
        is_raised = struck is not None and fault is not None and fault.call == "callback"
        return SeenLoss(
            outcome.result,
            RAISED if is_raised else DONE,
            (),
            blocks,
            0,
            lost,
            {block: hash_of[block] for block in lost if block in hash_of},
            missing,
            calls,
            struck,
            inside,
            outcome.sizes,
        )

    def follow_alloc_blocks(self, step: int, operation: AllocBlocks, seen: SeenLoss) -> None:
        """Remove the evicted blocks and hand out the new ones, or record a failure as suspect."""
        if seen.fate == NO_ROOM:
            law = "X4" if "pool" in self.claims else "C1"
            self._leave_traces(law, law)
            return
        self.blocks.drop(seen.lost)
        self._follow_loss(seen)
        if seen.fate == DONE:
            self.blocks.take(seen.result.slots)
            self.given.record(step, seen.result.slots)

    def _follow_loss(self, seen: SeenLoss) -> None:
        if self.slots is not None:
            self.cells().release(self.slots.drop(seen.lost))
        self._leave_traces(*("X2", "X2") if seen.fate == RAISED else ("C1",))

    def read_retain_blocks(self, operation: RetainBlocks, outcome: Outcome) -> SeenBlocks:
        """Read the blocks that a retain names, which must be referenced or cached."""
        blocks = self.given.resolve(operation.blocks)
        wrong = self._misuse(blocks, "C1", _OWNED)
        return self._named(blocks, outcome, wrong, len(wrong))

    def follow_retain_blocks(self, step: int, operation: RetainBlocks, seen: SeenBlocks) -> None:
        """Add a reference to each named block."""
        self.blocks.retain(seen.blocks)
        self._leave_traces("C1")

    def read_release_blocks(self, operation: ReleaseBlocks, outcome: Outcome) -> SeenBlocks:
        """Read the blocks that a release names, with enough references, and the blocks that then go."""
        blocks, held = self.given.resolve(operation.blocks), self.blocks.callers_refs
        wrong = self._misuse(blocks, "C1", _OWNED)
        if wrong:
            return self._named(blocks, outcome, wrong, len(wrong))
        over = [block for block, times in Counter(blocks).items() if times > held(block)]
        if over:
            return self._named(blocks, outcome, (_TOO_OFTEN,), len(over))
        return self._read_release(blocks, outcome)

    def _read_release(self, blocks: Sequence[int], outcome: Outcome) -> SeenLoss:
        """Return a release as read, with the blocks that go, once its references are known to exist."""
        after = self.blocks.copy()
        lost = after.release(blocks)
        if "careful_callers" in self.claims:  # who keep nothing by a block that never had a hash
            told = {block for effect in outcome.effects for block in effect.slots}
            lost = [block for block in lost if block in self.blocks.hash_of or block in told]
        free = len(after.free)
        inside = {"pool_avail": free, "evictable_blocks": len(after.evictable())}
        seen = self._read_loss(blocks, lost, inside, outcome)
        seen.is_freed = outcome.sizes.get("pool_avail", free) == free
        return seen

    def follow_release_blocks(self, step: int, operation: ReleaseBlocks, seen: SeenLoss) -> None:
        """Remove references, and the blocks that go with them."""
        self.blocks.release(seen.blocks)
        self._follow_loss(seen)

    def read_begin_transfer(self, operation: BeginTransfer, outcome: Outcome) -> SeenBlocks:
        """Read the blocks of a transfer, which must be referenced or cached."""
        if "transfers" not in self.claims:
            raise ProgramError("transfers are not claimed")
        blocks = [*dict.fromkeys(self.given.resolve(operation.memory))]
        wrong = self._misuse(blocks, "C1", _OWNED)
        return self._named(blocks, outcome, wrong, len(wrong))

    def follow_begin_transfer(self, step: int, operation: BeginTransfer, seen: SeenBlocks) -> None:
        """Add a reference of the transfer to each block."""
        self.transfers[step] = [*seen.blocks]
        self.blocks.transfers.update(seen.blocks)
        self.blocks.retain(seen.blocks)
        self._leave_traces("C1")

    def read_end_transfer(self, operation: EndTransfer, outcome: Outcome) -> SeenBlocks:
        """Read the end of a transfer that must be under way, and work out the blocks that go."""
        if operation.transfer in self.ended:
            return self.refused(outcome, _OVER)
        if operation.transfer not in self.transfers:
            raise ProgramError(f"step {operation.transfer} began no transfer")
        return self._read_release(self.transfers[operation.transfer], outcome)

    def follow_end_transfer(self, step: int, operation: EndTransfer, seen: SeenLoss) -> None:
        """Remove the transfer's references, and the blocks that go with them."""
        del self.transfers[operation.transfer]
        self.ended[operation.transfer] = None
        self.blocks.transfers.subtract(seen.blocks)
        self.blocks.release(seen.blocks)
        self._follow_loss(seen)

    def read_register_blocks(self, operation: RegisterBlocks, outcome: Outcome) -> SeenBlocks:
        """Read the entries of a registration, each with a hash that its block may have."""
        blocks, hashes, parents = self.given.resolve(operation.blocks), operation.hashes, operation.parents
        wrong = self._misuse(blocks, "C3", MALFORMED_ERRORS)
        if wrong:
            return self._named(blocks, outcome, wrong, len(wrong))
        lengths = {len(blocks), len(hashes), len(blocks if parents is None else parents)}
        given: dict[int, int] = {}
        pairs = zip(blocks, hashes, strict=False)
        checks = (
            (_MISNAMED, len(lengths) > 1 or not all(map(_is_hash, (*hashes, *filter(None, parents or ()))))),
            (_RENAMED, any(given.setdefault(it[0], self.blocks.hash_of.get(*it)) != it[1] for it in pairs)),
        )
        wrong = [misuse for misuse, is_so in checks if is_so]
        if wrong:
            return self._named(blocks, outcome, wrong)
        for at, above in enumerate(parents or ()):
            if above in hashes[at + 1 :] and above not in hashes[:at]:
                raise ProgramError(
                    f"registration of {blocks} under {hashes} below {parents}: "
                    "a block stands before its parent"
                )
        made = self.blocks.plan_registration(blocks, hashes, parents)
        return SeenRegistration(outcome.result, DONE, (), blocks, 0, made)

    def follow_register_blocks(self, step: int, operation: RegisterBlocks, seen: SeenRegistration) -> None:
        """Register the blocks that may be registered."""
        self.blocks.register(seen.made)
        self._leave_traces("C3")

    def read_stamp_blocks(self, operation: StampBlocks, outcome: Outcome) -> SeenBlocks:
        """Read the blocks that a stamp names, which must be referenced or cached."""
        blocks = self.given.resolve(operation.blocks)
        if self.is_outside(blocks):
            return self._named(blocks, outcome, (_STAMP_OUTSIDE,))
        if self.blocks.faults_of(blocks):
            raise ProgramError(f"of {blocks} some have no holder and are not cached, and need no stamp")
        return self._named(blocks, outcome)

    def follow_stamp_blocks(self, step: int, operation: StampBlocks, seen: SeenBlocks) -> None:
        """Set the timestamps of the named blocks to the clock."""
        self.blocks.stamp(seen.blocks)
        self._leave_traces("C1")

    def follow_set_clock(self, step: int, operation: SetClock, seen: SeenBlocks) -> None:
        """Set the clock."""
        self.blocks.clock = operation.clock
        self._leave_traces("C1")

    # -- slots ---------------------------------------------------------------------------------------------

    def read_alloc_slots(self, operation: AllocSlots, outcome: Outcome) -> SeenBlocks:
        """Read a batch of blocks that need slots, and find the blocks that lose theirs in turn."""
        slots, wanted = self.slotted(), self.given.resolve(operation.blocks)
        wrong = self._misuse(wanted, "C6", _NOT_FOR_SLOTS)
        if wrong:
            return self._named(wanted, outcome, wrong, len(wrong))
        victims, newcomers = slots.victims(wanted, _told(outcome)), slots.newcomers(wanted)
        missing = max(0, len(newcomers) - slots.free_count)
        fate = DONE if missing <= len(victims) else NO_SLOTS
        seen = SeenSlots(outcome.result, fate, (), wanted, 0, victims, missing)
        if isinstance(outcome.result, Slots) and len(outcome.result.slots) == len(wanted):
            seen.new = [outcome.result.slots[wanted.index(block)] for block in newcomers]
        return seen

    def follow_alloc_slots(self, step: int, operation: AllocSlots, seen: SeenSlots) -> None:
        """Give slots to blocks, and take them from the blocks in turn; or record a failure as suspect."""
        if seen.fate == NO_SLOTS:
            self._leave_traces("C5", "C5")
            return
        slots = self.slotted()
        slots.drop(seen.turn)
        slots.give(slots.newcomers(seen.blocks), seen.new)
        self.cells().release(seen.new)
        self.given_slots.record(step, seen.result.slots)
        self._leave_traces("C6" if seen.turn else "C2")

    def read_evict_slots(self, operation: EvictSlots, outcome: Outcome) -> SeenSlots:
        """Read the slots that a caller takes, and find the blocks that lose theirs in turn."""
        slots, count = self.slotted(), operation.count
        if count < 0:
            raise ProgramError(f"a number of slots is not negative, got {count}: use Malformed")
        victims = slots.victims(taken=_told(outcome))
        fate = DONE if count <= len(victims) else NO_SLOTS
        return SeenSlots(outcome.result, fate, (), victims=victims, missing=count)

    def follow_evict_slots(self, step: int, operation: EvictSlots, seen: SeenSlots) -> None:
        """Give the evicted slots to the caller, or record a failure as suspect."""
        if seen.fate == NO_SLOTS:
            self._leave_traces("C6", "C6")
            return
        slots, given = self.slotted(), seen.result.slots
        slots.in_hand.update(slots.drop(seen.turn))
        self.cells().release(given)
        self.given_slots.record(step, given)
        self._leave_traces("C2")

    def read_find_slots(self, operation: FindSlots, outcome: Outcome) -> SeenBlocks:
        """Read a lookup of slots, which may name blocks of the pool or the dummy block."""
        self.slotted()
        blocks = self.given.resolve(operation.blocks)
        return self._named(blocks, outcome, (_FIND_OUTSIDE,) * self.is_outside(blocks))

    def read_name_states(self, operation: NameStates, outcome: Outcome) -> SeenBlocks:
        """Read the names of states, each the hash of a block with a slot."""
        slots, blocks = self.slotted(), self.given.resolve(operation.blocks)
        pairs = [it for it in zip(blocks, operation.hashes, strict=False) if it[1] > 0]
        checks = (
            (_HOMELESS, any(block not in slots.slot_of for block, _ in pairs)),
            (_STRANGE, any(self.blocks.hash_of.get(block) != value for block, value in pairs)),
            (_UNEVEN, len(blocks) != len(operation.hashes) or self.is_outside(blocks)),
        )
        return self._named(blocks, outcome, [misuse for misuse, is_so in checks if is_so])

    def follow_name_states(self, step: int, operation: NameStates, seen: SeenBlocks) -> None:
        """Record that each state can be found by the hash of its block."""
        pairs = zip(seen.blocks, operation.hashes, strict=True)
        self.slotted().named.update((block, value) for block, value in pairs if value > 0)
        self._leave_traces("C4")

    def read_drop_states(self, operation: DropStates, outcome: Outcome) -> SeenBlocks:
        """Read the blocks that lose their states; one outside the pool makes the whole call refused."""
        self.slotted()
        blocks = self.given.resolve(operation.blocks)
        if operation.how not in _WAYS:
            raise ProgramError(f"states are dropped {operation.how!r}; it must be one of {', '.join(_WAYS)}")
        if self.is_outside(blocks):
            if operation.how == "one by one" and len(blocks) > 1:
                raise ProgramError(
                    f"drop of the states of {blocks}: those before the one outside are dropped first"
                )
            return self._named(blocks, outcome, (_DROP_OUTSIDE,))
        return self._named(blocks, outcome)

    def follow_drop_states(self, step: int, operation: DropStates, seen: SeenBlocks) -> None:
        """Free the slots of the blocks, and forget the names of their states."""
        self.cells().release(self.slotted().drop(seen.blocks))
        self._leave_traces("C4")

    # -- states --------------------------------------------------------------------------------------------

    def read_store_state(self, operation: StoreState, outcome: Outcome) -> SeenBlocks:
        """Read a write into the slot of a block."""
        slots, block, states = self.slotted(), self.one(operation.block), self.cells()
        contents = states.contents(operation.recurrent, operation.conv, operation.ramp)
        if self.is_outside([block]) or operation.layer not in range(states.layers):
            return self._named([block], outcome, (_STORE_OUTSIDE,))
        if block not in slots.slot_of:
            return self._named([block], outcome, (_STORE_NOWHERE,))
        slot = slots.slot_of[block]
        return SeenStates(outcome.result, DONE, (), [block], 0, slot, contents)

    def follow_store_state(self, step: int, operation: StoreState, seen: SeenStates) -> None:
        """Record a write to one layer of a slot."""
        assert seen.slot is not None
        self.cells().store(operation.layer, seen.slot, seen.contents)
        self._leave_traces("C7")

    def read_write_live(self, operation: WriteLive, outcome: Outcome) -> SeenStates:
        """Read the contents of a write to one layer of a request's live state."""
        contents = self.cells().contents(operation.recurrent, operation.conv, operation.ramp)
        if operation.layer not in range(self.cells().layers) or self._is_stateless([operation.request]):
            raise ProgramError(f"{operation} leaves the live states")
        return SeenStates(outcome.result, contents=contents)

    def follow_write_live(self, step: int, operation: WriteLive, seen: SeenStates) -> None:
        """Record a write to one layer of a live state."""
        self.cells().write(operation.layer, operation.request, seen.contents)
        self._leave_traces("C7")

    def read_save_live(self, operation: SaveLive, outcome: Outcome) -> SeenBlocks:
        """Read a copy of live states into distinct slots that may be written."""
        model, slots, requests = self.slotted(), self.given_slots.resolve(operation.slots), operation.requests
        if {*slots} - {*model.usable} or len({*slots}) < len(slots):
            raise ProgramError(
                f"save of requests {requests} into slots {slots}: "
                "each slot is in use or in hand, and named once; else use Malformed"
            )
        if len(slots) != len(requests) or self._is_stateless(requests):
            return self.refused(outcome, _NOT_LIVE)
        return SeenSlots(outcome.result, slots=slots)

    def follow_save_live(self, step: int, operation: SaveLive, seen: SeenSlots) -> None:
        """Copy live states into slots."""
        self.cells().save(seen.slots, operation.requests)
        self._leave_traces("C7")

    def read_restore_live(self, operation: RestoreLive, outcome: Outcome) -> SeenBlocks:
        """Read a copy of a block's state, if it has one, into a live state."""
        block, request = self.one(operation.block), operation.request
        slot = self.slotted().slot_of.get(block)
        if self.is_outside([block]):
            return self._named([block], outcome, (_NOTHING_THERE,))
        if self._is_stateless([request]):
            if slot is None:
                raise ProgramError(
                    f"restore of block {block} to request {request}: there is nothing to restore, and nowhere"
                )
            return self._named([block], outcome, (_NO_TARGET,))
        return SeenStates(outcome.result, DONE, (), [block], 0, slot)

    def follow_restore_live(self, step: int, operation: RestoreLive, seen: SeenStates) -> None:
        """Record a copied state, or suspect the operation if the live state should have stayed."""
        if seen.slot is None:
            self.cells().suspect("C7")
        else:
            self.cells().restore(operation.request, seen.slot)
        self._leave_traces("C7")

    def _is_stateless(self, requests: Sequence[int]) -> bool:
        return any(request not in range(self.cells().rows - 1) for request in requests)

    def read_read_states(self, operation: ReadStates, outcome: Outcome) -> SeenStates:
        """Read the contents of one layer of all slots."""
        return self._read_layer(self.cells().cached, operation.layer, outcome)

    def read_read_live(self, operation: ReadLive, outcome: Outcome) -> SeenStates:
        """Read the contents of one layer of all live states."""
        return self._read_layer(self.cells().live, operation.layer, outcome)

    def _read_layer(self, layers: Sequence[StateCells], layer: int, outcome: Outcome) -> SeenStates:
        if layer not in range(len(layers)):
            raise ProgramError(f"layer {layer} is not one of {len(layers)}")
        seen = SeenStates(outcome.result, cells=layers[layer])
        if isinstance(outcome.result, States):
            parts = zip(PARTS, (outcome.result.recurrent, outcome.result.conv), strict=True)
            seen.read = {(part, row): it for part, rows in parts for row, it in enumerate(rows)}
        return seen

    def follow_read_states(self, step: int, operation: ReadStates | ReadLive, seen: SeenStates) -> None:
        """Accept the observed contents as the expected ones from now on."""
        assert seen.cells is not None
        seen.cells.settle(seen.read)

    follow_read_live = follow_read_states

    # -- everything at once --------------------------------------------------------------------------------

    def follow_inspect(self, step: int, operation: Inspect, seen: SeenBlocks) -> None:
        """Clear all suspicion after an inspection, and remember the views if the allocator is unused."""
        if not self._was_used:
            self.fresh = seen.result
        self.untested.clear()
        self.suspected = ""

    def follow_reset(self, step: int, operation: Reset, seen: SeenBlocks) -> None:
        """Return the model to its initial state, without any transfer."""
        self.ended |= dict.fromkeys(self.transfers)
        self.transfers = {}
        self.blocks.reset()
        if self.slots is not None:
            self.slots.reset()
            self.cells().wipe("C9")
        self._leave_traces("C9", "C9")
