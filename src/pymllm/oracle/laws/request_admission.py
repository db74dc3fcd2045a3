"""Checks of requests between two steps: the blocks given to a request, its row, and the blocks it loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from pymllm.history.operations import (
    OPERATIONS_OF,
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
    Truncate,
)
from pymllm.history.outcomes import INJECTED, NoRoom, RequestView
from pymllm.oracle.laws.blocks import (
    a_hash_has_the_block_that_came_first,
    blocks_partition_the_pool,
    slots_have_one_block,
    states_are_copied_bit_for_bit,
    tells_no_room,
    unreferenced_blocks_lose_their_slots,
)
from pymllm.oracle.laws.every_class import (
    misuse_is_refused,
    what_a_pool_did_not_take_stays,
    what_cannot_be_met_changes_nothing,
    what_is_cleared_is_as_good_as_new,
)
from pymllm.oracle.laws.law import Broken, Found, demand, same
from pymllm.oracle.laws.requests import (
    a_read_finds_what_a_cold_run_wrote,
    a_row_names_what_its_request_has,
    admission_succeeds_where_there_is_room,
)
from pymllm.oracle.models.kind_model import NO_ROOM, REFUSED, STRUCK
from pymllm.oracle.models.request_model import PREFILL, ServedRequest
from pymllm.oracle.models.requests import (
    CUT_SHORT,
    TURNED_AWAY,
    UNSTRUCK,
    RequestsModel,
    SeenChunk,
    SeenContext,
    SeenRequest,
)

# -- what goes ---------------------------------------------------------------------------------------------


@misuse_is_refused.on(*OPERATIONS_OF["requests"], fate=REFUSED, kinds="requests")
@blocks_partition_the_pool.on(AddRequest, ScheduleChunk, Pause, Resume, RunStep, kinds="requests")
@blocks_partition_the_pool.on(RunStep, fate=CUT_SHORT, kinds="requests")
@unreferenced_blocks_lose_their_slots.on(Inspect, Fault, kinds="requests")
def what_goes_is_told(before: RequestsModel, operation: Operation, seen: SeenContext) -> Found:
    """Compare the blocks reported as deregistered or freed with the expected blocks, each reported once."""
    others = [effect.call for effect in seen.effects if effect.call != "callback"]
    if others:
        return Broken("effects", "callbacks alone", others)
    told = sorted([block for effect in seen.effects for block in effect.slots])
    if seen.lost or told:
        return same("blocks that are given up", sorted(seen.lost), told)
    return None


@blocks_partition_the_pool.on(Inspect, Fault, kinds="requests")
def _nothing_goes(before: RequestsModel, operation: Operation, seen: SeenContext) -> Found:
    """Check, in a context without slots, that no blocks went unexpectedly; with slots, law C6 judges that."""
    return None if "mamba" in before.claims else what_goes_is_told(before, operation, seen)


@blocks_partition_the_pool.on(Release, EndTransfer, kinds="requests")
def _blocks_go_with_a_request(before: RequestsModel, operation: Release, seen: SeenRequest) -> Found:
    """Compare the blocks that a release gives up with the expected ones; if states go too, C6 judges that."""
    return None if _states_go(before, seen) else what_goes_is_told(before, operation, seen)


@unreferenced_blocks_lose_their_slots.on(Release, EndTransfer, kinds="requests")
def _states_go_with_a_request(before: RequestsModel, operation: Release, seen: SeenRequest) -> Found:
    return what_goes_is_told(before, operation, seen) if _states_go(before, seen) else None


@a_hash_has_the_block_that_came_first.on(Truncate, kinds="requests")
def _rewritten_blocks_lose_their_hashes(
    before: RequestsModel, operation: Truncate, seen: SeenRequest
) -> Found:
    """Compare the blocks that lose their hashes when a request is cut in the middle of a block."""
    block, known = before.context.cut_block(seen.request, operation.tokens), before.context.blocks.hash_of
    if block not in known:
        return None
    told = [each for effect in seen.effects for each in effect.slots]
    lost = [sorted(each for each in blocks if each in known) for blocks in (seen.lost, told)]
    return same(f"blocks that lose their hashes when block {block} is cut", *lost)


@blocks_partition_the_pool.on(Truncate, kinds="requests")
def _a_tail_goes(before: RequestsModel, operation: Truncate, seen: SeenRequest) -> Found:
    return what_goes_is_told(before, operation, seen)


def _states_go(before: RequestsModel, seen: SeenContext) -> bool:
    return any(block in before.context.slots.slot_of for block in seen.lost)


@what_is_cleared_is_as_good_as_new.on(Reset, kinds="requests")
def _a_reset_tells_nobody(before: RequestsModel, operation: Reset, seen: SeenContext) -> Found:
    """Demand that a reset does not call the observer; this tests law X7 only if blocks are in use."""
    if seen.effects:
        return Broken("effects of a reset", "none", seen.effects)
    return True if before.context.served or before.context.blocks.hash_of else None


# -- what fails --------------------------------------------------------------------------------------------

_SHORTAGES = ("CapacityError", "MambaSlotCapacityError")


@what_a_pool_did_not_take_stays.on(AddRequest, ScheduleChunk, RunStep, fate=TURNED_AWAY, kinds="requests")
@blocks_partition_the_pool.on(Pause, fate=NO_ROOM, kinds="requests")
@admission_succeeds_where_there_is_room.on(AddRequest, ScheduleChunk, RunStep, fate=NO_ROOM, kinds="requests")
def _no_room_is_told(before: RequestsModel, operation: Operation, seen: SeenContext) -> Found:
    if isinstance(seen, SeenChunk) and (false_hit := _false_hit(before, seen)) is not None:
        return false_hit
    what = _describe_need(seen)
    if isinstance(operation, RunStep):
        is_told = tells_no_room(before, seen.result, *_SHORTAGES)
        found = demand(is_told, what, " or ".join(_SHORTAGES), seen.result)
    else:
        found = demand(isinstance(seen.result, NoRoom), what, "no room", seen.result)
    return found and _nothing_has_gone(before, operation, seen)


@what_cannot_be_met_changes_nothing.on(AddRequest, ScheduleChunk, RunStep, fate=NO_ROOM, kinds="requests")
def _blocks_that_are_not_there(before: RequestsModel, operation: Operation, seen: SeenContext) -> Found:
    """Judge a refusal for lack of blocks; E4 judges the refusal if only the request's reserve causes it."""
    return None if seen.is_kept_out else _no_room_is_told(before, operation, seen)


def _describe_need(seen: SeenContext) -> str:
    if seen.kept_back:
        return f"{seen.missing} blocks of {seen.room}, with {seen.kept_back} to be left"
    return f"{seen.missing} blocks of {seen.room}" if seen.missing else "a request without a row"


def _false_hit(before: RequestsModel, seen: SeenChunk) -> Broken | None:
    """Report a shared block that has the right hash but is not the expected block (C3)."""
    request, hit = seen.request, seen.request.blocks
    if request.computed or not isinstance(seen.result, RequestView) or len(hit) >= len(request.prefixes):
        return None
    blocks = seen.result.blocks[: len(hit) + 1]
    other = before.context.blocks.block_of.get(request.prefixes[len(hit)].hash)
    if blocks != (*hit, other):
        return None
    return Broken(f"blocks that request {request.step} shares", hit, [*blocks], "C3")


@what_a_pool_did_not_take_stays.on(AddRequest, ScheduleChunk, RunStep, fate=STRUCK, kinds="requests")
def _nothing_has_gone(before: RequestsModel, operation: Operation, seen: SeenContext) -> Found:
    found = what_goes_is_told(before, operation, seen)
    return True if found is None else found


@what_a_pool_did_not_take_stays.on(AddRequest, ScheduleChunk, RunStep, fate=UNSTRUCK, kinds="requests")
def what_fails_is_told(before: RequestsModel, operation: Operation, seen: SeenContext) -> Found:
    """Report an operation that succeeded although a call in it was made to fail."""
    return Broken(f"{before.armed}, which fails", INJECTED, seen.result)


# -- what a request is given -------------------------------------------------------------------------------


@a_hash_has_the_block_that_came_first.on(AddRequest, ScheduleChunk, kinds="requests")
def _known_blocks_are_shared(before: RequestsModel, operation: Operation, seen: SeenChunk) -> Found:
    """Compare the shared blocks at the start of a row, for a request that has computed nothing yet."""
    request, free = seen.request, before.context.blocks.free
    if request.computed:
        return None
    shared = takewhile(lambda block: block not in free and block not in seen.lost, seen.result.blocks)
    return same(f"blocks that request {request.step} shares", request.blocks, [*shared])


@a_row_names_what_its_request_has.on(AddRequest, ScheduleChunk, kinds="requests")
def _its_row_has_what_it_needs(before: RequestsModel, operation: Operation, seen: SeenChunk) -> Found:
    request, view, rows = seen.request, seen.result, before.context.rows()[PREFILL]
    has_row = has_its_row(request, view.blocks, seen.missing)
    return has_row and _stands_there(request, view, PREFILL, range(rows.start, rows.stop + 1))


def has_its_row(request: ServedRequest, blocks: Sequence[int], missing: int) -> Found:
    """Demand that a row holds the request's own blocks, followed by exactly as many new ones as it lacked."""
    had = tuple(request.blocks)
    if blocks[: len(had)] != had:
        return Broken(f"first blocks of request {request.step}", had, blocks[: len(had)])
    if len(blocks) != len(had) + missing:
        return Broken(f"blocks of request {request.step}", len(had) + missing, len(blocks))
    return True


@blocks_partition_the_pool.on(AddRequest, ScheduleChunk, kinds="requests")
def _free_blocks_are_handed_out(before: RequestsModel, operation: Operation, seen: SeenChunk) -> Found:
    return are_free(before, seen, seen.result.blocks[len(seen.request.blocks) :])


def are_free(before: RequestsModel, seen: SeenContext, new: Sequence[int]) -> Found:
    """Demand that each new block was free or was evicted for the request, and appears only once."""
    if not new:
        return None
    free = before.context.blocks.free
    is_right = len({*new}) == len(new) and all(block in free or block in seen.lost for block in new)
    return demand(is_right, "blocks handed out", "free ones, each once", new)


@a_row_names_what_its_request_has.on(Truncate, kinds="requests")
def _its_row_is_shorter(before: RequestsModel, operation: Truncate, seen: SeenRequest) -> Found:
    request, view, context = seen.request, seen.result, before.context
    kept = tuple(request.blocks[: context.blocks_for(operation.tokens)])
    if view.blocks != kept:
        return Broken(
            f"blocks of request {request.step}, cut to {operation.tokens} tokens", kept, view.blocks
        )
    return _stands_there(request, view, request.region, context.rows()[request.region])


@a_read_finds_what_a_cold_run_wrote.on(Truncate, kinds="requests")
def _a_cut_request_is_warm(before: RequestsModel, operation: Truncate, seen: SeenRequest) -> Found:
    return _is_warm(before, seen.request, seen.result, operation.tokens)


@a_read_finds_what_a_cold_run_wrote.on(AddRequest, ScheduleChunk, kinds="requests")
def _a_request_is_warm(before: RequestsModel, operation: Operation, seen: SeenChunk) -> Found:
    return _is_warm(before, seen.request, seen.result, seen.request.computed)


@admission_succeeds_where_there_is_room.on(AddRequest, ScheduleChunk, kinds="requests")
def _there_was_room(before: RequestsModel, operation: Operation, seen: SeenChunk) -> Found:
    return True if seen.missing or seen.kept_back else None


# -- what is looked at -------------------------------------------------------------------------------------


def _stands_there(request: ServedRequest, view: RequestView, region: str, rows: range) -> Found:
    """Compare the region, the row and the finished tokens that a request shows with the expected ones."""
    who, finished = f"request {request.step}", min(request.computed, request.prompt)
    if view.request != request.step:
        return Broken("the request that is told of", request.step, view.request)
    if view.region != region:
        return Broken(f"region of {who}", region, view.region)
    if view.row not in rows:
        return Broken(f"row of {who}", f"one of {rows}", view.row)
    return True if view.finished == finished else Broken(f"finished tokens of {who}", finished, view.finished)


def _is_warm(before: RequestsModel, request: ServedRequest, view: RequestView, computed: int) -> Found:
    """Compare a request's whole blocks and live state with a cold run of the tokens that it has computed.

    Nothing is known of one whose step failed.
    """
    context, who = before.context, f"request {request.step}"
    if request.is_spoiled:
        return None
    if len(view.kv) != len(view.blocks):
        return Broken(f"sums of the blocks of {who}", len(view.blocks), len(view.kv))
    whole = max(computed // context.block_size, request.matched)
    wanted = tuple([prefix.kv for prefix in request.prefixes[:whole]])
    if wanted != view.kv[:whole]:
        return Broken(f"KV in the blocks of {who}", wanted, view.kv[:whole])
    if not context.layers:
        return True if wanted else None
    start = computed + request.skip
    state = context.cold.state_at(request.prefixes, request.tokens, start)
    return same(f"live state of {who} after {start} tokens", state, view.state)


@a_row_names_what_its_request_has.on(Inspect, kinds="requests")
def _requests_are_shown(before: RequestsModel, operation: Inspect, seen: SeenContext) -> Found:
    context, views = before.context, seen.result.requests
    wanted, told = sorted(context.served), sorted([view.request for view in views])
    if wanted != told:
        return Broken("requests", wanted, told)
    if [view.row for view in views] != [*range(len(views))]:
        return Broken("rows", [*range(len(views))], [view.row for view in views])
    rows = context.rows()
    for view in views:
        request = context.served[view.request]
        has_row = has_its_row(request, view.blocks, 0)
        found = has_row and _stands_there(request, view, request.region, rows[request.region])
        if not found:
            return found
    return True


@a_read_finds_what_a_cold_run_wrote.on(Inspect, kinds="requests")
def _requests_are_warm(before: RequestsModel, operation: Inspect, seen: SeenContext) -> Found:
    is_tested = False
    for view in seen.result.requests:
        request = before.context.served[view.request]
        found = _is_warm(before, request, view, request.computed)
        if isinstance(found, Broken):
            return found
        is_tested = is_tested or found is True
    return is_tested or None


@blocks_partition_the_pool.on(Inspect, kinds="requests")
def _references_are_told(before: RequestsModel, operation: Inspect, seen: SeenContext) -> Found:
    blocks, views = before.context.blocks, seen.result.blocks
    wanted, told = blocks.occupied, [view.block for view in views]
    if wanted != told:
        return Broken("blocks that are not free", wanted, told)
    references = [blocks.refs[block] for block in wanted]
    return same(f"references of blocks {wanted}", references, [view.references for view in views])


@a_hash_has_the_block_that_came_first.on(Inspect, kinds="requests")
def _hashes_are_told(before: RequestsModel, operation: Inspect, seen: SeenContext) -> Found:
    views = seen.result.blocks
    return _compare("hash", before.context.blocks.hash_of, {view.block: view.hash for view in views})


@slots_have_one_block.on(Inspect, kinds="requests")
def _slots_are_told(before: RequestsModel, operation: Inspect, seen: SeenContext) -> Found:
    views = seen.result.blocks
    return _compare("slot", before.context.slots.slot_of, {view.block: view.slot for view in views})


def _compare(what: str, known: Mapping[int, int], told: Mapping[int, int]) -> Found:
    """Compare one reported number of each block, where -1 stands for none."""
    wrong = [block for block, number in told.items() if number != known.get(block, -1)]
    if wrong:
        return Broken(f"{what} of block {wrong[0]}", known.get(wrong[0], -1), told[wrong[0]])
    return len(told) > 0 or None


@states_are_copied_bit_for_bit.on(Inspect, kinds="requests")
def _states_of_cold_runs_are_cached(before: RequestsModel, operation: Inspect, seen: SeenContext) -> Found:
    """Compare the cached state of each hashed block with a cold run; a block without a slot has no state."""
    context, is_tested = before.context, False
    for view in seen.result.blocks:
        who = f"cached state of block {view.block}"
        if view.slot < 0 and view.state:
            return Broken(f"{who}, which has none", (), view.state)
        if view.slot >= 0 and view.hash != -1:
            is_tested, state = True, context.prefix_of[view.block].state
            if state != view.state:
                return Broken(who, state, view.state)
    return is_tested or None
