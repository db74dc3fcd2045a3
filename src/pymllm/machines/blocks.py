"""The machine that drives block allocators, with correct and incorrect calls on blocks and cached states."""

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
"""The number of hashes to draw from, small enough that several blocks draw the same."""


class BlockActs(PoolMachine):
    """The acts on a block allocator; the model tells which blocks, slots and states exist."""

    MALFORMED: ClassVar[Sequence[ops.Malformed]] = tuple(ops.Malformed(*call) for call in MALFORMED_BLOCKS)

    model: BlocksModel

    def begin(self) -> None:
        """Inspect the new allocator, whose state a reset must restore."""
        self.model = self.judge.model
        # Reading changes nothing, so that one walk after each act shows as much as one after each step.
        self.examiner.audits_steps = False
        # A large pool takes long chains to fill, and more hashes, or all of them would be taken.
        self._scale = 1 + self.model.blocks.usable // 16
        self._is_careful = "careful_callers" in self.capabilities
        self.observe()

    def observe(self) -> None:
        """Inspect every view and every state, and audit the allocator's internal state if required."""
        self._watched(self.examiner.look_in_turn)
        self.do(ops.Inspect())
        if "events" in self.capabilities:
            self.do(ops.TakeEvents())
        if self.model.states is not None:
            for layer in range(self.model.states.layers):
                self.do(ops.ReadStates(layer))
                self.do(ops.ReadLive(layer))

    def do(self, operation: Operation) -> Outcome:
        """Carry out an operation, or a careful replacement if the adapter needs careful callers."""
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
        """The referenced blocks."""
        return self.model.blocks.held

    @property
    def occupied(self) -> list[int]:
        """The referenced and the cached blocks."""
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
        """Allocate a few blocks."""
        self.ask(ops.AllocBlocks(count))

    @act(but=(0, 3))
    def alloc_all(self, but: int) -> None:
        """Allocate all available blocks, or almost all."""
        self.ask(ops.AllocBlocks(max(0, self._room - but)))

    @act(extra=(1, 3))
    def alloc_too_much(self, extra: int) -> None:
        """Allocate more blocks than are available."""
        self.ask(ops.AllocBlocks(self._room + extra))

    @property
    def _room(self) -> int:
        return len(self.model.blocks.free) + len(self.model.blocks.evictable())

    @act("occupied", start=PICK, count=(1, 3), twice=(0, 1), form=FORM, weight=2)
    def retain(self, start: int, count: int, twice: int, form: int) -> None:
        """Add references to blocks, including cached ones."""
        blocks = pick(self.occupied, start, count)
        self.ask(ops.RetainBlocks(self.names(blocks + blocks[:twice]), _FORMS[form]))

    @act("held", start=PICK, count=(1, 4), times=(1, 3), form=FORM, weight=3)
    def release(self, start: int, count: int, times: int, form: int) -> None:
        """Release some references, perhaps several of one block."""
        refs = self.model.blocks.callers_refs
        blocks = [block for block in pick(self.held, start, count) for _ in range(min(times, refs(block)))]
        self.ask(ops.ReleaseBlocks(self.names(blocks), _FORMS[form]))

    @act("held", but=(0, 3))
    def release_all(self, but: int) -> None:
        """Release all references to all blocks except a few."""
        refs = self.model.blocks.callers_refs
        blocks = [block for block in self.held[but:] for _ in range(refs(block))]
        self.ask(ops.ReleaseBlocks(self.names(blocks)))

    @act(count=(1, 3), parent=PICK, fresh=(0, 3), seed=SEED, weight=2)
    def publish(self, count: int, parent: int, fresh: int, seed: int) -> None:
        """Allocate blocks and register them."""
        self.take_chain(count, parent, fresh, seed)
        self.observe()

    def take_chain(self, count: int, parent: int, fresh: int, seed: int) -> tuple[int, ...]:
        """Allocate and register a chain of blocks, perhaps below a registered block, and return the chain."""
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
        """Register held blocks, some perhaps registered already, below parents that may be unknown."""
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
        """Register each block after its parent; leave out blocks whose parent's hash comes later."""
        for at, value in enumerate(parents or ()):
            if value in hashes[at + 1 :] and value not in hashes[:at]:
                parents = None
                break
        above = None if parents is None else tuple(parents)
        self.do(ops.RegisterBlocks(self.names(blocks), tuple(hashes), above, form))

    def _hash(self, seed: int, fresh: int = 0) -> int:
        """Draw a hash, either one of a few or one that is probably unique."""
        source = random.Random(seed)
        return source.randint(1, 2**63 - 1) if fresh == 1 else source.randint(1, _HASHES * self._scale)

    @act("occupied", start=PICK, count=(1, 4), form=FORM)
    def stamp(self, start: int, count: int, form: int) -> None:
        """Stamp some blocks as used."""
        self.ask(ops.StampBlocks(self.names(pick(self.occupied, start, count)), _FORMS[form]))

    @act(by=(1, 3), back=(0, 9), weight=2)
    def tick(self, by: int, back: int) -> None:
        """Advance the clock, or in a few draws set it back to 0."""
        self.do(ops.SetClock(self.model.blocks.clock + by if back else 0))

    @act(often=(0, 1))
    def reset(self, often: int) -> None:
        """Reset the allocator in some draws, or whenever the caller has taken every slot."""
        slots = self.model.slots
        if not often or (slots is not None and len(slots.in_hand) == slots.total):
            self.ask(ops.Reset())

    # -- the observer --------------------------------------------------------------------------------------
    @act("can_fail", call=(0, 1), start=PICK, room=(0, 3), evicts=(0, 1), weight=2)
    def disturb(self, call: int, start: int, room: int, evicts: int) -> None:
        """Make the observer of a release or an eviction raise an error or call the allocator."""
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
        """Whether any transfer has ended, and the adapter refuses a second end."""
        return self.can_refuse and bool(self.model.ended)

    @act("can_transfer", start=PICK, count=(1, 4), way=(0, 2), weight=2)
    def begin_transfer(self, start: int, count: int, way: int) -> None:
        """Begin a transfer of blocks, one perhaps twice, or of cached blocks before all others are taken."""
        cached = self.model.blocks.cached if way == 2 else []
        blocks = pick(cached or self.occupied, start, count)
        self.ask(ops.BeginTransfer(self.names(blocks + blocks[: way % 2])))
        if cached:
            self.ask(ops.AllocBlocks(self._room))

    @act("has_transfers", which=PICK, weight=2)
    def end_transfer(self, which: int) -> None:
        """End a transfer, whether its blocks are referenced elsewhere or not."""
        self.ask(ops.EndTransfer(self._transfer(which)))

    @act("has_transfers", which=PICK, then=(0, 2), weight=2)
    def abort(self, which: int, then: int) -> None:
        """Release all references to a transfer's blocks, allocate all others, and perhaps end it."""
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
        """Put every block in a transfer, in some draws, and release them all."""
        if not often:
            self.do(ops.AllocBlocks(self._room))
            self.do(ops.BeginTransfer(self.names(self.occupied)))
            self.release_all(but=0)
            self.ask(ops.AllocBlocks(1))

    @act("has_ended", which=PICK)
    def end_again(self, which: int) -> None:
        """End a transfer that has already ended."""
        ended = [*self.model.ended]
        self.ask(ops.EndTransfer(ended[which % len(ended)]))

    def _transfer(self, which: int) -> int:
        return [*self.model.transfers][which % len(self.model.transfers)]

    # -- misuse --------------------------------------------------------------------------------------------
    def bad_block(self, which: int) -> int | None:
        """Return a block that cannot be named: a free one, the dummy, or one outside the pool."""
        blocks = self.model.blocks
        if which == 0:
            return min(blocks.free, default=None)
        return blocks.usable if which == 1 else (-1, blocks.usable + 1)[len(blocks.free) % 2]

    @act("can_refuse", start=PICK, count=(0, 3), which=(0, 2), call=(0, 3))
    def name_nobodys(self, start: int, count: int, which: int, call: int) -> None:
        """Name a free, dummy or outside block after blocks that are held."""
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
        """Release a block more often than it is held, perhaps after another block."""
        blocks = pick(self.occupied, start, count)
        if blocks:
            last = blocks[-1]
            refs = self.model.blocks.callers_refs
            good = [block for block in blocks[:-1] if refs(block)]
            self.ask(ops.ReleaseBlocks(self.names([*good, *[last] * (refs(last) + 1)])))

    @act("can_refuse", start=PICK, count=(1, 3), twist=(0, 4))
    def register_badly(self, start: int, count: int, twist: int) -> None:
        """Register a block under a second hash, under no hash, or with one hash too few."""
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
        """Stamp a block outside the pool after valid blocks; the whole call must be refused."""
        outside = -1 if below else self.model.blocks.usable + 1
        self.ask(ops.StampBlocks(self.names([*pick(self.occupied, start, 2), outside])))

    # -- naming --------------------------------------------------------------------------------------------
    def names(self, blocks: Sequence[int]) -> tuple[Span, ...]:
        """Return spans for blocks: by the steps that gave them, or by number for free blocks."""
        known = self.model.blocks
        return name_numbers(
            blocks, self.model.given, lambda it: it not in known.free and 0 <= it < known.usable
        )


_WAYS = ("one by one", "batch", "deregistered")


class BlockMachine(BlockActs):
    """The machine of block allocators, with the slots of cached states if there are any (C1 to C7, C9)."""

    @property
    def has_slots(self) -> bool:
        """Whether the allocator caches states in slots."""
        return self.model.slots is not None

    @property
    def has_states(self) -> bool:
        """Whether any block has a slot."""
        return self.model.slots is not None and bool(self.model.slots.slot_of)

    @property
    def has_writable(self) -> bool:
        """Whether any slot belongs to a block or to the caller."""
        return self.model.slots is not None and bool(self.model.slots.usable)

    @property
    def can_misuse_slots(self) -> bool:
        """Whether the allocator has slots and claims to refuse misuse."""
        return self.has_slots and self.can_refuse

    # -- whole requests ------------------------------------------------------------------------------------
    @act("has_slots", count=(1, 3), parent=PICK, request=(0, 7), stays=(0, 2), seed=SEED, weight=2)
    def serve(self, count: int, parent: int, request: int, stays: int, seed: int) -> None:
        """Allocate, register, save and name the blocks of a request, and perhaps release them later."""
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
        """Allocate slots for some blocks, a few of which are named twice."""
        blocks = pick(self.model.blocks.occupied, start, count)
        self.ask(ops.AllocSlots(self.names([*blocks, *blocks[:repeats]])))

    @act("has_slots", start=PICK, spare=(-1, 2))
    def alloc_many_slots(self, start: int, spare: int) -> None:
        """Request slots for about as many blocks as there are slots, or for one more."""
        blocks = pick(self.model.blocks.occupied, start, max(0, self.slots.total - spare))
        self.ask(ops.AllocSlots(self.names(blocks)))

    @act("has_slots", start=PICK, count=(1, 2), weight=2)
    def alloc_slots_for_new_blocks(self, start: int, count: int) -> None:
        """Allocate slots for blocks that have none, in some draws for more than there are free slots."""
        more = len(self.slots.free) if start % 2 else 0
        self.ask(ops.AllocSlots(self.names(self._new_blocks(start, count + more))))

    def _new_blocks(self, start: int, count: int) -> list[int]:
        return pick(self._without_slot(self.model.blocks.occupied), start, count)

    @act("has_slots", parent=PICK, seed=SEED, weight=2)
    def outlive(self, parent: int, seed: int) -> None:
        """Serve two requests in turn, then allocate slots until the older request's slots are taken."""
        for each in (0, 1):
            self.serve(1, parent, each, 0, seed + each)
        self.ask(ops.AllocSlots(self.names(self._more_than_free(parent))))

    def _more_than_free(self, start: int) -> list[int]:
        """Return one block more without a slot than there are free slots, allocating blocks if needed."""
        lacking = 1 + len(self.slots.free) - len(self._without_slot(self.occupied))
        if 0 < lacking <= self._room:
            self.do(ops.AllocBlocks(lacking))
        return self._new_blocks(start, len(self.slots.free) + 1)

    @act("has_slots", start=PICK, seed=SEED, weight=2)
    def alloc_slots_for_the_oldest(self, start: int, seed: int) -> None:
        """Allocate slots for blocks without one, and for the block whose slot would be taken first."""
        for each in range(2 - len(self.slots.victims())):
            self.serve(1, start, each, 0, seed + each)
        others = self._more_than_free(start)
        self.ask(ops.AllocSlots(self.names([*self.slots.victims()[:1], *others])))

    @act("has_slots", count=(0, 2), extra=(0, 8))
    def evict_slots(self, count: int, extra: int) -> None:
        """Take slots from blocks for the caller, in some draws too many, or just before a reset."""
        self.do(ops.EvictSlots(count if extra else len(self.slots.victims()) + 1))
        if extra == 8 and self.slots.in_hand and self.slots.slot_of:
            self.do(ops.Reset())  # takes slots in use and in hand (C9)
        self.observe()

    @act("has_slots", often=(0, 5))
    def hoard_slots(self, often: int) -> None:
        """Take slots of cached blocks until none is left, in a few draws; only a reset gives them back."""
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
        """Look up the slots of some blocks, perhaps of the dummy block or of a block outside the pool."""
        blocks = [*range(self.model.blocks.usable + 1)]
        outside = [-1 if start % 2 else len(blocks)] if not beyond and self.can_refuse else []
        self.do(ops.FindSlots(self.names([*pick(blocks, start, count), *outside])))

    @act("has_states", start=PICK, count=(1, 4), blank=(0, 3), weight=2)
    def name_states(self, start: int, count: int, blank: int) -> None:
        """Name the states of blocks by their hashes; blocks without a hash are left out."""
        hashes, having = self.model.blocks.hash_of, sorted(self.slots.slot_of)
        known = [block for block in having if block in hashes]
        blocks = pick(known if known and blank else having, start, count)
        values = [hashes.get(block, -1) for block in blocks]
        if not blank:
            values[0] = 0
        self.ask(ops.NameStates(self.names(blocks), tuple(values)))

    @act("has_slots", start=PICK, count=(1, 3), repeat=(0, 1), how=(0, 3), seed=SEED, weight=2)
    def drop_states(self, start: int, count: int, repeat: int, how: int, seed: int) -> None:
        """Drop the states of some blocks; like an observer, perhaps with the hashes of other blocks."""
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
        """Store a state in every layer in turn."""
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
        """Save live states into slots of blocks or of the caller; a request may be saved several times."""
        slots, live = pick(self.slots.usable, start, count), self.states.rows - 1
        if live:
            requests = tuple((request + at) % live for at in range(len(slots)))
            self.ask(ops.SaveLive(self.slot_names(slots), requests))

    @act("has_slots", start=PICK, request=(0, 7), weight=2)
    def restore_live(self, start: int, request: int) -> None:
        """Restore the live state of a request from a block, which may have no state."""
        blocks, live = self.model.blocks.occupied, self.states.rows - 1
        if blocks and live:
            self.ask(ops.RestoreLive(request % live, self.names(pick(blocks, start, 1))[0]))

    def _contents(self, seed: int) -> list[tuple[int, int, int]]:
        """Draw the contents of a write for each layer: two first elements, and the step between elements."""
        source, widest = random.Random(seed), max(self.states.widths.values())
        steepest = 24 // widest  # so that the last element is below 128, too
        return [
            (source.randrange(-128, 104), source.randrange(-128, 104), source.randint(0, steepest))
            for _ in range(self.states.layers)
        ]

    # -- misuse --------------------------------------------------------------------------------------------
    @act("can_misuse_slots", start=PICK, count=(0, 2), which=(0, 2))
    def alloc_slots_badly(self, start: int, count: int, which: int) -> None:
        """Request a slot for a free, dummy or outside block, among valid ones."""
        bad = self.bad_block(which)
        if bad is not None:
            self.ask(ops.AllocSlots(self.names([*pick(self.model.blocks.occupied, start, count), bad])))

    @act("can_misuse_slots", start=PICK, other=PICK, twist=(0, 3))
    def name_badly(self, start: int, other: int, twist: int) -> None:
        """Name a state by another block's hash, by an unknown hash, or for a block outside the pool."""
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
        """Drop the state of a block outside the pool, among others if one call can name several."""
        outside = -1 if below else self.model.blocks.usable + 1
        others = pick(self.model.blocks.occupied, start, 2) if how else []
        self.ask(ops.DropStates(self.names([*others, outside]), _WAYS[how]))

    @act("can_misuse_slots", start=PICK, twist=(0, 3))
    def use_states_badly(self, start: int, twist: int) -> None:
        """Store a state without a slot or outside the pool; save and restore one that is not live."""
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
        """Return spans for slots, by the steps that gave them."""
        return self.model.given_slots.name(slots)
