"""What callers do with the states that are cached beside blocks, well-behaved and not."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pymllm.conformance.acting import act
from pymllm.conformance.block_acts import BlockActs
from pymllm.conformance.pool_machine import SEED, pick
from pymllm.history.operations import (
    AllocSlots,
    DropStates,
    EvictSlots,
    FindSlots,
    NameStates,
    ReleaseBlocks,
    Reset,
    RestoreLive,
    SaveLive,
    SetClock,
    Span,
    StoreState,
    WriteLive,
)

PICK = (0, 20)
_WAYS = ("one by one", "batch", "deregistered")


class BlockMachine(BlockActs):
    """Drives blocks and, where there are any, the slots of cached states beside them (C1 to C7, C9)."""

    @property
    def has_slots(self) -> bool:
        """Whether states are cached."""
        return self.judge.slots is not None

    @property
    def has_states(self) -> bool:
        """Whether a block has a slot."""
        return self.judge.slots is not None and bool(self.judge.slots.slot_of)

    @property
    def has_writable(self) -> bool:
        """Whether a slot is in use or in hand."""
        return self.judge.slots is not None and bool(self.judge.slots.usable)

    @property
    def can_misuse_slots(self) -> bool:
        """Whether there are slots, and misuse is refused."""
        return self.has_slots and self.can_refuse

    # -- whole requests ------------------------------------------------------------------------------------

    @act("has_slots", count=(1, 3), parent=PICK, request=(0, 7), stays=(0, 2), seed=SEED, weight=2)
    def serve(self, count: int, parent: int, request: int, stays: int, seed: int) -> None:
        """Take, publish, save and name the blocks of a request, and perhaps release them, some time later."""
        blocks = self.take_chain(count, parent, fresh=1, seed=seed)
        new = self._without_slot(blocks)[: len(self.slots.free) + len(self.slots.victims())]
        self.do(AllocSlots(self.names(new)))
        having = [block for block in new if block in self.slots.slot_of]
        live, hashes = self.states.rows - 1, self.judge.blocks.hash_of
        if live and having:
            for layer, contents in enumerate(self._contents(seed)):
                self.do(WriteLive(request % live, layer, *contents))
            (slot,) = (self.slots.slot_of[block] for block in having[-1:])
            self.do(SaveLive(self.slot_names([slot]), (request % live,)))
        self.do(NameStates(self.names(having), tuple(hashes.get(block, -1) for block in having)))
        if not stays:
            self.do(ReleaseBlocks(self.names(blocks)))
            self.do(SetClock(self.judge.blocks.clock + 1))
        self.observe()

    def _without_slot(self, blocks: Sequence[int]) -> list[int]:
        return [block for block in blocks if block not in self.slots.slot_of]

    # -- slots ---------------------------------------------------------------------------------------------

    @act("has_slots", start=PICK, count=(0, 4), repeats=(0, 2), weight=3)
    def alloc_slots(self, start: int, count: int, repeats: int) -> None:
        """Get slots for some blocks, a few of them named twice."""
        blocks = pick(self.judge.blocks.occupied, start, count)
        self.do(AllocSlots(self.names([*blocks, *blocks[:repeats]])))
        self.observe()

    @act("has_slots", start=PICK, spare=(-1, 2))
    def alloc_many_slots(self, start: int, spare: int) -> None:
        """Ask for about as many slots as there are, or for one more."""
        blocks = pick(self.judge.blocks.occupied, start, max(0, self.slots.total - spare))
        self.do(AllocSlots(self.names(blocks)))
        self.observe()

    @act("has_slots", start=PICK, count=(1, 2), weight=2)
    def alloc_slots_for_new_blocks(self, start: int, count: int) -> None:
        """Get slots for blocks that have none, sometimes for more than there are free slots."""
        more = len(self.slots.free) if start % 2 else 0
        self.do(AllocSlots(self.names(self._new_blocks(start, count + more))))
        self.observe()

    def _new_blocks(self, start: int, count: int) -> list[int]:
        return pick(self._without_slot(self.judge.blocks.occupied), start, count)

    @act("has_slots", parent=PICK, seed=SEED, weight=2)
    def outlive(self, parent: int, seed: int) -> None:
        """Let one request come and go after the other, and take slots until the older one's goes."""
        for each in (0, 1):
            self.serve(1, parent, each, 0, seed + each)
        self.do(AllocSlots(self.names(self._new_blocks(parent, len(self.slots.free) + 1))))
        self.observe()

    @act("has_slots", start=PICK, often=(0, 1), weight=2)
    def alloc_slots_for_the_oldest(self, start: int, often: int) -> None:
        """Let the batch name the block whose slot would go first, beside others that have none."""
        if often and (victims := self.slots.victims()):
            others = self._new_blocks(start, len(self.slots.free) + 1)
            self.do(AllocSlots(self.names([victims[0], *others])))
            self.observe()

    @act("has_slots", count=(0, 2), extra=(0, 8))
    def evict_slots(self, count: int, extra: int) -> None:
        """Take the slots of some blocks into hand, seldom of more than may lose theirs, or before a reset."""
        self.do(EvictSlots(count if extra else len(self.slots.victims()) + 1))
        if extra == 8 and self.slots.in_hand and self.slots.slot_of:
            self.do(Reset())  # takes slots in use and in hand (C9)
        self.observe()

    @act("has_slots", often=(0, 5))
    def hoard_slots(self, often: int) -> None:
        """Take slots for cached blocks into hand until none is left, seldom: only a reset gives them back."""
        cached = self.judge.blocks.cached
        if often or not cached:
            return
        for _ in range(self.slots.total):
            if not self.slots.free and not self.slots.victims():
                break
            self.do(AllocSlots(self.names(cached[: max(1, len(self.slots.free))])))
            self.do(EvictSlots(len(self.slots.victims())))
        self.do(AllocSlots(self.names(cached[:1])))
        self.observe()

    @act("has_slots", start=PICK, count=(1, 5), beyond=(0, 5))
    def find_slots(self, start: int, count: int, beyond: int) -> None:
        """Ask some blocks, the dummy too, or one outside where that is refused."""
        blocks = [*range(self.judge.blocks.usable + 1)]
        outside = [-1 if start % 2 else len(blocks)] if not beyond and self.can_refuse else []
        self.do(FindSlots(self.names([*pick(blocks, start, count), *outside])))

    @act("has_states", start=PICK, count=(1, 4), blank=(0, 3), weight=2)
    def name_states(self, start: int, count: int, blank: int) -> None:
        """Make states known under their blocks' hashes; what has no hash says so."""
        hashes, having = self.judge.blocks.hash_of, sorted(self.slots.slot_of)
        known = [block for block in having if block in hashes]
        blocks = pick(known if known and blank else having, start, count)
        values = [hashes.get(block, -1) for block in blocks]
        if not blank:
            values[0] = 0
        self.do(NameStates(self.names(blocks), tuple(values)))
        self.observe()

    @act("has_slots", start=PICK, count=(1, 3), repeat=(0, 1), how=(0, 3), seed=SEED, weight=2)
    def drop_states(self, start: int, count: int, repeat: int, how: int, seed: int) -> None:
        """Drop the states of some blocks, as an observer also with hashes of others."""
        blocks = pick(
            sorted(self.slots.named if start % 3 == 0 else self.judge.blocks.occupied), start, count
        )
        blocks += blocks[:repeat]
        others = [value for block, value in self.slots.named.items() if block not in blocks]
        way = _WAYS[min(how, 2)]
        hashes = (*others[:2], self._hash(seed)) if way == "deregistered" else ()
        self.do(DropStates(self.names(blocks), way, hashes))
        self.observe()

    # -- states --------------------------------------------------------------------------------------------

    @act("has_states", start=PICK, seed=SEED)
    def store_state(self, start: int, seed: int) -> None:
        """Store a state layer by layer."""
        (block,) = pick(sorted(self.slots.slot_of), start, 1)
        for layer, (recurrent, conv, ramp) in enumerate(self._contents(seed)):
            self.do(StoreState(self.names([block])[0], layer, recurrent, conv, ramp))
        self.observe()

    @act("has_slots", request=(0, 7), seed=SEED, weight=2)
    def advance(self, request: int, seed: int) -> None:
        """Write the live state of a request in every layer, as a forward pass does."""
        live = self.states.rows - 1
        if live:
            for layer, contents in enumerate(self._contents(seed)):
                self.do(WriteLive(request % live, layer, *contents))
            self.observe()

    @act("has_writable", start=PICK, count=(0, 3), request=(0, 7), weight=2)
    def save_live(self, start: int, count: int, request: int) -> None:
        """Save live states into slots in use or in hand; requests may repeat."""
        slots, live = pick(self.slots.usable, start, count), self.states.rows - 1
        if live:
            requests = tuple((request + at) % live for at in range(len(slots)))
            self.do(SaveLive(self.slot_names(slots), requests))
            self.observe()

    @act("has_slots", start=PICK, request=(0, 7), weight=2)
    def restore_live(self, start: int, request: int) -> None:
        """Restore a request behind a block, which may have no state."""
        blocks, live = self.judge.blocks.occupied, self.states.rows - 1
        if blocks and live:
            self.do(RestoreLive(request % live, self.names(pick(blocks, start, 1))[0]))
            self.observe()

    def _contents(self, seed: int) -> list[tuple[int, int, int]]:
        """Draw what a write writes, for each layer: two first elements, and what each further one adds."""
        source, widest = random.Random(seed), max(self.states.widths.values())
        steepest = 24 // widest  # so that the last element is below 128, too
        return [
            (source.randrange(-128, 104), source.randrange(-128, 104), source.randint(0, steepest))
            for _ in range(self.states.layers)
        ]

    # -- misuse --------------------------------------------------------------------------------------------

    @act("can_misuse_slots", start=PICK, count=(0, 2), which=(0, 2))
    def alloc_slots_badly(self, start: int, count: int, which: int) -> None:
        """Ask for the slot of a block that nobody has among others."""
        bad = self.bad_block(which)
        if bad is not None:
            self.do(AllocSlots(self.names([*pick(self.judge.blocks.occupied, start, count), bad])))
            self.observe()

    @act("can_misuse_slots", start=PICK, other=PICK, twist=(0, 3))
    def name_badly(self, start: int, other: int, twist: int) -> None:
        """Name a state by another block's hash, or one that is not there, or outside."""
        blocks, slots = self.judge.blocks, self.slots
        with_slot = pick(sorted(slots.slot_of), start, 1)
        without = pick(self._without_slot(blocks.occupied), other, 1)
        named = with_slot if twist < 2 else without
        if named:
            value = blocks.hash_of.get(named[0], 5) + (1 if twist < 2 else 0)
            both = [*with_slot, *named] if twist == 1 else named
            values = [*(blocks.hash_of.get(block, 0) for block in both[:-1]), value]
            self.do(NameStates(self.names(both), tuple(values[: len(values) - (twist == 3)])))
            self.observe()

    @act("can_misuse_slots", start=PICK, how=(0, 2), below=(0, 1))
    def drop_badly(self, start: int, how: int, below: int) -> None:
        """Drop the state of a block outside the pool, among others where that is one call."""
        outside = -1 if below else self.judge.blocks.usable + 1
        others = pick(self.judge.blocks.occupied, start, 2) if how else []
        self.do(DropStates(self.names([*others, outside]), _WAYS[how]))
        self.observe()

    @act("can_misuse_slots", start=PICK, twist=(0, 3))
    def use_states_badly(self, start: int, twist: int) -> None:
        """Store where no slot is, or outside; save and restore what is not live."""
        blocks, slots, last = self.judge.blocks, self.slots, self.states.rows - 1
        homeless = pick(self._without_slot(blocks.occupied), start, 1)
        having = pick(sorted(slots.slot_of), start, 1)
        wrong = last if start % 2 else -1
        if twist == 0 and homeless:
            self.do(StoreState(self.names(homeless)[0], 0, 1, 2))
        elif twist == 1 and having:
            self.do(StoreState(self.names(having)[0], self.states.layers if start % 2 else -1, 1, 2))
        elif twist == 2 and slots.usable:
            writable = pick(slots.usable, start, 2)
            self.do(SaveLive(self.slot_names(writable), (0, wrong)[-len(writable) :]))
        elif twist == 3 and having:
            self.do(RestoreLive(wrong, self.names(having)[0]))
        self.observe()

    def slot_names(self, slots: Sequence[int]) -> tuple[Span, ...]:
        """Name slots by the steps that gave them."""
        return self.judge.given_slots.name(slots)
