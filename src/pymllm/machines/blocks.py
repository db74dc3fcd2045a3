"""The acts of callers, good and bad, on blocks and on the states that are cached beside them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

from pymllm.adapters.malformed import MALFORMED_BLOCKS
from pymllm.history import operations as ops
from pymllm.history.operations import Operation, Span
from pymllm.history.outcomes import Outcome, Slots, Unsupported
from pymllm.machines.acting import act
from pymllm.machines.careful_blocks import made_careful
from pymllm.machines.pools import SEED, PoolMachine, name_numbers, pick
from pymllm.oracle.models.block_model import BlockSlotModel
from pymllm.oracle.models.block_states import BlockStates
from pymllm.oracle.models.blocks import BlocksModel

PICK = (0, 20)
FORM = (0, 5)
_FORMS = ("list", "tuple", "int32", "int64", "tensor32", "tensor64")
_HASHES = 12
"""So few that blocks meet under one hash."""


class BlockActs(PoolMachine):
    """The acts on a block allocator, which read blocks, slots and states from the model."""

    MALFORMED: ClassVar[Sequence[ops.Malformed]] = tuple(ops.Malformed(*call) for call in MALFORMED_BLOCKS)

    model: BlocksModel

    def begin(self) -> None:
        """Look at everything as long as it is new: a reset is to bring that back."""
        self.model = self.judge.model
        # Reading changes nothing, so that one walk after each act shows as much as one after each step.
        self.examiner.audits_steps = False
        # A large pool takes long chains to fill, and more hashes, or all of them would be taken.
        self._scale = 1 + self.model.blocks.usable // 16
        self._is_careful = "careful_callers" in self.capabilities
        self.observe()

    def observe(self) -> None:
        """Look at every view and every state, and check the trackers from inside where that is wanted."""
        self._watched(self.examiner.look_in_turn)
        self.do(ops.Inspect())
        if "events" in self.capabilities:
            self.do(ops.TakeEvents())
        if self.model.states is not None:
            for layer in range(self.model.states.layers):
                self.do(ops.ReadStates(layer))
                self.do(ops.ReadLive(layer))

    def do(self, operation: Operation) -> Outcome:
        """Carry out an operation, or what a careful caller asks for instead, where that is owed."""
        if not self._is_careful:
            return super().do(operation)
        outcome = Outcome(Unsupported("a careful caller does not ask for this"))
        named = self.model.given.resolve(getattr(operation, "blocks", ()))
        for owed in made_careful(operation, self.model.blocks, named, self.names):
            outcome = super().do(owed)
        if isinstance(operation, ops.AllocSlots) and isinstance(outcome.result, Slots):
            having = [
                block for block in named if block in self.slots.slot_of and self.model.blocks.refs[block]
            ]
            hashes = tuple(self.model.blocks.hash_of[block] for block in having)
            super().do(ops.NameStates(self.names(having), hashes))
        return outcome

    @property
    def held(self) -> list[int]:
        """Referenced blocks."""
        return self.model.blocks.held

    @property
    def occupied(self) -> list[int]:
        """Referenced and cached blocks."""
        return self.model.blocks.occupied

    @property
    def slots(self) -> BlockSlotModel:
        """The model of the slots and of the blocks that have them."""
        return self.model.slotted()

    @property
    def states(self) -> BlockStates:
        """The model of the contents of the states."""
        return self.model.cells()

    # -- well-behaved acts ---------------------------------------------------------------------------------
    @act(count=(0, 3), weight=2)
    def alloc(self, count: int) -> None:
        """Take a few blocks."""
        self.ask(ops.AllocBlocks(count))

    @act(but=(0, 3))
    def alloc_all(self, but: int) -> None:
        """Take all that can be had, or leave a few."""
        self.ask(ops.AllocBlocks(max(0, self._room - but)))

    @act(extra=(1, 3))
    def alloc_too_much(self, extra: int) -> None:
        """Ask for more than can be had."""
        self.ask(ops.AllocBlocks(self._room + extra))

    @property
    def _room(self) -> int:
        return len(self.model.blocks.free) + len(self.model.blocks.evictable())

    @act("occupied", start=PICK, count=(1, 3), twice=(0, 1), form=FORM, weight=2)
    def retain(self, start: int, count: int, twice: int, form: int) -> None:
        """Share some blocks, cached ones too."""
        blocks = pick(self.occupied, start, count)
        self.ask(ops.RetainBlocks(self.names(blocks + blocks[:twice]), _FORMS[form]))

    @act("held", start=PICK, count=(1, 4), times=(1, 3), form=FORM, weight=3)
    def release(self, start: int, count: int, times: int, form: int) -> None:
        """Give back some references, several of a block where there are several."""
        refs = self.model.blocks.callers_refs
        blocks = [block for block in pick(self.held, start, count) for _ in range(min(times, refs(block)))]
        self.ask(ops.ReleaseBlocks(self.names(blocks), _FORMS[form]))

    @act("held", but=(0, 3))
    def release_all(self, but: int) -> None:
        """Give every reference to all blocks back but for a few."""
        refs = self.model.blocks.callers_refs
        blocks = [block for block in self.held[but:] for _ in range(refs(block))]
        self.ask(ops.ReleaseBlocks(self.names(blocks)))

    @act(count=(1, 3), parent=PICK, fresh=(0, 3), seed=SEED, weight=2)
    def publish(self, count: int, parent: int, fresh: int, seed: int) -> None:
        """Take blocks and register them."""
        self.take_chain(count, parent, fresh, seed)
        self.observe()

    def take_chain(self, count: int, parent: int, fresh: int, seed: int) -> tuple[int, ...]:
        """Take blocks and register them as a chain, on their own or below a registered block; return them."""
        outcome = self.do(ops.AllocBlocks(count * self._scale))
        taken: tuple[int, ...] = getattr(outcome.result, "slots", ())
        hashes = [self._hash(seed + at, fresh) for at in range(len(taken))]
        above = [self.model.blocks.hash_of[it] for it in pick(sorted(self.model.blocks.hash_of), parent, 1)]
        parents = None if not above or parent % 3 == 0 else (*above, *hashes)[: len(taken)]
        if taken:
            self._register(taken, hashes, parents)
        return taken

    @act("held", start=PICK, count=(1, 3), above=(0, 3), seed=SEED, form=FORM, weight=2)
    def register(self, start: int, count: int, above: int, seed: int, form: int) -> None:
        """Register held blocks, also blocks that are registered already, with parents that may be unknown."""
        blocks = pick(self.held, start, count)
        known = self.model.blocks.hash_of
        hashes = [known.get(block) or self._hash(seed + at) for at, block in enumerate(blocks)]
        parents = [(0, self._hash(seed // 7 + at), *hashes[:at])[-1 if above else 0] for at in range(count)]
        is_chain = above == 3
        self._register(blocks, hashes, None if is_chain else parents[: len(blocks)], _FORMS[form])
        self.observe()

    def _register(
        self, blocks: Sequence[int], hashes: Sequence[int], parents: Sequence[int] | None, form: str = "list"
    ) -> None:
        """Register each block after its parent, and none whose parent's hash comes later."""
        for at, value in enumerate(parents or ()):
            if value in hashes[at + 1 :] and value not in hashes[:at]:
                parents = None
                break
        above = None if parents is None else tuple(parents)
        self.do(ops.RegisterBlocks(self.names(blocks), tuple(hashes), above, form))

    def _hash(self, seed: int, fresh: int = 0) -> int:
        """Draw a hash: one of a few, or one that nothing else is likely to have."""
        source = random.Random(seed)
        return source.randint(1, 2**63 - 1) if fresh == 1 else source.randint(1, _HASHES * self._scale)

    @act("occupied", start=PICK, count=(1, 4), form=FORM)
    def stamp(self, start: int, count: int, form: int) -> None:
        """Use some blocks."""
        self.ask(ops.StampBlocks(self.names(pick(self.occupied, start, count)), _FORMS[form]))

    @act(by=(1, 3), back=(0, 9), weight=2)
    def tick(self, by: int, back: int) -> None:
        """Let the clock advance; seldom, let it begin anew."""
        self.do(ops.SetClock(self.model.blocks.clock + by if back else 0))

    @act(often=(0, 1))
    def reset(self, often: int) -> None:
        """Reset everything now and then, and where every slot is in hand."""
        slots = self.model.slots
        if not often or (slots is not None and len(slots.in_hand) == slots.total):
            self.ask(ops.Reset())

    # -- the observer --------------------------------------------------------------------------------------
    @act("can_fail", call=(0, 1), start=PICK, room=(0, 3), evicts=(0, 1), weight=2)
    def disturb(self, call: int, start: int, room: int, evicts: int) -> None:
        """Let the observer of a release or of an eviction raise, or call the allocator."""
        blocks = self.model.blocks
        self.do(ops.Fault(("callback", "reenter")[call]))
        if evicts and blocks.evictable():
            self.do(ops.AllocBlocks(max(1, self._room - room)))
        elif blocks.held:
            (block,) = pick(blocks.held, start, 1)
            if times := blocks.callers_refs(block):
                self.do(ops.ReleaseBlocks(self.names([block] * times)))
            else:
                self.do(ops.EndTransfer(next(it for it, of in self.model.transfers.items() if block in of)))
        self.observe()

    # -- transfers -----------------------------------------------------------------------------------------
    @property
    def can_transfer(self) -> bool:
        """Whether a transfer can begin."""
        return "transfers" in self.capabilities and bool(self.occupied)

    @property
    def has_transfers(self) -> bool:
        """Whether a transfer is under way."""
        return bool(self.model.transfers)

    @property
    def has_ended(self) -> bool:
        """Whether a transfer is over, and a second end is refused."""
        return self.can_refuse and bool(self.model.ended)

    @act("can_transfer", start=PICK, count=(1, 4), way=(0, 2), weight=2)
    def begin_transfer(self, start: int, count: int, way: int) -> None:
        """Let something outside use some blocks, one perhaps twice, or cached ones, and ask for all room."""
        cached = self.model.blocks.cached if way == 2 else []
        blocks = pick(cached or self.occupied, start, count)
        self.ask(ops.BeginTransfer(self.names(blocks + blocks[: way % 2])))
        if cached:
            self.ask(ops.AllocBlocks(self._room))

    @act("has_transfers", which=PICK, weight=2)
    def end_transfer(self, which: int) -> None:
        """End a transfer, whoever has its blocks."""
        self.ask(ops.EndTransfer(self._transfer(which)))

    @act("has_transfers", which=PICK, then=(0, 2), weight=2)
    def abort(self, which: int, then: int) -> None:
        """Give up all references to the blocks of a transfer, take all others, and perhaps end it."""
        transfer, refs = self._transfer(which), self.model.blocks.callers_refs
        blocks = [block for block in self.model.transfers[transfer] for _ in range(refs(block))]
        self.ask(ops.ReleaseBlocks(self.names(blocks)))
        if then == 2:
            self.ask(ops.AllocBlocks(self._room))
            self.ask(ops.AllocBlocks(1))
        if then:
            self.ask(ops.EndTransfer(transfer))

    @act("can_transfer", often=(0, 3))
    def transfer_all(self, often: int) -> None:
        """Let every block be under transfer, perhaps, and give all of them up."""
        if not often:
            self.do(ops.AllocBlocks(self._room))
            self.do(ops.BeginTransfer(self.names(self.occupied)))
            self.release_all(but=0)
            self.ask(ops.AllocBlocks(1))

    @act("has_ended", which=PICK)
    def end_again(self, which: int) -> None:
        """End a transfer that is over."""
        ended = [*self.model.ended]
        self.ask(ops.EndTransfer(ended[which % len(ended)]))

    def _transfer(self, which: int) -> int:
        return [*self.model.transfers][which % len(self.model.transfers)]

    # -- misuse --------------------------------------------------------------------------------------------
    def bad_block(self, which: int) -> int | None:
        """Return a block that nobody has: a free one, the dummy, or one outside."""
        blocks = self.model.blocks
        if which == 0:
            return min(blocks.free, default=None)
        return blocks.usable if which == 1 else (-1, blocks.usable + 1)[len(blocks.free) % 2]

    @act("can_refuse", start=PICK, count=(0, 3), which=(0, 2), call=(0, 3))
    def name_nobodys(self, start: int, count: int, which: int, call: int) -> None:
        """Name one block that has no owner after blocks that are held."""
        bad = self.bad_block(which)
        if bad is None:
            return
        names = self.names([*pick(self.held, start, count), bad])
        total = sum(span.stop - span.start for span in names)
        if call == 2:
            self.do(ops.RegisterBlocks(names, tuple(range(90, 90 + total)), (0,) * total))
        elif call == 3:
            if "transfers" in self.capabilities:
                self.do(ops.BeginTransfer(names))
        else:
            self.do((ops.RetainBlocks, ops.ReleaseBlocks)[call](names))
        self.observe()

    @act("can_refuse", start=PICK, count=(1, 2))
    def release_too_much(self, start: int, count: int) -> None:
        """Release one block once more than it is held, after another."""
        blocks = pick(self.occupied, start, count)
        if blocks:
            last = blocks[-1]
            refs = self.model.blocks.callers_refs
            good = [block for block in blocks[:-1] if refs(block)]
            self.ask(ops.ReleaseBlocks(self.names([*good, *[last] * (refs(last) + 1)])))

    @act("can_refuse", start=PICK, count=(1, 3), twist=(0, 4))
    def register_badly(self, start: int, count: int, twist: int) -> None:
        """Register under another hash, under none, or with one too few."""
        known = self.model.blocks.hash_of
        blocks = pick(self.held, start, count)
        if not blocks:
            return
        hashes = [known.get(block, 80 + block) for block in blocks]
        parents = [0] * len(hashes)
        if twist == 0:
            blocks.append(blocks[0])
            hashes.append(hashes[0] + 1)
            parents.append(0)
        elif twist == 1:
            hashes[-1] = 0
        elif twist == 2:
            parents[0] = -1
        else:
            (hashes if twist == 3 else parents).pop()
        self.ask(ops.RegisterBlocks(self.names(blocks), tuple(hashes), tuple(parents)))

    @act("can_refuse", start=PICK, below=(0, 1))
    def stamp_badly(self, start: int, below: int) -> None:
        """Stamp a block outside the pool after others."""
        outside = -1 if below else self.model.blocks.usable + 1
        self.ask(ops.StampBlocks(self.names([*pick(self.occupied, start, 2), outside])))

    # -- naming --------------------------------------------------------------------------------------------
    def names(self, blocks: Sequence[int]) -> tuple[Span, ...]:
        """Name blocks that are not free by the steps that gave them, and other blocks by their numbers."""
        known = self.model.blocks
        return name_numbers(
            blocks, self.model.given, lambda it: it not in known.free and 0 <= it < known.usable
        )


_WAYS = ("one by one", "batch", "deregistered")


class BlockMachine(BlockActs):
    """Drives blocks and, where there are any, the slots of cached states beside them (C1 to C7, C9)."""

    @property
    def has_slots(self) -> bool:
        """Whether states are cached."""
        return self.model.slots is not None

    @property
    def has_states(self) -> bool:
        """Whether a block has a slot."""
        return self.model.slots is not None and bool(self.model.slots.slot_of)

    @property
    def has_writable(self) -> bool:
        """Whether a slot is in use or in hand."""
        return self.model.slots is not None and bool(self.model.slots.usable)

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
        self.do(ops.AllocSlots(self.names(new)))
        having = [block for block in new if block in self.slots.slot_of]
        live, hashes = self.states.rows - 1, self.model.blocks.hash_of
        if live and having:
            for layer, contents in enumerate(self._contents(seed)):
                self.do(ops.WriteLive(request % live, layer, *contents))
            (slot,) = (self.slots.slot_of[block] for block in having[-1:])
            self.do(ops.SaveLive(self.slot_names([slot]), (request % live,)))
        self.do(ops.NameStates(self.names(having), tuple(hashes.get(block, -1) for block in having)))
        if not stays:
            self.do(ops.ReleaseBlocks(self.names(blocks)))
            self.do(ops.SetClock(self.model.blocks.clock + 1))
        self.observe()

    def _without_slot(self, blocks: Sequence[int]) -> list[int]:
        return [block for block in blocks if block not in self.slots.slot_of]

    # -- slots ---------------------------------------------------------------------------------------------
    @act("has_slots", start=PICK, count=(0, 4), repeats=(0, 2), weight=3)
    def alloc_slots(self, start: int, count: int, repeats: int) -> None:
        """Get slots for some blocks, a few of them named twice."""
        blocks = pick(self.model.blocks.occupied, start, count)
        self.ask(ops.AllocSlots(self.names([*blocks, *blocks[:repeats]])))

    @act("has_slots", start=PICK, spare=(-1, 2))
    def alloc_many_slots(self, start: int, spare: int) -> None:
        """Ask for about as many slots as there are, or for one more."""
        blocks = pick(self.model.blocks.occupied, start, max(0, self.slots.total - spare))
        self.ask(ops.AllocSlots(self.names(blocks)))

    @act("has_slots", start=PICK, count=(1, 2), weight=2)
    def alloc_slots_for_new_blocks(self, start: int, count: int) -> None:
        """Get slots for blocks that have none, sometimes for more than there are free slots."""
        more = len(self.slots.free) if start % 2 else 0
        self.ask(ops.AllocSlots(self.names(self._new_blocks(start, count + more))))

    def _new_blocks(self, start: int, count: int) -> list[int]:
        return pick(self._without_slot(self.model.blocks.occupied), start, count)

    @act("has_slots", parent=PICK, seed=SEED, weight=2)
    def outlive(self, parent: int, seed: int) -> None:
        """Let one request come and go after the other, and take slots until the older one's goes."""
        for each in (0, 1):
            self.serve(1, parent, each, 0, seed + each)
        self.ask(ops.AllocSlots(self.names(self._more_than_free(parent))))

    def _more_than_free(self, start: int) -> list[int]:
        """Return more blocks without slots than slots are free; where so many are not held, take them."""
        lacking = 1 + len(self.slots.free) - len(self._without_slot(self.occupied))
        if 0 < lacking <= self._room:
            self.do(ops.AllocBlocks(lacking))
        return self._new_blocks(start, len(self.slots.free) + 1)

    @act("has_slots", start=PICK, seed=SEED, weight=2)
    def alloc_slots_for_the_oldest(self, start: int, seed: int) -> None:
        """Let the batch name the block whose slot would go first, beside others that have none."""
        for each in range(2 - len(self.slots.victims())):
            self.serve(1, start, each, 0, seed + each)
        others = self._more_than_free(start)
        self.ask(ops.AllocSlots(self.names([*self.slots.victims()[:1], *others])))

    @act("has_slots", count=(0, 2), extra=(0, 8))
    def evict_slots(self, count: int, extra: int) -> None:
        """Take the slots of some blocks into hand, seldom of more than may lose theirs, or before a reset."""
        self.do(ops.EvictSlots(count if extra else len(self.slots.victims()) + 1))
        if extra == 8 and self.slots.in_hand and self.slots.slot_of:
            self.do(ops.Reset())  # takes slots in use and in hand (C9)
        self.observe()

    @act("has_slots", often=(0, 5))
    def hoard_slots(self, often: int) -> None:
        """Take slots for cached blocks into hand until none is left, seldom: only a reset gives them back."""
        cached = self.model.blocks.cached
        if often or not cached:
            return
        for _ in range(self.slots.total):
            if not self.slots.free and not self.slots.victims():
                break
            self.do(ops.AllocSlots(self.names(cached[: max(1, len(self.slots.free))])))
            self.do(ops.EvictSlots(len(self.slots.victims())))
        self.ask(ops.AllocSlots(self.names(cached[:1])))

    @act("has_slots", start=PICK, count=(1, 5), beyond=(0, 5))
    def find_slots(self, start: int, count: int, beyond: int) -> None:
        """Ask some blocks, the dummy too, or one outside where that is refused."""
        blocks = [*range(self.model.blocks.usable + 1)]
        outside = [-1 if start % 2 else len(blocks)] if not beyond and self.can_refuse else []
        self.do(ops.FindSlots(self.names([*pick(blocks, start, count), *outside])))

    @act("has_states", start=PICK, count=(1, 4), blank=(0, 3), weight=2)
    def name_states(self, start: int, count: int, blank: int) -> None:
        """Make states known under their blocks' hashes; what has no hash says so."""
        hashes, having = self.model.blocks.hash_of, sorted(self.slots.slot_of)
        known = [block for block in having if block in hashes]
        blocks = pick(known if known and blank else having, start, count)
        values = [hashes.get(block, -1) for block in blocks]
        if not blank:
            values[0] = 0
        self.ask(ops.NameStates(self.names(blocks), tuple(values)))

    @act("has_slots", start=PICK, count=(1, 3), repeat=(0, 1), how=(0, 3), seed=SEED, weight=2)
    def drop_states(self, start: int, count: int, repeat: int, how: int, seed: int) -> None:
        """Drop the states of some blocks, as an observer also with hashes of others."""
        blocks = pick(
            sorted(self.slots.named if start % 3 == 0 else self.model.blocks.occupied), start, count
        )
        blocks += blocks[:repeat]
        way = _WAYS[min(how, 2)]
        if way == "deregistered" and not self.slots.named.keys() - {*blocks}:
            self.serve(1, start, 0, 1, seed)
        others = [value for block, value in self.slots.named.items() if block not in blocks]
        hashes = (*others[:2], self._hash(seed)) if way == "deregistered" else ()
        self.ask(ops.DropStates(self.names(blocks), way, hashes))

    # -- states --------------------------------------------------------------------------------------------
    @act("has_states", start=PICK, seed=SEED)
    def store_state(self, start: int, seed: int) -> None:
        """Store a state layer by layer."""
        (block,) = pick(sorted(self.slots.slot_of), start, 1)
        for layer, (recurrent, conv, ramp) in enumerate(self._contents(seed)):
            self.do(ops.StoreState(self.names([block])[0], layer, recurrent, conv, ramp))
        self.observe()

    @act("has_slots", request=(0, 7), seed=SEED, weight=2)
    def advance(self, request: int, seed: int) -> None:
        """Write the live state of a request in every layer, as a forward pass does."""
        live = self.states.rows - 1
        if live:
            for layer, contents in enumerate(self._contents(seed)):
                self.do(ops.WriteLive(request % live, layer, *contents))
            self.observe()

    @act("has_writable", start=PICK, count=(0, 3), request=(0, 7), weight=2)
    def save_live(self, start: int, count: int, request: int) -> None:
        """Save live states into slots in use or in hand; requests may repeat."""
        slots, live = pick(self.slots.usable, start, count), self.states.rows - 1
        if live:
            requests = tuple((request + at) % live for at in range(len(slots)))
            self.ask(ops.SaveLive(self.slot_names(slots), requests))

    @act("has_slots", start=PICK, request=(0, 7), weight=2)
    def restore_live(self, start: int, request: int) -> None:
        """Restore a request behind a block, which may have no state."""
        blocks, live = self.model.blocks.occupied, self.states.rows - 1
        if blocks and live:
            self.ask(ops.RestoreLive(request % live, self.names(pick(blocks, start, 1))[0]))

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
            self.ask(ops.AllocSlots(self.names([*pick(self.model.blocks.occupied, start, count), bad])))

    @act("can_misuse_slots", start=PICK, other=PICK, twist=(0, 3))
    def name_badly(self, start: int, other: int, twist: int) -> None:
        """Name a state by another block's hash, or one that is not there, or outside."""
        blocks, slots = self.model.blocks, self.slots
        with_slot = pick(sorted(slots.slot_of), start, 1)
        without = pick(self._without_slot(blocks.occupied), other, 1)
        named = with_slot if twist < 2 else without
        if named:
            value = blocks.hash_of.get(named[0], 5) + (1 if twist < 2 else 0)
            both = [*with_slot, *named] if twist == 1 else named
            values = [*(blocks.hash_of.get(block, 0) for block in both[:-1]), value]
            self.ask(ops.NameStates(self.names(both), tuple(values[: len(values) - (twist == 3)])))

    @act("can_misuse_slots", start=PICK, how=(0, 2), below=(0, 1))
    def drop_badly(self, start: int, how: int, below: int) -> None:
        """Drop the state of a block outside the pool, among others where that is one call."""
        outside = -1 if below else self.model.blocks.usable + 1
        others = pick(self.model.blocks.occupied, start, 2) if how else []
        self.ask(ops.DropStates(self.names([*others, outside]), _WAYS[how]))

    @act("can_misuse_slots", start=PICK, twist=(0, 3))
    def use_states_badly(self, start: int, twist: int) -> None:
        """Store where no slot is, or outside; save and restore what is not live."""
        blocks, slots, last = self.model.blocks, self.slots, self.states.rows - 1
        homeless = pick(self._without_slot(blocks.occupied), start, 1)
        having = pick(sorted(slots.slot_of), start, 1)
        wrong = last if start % 2 else -1
        if twist == 0 and homeless:
            self.do(ops.StoreState(self.names(homeless)[0], 0, 1, 2))
        elif twist == 1 and having:
            self.do(ops.StoreState(self.names(having)[0], self.states.layers if start % 2 else -1, 1, 2))
        elif twist == 2 and slots.usable:
            writable = pick(slots.usable, start, 2)
            self.do(ops.SaveLive(self.slot_names(writable), (0, wrong)[-len(writable) :]))
        elif twist == 3 and having:
            self.do(ops.RestoreLive(wrong, self.names(having)[0]))
        self.observe()

    def slot_names(self, slots: Sequence[int]) -> tuple[Span, ...]:
        """Name slots by the steps that gave them."""
        return self.model.given_slots.name(slots)
