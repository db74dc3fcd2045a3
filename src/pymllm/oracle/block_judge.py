"""The judge of block allocators and of the states cached beside them (C1 to C7, C9, X1, X2, X4, X6, X7)."""

from __future__ import annotations

from collections.abc import Sequence

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    Inspect,
    ReadLive,
    ReadStates,
    Reset,
    RestoreLive,
    SaveLive,
    StoreState,
    WriteLive,
)
from pymllm.history.outcomes import BlockBooks, Done, Number, Outcome, States
from pymllm.oracle.block_slot_judge import BlockSlotJudge
from pymllm.oracle.block_views import find_wrong_view
from pymllm.oracle.pool_judge import MALFORMED_ERRORS

__all__ = ["BlockJudge"]


class BlockJudge(BlockSlotJudge):
    """Judges every operation of the kind; its bases those on blocks and slots.

    Parameters
    ----------
    header : Header
        As of `BlockSlotJudge`.
    """

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
