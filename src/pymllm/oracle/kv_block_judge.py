"""The judge of blocks: references, hashes, evictions and their observer (C1, C3, X1, X2, X4, X6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    AllocBlocks,
    Fault,
    Operation,
    RegisterBlocks,
    ReleaseBlocks,
    RetainBlocks,
    SetClock,
    StampBlocks,
)
from pymllm.history.outcomes import INJECTED, Done, Effect, Failed, NoRoom, Outcome, Slots
from pymllm.oracle.coverage.noticed import note_register, note_release, note_victims
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.models import is_lru
from pymllm.oracle.models.block_model import BlockModel
from pymllm.oracle.pool_judge import MALFORMED_ERRORS, PoolJudge


class SeenObserver:
    """The calls of the observer in one outcome, and the fault that was to happen in it."""

    def __init__(self, evidence: Evidence, outcome: Outcome, fault: Fault | None) -> None:
        self._evidence = evidence
        self._outcome = outcome
        self._fault = fault
        self._calls = [effect for effect in outcome.effects if effect.call == "callback"]

    @property
    def blocks(self) -> list[int]:
        """Every block that it was told of, in order."""
        return [block for call in self._calls for block in call.slots]

    @property
    def _struck(self) -> Effect | None:
        """The call in which the fault happened."""
        fault = self._fault
        return None if fault is None or len(self._calls) < fault.nth else self._calls[fault.nth - 1]

    @property
    def raised(self) -> bool:
        """Whether it was let raise."""
        return self._struck is not None and self._fault is not None and self._fault.call == "callback"

    def check_quiet(self, law: str) -> None:
        """Test that nobody was told anything; ``law`` is broken otherwise."""
        if self._outcome.effects:
            self._evidence.refuse(law, "what the observer was told", "nothing", self._outcome.effects)

    def check(self, law: str, blocks: Collection[int], hash_of: Mapping[int, int]) -> None:
        """Test that it was told of exactly these blocks, once each, and in each call of their hashes."""
        if sorted(self.blocks) != sorted(blocks):
            self._evidence.refuse(law, "blocks that the observer is told of", sorted(blocks), self.blocks)
        for call in self._calls:
            hashes = sorted(hash_of[block] for block in call.slots if block in hash_of)
            if [*call.target] != hashes:
                self._evidence.refuse(law, "hashes that the observer is told of", hashes, [*call.target])
        others = [call for call in self._outcome.effects if call.call != "callback" or not call.slots]
        if others:
            self._evidence.refuse(law, "effects that tell nobody of a block", "none", others)
        if blocks:
            self._evidence.count(law)

    def check_inside(self, sizes: Mapping[str, int], after: Mapping[str, int] | None = None) -> None:
        """Test what it saw of the books once the blocks were gone, and what became of its fault.

        ``after`` are the sizes that are told at the end, where nothing changes them any more: if it saw just
        those, the books were written, and whatever is wrong with them is no fault of the order (C1, not X6).
        """
        seen: Sequence[Effect] = self._calls[-1:]
        for call in seen:
            told = {name: call.sizes[name] for name in sizes if name in call.sizes}
            wanted = {name: sizes[name] for name in told}
            # An error of its own may have kept them from being written.
            is_written = (
                after is not None and not self.raised and told == {name: after.get(name) for name in told}
            )
            law = "C1" if is_written and told != wanted else "X6"
            self._evidence.expect(law, "sizes inside the observer", wanted, told)
        struck = self._struck
        if self.raised:
            error = self._outcome.result.error if isinstance(self._outcome.result, Failed) else None
            self._evidence.demand(
                "X2", error == INJECTED, "the observer's error", "raised", lambda: self._outcome.result
            )
            self._evidence.meet("an observer raises")
        for call in self._calls:
            if call.note and (call is not struck or self.raised):
                self._evidence.refuse("X6", "calls from inside the observer", "none", call.note)
        if struck is not None and not self.raised:
            self._evidence.expect("X6", "calls from inside the observer", "RuntimeError", struck.note)
            self._evidence.meet("an observer calls the allocator")


_HASHES = range(1, 2**63)


class KVBlockJudge(PoolJudge):
    """Follows every block; which free block is handed out is the allocator's choice.

    The configuration has ``blocks`` beside the dummy, ``policy`` (``"lru"`` or ``"ref_zero"``), and
    ``caching``, true unless it is false.
    """

    KIND: ClassVar[str] = "blocks"
    SIZES_LAW: ClassVar[str] = "C1"

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        self.claims = frozenset(header.capabilities)
        if "callbacks" not in self.claims:
            raise ProgramError(f"{header.adapter} does not claim callbacks: nobody is told which blocks go")
        is_caching = self.config.get("caching") is not False
        self.blocks = BlockModel(self.number("blocks"), is_lru(self.config), is_caching)
        self.suspect = ""  # law that is broken where something differs that the last operation did not change
        self._armed: Fault | None = None
        self.seen = SeenObserver(self.evidence, Outcome(Done()), None)

    def judge(self, step: int, operation: Operation, outcome: Outcome) -> None:
        """Judge one step and follow it in the model; see `pymllm.oracle.judge.Judge`."""
        self.seen = SeenObserver(self.evidence, outcome, self._armed)
        self._armed = None
        super().judge(step, operation, outcome)
        if not isinstance(operation, AllocBlocks | ReleaseBlocks):
            self.seen.check_quiet("C6" if "mamba" in self.claims else "C1")

    def sizes(self) -> dict[str, int]:
        """Return ``pool_avail`` and ``evictable_blocks``."""
        return {"pool_avail": len(self.blocks.free), "evictable_blocks": len(self.blocks.evictable())}

    def refused(self) -> None:
        """Follow a refused operation, which changed nothing and told nobody."""
        self.seen.check_quiet("X1")
        self.suspect = "X1"

    def _judge_fault(self, step: int, operation: Fault, outcome: Outcome) -> str:
        if operation.call not in ("callback", "reenter") or operation.nth < 1:
            raise ProgramError(
                f"{operation}: of blocks only a callback can raise or re-enter, from the first on"
            )
        self.answer(Done, "C1", "a fault to come", outcome)
        self._armed = operation
        return ""

    # -- handing out ---------------------------------------------------------------------------------------

    def _judge_alloc_blocks(self, step: int, operation: AllocBlocks, outcome: Outcome) -> str:
        count, blocks = operation.count, self.blocks
        if count < 0:
            raise ProgramError(f"a number of blocks is not negative, got {count}: use Malformed")
        missing, evictable = max(0, count - len(blocks.free)), blocks.evictable()
        what = f"alloc of {count} blocks, {len(blocks.free)} free and {len(evictable)} evictable"
        if missing > len(evictable):
            return self._fail_alloc(what, outcome)
        self.suspect = ""
        self._follow_evictions(what, missing)
        if self.seen.raised:
            self.evidence.meet("the observer of an eviction raises")
            self.suspect = "X2"
            return "X2"
        taken = self.answer(Slots, "C1", what, outcome).slots
        is_right = len(taken) == count == len(blocks.free.intersection(taken))
        self.evidence.demand("C1", is_right, what, f"{count} of {blocks.free}", lambda: taken)
        self.evidence.meet("nothing is asked for", not count)
        self.evidence.meet("the pool is exhausted", count and count == len(blocks.free))
        blocks.take(taken)
        self.given.record(step, taken)
        return "C1"

    def _fail_alloc(self, what: str, outcome: Outcome) -> str:
        self.answer(NoRoom, self.room_law, what, outcome)
        self.seen.check_quiet(self.room_law)
        self.evidence.count(self.room_law)
        self.evidence.meet("an allocation fails")
        self.evidence.meet("an allocation fails although blocks are cached", self.blocks.evictable())
        self.suspect = self.room_law
        return self.room_law

    def _follow_evictions(self, what: str, missing: int) -> None:
        """Test the victims one by one, each when it was its turn, and let them go."""
        blocks, victims = self.blocks, self.seen.blocks
        if len(victims) != missing:
            self.evidence.refuse("C1", f"evictions of {what}", missing, victims)
        if not victims:
            return
        hashes = {block: blocks.hash_of[block] for block in victims if block in blocks.hash_of}
        note_victims(self.evidence, blocks, victims)
        for block in victims:
            self._check_victim(block)
            blocks.drop([block])
        self._lose("C6", victims, hashes)

    def _check_victim(self, block: int) -> None:
        leaves, stamps = self.blocks.leaves(), self.blocks.stamps
        if block not in leaves:
            self.evidence.refuse("C1", "an evicted block", f"one of {sorted(leaves)}", block)
        oldest = min(stamps[leaf] for leaf in leaves)
        if "exact_lru" in self.claims and stamps[block] != oldest:
            turn = sorted(leaf for leaf in leaves if stamps[leaf] == oldest)
            self.evidence.refuse("C1", "the least recent block", f"one of {turn}", block)
        if len(self.blocks.hash_of) > 1:
            self.evidence.count("C1")

    def _lose(
        self,
        law: str,
        gone: Sequence[int],
        hashes: Mapping[int, int],
        after: Mapping[str, int] | None = None,
    ) -> None:
        """Follow blocks that were deregistered or became free; where nobody is told, a law is broken."""
        self.seen.check(law if "mamba" in self.claims else "C1", gone, hashes)
        self.seen.check_inside(KVBlockJudge.sizes(self), after)

    # -- references ----------------------------------------------------------------------------------------

    def _judge_retain_blocks(self, step: int, operation: RetainBlocks, outcome: Outcome) -> str:
        blocks = self.given.resolve(operation.blocks)
        if self.note_faults(blocks):
            return self.expect_refusal("C1", f"retain of {blocks}", outcome, "OwnershipError")
        self._expect_done("C1", f"retain of {blocks}", outcome)
        self.evidence.meet("a block is retained twice in one call", len(blocks) > len({*blocks}))
        self.evidence.meet("a cached block is taken up again", not all(self.blocks.refs[it] for it in blocks))
        self.blocks.retain(blocks)
        return "C1"

    def _judge_release_blocks(self, step: int, operation: ReleaseBlocks, outcome: Outcome) -> str:
        blocks, refs = self.given.resolve(operation.blocks), self.blocks.refs
        faults = self.note_faults(blocks)
        over = [] if faults else [block for block, times in Counter(blocks).items() if times > refs[block]]
        self.evidence.meet("more is released than is held", over)
        self.evidence.meet("a good block stays with a bad one", over and len({*blocks}) > len(over))
        if faults or over:
            return self.expect_refusal("C1", f"release of {blocks}", outcome, "OwnershipError")
        return self._follow_release(blocks, outcome)

    def _follow_release(self, blocks: Sequence[int], outcome: Outcome) -> str:
        self.suspect = ""
        hashes = dict(self.blocks.hash_of)
        note_release(self.evidence, self.blocks, blocks)
        gone = self.blocks.release(blocks)
        # If they did not even become free, that says more than that nobody was told.
        is_freed = outcome.sizes.get("pool_avail", len(self.blocks.free)) == len(self.blocks.free)
        law = "C6" if is_freed else "C1"
        self._lose(law, gone, {it: hashes[it] for it in gone if it in hashes}, outcome.sizes)
        if self.seen.raised:
            self.suspect = "X2"
            return "X2"
        self.answer(Done, "C1", f"release of {list(blocks)}", outcome)
        return "C1"

    def note_faults(self, blocks: Sequence[int]) -> list[str]:
        """Note what is wrong with naming some blocks, and return it."""
        faults = self.blocks.faults_of(blocks)
        for fault in faults:
            self.evidence.meet(fault)
        self.evidence.meet("a good block stays with a bad one", faults and len({*blocks}) > len(faults))
        return faults

    # -- hashes and stamps ---------------------------------------------------------------------------------

    def _judge_register_blocks(self, step: int, operation: RegisterBlocks, outcome: Outcome) -> str:
        blocks, hashes, parents = self.given.resolve(operation.blocks), operation.hashes, operation.parents
        what = f"registration of {blocks} under {hashes} below {parents}"
        if self.note_faults(blocks) or self._is_misnamed(blocks, hashes, parents):
            return self.expect_refusal("C3", what, outcome, *MALFORMED_ERRORS)
        for at, above in enumerate(parents or ()):
            if above in hashes[at + 1 :] and above not in hashes[:at]:
                raise ProgramError(f"{what}: a block stands before its parent")
        self._expect_done("C3", what, outcome)
        note_register(self.evidence, self.blocks, self.blocks.register(blocks, hashes, parents))
        return "C3"

    def _is_misnamed(
        self, blocks: Sequence[int], hashes: Sequence[int], parents: Sequence[int] | None
    ) -> bool:
        """Tell whether hashes are missing, no hashes, or not those of their blocks."""
        counts = {len(blocks), len(hashes), len(blocks if parents is None else parents)}
        no_hashes = [
            it for it in (*hashes, *(above for above in parents or () if above)) if it not in _HASHES
        ]
        given: dict[int, int] = {}
        pairs = zip(blocks, hashes, strict=False)
        others = [it for it in pairs if given.setdefault(it[0], self.blocks.hash_of.get(*it)) != it[1]]
        self.evidence.meet("hashes that are missing or none are refused", len(counts) > 1 or no_hashes)
        self.evidence.meet("another hash is refused", others)
        return bool(len(counts) > 1 or no_hashes or others)

    def _judge_stamp_blocks(self, step: int, operation: StampBlocks, outcome: Outcome) -> str:
        blocks = self.given.resolve(operation.blocks)
        if any(block not in range(self.blocks.usable + 1) for block in blocks):
            self.evidence.meet("a stamp outside is refused")
            what = f"stamps of {blocks}"
            return self.expect_refusal("X1", what, outcome, "IndexError", "OwnershipError")
        if self.blocks.faults_of(blocks):
            raise ProgramError(f"of {blocks} some are nobody's, and need no stamp")
        self._expect_done("C1", f"stamps of {blocks}", outcome)
        self.blocks.stamp(blocks)
        return "C1"

    def _judge_set_clock(self, step: int, operation: SetClock, outcome: Outcome) -> str:
        self._expect_done("C1", "the clock", outcome)
        self.evidence.meet("the clock goes back", operation.clock < self.blocks.clock)
        self.blocks.clock = operation.clock
        return "C1"

    def _expect_done(self, law: str, what: str, outcome: Outcome) -> None:
        """Test that something was done, and that nobody was told of it."""
        self.suspect = ""
        self.answer(Done, law, what, outcome)
        self.seen.check_quiet(law)
