"""The model of contexts of whole requests: the expected outcomes, and the state of requests and blocks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    AddRequest,
    EndTransfer,
    Fault,
    Operation,
    Pause,
    Release,
    Reset,
    Resume,
    RunStep,
    ScheduleChunk,
    TakeEvents,
    Token,
    TransferRequest,
    Truncate,
)
from pymllm.history.outcomes import (
    INJECTED,
    CacheEvent,
    Failed,
    NoRoom,
    Outcome,
    Ran,
    RequestRun,
    Result,
)
from pymllm.oracle.models.cold_runs import Prefix
from pymllm.oracle.models.kind_model import (
    DONE,
    MALFORMED_ERRORS,
    NO_ROOM,
    REFUSED,
    STRUCK,
    KindModel,
    Misuse,
    Seen,
)
from pymllm.oracle.models.request_model import (
    DECODE,
    PAUSED,
    PREFILL,
    WAITING,
    Kept,
    Leaving,
    Offer,
    RequestModel,
    ServedRequest,
    priority,
)
from pymllm.oracle.models.told_events import EventFold, Hash, SeenEvents

TURNED_AWAY, UNSTRUCK, CUT_SHORT, BROKEN = "turned away", "unstruck", "cut short", "broken"
"""Results of operations under a fault: refused as armed, not failed as armed, failed midway as armed; and
failed midway without a fault."""

FORWARD, COMMIT = ("forward",), ("allocate_slots", "store_states")
"""Calls that a fault can make fail after a step has begun."""

_UNUSABLE = ("UsageError",)
_NEVER_FITS = Misuse("a prompt that can never fit is refused", errors=("ValueError",))
_NO_PROMPT = Misuse("", errors=("ValueError",), name="a request that cannot be served")
_NO_RESERVE = Misuse("", errors=("ValueError",), name="a reserve below 0")
_NO_LIMIT = Misuse("", errors=("UsageError", "ValueError"), name="a chunk of nothing")
_NOT_WAITING = Misuse("a chunk is refused to a request that does not wait", errors=_NO_LIMIT.errors)
_PAUSED_AGAIN = Misuse("a paused request is paused again", errors=_UNUSABLE)
_NOT_PAUSED = Misuse("a request is resumed that is not paused", errors=_UNUSABLE)
_NOT_COMPUTED = Misuse("a request is cut whose prompt is not computed", errors=_UNUSABLE)
_NO_CUT = Misuse("", errors=("ValueError",), name="a cut before the prompt's end or behind what is computed")
_NO_TOKEN = Misuse("", errors=("ValueError",), name="a next token that is none")
_SHARED_END = Misuse("a tail is cut inside a block that others have", errors=_UNUSABLE)
_OVER = Misuse(
    "the end of a transfer that is over is refused", "C1", ("OwnershipError",), needs="refuses_double_free"
)
_RELEASED_AGAIN = Misuse("a request is released twice", errors=_UNUSABLE, needs="refuses_double_free")
_GONE = Misuse("", errors=_UNUSABLE, name="the use of a request that is gone", needs="refuses_double_free")
_NO_CHUNK = Misuse(
    "", errors=_NO_LIMIT.errors, name="a chunk of a request that is gone", needs="refuses_double_free"
)
_TOO_LONG = Misuse("a request is as long as it may be", errors=_UNUSABLE, name="a step beyond a row's end")


@dataclass(slots=True, kw_only=True)
class SeenContext(Seen):
    """An operation as read, with the blocks that it must deregister or free.

    ``missing`` is how many blocks it needs, ``kept_back`` how many more must be left, and ``room`` how many
    are free or evictable for it.
    """

    lost: Sequence[int] = ()
    missing: int = 0
    kept_back: int = 0
    room: int = 0

    @property
    def is_kept_out(self) -> bool:
        """Whether the request is refused only because too few free blocks would be left."""
        return self.room - self.kept_back < self.missing <= self.room


@dataclass(slots=True, kw_only=True)
class SeenRequest(SeenContext):
    """An operation on one request."""

    request: ServedRequest


@dataclass(slots=True, kw_only=True)
class SeenChunk(SeenRequest):
    """A request that needs blocks for a chunk of so many tokens."""

    chunk: int


@dataclass(kw_only=True)
class SeenStep(SeenContext):
    """A step, with the requests that must take part in it.

    What must be registered and kept depends on the blocks that were told, and is asked for once these are
    known to be right.
    """

    context: RequestModel
    decoding: Sequence[ServedRequest]
    chunks: Sequence[ServedRequest]

    @cached_property
    def runs(self) -> list[tuple[ServedRequest, RequestRun]]:
        """Each request of the batch, with the reported result of its run."""
        return [(self.context.served[run.request], run) for run in self.result.requests]

    @property
    def lone(self) -> Sequence[int]:
        """The blocks of the only decoding request; empty if several requests decode."""
        return self.runs[0][1].blocks if len(self.decoding) == 1 else ()

    @cached_property
    def new(self) -> list[int]:
        """The new blocks that the step gave to requests."""
        return [block for request, run in self.runs for block in run.blocks[len(request.blocks) :]]

    @cached_property
    def dropped(self) -> list[int]:
        """Blocks that lost their states without being evicted."""
        return [block for block in self.result.dropped if block not in self.lost]

    @cached_property
    def offers(self) -> list[Offer]:
        """The registrations that the step must make; a failed step may have made none."""
        if self.result.error and not self.result.registered:
            return []
        rows = [(request, run.blocks) for request, run in self.runs]
        return self.context.plan_registration(rows, self.lost)

    @cached_property
    def registered(self) -> list[int]:
        """The blocks that must be registered."""
        return [one.block for offer in self.offers for one in offer.made]

    @cached_property
    def leaving(self) -> list[Leaving]:
        """The states that the step leaves to be cached."""
        leaving = self.context.leaving
        return [each for request, run in self.runs for each in leaving(request, run.row, run.blocks)]

    @cached_property
    def wanted(self) -> list[int]:
        """The hashed blocks for which the step leaves states, in order of priority."""
        known = self.context.blocks.hash_of
        return [it for it in priority(self.leaving) if it in known or it in self.registered]

    @cached_property
    def commit(self) -> Kept:
        """The blocks that must get a state, lose a state, or go without for lack of room."""
        return self.context.plan_commit(self.wanted, self.lost)


def _is_limit(limit: int | None) -> bool:
    return limit is None or limit >= 1


def _are_tokens(tokens: Sequence[int]) -> bool:
    return bool(tokens) and min(tokens) >= 0 and max(tokens) < 2**32


class RequestsModel(KindModel):
    """The model of a context of requests; it predicts results and copies the choice of free blocks.

    Attributes
    ----------
    context : RequestModel
        What requests there are, and what is cached.
    """

    KIND: ClassVar[str] = "requests"
    malformed_errors = (*MALFORMED_ERRORS, "RuntimeError")

    def __init__(self, header: Header) -> None:
        super().__init__(header)
        self.context = RequestModel(header.config)
        self._fault: Fault | None = None  # what is to happen in the next operation
        self.events = EventFold(self.context.block_size, self._told_block)
        if self.context.has_states != ("mamba" in self.claims):
            raise ProgramError("an adapter with slots for states claims mamba, and no other does")

    def _told_block(
        self, above: tuple[Hash, Prefix] | None, event: CacheEvent, hash: Hash, tokens: tuple[Token, ...]
    ) -> tuple[Hash, Prefix]:
        numbers = tuple(token for token in tokens if isinstance(token, int))
        if len(numbers) < len(tokens) or not _are_tokens(numbers):
            raise ProgramError(f"an event tells tokens {tokens}; a context has integers in 0..2**32-1")
        return hash, self.context.cold.below(None if above is None else above[1], numbers)

    def read_take_events(self, operation: TakeEvents, outcome: Outcome) -> Seen:
        """Read events, next to the registered blocks, each with the prompt up to its end."""
        if "events" not in self.claims:
            raise ProgramError("events are not claimed")
        hash_of, prefix_of = self.context.blocks.hash_of, self.context.prefix_of
        return self.events.read(outcome, {"kv": {(it, prefix_of[block]) for block, it in hash_of.items()}})

    def follow_take_events(self, step: int, operation: TakeEvents, seen: SeenEvents) -> None:
        """Record the events that were emitted."""
        self.events.follow(seen)

    def sizes(self) -> dict[str, int]:
        """Return the counts of blocks, slots and requests."""
        return self.context.sizes()

    def end_step(self, operation: Operation, told: Mapping[str, int]) -> None:
        """Forget a fault that was armed for this operation only."""
        if not isinstance(operation, Fault):
            self._fault = None

    @property
    def armed(self) -> str:
        """The call that was made to fail in this operation, or "" for none."""
        return "" if self._fault is None else self._fault.call

    def must_fail(self, calls: Collection[str], made: int = 1) -> bool:
        """Tell whether an armed fault must strike, given how often each of these calls is made."""
        return self._fault is not None and self._fault.call in calls and self._fault.nth <= made

    # -- reading -------------------------------------------------------------------------------------------

    def read(self, operation: Operation, outcome: Outcome) -> SeenContext:
        """Read the outcome of an operation that names no request."""
        return SeenContext(outcome.result)

    @staticmethod
    def refused(outcome: Outcome, *wrong: Misuse) -> SeenContext:
        """Return an operation as read that must be refused."""
        return SeenContext(outcome.result, REFUSED, wrong)

    def _find(self, step: int, *, is_leaving: bool = False) -> ServedRequest | None:
        """Return the request that a step added, or ``None`` if it was released."""
        if step in self.context.gone:
            return None
        if step not in self.context.served:
            raise ProgramError(f"step {step} added no request")
        request = self.context.served[step]
        if request.is_spoiled and not is_leaving:
            raise ProgramError(
                f"the request of step {step} was in a step that failed; it can only be released"
            )
        return request

    def _fate(self, calls: Collection[str], missing: int, room: int, answer: Result, full: type) -> str:
        """Return how an operation must end, given the blocks it needs, the room, and the calls it makes.

        Where it finds none it answers with a result of another class.
        """
        if isinstance(answer, Failed) and answer.error == INJECTED and self.armed in calls:
            return STRUCK
        if missing > room:
            return NO_ROOM
        if missing and self.armed == "no_blocks" and isinstance(answer, full):
            return TURNED_AWAY
        is_due = "faults" in self.claims and self.must_fail((*calls, "no_blocks") if missing else calls)
        return UNSTRUCK if is_due else DONE

    # -- requests in ---------------------------------------------------------------------------------------

    def read_add_request(self, operation: AddRequest, outcome: Outcome) -> SeenContext:
        """Read the admission of a request, whose prompt must fit: its shared blocks and its new ones."""
        context, tokens = self.context, operation.tokens
        checks = (
            (_NEVER_FITS, context.blocks_for(len(tokens)) > min(context.max_blocks, context.blocks.usable)),
            (_NO_PROMPT, not (_are_tokens(tokens) and _is_limit(operation.limit))),
            (_NO_RESERVE, operation.reserve is not None and operation.reserve < 0),
        )
        if wrong := [misuse for misuse, is_so in checks if is_so]:
            return self.refused(outcome, *wrong)
        if len(context.served) == context.max_requests:
            return SeenContext(outcome.result, NO_ROOM)
        request = context.meet(self.step, tokens, operation.limit)
        missing, room = context.missing(request), context.room(request.blocks)
        calls = ["allocate_blocks"] if missing else []
        if request.skip and context.layers:
            calls.append("restore_state")
        kept_back = 0
        if operation.reserve is not None:
            kept_back = context.blocks_for(len(tokens)) - len(request.blocks) - missing + operation.reserve
        return self._read_chunk(request, request.chunk, calls, missing, room, outcome, kept_back)

    def _read_chunk(
        self,
        request: ServedRequest,
        chunk: int,
        calls: Collection[str],
        missing: int,
        room: int,
        outcome: Outcome,
        kept_back: int = 0,
    ) -> SeenChunk:
        result, blocks = outcome.result, self.context.blocks
        fate = self._fate(calls, missing, room - kept_back, result, NoRoom)
        seen = SeenChunk(
            result,
            fate,
            missing=missing,
            kept_back=kept_back,
            room=room,
            request=request,
            chunk=chunk,
        )
        if fate == DONE:
            seen.lost = blocks.least_recent(missing - len(blocks.free), request.blocks)
        return seen

    def follow_add_request(self, step: int, operation: AddRequest, seen: SeenChunk) -> None:
        """Add a request with its blocks, if there was room."""
        if seen.fate == DONE:
            self.context.blocks.retain(seen.request.blocks)
            self.context.served[step] = seen.request
            self._follow_chunk(seen)

    def read_schedule_chunk(self, operation: ScheduleChunk, outcome: Outcome) -> SeenContext:
        """Read the blocks given to a waiting request for its next chunk."""
        request = self._find(operation.request)
        checks = (
            (_NO_CHUNK, request is None),
            (_NOT_WAITING, request is not None and request.region != WAITING),
            (_NO_LIMIT, not _is_limit(operation.limit)),
        )
        wrong = [misuse for misuse, is_so in checks if is_so]
        if request is None or wrong:
            return self.refused(outcome, *wrong)
        context, chunk = self.context, request.plan_chunk(operation.limit)
        missing = max(0, context.blocks_for(request.computed + chunk) - len(request.blocks))
        calls = ["allocate_blocks"] if missing else []
        return self._read_chunk(request, chunk, calls, missing, context.room(), outcome)

    def follow_schedule_chunk(self, step: int, operation: ScheduleChunk, seen: SeenChunk) -> None:
        """Give a request its chunk, if there was room."""
        if seen.fate == DONE:
            self._follow_chunk(seen)

    def _follow_chunk(self, seen: SeenChunk) -> None:
        request, context = seen.request, self.context
        request.region, request.chunk = PREFILL, seen.chunk
        context.evict(seen.lost)
        context.extend(request, seen.result.blocks[len(request.blocks) :])

    # -- set aside, and out --------------------------------------------------------------------------------

    def _use(self, step: int, outcome: Outcome, wrong: Misuse, *regions: str) -> SeenContext:
        """Read an operation on a request that must be in one of the given regions."""
        request = self._find(step)
        if request is None:
            return self.refused(outcome, _GONE)
        if request.region not in regions:
            return self.refused(outcome, wrong)
        return SeenRequest(outcome.result, request=request)

    def read_pause(self, operation: Pause, outcome: Outcome) -> SeenContext:
        """Read a pause of a request, which must leave room for all paused requests."""
        seen = self._use(operation.request, outcome, _PAUSED_AGAIN, DECODE, PREFILL, WAITING)
        if isinstance(seen, SeenRequest):
            seen.missing, seen.room = self.context.paused_with(seen.request), self.context.paused_limit
            seen.fate = DONE if seen.missing <= seen.room else NO_ROOM
        return seen

    def follow_pause(self, step: int, operation: Pause, seen: SeenRequest) -> None:
        """Move the request to the paused ones, without its chunk."""
        if seen.fate == DONE:
            seen.request.region, seen.request.chunk = PAUSED, 0

    def read_resume(self, operation: Resume, outcome: Outcome) -> SeenContext:
        """Read the resumption of a paused request."""
        return self._use(operation.request, outcome, _NOT_PAUSED, PAUSED)

    def follow_resume(self, step: int, operation: Resume, seen: SeenRequest) -> None:
        """Return the paused request to its region."""
        seen.request.region = seen.request.resting_region

    def read_truncate(self, operation: Truncate, outcome: Outcome) -> SeenContext:
        """Work out the blocks that a cut gives up: those of the tail, and one that is partly rewritten."""
        request, tokens = self._find(operation.request), operation.tokens
        if request is None:
            return self.refused(outcome, _GONE)
        is_computed = request.computed >= request.prompt
        is_inside = request.prompt <= tokens <= request.computed
        block = self.context.cut_block(request, tokens) if is_inside else None
        checks = (
            (_NOT_COMPUTED, not is_computed),
            (_NO_CUT, is_computed and not is_inside),
            (_NO_TOKEN, not _are_tokens((operation.next_token,))),
            (_SHARED_END, block is not None and self.context.blocks.refs[block] > 1),
        )
        if wrong := [misuse for misuse, is_so in checks if is_so]:
            return self.refused(outcome, *wrong)
        lost = self.context.lost_with_tail(request, tokens)
        return SeenRequest(outcome.result, lost=lost, request=request)

    def follow_truncate(self, step: int, operation: Truncate, seen: SeenRequest) -> None:
        """Cut the request to the given length."""
        self.context.cut(seen.request, operation.tokens, operation.next_token, seen.lost)

    def read_release(self, operation: Release, outcome: Outcome) -> SeenContext:
        """Work out the blocks that go when a request is released from any region."""
        request = self._find(operation.request, is_leaving=True)
        if request is None:
            return self.refused(outcome, _RELEASED_AGAIN)
        lost = self.context.blocks.lost_with(request.blocks)
        return SeenRequest(outcome.result, lost=lost, request=request)

    def follow_release(self, step: int, operation: Release, seen: SeenRequest) -> None:
        """Remove the request with its blocks."""
        self.context.release(seen.request)

    def read_transfer_request(self, operation: TransferRequest, outcome: Outcome) -> SeenContext:
        """Read the start of a transfer of a request in any region."""
        if "transfers" not in self.claims:
            raise ProgramError("transfers are not claimed")
        request = self._find(operation.request, is_leaving=True)
        if request is None:
            return self.refused(outcome, _GONE)
        return SeenRequest(outcome.result, request=request)

    def follow_transfer_request(self, step: int, operation: TransferRequest, seen: SeenRequest) -> None:
        """Add the transfer's references to the present blocks of the request."""
        self.context.begin_transfer(step, seen.request.blocks)

    def read_end_transfer(self, operation: EndTransfer, outcome: Outcome) -> SeenContext:
        """Work out the blocks that go when a transfer ends, which must be under way."""
        if operation.transfer in self.context.ended:
            return self.refused(outcome, _OVER)
        if operation.transfer not in self.context.transfers:
            raise ProgramError(f"step {operation.transfer} began no transfer")
        lost = self.context.blocks.lost_with(self.context.transfers[operation.transfer])
        return SeenContext(outcome.result, lost=lost)

    def follow_end_transfer(self, step: int, operation: EndTransfer, seen: SeenContext) -> None:
        """Remove the references of the transfer."""
        self.context.end_transfer(operation.transfer)

    def follow_reset(self, step: int, operation: Reset, seen: SeenContext) -> None:
        """Forget all blocks, states and live requests."""
        self.context.clear()

    # -- steps, failures -----------------------------------------------------------------------------------

    def read_run_step(self, operation: RunStep, outcome: Outcome) -> SeenContext:
        """Read the outcome of a step, in which no request from a failed step may take part."""
        context, result = self.context, outcome.result
        decoding, chunks = context.of(DECODE), context.of(PREFILL)
        if not _are_tokens(operation.next_tokens):
            raise ProgramError("next_tokens must name one token at least, each in 0 .. 2**32 - 1")
        if any(request.is_spoiled for request in (*decoding, *chunks)):
            raise ProgramError("a request of a step that failed is still there; release it first")
        full = [request for request in decoding if context.missing(request)]
        if any(len(request.blocks) == context.max_blocks for request in full):
            return self.refused(outcome, _TOO_LONG)
        missing, room = len(full), context.room()
        fate = self._fate(["allocate_blocks"] if missing else [], missing, room, result, Failed)
        seen = SeenStep(
            result,
            fate,
            missing=missing,
            room=room,
            context=context,
            decoding=decoding,
            chunks=chunks,
        )
        if fate == DONE:
            seen.lost = context.blocks.least_recent(missing - len(context.blocks.free))
            if isinstance(result, Ran) and result.error:
                is_due = self.armed in COMMIT or self.must_fail(FORWARD, len(decoding) + len(chunks))
                seen.fate = CUT_SHORT if is_due and result.error == INJECTED else BROKEN
        return seen

    def follow_run_step(self, step: int, operation: RunStep, seen: SeenStep) -> None:
        """Apply the results of a step; for a step that failed midway, only the results that it reports."""
        if seen.fate not in (DONE, CUT_SHORT):
            return
        context, ran, tokens = self.context, seen.result, operation.next_tokens
        offers, sampling = seen.offers, sorted(it.step for it, _ in seen.runs if it.is_at_its_end)
        if seen.decoding:
            context.lone = seen.lone
        context.evict(seen.lost)
        context.register(offers)
        for request, run in seen.runs:
            context.extend(request, run.blocks[len(request.blocks) :])
            if ran.error:
                request.is_spoiled = True
            else:
                place = sampling.index(request.step) if request.is_at_its_end else 0
                context.finish_step(request, tokens[place % len(tokens)])
        if context.has_states:
            context.slots.drop(seen.dropped)
            context.slots.slot_of.update({each.block: each.slot for each in ran.kept})

    def read_fault(self, operation: Fault, outcome: Outcome) -> SeenContext:
        """Read the fault to arm for the next operation."""
        if operation.nth < 1:
            raise ProgramError(f"{operation}: the calls of the next operation are counted from 1")
        return self.read(operation, outcome)

    def follow_fault(self, step: int, operation: Fault, seen: SeenContext) -> None:
        """Remember the fault for the next operation."""
        self._fault = operation
