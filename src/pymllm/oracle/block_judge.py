"""The judge of block allocators and of the states cached beside them (C1 to C7, C9, X1, X2, X4, X6, X7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    AllocSlots,
    DropStates,
    EvictSlots,
    FindSlots,
    Inspect,
    NameStates,
    ReadLive,
    ReadStates,
    Reset,
    RestoreLive,
    SaveLive,
    StoreState,
    WriteLive,
)
from pymllm.history.outcomes import BlockBooks, Done, FoundSlots, Number, Outcome, Slots, States
from pymllm.oracle.block_states import BlockStates, find_wrong_view
from pymllm.oracle.coverage.noticed import note_alloc_slots, note_drop, note_evict_slots
from pymllm.oracle.kv_block_judge import KVBlockJudge
from pymllm.oracle.models.block_model import BlockSlotModel
from pymllm.oracle.models.slot_model import GivenNumbers, Remainder
from pymllm.oracle.pool_judge import MALFORMED_ERRORS, has_told_a_change

_NO_CAPACITY = "MambaSlotCapacityError"
_WAYS = ("one by one", "batch", "deregistered")


class BlockSlotJudge(KVBlockJudge):
    """Follows every slot; which free slot a block gets is the allocator's choice.

    The configuration has, where ``mamba`` is claimed, also ``slots`` and what `BlockStates` reads.
    """

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        has_slots = "mamba" in self.claims
        self.slots = BlockSlotModel(self.number("slots"), self.blocks) if has_slots else None
        self.states = BlockStates(header.config) if has_slots else None
        self.given_slots = GivenNumbers()  # ``given`` has the blocks
        self.untested: dict[str, None] = {}  # laws of operations whose traces nobody has looked for yet
        self.was_used = False  # nothing was asked for but to look

    def sizes(self) -> dict[str, int]:
        """Return the sizes of blocks and, where there are slots, ``free_count``."""
        return super().sizes() | ({} if self.slots is None else {"free_count": self.slots.free_count})

    def _test_sizes(
        self, law: str, before: dict[str, int], now: dict[str, int], found: dict[str, int]
    ) -> None:
        """Test every size; an operation that was not about it blames the law of whose it is."""
        if law:
            self.was_used = True
            self.untested[law] = None
        for name, expected in now.items():
            if found.get(name, expected) != expected:
                self.evidence.refuse(_law_of_size(law, name), name, expected, found[name])
        if law and now != before and has_told_a_change(before, now, found):
            self.evidence.count(law)

    def slotted(self) -> BlockSlotModel:
        """Return the slots; `ProgramError` if there are none."""
        if self.slots is None:
            raise ProgramError("cached states are not claimed")
        return self.slots

    def cells(self) -> BlockStates:
        """Return what stands in the states; `ProgramError` if there are none."""
        if self.states is None:
            raise ProgramError("cached states are not claimed")
        return self.states

    def refused(self) -> None:
        """Follow a refused operation, which changed nothing, no state either."""
        super().refused()
        if self.states is not None:
            self.states.suspect("X1")

    def _lose(
        self,
        law: str,
        gone: Sequence[int],
        hashes: Mapping[int, int],
        after: Mapping[str, int] | None = None,
    ) -> None:
        super()._lose(law, gone, hashes, after)
        if self.slots is not None:
            lost = [block for block in gone if block in self.slots.slot_of]
            self.evidence.meet("a block without a hash loses its slot", len(hashes) < len(gone) and lost)
            self.evidence.meet("a block loses its slot with its hash", hashes and lost)
            self.cells().release(self.slots.drop(gone))

    # -- handing out ---------------------------------------------------------------------------------------

    def _judge_alloc_slots(self, step: int, operation: AllocSlots, outcome: Outcome) -> str:
        slots, wanted = self.slotted(), self.given.resolve(operation.blocks)
        what = f"slots for blocks {wanted}"
        if self.note_faults(wanted):
            errors = ("OwnershipError", "UsageError", "IndexError")
            return self.expect_refusal("C6", what, outcome, *errors)
        new, free, victims = slots.newcomers(wanted), slots.free, slots.victims(wanted)
        missing = max(0, len(new) - len(free))
        if missing > len(victims):
            return self._fail_slots("C5", what, outcome)
        self.suspect = ""
        given = self.answer(Slots, "C5", what, outcome).slots
        note_alloc_slots(self.evidence, slots, self.blocks, wanted, missing)
        self._check_batch(what, wanted, given)
        self._check_new(what, [given[wanted.index(block)] for block in new], wanted, victims[:missing])
        slots.drop(victims[:missing])
        fresh = [given[wanted.index(block)] for block in new]
        slots.give(new, fresh)
        self.cells().release(fresh)
        self.given_slots.record(step, given)
        return "C6" if missing else "C2"

    def _check_batch(self, what: str, wanted: Sequence[int], given: Sequence[int]) -> None:
        """Test that it has a slot for each block, the one that it had, the same for equal blocks (C5)."""
        slots = self.slotted().slot_of
        if len(given) != len(wanted):
            self.evidence.refuse("C5", f"how many {what}", len(wanted), given)
        pairs = zip(wanted, given, strict=True)
        first: dict[int, int] = {}
        wrong = [pair for pair in pairs if first.setdefault(pair[0], slots.get(*pair)) != pair[1]]
        self.evidence.demand("C5", not wrong, what, "those that they have, one each", lambda: given)

    def _check_new(
        self, what: str, new: Sequence[int], wanted: Sequence[int], victims: Sequence[int]
    ) -> None:
        """Test that new slots are free ones, or those of the blocks whose turn it is (C2, C5, C6)."""
        slots = self.slotted()
        turn = [slots.slot_of[block] for block in victims]
        owners = {slot: block for block, slot in slots.slot_of.items()}
        taken = [owners[slot] for slot in new if slot in owners and slot not in turn]
        own = [block for block in taken if block in wanted]
        if own:
            self.evidence.refuse("C5", f"evictions for {what}", "none of the batch", f"blocks {own}")
        if taken:
            self.evidence.refuse("C6", f"evictions for {what}", f"blocks {list(victims)}", f"blocks {taken}")
        allowed = Remainder(range(slots.total), slots.free.gone.difference(turn))
        is_right = len({*new}) == len(new) and {*turn} <= {*new} and allowed.issuperset(new)
        self.evidence.demand("C2", is_right, what, f"new ones of {allowed}", lambda: new)
        if victims and len(victims) < len(slots.slot_of):
            self.evidence.count("C5", "C6")

    def _judge_evict_slots(self, step: int, operation: EvictSlots, outcome: Outcome) -> str:
        slots, count = self.slotted(), operation.count
        if count < 0:
            raise ProgramError(f"a number of slots is not negative, got {count}: use Malformed")
        victims, what = slots.victims(), f"eviction of {count} slots"
        if count > len(victims):
            return self._fail_slots("C6", what, outcome)
        self.suspect = ""
        given = self.answer(Slots, "C6", what, outcome).slots
        note_evict_slots(self.evidence, slots, self.blocks, victims, count)
        expected = [slots.slot_of[block] for block in victims[:count]]
        self.evidence.expect("C6", what, sorted(expected), sorted(given))
        slots.in_hand.update(slots.drop(victims[:count]))
        self.cells().release(given)
        self.given_slots.record(step, given)
        return "C2"

    def _fail_slots(self, law: str, what: str, outcome: Outcome) -> str:
        self.evidence.expect_error(law, what, outcome, _NO_CAPACITY)
        self.seen.check_quiet(law)
        self.evidence.meet("a batch cannot be met" if law == "C5" else "too few slots can be evicted")
        self.evidence.meet("every slot is in hand", len(self.slotted().in_hand) == self.slotted().total)
        self.suspect = law
        return law

    def _judge_find_slots(self, step: int, operation: FindSlots, outcome: Outcome) -> str:
        slots, blocks = self.slotted(), self.given.resolve(operation.blocks)
        if self.is_outside(blocks):
            what = f"slots of {blocks}"
            return self.expect_refusal("X1", what, outcome, *MALFORMED_ERRORS)
        found = [slots.slot_of.get(block, -1) for block in blocks]
        expected = FoundSlots(tuple(found), tuple(slot >= 0 for slot in found))
        self.evidence.expect(self.suspect or "C2", f"slots of {blocks}", expected, outcome.result)
        return ""

    # -- hashes and the end of states ----------------------------------------------------------------------

    def _judge_name_states(self, step: int, operation: NameStates, outcome: Outcome) -> str:
        slots, blocks = self.slotted(), self.given.resolve(operation.blocks)
        what = f"names {operation.hashes} of the states of {blocks}"
        counts = len(blocks) != len(operation.hashes)
        pairs = {block: value for block, value in zip(blocks, operation.hashes, strict=False) if value > 0}
        homeless = [block for block in pairs if block not in slots.slot_of]
        strange = [
            it for it in zip(blocks, operation.hashes, strict=False) if it[1] > 0 and self._is_strange(it)
        ]
        self.evidence.meet("a name without a slot is refused", homeless)
        self.evidence.meet("a name that is not the block's hash is refused", strange)
        if counts or homeless or strange or self.is_outside(blocks):
            return self.expect_refusal("C4", what, outcome, *MALFORMED_ERRORS)
        self._expect_done("C4", what, outcome)
        self.evidence.meet("an entry without a hash is passed over", len(pairs) < len(blocks))
        slots.named.update(pairs)
        return "C4"

    def _is_strange(self, pair: tuple[int, int]) -> bool:
        return self.blocks.hash_of.get(pair[0]) != pair[1]

    def _judge_drop_states(self, step: int, operation: DropStates, outcome: Outcome) -> str:
        slots, blocks = self.slotted(), self.given.resolve(operation.blocks)
        if operation.how not in _WAYS:
            raise ProgramError(f"states are dropped {operation.how!r}; it must be one of {', '.join(_WAYS)}")
        what = f"drop of the states of {blocks}"
        if self.is_outside(blocks):
            if operation.how == "one by one" and len(blocks) > 1:
                raise ProgramError(f"{what}: those before the one outside are dropped first")
            self.evidence.meet("a drop outside is refused")
            return self.expect_refusal("X1", what, outcome, *MALFORMED_ERRORS)
        self._expect_done("C4", what, outcome)
        note_drop(self.evidence, slots, blocks, operation.hashes)
        self.cells().release(slots.drop(blocks))
        return "C4"

    def is_outside(self, blocks: Sequence[int]) -> bool:
        """Tell whether a block is neither one of the pool nor the dummy."""
        return any(block not in range(self.blocks.usable + 1) for block in blocks)


_OF_SLOTS = dict.fromkeys(("C2", "C4", "C5", "C6", "C7"), "C1")
_LAWS_OF_SIZES: Mapping[str, Mapping[str, str]] = {
    "free_count": {"C1": "C6", "C3": "C6"},
    "pool_avail": _OF_SLOTS,
    "evictable_blocks": _OF_SLOTS,
}


def _law_of_size(law: str, name: str) -> str:
    """Return the law that a wrong size breaks after an operation under a law."""
    law = law or ("C2" if name == "free_count" else "C1")
    return _LAWS_OF_SIZES[name].get(law, law)


class BlockJudge(BlockSlotJudge):
    """Judges every operation of the kind; its bases those on blocks and slots."""

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        self._fresh: BlockBooks | None = None

    # -- everything at once --------------------------------------------------------------------------------

    def _judge_inspect(self, step: int, operation: Inspect, outcome: Outcome) -> str:
        books = self.answer(BlockBooks, "C1", "the views", outcome)
        wrong = find_wrong_view(self.blocks, self.slots, books)
        if wrong is not None:
            law, view, expected, observed = wrong
            self.evidence.refuse(self.suspect or law, view, expected, observed)
        if not self.was_used:
            self._fresh = books
        elif self.suspect == "C9" and self._fresh is not None:
            self.evidence.expect("C9", "every view after a reset", self._fresh, books)
        self.evidence.count(*self.untested)
        self.untested.clear()
        self.suspect = ""
        return ""

    def _judge_reset(self, step: int, operation: Reset, outcome: Outcome) -> str:
        self.answer(Done, "X7", "reset", outcome)
        self.seen.check_quiet("X7")
        if self.blocks.held:
            self.evidence.count("X7")  # nobody was told of what is taken from them
        self.evidence.meet("a reset with blocks held", self.blocks.held)
        self.evidence.meet("a reset with blocks cached", self.blocks.cached)
        self.blocks.reset()
        if self.slots is not None:
            everything = self.slots.slot_of and self.slots.in_hand
            self.evidence.meet("a reset with slots in use and in hand", everything)
            self.slots.reset()
            self.cells().wipe("C9")
        self.suspect = "C9"
        return "C9"

    # -- states --------------------------------------------------------------------------------------------

    def _judge_store_state(self, step: int, operation: StoreState, outcome: Outcome) -> str:
        slots, block = self.slotted(), self.one(operation.block)
        contents = self.cells().contents(operation.recurrent, operation.conv, operation.ramp)
        what = f"store of layer {operation.layer} of block {block}"
        if self.is_outside([block]) or operation.layer not in range(self.cells().layers):
            self.evidence.meet("a store outside is refused")
            return self.expect_refusal("X1", what, outcome, *MALFORMED_ERRORS)
        if block not in slots.slot_of:
            self.evidence.meet("a store without a slot is refused")
            return self.expect_refusal("C7", what, outcome, "UsageError", "OwnershipError")
        self._expect_done("C7", what, outcome)
        self.cells().store(operation.layer, slots.slot_of[block], contents)
        return "C7"

    def _judge_write_live(self, step: int, operation: WriteLive, outcome: Outcome) -> str:
        contents = self.cells().contents(operation.recurrent, operation.conv, operation.ramp)
        if operation.layer not in range(self.cells().layers) or self._is_stateless([operation.request]):
            raise ProgramError(f"{operation} leaves the live states")
        self._expect_done("C7", "write of a live state", outcome)
        self.cells().write(operation.layer, operation.request, contents)
        return "C7"

    def _judge_save_live(self, step: int, operation: SaveLive, outcome: Outcome) -> str:
        model, slots, requests = self.slotted(), self.given_slots.resolve(operation.slots), operation.requests
        what = f"save of requests {requests} into slots {slots}"
        if {*slots} - {*model.usable} or len({*slots}) < len(slots):
            raise ProgramError(f"{what}: each slot is in use or in hand, and named once; else use Malformed")
        if len(slots) != len(requests) or self._is_stateless(requests):
            self.evidence.meet("a save of what is not live is refused")
            return self.expect_refusal("X1", what, outcome, *MALFORMED_ERRORS)
        self._expect_done("C7", what, outcome)
        self.evidence.meet("several states are saved at once", len(slots) > 1)
        self.evidence.meet("a state is saved into a slot in hand", model.in_hand.intersection(slots))
        self.cells().save(slots, requests)
        return "C7"

    def _judge_restore_live(self, step: int, operation: RestoreLive, outcome: Outcome) -> str:
        slots, block, request = self.slotted(), self.one(operation.block), operation.request
        what = f"restore of block {block} to request {request}"
        slot = slots.slot_of.get(block)
        if self.is_outside([block]) or self._is_stateless([request]):
            if slot is None and not self.is_outside([block]):
                raise ProgramError(f"{what}: there is nothing to restore, and nowhere")
            self.evidence.meet("a restore to what is not live is refused", slot is not None)
            return self.expect_refusal("X1", what, outcome, *MALFORMED_ERRORS)
        self._expect_answer(what, Number(int(slot is not None)), outcome)
        self.evidence.meet("nothing is restored", slot is None)
        self.evidence.meet("a state is restored", slot is not None)
        if slot is None:
            self.cells().suspect("C7")
        else:
            self.cells().restore(request, slot)
        return "C7"

    def _expect_answer(self, what: str, expected: Number, outcome: Outcome) -> None:
        self.suspect = ""
        self.evidence.expect("C7", what, expected, outcome.result)
        self.seen.check_quiet("C7")

    def _is_stateless(self, requests: Sequence[int]) -> bool:
        return any(request not in range(self.cells().rows - 1) for request in requests)

    def _judge_read_states(self, step: int, operation: ReadStates, outcome: Outcome) -> str:
        read = self.answer(States, "C7", f"slots of {self._known_layer(operation.layer)}", outcome)
        self.cells().test_cached(self.evidence, operation.layer, read)
        return ""

    def _judge_read_live(self, step: int, operation: ReadLive, outcome: Outcome) -> str:
        read = self.answer(States, "C7", f"live states of {self._known_layer(operation.layer)}", outcome)
        self.cells().test_live(self.evidence, operation.layer, read)
        return ""

    def _known_layer(self, layer: int) -> str:
        if layer not in range(self.cells().layers):
            raise ProgramError(f"layer {layer} is not one of {self.cells().layers}")
        return f"layer {layer}"
