"""The laws of contexts of requests in the judge: their order, expected results, and coverage goals."""

from __future__ import annotations

from functools import partial

from pymllm.history.operations import (
    AddRequest,
    EndTransfer,
    Fault,
    Inspect,
    Operation,
    Pause,
    Release,
    Reset,
    Resume,
    RunStep,
    ScheduleChunk,
    TakeEvents,
    TransferRequest,
    Truncate,
)
from pymllm.history.outcomes import ContextView, Done, Ran, RequestView, ToldEvents
from pymllm.oracle.laws import request_steps  # noqa: F401  (adds its checks to the laws)
from pymllm.oracle.laws.block_kind import LRU
from pymllm.oracle.laws.event_goals import met_by_events
from pymllm.oracle.laws.goal import CACHING, Condition, Met, make_goals
from pymllm.oracle.laws.law import Asked, KindLaws
from pymllm.oracle.models.kind_model import DONE, NO_ROOM, STRUCK
from pymllm.oracle.models.request_model import PAUSED, priority
from pymllm.oracle.models.requests import (
    CUT_SHORT,
    FORWARD,
    TURNED_AWAY,
    RequestsModel,
    SeenChunk,
    SeenContext,
    SeenRequest,
    SeenStep,
)

_goals = partial(make_goals, "requests")

_WEAK = Condition("a weak hash", lambda config: config.get("hash_digits") is not None)
_NOT_ONE_SLOT = Condition("several state slots", lambda config: config.get("mamba_slots") != 1)
_SMALL = Condition("blocks of few tokens", lambda config: config.get("block_size") in range(17))
_FEW_SLOTS = Condition("at most three state slots", lambda config: config.get("mamba_slots") in (1, 2, 3))

GOALS = (
    *_goals(
        ("a prompt is computed in several chunks", "E1 C8", "B80"),
        ("a later chunk is computed", "E1 C8", "B80"),
        ("several requests compute chunks in one step", "E1 E2"),
        ("a step decodes and computes chunks", "E1 E2"),
        ("a decoding request goes on in a new block", "C1 E2"),
        ("no row is left for a request", "E3"),
        ("too few blocks are left for a request", "C1 E4", "B121"),
        ("too few blocks are left for a chunk", "C1 E4", "B112"),
        ("a step finds too few blocks for decoding requests", "C1 E4"),
        ("a paused request goes on", "E1 C7"),
        ("a scheduled chunk is given up by a pause", "E3"),
        ("a pause would keep too many blocks", "C1"),
        ("a paused request leaves", "E3"),
        ("a request leaves in the middle of its prompt", "E3", "B109"),
        ("a request leaves before it has computed anything", "E3", "B67"),
        ("a reset takes requests with it", "C9 E3", "B79"),
    ),
    *_goals(
        ("a request leaves under transfer", "C1 E3"),
        ("a paused request is transferred", "C1 E3"),
        ("a transfer ends whose request is gone", "C1 E3"),
        ("a transfer ends whose request is there", "C1 E3"),
        ("blocks are in two transfers", "C1"),
        ("too few blocks are left beside those of transfers", "C1 E4"),
        ("a reset ends a transfer", "C9"),
        needs="transfers",
    ),
    *_goals(
        ("a prompt shares blocks that only a transfer holds", "C1 C3"),
        needs="transfers",
        when=(CACHING,),
    ),
    *_goals(
        ("the end of a transfer that is over is refused", "C1"),
        needs="transfers refuses_double_free",
    ),
    *_goals(
        ("a prompt shares cached blocks", "C3 E1", "B137"),
        ("a full hit leaves a token to compute", "E4", "B115"),
        ("KV of shared blocks goes to the dummy", "E2 E5"),
        ("a block stays unregistered", "C3", "B127"),
        ("shared blocks outlive one of their requests", "C1 E2", "B118"),
        ("two lone decodes in a row differ behind the first block alone", "E2 E1", "B291"),
        when=(CACHING,),
    ),
    *_goals(
        ("cached blocks are evicted to make room", "C1 E4", "B125"),
        ("cached blocks are evicted for a decoding request", "C1 E4", "B119"),
        when=(CACHING, LRU),
    ),
    *_goals(("a hash names a block of other content", "C3 E1", "B136 B137"), when=(CACHING, _WEAK)),
    *_goals(
        ("a request resumes from a cached state", "C7 E1", "B76 B86"),
        ("cached KV is computed again for its state", "C8 E1", "B80"),
        ("states are extracted inside a chunk", "C7 C8", "B80"),
        ("requests of a step leave the state of one block", "C7"),
        ("a state is not kept, since its block has no hash", "C6 C7"),
        needs="mamba",
        when=(CACHING,),
    ),
    *_goals(("a state goes with its block", "C6"), needs="mamba", when=(CACHING, LRU)),
    *_goals(
        ("a step keeps several states", "C7"),
        needs="mamba",
        when=(CACHING, _NOT_ONE_SLOT),
    ),
    *_goals(
        ("a commit runs out of slots", "C7", "B77 B82"),
        needs="mamba",
        when=(CACHING, _FEW_SLOTS),
    ),
    *_goals(
        ("a commit takes slots from released blocks", "C6 C7", "B85"),
        needs="mamba",
        when=(CACHING, _FEW_SLOTS, LRU),
    ),
    *_goals(
        ("a prompt that can never fit is refused", "E4"),
        ("a request is as long as it may be", "E2"),
        ("a chunk is refused to a request that does not wait", "X1"),
        ("a paused request is paused again", "X1"),
        ("a request is resumed that is not paused", "X1"),
        needs="refuses_bad_arguments",
    ),
    *_goals(("a malformed call is refused", "X1"), needs="refuses_malformed"),
    *_goals(
        ("a request is released twice", "X1 C1", "B104"),
        needs="refuses_double_free",
    ),
    *_goals(
        ("a reserve keeps a request out that would fit", "E4"),
        ("a request leaves its reserve to the block", "E4"),
        needs="reserve",
    ),
    *_goals(
        ("a reserve would be met by what a prompt shares", "E4"),
        needs="reserve",
        when=(CACHING, LRU),
    ),
    *_goals(
        ("rejected drafts reach over a block's end", "C1 E2"),
        ("a paused request is cut", "E2"),
        needs="truncate",
    ),
    *_goals(
        ("a tail is cut inside a block with a hash", "C3", "B290"),
        ("a block's last token is replaced before it is computed", "C3", "B290"),
        ("a block that was cut is registered anew", "C3 E1"),
        ("a cut request is known again", "C3"),
        needs="truncate",
        when=(CACHING,),
    ),
    *_goals(
        ("a cut takes along what others had built on its block", "C1 C3"),
        needs="truncate",
        when=(CACHING, LRU),
    ),
    *_goals(
        ("what is cached behind a cut stays", "C1 C3"),
        needs="truncate",
        when=(CACHING, LRU, _SMALL),
    ),
    *_goals(
        ("blocks behind a cut are those of others, too", "C1"),
        needs="truncate",
        when=(CACHING, _SMALL),
    ),
    *_goals(
        ("a state goes with a block that is cut", "C6"),
        needs="truncate mamba",
        when=(CACHING, _NOT_ONE_SLOT),
    ),
    *_goals(
        ("a request is cut whose prompt is not computed", "X1"),
        needs="truncate refuses_bad_arguments",
    ),
    *_goals(
        ("a tail is cut inside a block that others have", "X1 E1"),
        needs="truncate refuses_bad_arguments",
        when=(CACHING,),
    ),
    *_goals(
        ("a request that could not be added leaves no trace", "X2 E3", "B121"),
        ("a chunk that could not be scheduled leaves no trace", "X2 E3", "B112"),
        ("a request finds no room where there is some", "X2 E3"),
        ("a chunk finds no room where there is some", "X2 E3"),
        ("a step that gets no block leaves no trace", "X2 E3"),
        ("a forward pass fails", "X2 E3", "B113"),
        ("a request leaves after a step that failed", "E3", "B113"),
        needs="faults",
    ),
    *_goals(
        ("a commit fails", "X2 C7"),
        needs="mamba faults",
        when=(CACHING,),
    ),
)
"""Coverage goals that a search for violations must reach on contexts of requests."""

_lives = partial(make_goals, "requests", of_engine=True)

ENGINE_GOALS = (
    *_lives(
        ("a waiting request is aborted", "E3", "B67"),
        ("a request is aborted between two chunks", "E3", "B109"),
        ("a request is aborted in decode", "E3"),
        ("a request is aborted while it is set aside", "E3"),
        ("the engine is drained with requests in it", "E3"),
        ("a request finishes in decode", "E3", "B103"),
        ("a request finishes inside its first chunk", "E3", "B115"),
        ("a request is set aside for want of memory", "E4 C1"),
        ("a request that was set aside goes on", "E1 E4"),
        ("a request is retracted in decode", "E3", "B26 B98"),
        ("a request is retracted while it is set aside", "E3"),
        ("a retracted request is admitted again", "E1 E3", "B68 B110"),
        ("an admission fails", "E3 E4", "B112"),
        ("a reserve keeps a request out that would fit", "E4"),
        ("a step finds too few blocks for decoding requests", "C1 E4"),
        ("a request can never fit", "E4"),
        ("a request that just fits finishes", "E4", "B64"),
        ("the engine comes to rest", "E3", "B100"),
        ("the cache is emptied at rest", "C9 E3", "B79"),
        needs="engine",
    ),
    *_lives(
        ("a prompt shares cached blocks", "C3 E1", "B137"),
        ("a full hit leaves a token to compute", "E4", "B115"),
        ("shared blocks outlive one of their requests", "C1 E2", "B118"),
        needs="engine",
        when=(CACHING,),
    ),
    *_lives(
        ("a retracted request finds cached what it had", "E1 E2", "B68"),
        ("cached blocks are evicted to make room", "C1 E4", "B125"),
        needs="engine",
        when=(CACHING, LRU),
    ),
    *_lives(
        ("a request resumes from a cached state", "C7 E1", "B76 B86"),
        needs="engine mamba",
        when=(CACHING,),
    ),
)
"""Coverage goals that the run of an engine over a context must reach."""


# -- requests in -------------------------------------------------------------------------------------------


def _met_by_arrival(before: RequestsModel, operation: AddRequest, seen: SeenChunk) -> Met:
    request, context = seen.request, before.context
    hit = request.matched * context.block_size
    behind = request.prefixes[request.matched : request.matched + 1]
    return {
        "a hash names a block of other content": any(it.hash in context.blocks.block_of for it in behind),
        "a prompt shares cached blocks": hit,
        "a prompt shares blocks that only a transfer holds": any(
            context.blocks.transfers[block] and not context.blocks.callers_refs(block)
            for block in request.blocks
        ),
        "a full hit leaves a token to compute": hit == request.prompt,
        "a request resumes from a cached state": context.layers and request.skip,
        "cached KV is computed again for its state": context.layers and request.skip < hit < request.prompt,
        "a request leaves its reserve to the block": (
            operation.reserve and seen.missing + seen.kept_back == seen.room
        ),
        **_met_by_eviction(before, seen),
    }


def _met_by_eviction(before: RequestsModel, seen: SeenChunk) -> Met:
    if not seen.lost:
        return {}
    has_state = any(block in before.context.slots.slot_of for block in seen.lost)
    return {"cached blocks are evicted to make room": True, "a state goes with its block": has_state}


def _met_by_chunk(before: RequestsModel, operation: ScheduleChunk, seen: SeenChunk) -> Met:
    is_later = seen.request.computed
    return {"a prompt is computed in several chunks": is_later, **_met_by_eviction(before, seen)}


def _met_by_shortage(before: RequestsModel, operation: Operation, seen: SeenContext) -> Met:
    is_request = isinstance(operation, AddRequest)
    return {
        "no row is left for a request": is_request and not seen.missing and not seen.kept_back,
        "too few blocks are left for a request": is_request and seen.missing > seen.room,
        "a reserve keeps a request out that would fit": seen.is_kept_out,
        "a reserve would be met by what a prompt shares": (
            seen.is_kept_out and seen.missing + seen.kept_back <= before.context.room()
        ),
        "too few blocks are left for a chunk": isinstance(operation, ScheduleChunk),
        "a step finds too few blocks for decoding requests": isinstance(operation, RunStep),
        "a pause would keep too many blocks": isinstance(operation, Pause),
        "too few blocks are left beside those of transfers": seen.missing > seen.room
        and any(
            count and not before.context.blocks.callers_refs(block)
            for block, count in before.context.blocks.transfers.items()
        ),
    }


def _met_by_failure(before: RequestsModel, operation: Operation, seen: SeenContext) -> Met:
    is_struck = seen.fate == STRUCK
    is_request, is_chunk = isinstance(operation, AddRequest), isinstance(operation, ScheduleChunk)
    return {
        "a request finds no room where there is some": is_request and not is_struck,
        "a chunk finds no room where there is some": is_chunk and not is_struck,
        "a request that could not be added leaves no trace": is_request and is_struck,
        "a chunk that could not be scheduled leaves no trace": is_chunk and is_struck,
        "a step that gets no block leaves no trace": isinstance(operation, RunStep) and is_struck,
    }


# -- set aside, and out ------------------------------------------------------------------------------------


def _met_by_pause(before: RequestsModel, operation: Pause, seen: SeenRequest) -> Met:
    return {"a scheduled chunk is given up by a pause": seen.request.chunk}


def _met_by_resumption(before: RequestsModel, operation: Resume, seen: SeenRequest) -> Met:
    return {"a paused request goes on": True}


def _met_by_cut(before: RequestsModel, operation: Truncate, seen: SeenRequest) -> Met:
    request, context = seen.request, before.context
    known, block = context.blocks.hash_of, context.cut_block(request, operation.tokens)
    whole = operation.tokens // context.block_size
    tail = request.blocks[context.blocks_for(operation.tokens) :]
    return {
        "rejected drafts reach over a block's end": tail and request.computed - operation.tokens > 1,
        "a paused request is cut": request.region == PAUSED,
        "a tail is cut inside a block with a hash": block in known,
        "a cut request is known again": (
            not request.is_known
            and context.blocks.is_caching
            and (not whole or request.blocks[whole - 1] in known)
        ),
        "what is cached behind a cut stays": any(it in known and it not in seen.lost for it in tail),
        "a block's last token is replaced before it is computed": (
            operation.tokens == request.computed and (operation.tokens + 1) % context.block_size == 0
        ),
        "blocks behind a cut are those of others, too": any(context.blocks.refs[it] > 1 for it in tail),
        "a cut takes along what others had built on its block": {*seen.lost} - {block, *tail},
        "a state goes with a block that is cut": block in seen.lost and block in context.slots.slot_of,
    }


def _met_by_release(before: RequestsModel, operation: Release, seen: SeenRequest) -> Met:
    request, refs = seen.request, before.context.blocks.refs
    return {
        "shared blocks outlive one of their requests": any(refs[block] > 1 for block in request.blocks),
        "a request leaves under transfer": any(before.context.blocks.transfers[it] for it in request.blocks),
        "a request leaves in the middle of its prompt": 0 < request.computed < request.prompt,
        "a request leaves before it has computed anything": not request.computed,
        "a paused request leaves": request.region == PAUSED,
        "a request leaves after a step that failed": request.is_spoiled,
    }


def _met_by_reset(before: RequestsModel, operation: Reset, seen: SeenContext) -> Met:
    context = before.context
    return {"a reset takes requests with it": context.served, "a reset ends a transfer": context.transfers}


def _met_by_transfer(before: RequestsModel, operation: TransferRequest, seen: SeenRequest) -> Met:
    request, transfers = seen.request, before.context.blocks.transfers
    return {
        "a paused request is transferred": request.region == PAUSED,
        "blocks are in two transfers": any(transfers[block] for block in request.blocks),
    }


def _met_by_end(before: RequestsModel, operation: EndTransfer, seen: SeenContext) -> Met:
    blocks = before.context.blocks
    ending = before.context.transfers[operation.transfer]
    return {
        "a transfer ends whose request is gone": any(blocks.refs[block] == 1 for block in ending),
        "a transfer ends whose request is there": any(map(blocks.callers_refs, ending)),
    }


# -- steps -------------------------------------------------------------------------------------------------


def _met_by_batch(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Met:
    size, dummy = before.context.block_size, before.context.dummy
    targets = [first // size for run in seen.result.requests for first, _ in run.writes]
    last, lone = before.context.lone, seen.lone
    return {
        "two lone decodes in a row differ behind the first block alone": (
            lone and lone != last and (len(lone), lone[:1]) == (len(last), last[:1])
        ),
        "cached blocks are evicted for a decoding request": seen.lost,
        "a block that was cut is registered anew": any(
            request.rewritten in seen.registered for request in seen.decoding
        ),
        "a decoding request goes on in a new block": seen.missing,
        "KV of shared blocks goes to the dummy": dummy in targets,
        "states are extracted inside a chunk": any(run.offsets for run in seen.result.requests),
        "several requests compute chunks in one step": len(seen.chunks) > 1,
        "a step decodes and computes chunks": seen.decoding and seen.chunks,
        "a later chunk is computed": any(request.computed for request in seen.chunks),
        "a block stays unregistered": any(it.request.is_known > it.is_known for it in seen.offers),
    }


def _met_by_commit(seen: SeenStep) -> Met:
    blocks = priority(seen.leaving)
    return {
        "a state is not kept, since its block has no hash": len(seen.wanted) < len(blocks),
        "requests of a step leave the state of one block": len(blocks) < len(seen.leaving),
    }


def _met_by_step(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Met:
    batch = _met_by_batch(before, operation, seen)
    if not before.context.has_states:
        return batch
    return {
        **batch,
        **_met_by_commit(seen),
        "a commit runs out of slots": seen.commit.left_out,
        "a commit takes slots from released blocks": seen.commit.victims,
        "a step keeps several states": len(seen.commit.new) > 1,
    }


def _met_by_broken_step(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Met:
    is_early = before.armed in FORWARD
    return {
        **_met_by_batch(before, operation, seen),
        **({} if is_early else _met_by_commit(seen)),
        "a forward pass fails": is_early,
        "a commit fails": not is_early,
    }


# -- all of it ---------------------------------------------------------------------------------------------


def _law_of_cut_sizes(before: RequestsModel, operation: Truncate, seen: SeenRequest) -> str:
    return "C6" if any(block in before.context.slots.slot_of for block in seen.lost) else "C1"


def _law_of_sizes(before: RequestsModel, operation: Operation, seen: SeenContext) -> str:
    if seen.fate == TURNED_AWAY:
        return "X2"
    return "C2" if isinstance(operation, RunStep) and before.context.has_states else "C1"


REQUESTS = KindLaws(
    order="X1 X2 X4 X7 X8 E2 E4 E1 C1 C3 C2 C7 C6",
    orders={
        # What a prompt shares goes first: who finds too little takes, and evicts, more than is due.
        **dict.fromkeys((AddRequest, ScheduleChunk), "X1 X4 C3 E4 X2 C1 E2 C1 E1"),
        Truncate: "X1 E2 C3 C1 E1",
        RunStep: "X1 X4 C1 C6 E2 C1 E4 E1 E5 E2 C8 E1 X2 C3 X2 C7 C8 C6 C2",
    },
    asked={
        AddRequest: Asked(RequestView, "E4", _law_of_sizes),
        ScheduleChunk: Asked(RequestView, "E4", _law_of_sizes),
        RunStep: Asked(Ran, "E4", _law_of_sizes),
        Pause: Asked(Done, "C1"),
        Resume: Asked(Done, "C1"),
        Truncate: Asked(RequestView, "E2", _law_of_cut_sizes),
        Release: Asked(Done, "E3"),
        TransferRequest: Asked(Done, "C1"),
        EndTransfer: Asked(Done, "C1"),
        Reset: Asked(Done, "C9"),
        Inspect: Asked(ContextView, "E2", "C1"),
        Fault: Asked(Done, "X2 C1", "C1"),
        TakeEvents: Asked(ToldEvents, "X10", "C1", is_test=False),
    },
    sizes_law="C1",
    sizes={
        (law, name): "C1"
        for law in ("C2", "C6")
        for name in (
            *("pool_avail", "evictable_blocks", "request_count"),
            *("paused_request_count", "decode_req_count", "prefill_req_count"),
        )
    },
    met={
        (AddRequest, DONE): _met_by_arrival,
        (ScheduleChunk, DONE): _met_by_chunk,
        **{(each, NO_ROOM): _met_by_shortage for each in (AddRequest, ScheduleChunk, RunStep, Pause)},
        **{(each, STRUCK): _met_by_failure for each in (AddRequest, ScheduleChunk, RunStep)},
        **{(each, TURNED_AWAY): _met_by_failure for each in (AddRequest, ScheduleChunk)},
        (Pause, DONE): _met_by_pause,
        (Resume, DONE): _met_by_resumption,
        (Truncate, DONE): _met_by_cut,
        (Release, DONE): _met_by_release,
        (TransferRequest, DONE): _met_by_transfer,
        (EndTransfer, DONE): _met_by_end,
        (Reset, DONE): _met_by_reset,
        (RunStep, DONE): _met_by_step,
        (RunStep, CUT_SHORT): _met_by_broken_step,
        (TakeEvents, DONE): met_by_events,
    },
    counts_all=False,
)
