"""Acts on blocks alone: take, share, publish, release, and misuse."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

from pymllm.adapters.malformed import MALFORMED_BLOCKS
from pymllm.conformance.acting import act
from pymllm.conformance.pool_machine import SEED, PoolMachine, pick
from pymllm.history.operations import (
    AllocBlocks,
    Fault,
    Inspect,
    Malformed,
    ReadLive,
    ReadStates,
    RegisterBlocks,
    ReleaseBlocks,
    Reset,
    RetainBlocks,
    SetClock,
    Span,
    StampBlocks,
)
from pymllm.oracle.block_judge import BlockJudge
from pymllm.oracle.block_slot_model import BlockSlotModel
from pymllm.oracle.block_states import BlockStates

PICK = (0, 20)
FORM = (0, 5)
_FORMS = ("list", "tuple", "int32", "int64", "tensor32", "tensor64")
_HASHES = 12
"""So few that blocks meet under one hash."""


class BlockActs(PoolMachine):
    """Drives a block allocator; what it knows of blocks, slots and states it asks the judge."""

    MALFORMED: ClassVar[Sequence[Malformed]] = tuple(Malformed(*call) for call in MALFORMED_BLOCKS)

    judge: BlockJudge

    def begin(self) -> None:
        """Look at everything as long as it is new: a reset is to bring that back."""
        # Reading changes nothing, so that one walk after each act shows as much as one after each step.
        self._walks, self.examiner.audits_steps = self.examiner.audits_steps, False
        # A large pool takes long chains to fill, and more hashes, or all of them would be taken.
        self._scale = 1 + self.judge.blocks.usable // 16
        self.observe()

    def observe(self) -> None:
        """Look at every view and every state, and walk the books from inside where that is wanted."""
        if self._walks:
            self._watched(self.examiner.look_inside)
        self.do(Inspect())
        if self.judge.states is not None:
            for layer in range(self.judge.states.layers):
                self.do(ReadStates(layer))
                self.do(ReadLive(layer))

    @property
    def held(self) -> list[int]:
        """Referenced blocks."""
        return self.judge.blocks.held

    @property
    def occupied(self) -> list[int]:
        """Referenced and cached blocks."""
        return self.judge.blocks.occupied

    @property
    def slots(self) -> BlockSlotModel:
        """Who has which slot."""
        return self.judge.slotted()

    @property
    def states(self) -> BlockStates:
        """What stands in the states."""
        return self.judge.cells()

    # -- well-behaved acts ---------------------------------------------------------------------------------

    @act(count=(0, 3), weight=2)
    def alloc(self, count: int) -> None:
        """Take a few blocks."""
        self.do(AllocBlocks(count))
        self.observe()

    @act(but=(0, 3))
    def alloc_all(self, but: int) -> None:
        """Take all that can be had, or leave a few."""
        self.do(AllocBlocks(max(0, self._room - but)))
        self.observe()

    @act(extra=(1, 3))
    def alloc_too_much(self, extra: int) -> None:
        """Ask for more than can be had."""
        self.do(AllocBlocks(self._room + extra))
        self.observe()

    @property
    def _room(self) -> int:
        return len(self.judge.blocks.free) + len(self.judge.blocks.evictable())

    @act("occupied", start=PICK, count=(1, 3), twice=(0, 1), form=FORM, weight=2)
    def retain(self, start: int, count: int, twice: int, form: int) -> None:
        """Share some blocks, cached ones too."""
        blocks = pick(self.occupied, start, count)
        self.do(RetainBlocks(self.names(blocks + blocks[:twice]), _FORMS[form]))
        self.observe()

    @act("held", start=PICK, count=(1, 4), times=(1, 3), form=FORM, weight=3)
    def release(self, start: int, count: int, times: int, form: int) -> None:
        """Give back some references, several of a block where there are several."""
        refs = self.judge.blocks.refs
        blocks = [block for block in pick(self.held, start, count) for _ in range(min(times, refs[block]))]
        self.do(ReleaseBlocks(self.names(blocks), _FORMS[form]))
        self.observe()

    @act("held", but=(0, 3))
    def release_all(self, but: int) -> None:
        """Give every reference to all blocks back but for a few."""
        refs = self.judge.blocks.refs
        blocks = [block for block in self.held[but:] for _ in range(refs[block])]
        self.do(ReleaseBlocks(self.names(blocks)))
        self.observe()

    @act(count=(1, 3), parent=PICK, fresh=(0, 3), seed=SEED, weight=2)
    def publish(self, count: int, parent: int, fresh: int, seed: int) -> None:
        """Take blocks and register them."""
        self.take_chain(count, parent, fresh, seed)
        self.observe()

    def take_chain(self, count: int, parent: int, fresh: int, seed: int) -> tuple[int, ...]:
        """Take blocks and register them as a chain, on their own or below a registered block; return them."""
        outcome = self.do(AllocBlocks(count * self._scale))
        taken: tuple[int, ...] = getattr(outcome.result, "slots", ())
        hashes = [self._hash(seed + at, fresh) for at in range(len(taken))]
        above = [self.judge.blocks.hash_of[it] for it in pick(sorted(self.judge.blocks.hash_of), parent, 1)]
        parents = None if not above or parent % 3 == 0 else (*above, *hashes)[: len(taken)]
        if taken:
            self._register(taken, hashes, parents)
        return taken

    @act("held", start=PICK, count=(1, 3), above=(0, 3), seed=SEED, form=FORM, weight=2)
    def register(self, start: int, count: int, above: int, seed: int, form: int) -> None:
        """Register held blocks, those that are registered again, with parents that may not be known."""
        blocks = pick(self.held, start, count)
        known = self.judge.blocks.hash_of
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
        self.do(RegisterBlocks(self.names(blocks), tuple(hashes), above, form))

    def _hash(self, seed: int, fresh: int = 0) -> int:
        """Draw a hash: one of a few, or one that nothing else is likely to have."""
        source = random.Random(seed)
        return source.randint(1, 2**63 - 1) if fresh == 1 else source.randint(1, _HASHES * self._scale)

    @act("occupied", start=PICK, count=(1, 4), form=FORM)
    def stamp(self, start: int, count: int, form: int) -> None:
        """Use some blocks."""
        self.do(StampBlocks(self.names(pick(self.occupied, start, count)), _FORMS[form]))
        self.observe()

    @act(by=(1, 3), back=(0, 9), weight=2)
    def tick(self, by: int, back: int) -> None:
        """Let the clock advance; seldom, let it begin anew."""
        self.do(SetClock(self.judge.blocks.clock + by if back else 0))

    @act(often=(0, 3))
    def reset(self, often: int) -> None:
        """Reset everything now and then, and where every slot is in hand."""
        slots = self.judge.slots
        if not often or (slots is not None and len(slots.in_hand) == slots.total):
            self.do(Reset())
            self.observe()

    # -- the observer --------------------------------------------------------------------------------------

    @act("can_fail", call=(0, 1), start=PICK, room=(0, 3), evicts=(0, 1), weight=2)
    def disturb(self, call: int, start: int, room: int, evicts: int) -> None:
        """Let the observer of a release or of an eviction raise, or call the allocator."""
        blocks = self.judge.blocks
        self.do(Fault(("callback", "reenter")[call]))
        if evicts and blocks.evictable():
            self.do(AllocBlocks(max(1, self._room - room)))
        elif blocks.held:
            (block,) = pick(blocks.held, start, 1)
            self.do(ReleaseBlocks(self.names([block] * blocks.refs[block])))
        self.observe()

    # -- misuse --------------------------------------------------------------------------------------------

    def bad_block(self, which: int) -> int | None:
        """Return a block that nobody has: a free one, the dummy, or one outside."""
        blocks = self.judge.blocks
        if which == 0:
            return min(blocks.free, default=None)
        return blocks.usable if which == 1 else (-1, blocks.usable + 1)[len(blocks.free) % 2]

    @act("can_refuse", start=PICK, count=(0, 3), which=(0, 2), call=(0, 2))
    def name_nobodys(self, start: int, count: int, which: int, call: int) -> None:
        """Name one block that nobody has after others that somebody has."""
        bad = self.bad_block(which)
        if bad is None:
            return
        names = self.names([*pick(self.held, start, count), bad])
        total = sum(span.stop - span.start for span in names)
        if call == 2:
            self.do(RegisterBlocks(names, tuple(range(90, 90 + total)), (0,) * total))
        else:
            self.do((RetainBlocks, ReleaseBlocks)[call](names))
        self.observe()

    @act("can_refuse", start=PICK, count=(1, 2))
    def release_too_much(self, start: int, count: int) -> None:
        """Release one block once more than it is held, after another."""
        blocks = pick(self.occupied, start, count)
        if blocks:
            last = blocks[-1]
            good = [block for block in blocks[:-1] if self.judge.blocks.refs[block]]
            self.do(ReleaseBlocks(self.names([*good, *[last] * (self.judge.blocks.refs[last] + 1)])))
            self.observe()

    @act("can_refuse", start=PICK, count=(1, 3), twist=(0, 4))
    def register_badly(self, start: int, count: int, twist: int) -> None:
        """Register under another hash, under none, or with one too few."""
        known = self.judge.blocks.hash_of
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
        self.do(RegisterBlocks(self.names(blocks), tuple(hashes), tuple(parents)))
        self.observe()

    @act("can_refuse", start=PICK, below=(0, 1))
    def stamp_badly(self, start: int, below: int) -> None:
        """Stamp a block outside the pool after others."""
        outside = -1 if below else self.judge.blocks.usable + 1
        self.do(StampBlocks(self.names([*pick(self.occupied, start, 2), outside])))
        self.observe()

    # -- naming --------------------------------------------------------------------------------------------

    def names(self, blocks: Sequence[int]) -> tuple[Span, ...]:
        """Name blocks that somebody has by the steps that gave them, others by themselves."""
        free = self.judge.blocks.free
        return tuple(
            span
            for block in blocks
            for span in (
                (Span(0, block, block + 1),)
                if block in free or not 0 <= block < self.judge.blocks.usable
                else self.judge.given.name((block,))
            )
        )
