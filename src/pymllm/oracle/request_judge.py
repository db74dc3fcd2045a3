"""The judge of whole requests over blocks and cached states: laws C1 to C9 and E1 to E5."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any, ClassVar, TypeVar

from pymllm.errors import ProgramError
from pymllm.history.codec import name_of
from pymllm.history.files import Header
from pymllm.history.operations import (
    OPERATIONS_OF,
    AddRequest,
    Fault,
    Inspect,
    Malformed,
    Operation,
    Pause,
    Release,
    Reset,
    Resume,
    RunStep,
    ScheduleChunk,
)
from pymllm.history.outcomes import ContextView, Done, NoRoom, Outcome, RequestView, Unsupported
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.models.kind_model import MALFORMED_ERRORS
from pymllm.oracle.models.request_model import PAUSED, PREFILL, WAITING, RequestModel, ServedRequest
from pymllm.oracle.request_steps import RequestBooks, StepJudge, check_request, check_view

R = TypeVar("R")


class RequestJudge:
    """Follows a context from outside: what it must answer is predicted, which free block it takes is not."""

    KIND: ClassVar[str] = "requests"

    def __init__(self, header: Header) -> None:
        self.evidence = Evidence()
        self.can_refuse = "refusals" in header.capabilities  # else a program with misuse has no meaning
        self._sizes: dict[str, int] | None = None
        self.books = RequestBooks(header, self.evidence)
        self._steps = StepJudge(self.books)

    @property
    def model(self) -> RequestModel:
        """What requests there are, and what is cached."""
        return self.books.model

    def judge(self, step: int, operation: Operation, outcome: Outcome) -> None:
        """Judge one step and follow it; what was to fail in it is forgotten then."""
        method = self._method_for(type(operation))
        before = self.sizes() if self._sizes is None else self._sizes
        law = "C1"
        if not isinstance(outcome.result, Unsupported):
            law = method(step, operation, outcome)
        now = self.sizes()
        self._test_sizes(law, before, now, outcome.sizes)
        self._sizes = now
        if not isinstance(operation, Fault):
            self.books.fault = None

    def _method_for(self, operation: type[Operation]) -> Callable[[int, Any, Outcome], str]:
        if operation not in OPERATIONS_OF["requests"]:
            raise ProgramError(f"{name_of(operation)} is no operation of kind requests")
        method: Callable[[int, Any, Outcome], str] = getattr(self, f"_judge_{name_of(operation)}")
        return method

    def check_end(self) -> None:
        """Judge what is left at the end: nothing, since what these hold is compared wherever it is read."""

    def sizes(self) -> dict[str, int]:
        """Return the counts of blocks, slots and requests."""
        return self.model.sizes()

    # -- requests in ---------------------------------------------------------------------------------------

    def _judge_add_request(self, step: int, operation: AddRequest, outcome: Outcome) -> str:
        model, most = self.model, min(self.model.max_blocks, self.model.blocks.usable)
        is_long = model.blocks_for(len(operation.tokens)) > most
        is_odd = not operation.tokens or any(not 0 <= token < 2**32 for token in operation.tokens)
        if is_long or is_odd or not self._is_limit(operation.limit):
            self.evidence.meet("a prompt that can never fit is refused", is_long)
            return self._refused("a request that cannot be served", outcome, "ValueError")
        if len(model.served) == model.max_requests:
            self.evidence.meet("no row is left for a request")
            return self._no_room("a request without a row", outcome)
        request = model.meet(step, operation.tokens, operation.limit)
        self._note_match(request)
        missing = model.missing(request)
        asks = {"allocate_blocks": missing, "restore_state": request.skip and model.layers}
        if self.books.is_struck(outcome, *(call for call, count in asks.items() if count)):
            return self.books.survive("a request that could not be added leaves no trace", outcome)
        if self._is_short(missing, model.room(request.blocks), "a request", outcome):
            return "X4"
        made = [call for call, count in {**asks, "no_blocks": missing}.items() if count]
        self.books.demand_strike("a request", outcome, *made)
        model.blocks.retain(request.blocks)
        view = self._take(request, missing, outcome)
        model.served[step] = request
        check_request(self.books, request, view)
        self.evidence.count(*(["E4"] if missing else []))
        self._note_admission(request)
        return "C1"

    def _judge_schedule_chunk(self, step: int, operation: ScheduleChunk, outcome: Outcome) -> str:
        request = self.books.find(operation.request, "take a chunk")
        if request is None or request.region != WAITING or not self._is_limit(operation.limit):
            self.evidence.meet("a chunk is refused to a request that does not wait", request)
            return self._refused("a chunk", outcome, "UsageError", "ValueError")
        chunk, request.chunk = request.chunk, request.plan_chunk(operation.limit)
        missing = self.model.missing(request)
        if missing and self.books.is_struck(outcome, "allocate_blocks"):
            request.chunk = chunk
            return self.books.survive("a chunk that could not be scheduled leaves no trace", outcome)
        if self._is_short(missing, self.model.room(), "a chunk", outcome):
            request.chunk = chunk
            return "X4"
        if missing:
            self.books.demand_strike("a chunk", outcome, "allocate_blocks", "no_blocks")
        request.region = PREFILL
        view = self._take(request, missing, outcome)
        check_request(self.books, request, view)
        self.evidence.count(*(["E4"] if missing else []))
        self.evidence.meet("a prompt is computed in several chunks", request.computed)
        return "C1"

    @staticmethod
    def _is_limit(limit: int | None) -> bool:
        return limit is None or limit >= 1

    def _is_short(self, missing: int, room: int, what: str, outcome: Outcome) -> bool:
        """Judge whether there was too little room, by the answer (E4, X4)."""
        if missing > room:
            self.evidence.meet(f"too few blocks are left for {what}")
            self._no_room(f"{what} that needs {missing} blocks of {room}", outcome)
            return True
        if missing and self.books.is_armed("no_blocks") and isinstance(outcome.result, NoRoom):
            self.books.survive(f"{what} finds no room where there is some", outcome)
            return True
        return False

    def _no_room(self, what: str, outcome: Outcome) -> str:
        self.answer(NoRoom, "X4", what, outcome)
        self.evidence.count("X4")
        self.books.check_effects("X4", what, (), outcome)
        return "X4"

    def _take(self, request: ServedRequest, missing: int, outcome: Outcome) -> RequestView:
        """Follow a request that gets its blocks."""
        states = {*self.model.slots.slot_of}
        view = self.answer(RequestView, "E4", f"room for {missing} blocks", outcome)
        victims = self.model.evict(missing)
        self.books.check_effects("C1", "an eviction", victims, outcome)
        if not request.computed:
            self._judge_hit(request, view)
        self.model.extend(request, self.books.check_new(request, view.blocks, missing))
        self.evidence.meet("cached blocks are evicted to make room", victims)
        self.evidence.meet("a state goes with its block", states.intersection(victims))
        return view

    def _judge_hit(self, request: ServedRequest, view: RequestView) -> None:
        """Test which blocks a request shares: at the start of its row those that were not free (C3)."""
        shared = tuple(takewhile(lambda block: block not in self.model.blocks.free, view.blocks))
        what = f"blocks that request {request.step} shares"
        self.evidence.expect("C3", what, tuple(request.blocks), shared)

    def _note_match(self, request: ServedRequest) -> None:
        blocks, hit = self.model.blocks, len(request.blocks)
        if hit < len(request.prefixes):
            found = blocks.block_of.get(request.prefixes[hit].hash)
            self.evidence.meet("a hash names a block of other content", found is not None)

    def _note_admission(self, request: ServedRequest) -> None:
        hit = request.matched * self.model.block_size
        meet = self.evidence.meet
        meet("a prompt shares cached blocks", hit)
        meet("a full hit leaves a token to compute", hit == request.prompt)
        if self.model.layers:
            meet("a request resumes from a cached state", request.skip)
            meet("cached KV is computed again for its state", request.skip < hit < request.prompt)

    # -- set aside, and out --------------------------------------------------------------------------------

    def _judge_pause(self, step: int, operation: Pause, outcome: Outcome) -> str:
        request = self.books.find(operation.request, "pause")
        if request is None or request.region == PAUSED:
            self.evidence.meet("a paused request is paused again", request)
            return self._refused("a pause", outcome, "UsageError")
        kept = self.model.paused_with(request)
        self.books.check_effects("C1", "a pause", (), outcome)
        if kept > self.model.paused_limit:
            self.answer(NoRoom, "C1", f"{kept} blocks of paused requests", outcome)
            self.evidence.count("C1")
            self.evidence.meet("a pause would keep too many blocks")
            return "X4"
        self.answer(Done, "C1", f"a pause that keeps {kept} of {self.model.paused_limit} blocks", outcome)
        self.evidence.meet("a scheduled chunk is given up by a pause", request.chunk)
        request.region, request.chunk = PAUSED, 0
        return "C1"

    def _judge_resume(self, step: int, operation: Resume, outcome: Outcome) -> str:
        request = self.books.find(operation.request, "go on")
        if request is None or request.region != PAUSED:
            self.evidence.meet("a request is resumed that is not paused", request)
            return self._refused("a resumption", outcome, "UsageError")
        self.answer(Done, "C1", "a resumption", outcome)
        self.books.check_effects("C1", "a resumption", (), outcome)
        request.region = request.resting_region
        self.evidence.meet("a paused request goes on")
        return "C1"

    def _judge_release(self, step: int, operation: Release, outcome: Outcome) -> str:
        request = self.books.find(operation.request, "leave")
        if request is None:
            self.evidence.meet("a request is released twice")
            return self._refused("a release", outcome, "UsageError")
        self.answer(Done, "E3", "a release", outcome)
        states = {*self.model.slots.slot_of}
        shared = [block for block in request.blocks if self.model.blocks.refs[block] > 1]
        freed = self.model.release(request)
        self.books.check_effects("C6" if states.intersection(freed) else "C1", "a release", freed, outcome)
        meet = self.evidence.meet
        meet("shared blocks outlive one of their requests", shared)
        meet("a request leaves in the middle of its prompt", 0 < request.computed < request.prompt)
        meet("a request leaves before it has computed anything", not request.computed)
        meet("a paused request leaves", request.region == PAUSED)
        meet("a request leaves after a step that failed", request.is_spoiled)
        return "E3"

    def _judge_reset(self, step: int, operation: Reset, outcome: Outcome) -> str:
        self.answer(Done, "C9", "reset", outcome)
        self.books.check_effects("X7", "a reset", (), outcome)
        if self.model.served or self.model.blocks.hash_of:
            self.evidence.expect("X7", "callbacks of a reset", (), outcome.effects)
        self.evidence.meet("a reset takes requests with it", self.model.served)
        self.model.clear()
        return "C9"

    # -- steps, looks, failures ----------------------------------------------------------------------------

    def _judge_run_step(self, step: int, operation: RunStep, outcome: Outcome) -> str:
        return self._steps.judge(operation, outcome, self)

    def _judge_inspect(self, step: int, operation: Inspect, outcome: Outcome) -> str:
        check_view(self.books, self.answer(ContextView, "E2", "a look inside", outcome))
        self.books.check_effects("C6" if self.books.has_states else "C1", "a look inside", (), outcome)
        return "C1"

    def _judge_fault(self, step: int, operation: Fault, outcome: Outcome) -> str:
        if operation.nth < 1:
            raise ProgramError(f"{operation}: the calls of the next operation are counted from 1")
        self.answer(Done, "X2", "a fault to come", outcome)
        self.books.check_effects("C6" if self.books.has_states else "C1", "a fault to come", (), outcome)
        self.books.fault = operation
        return "C1"

    def _judge_malformed(self, step: int, operation: Malformed, outcome: Outcome) -> str:
        self.evidence.meet("a malformed call is refused")
        what = f"{operation.call} with {operation.wrong}"
        return self._refused(what, outcome, *MALFORMED_ERRORS, "RuntimeError")

    def _refused(self, what: str, outcome: Outcome, *errors: str) -> str:
        """Judge a call that must be refused; it gives no block up."""
        law = self.expect_refusal("X1", what, outcome, *errors)
        self.books.check_effects("X1", what, (), outcome)
        return law

    # -- what operations share -----------------------------------------------------------------------------

    def answer(self, kind: type[R], law: str, what: str, outcome: Outcome) -> R:
        """Return the result, which must be of a kind; otherwise ``law`` is broken."""
        if not isinstance(outcome.result, kind):
            self.evidence.refuse(law, what, name_of(kind), outcome.result)
        return outcome.result

    def expect_refusal(self, law: str, what: str, outcome: Outcome, *errors: str) -> str:
        """Judge an operation that must be refused with one of some errors, and return the law of its traces.

        A `ProgramError` where the adapter does not claim that it refuses anything.
        """
        if not self.can_refuse:
            raise ProgramError(f"{what} must be refused, and the adapter does not claim to refuse misuse")
        self.evidence.expect_error(law, what, outcome, *errors)
        return "X1"

    def _test_sizes(
        self, law: str, before: dict[str, int], now: dict[str, int], found: dict[str, int]
    ) -> None:
        """Test the sizes that were found against those that the model knows now."""
        if found != now:  # not all are told, or one is wrong
            told = {name: size for name, size in found.items() if name in now}
            wanted = {name: now[name] for name in told}
            if told != wanted:
                # What a first operation did not change was wrong before it.
                was_wrong = self._sizes is None and now == before
                self.evidence.refuse("C1" if was_wrong else law, "sizes", wanted, told)
        if now != before and any(now[name] != size for name, size in before.items() if name in found):
            self.evidence.count(law)
