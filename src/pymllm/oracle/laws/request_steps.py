"""Checks of a step of requests: the computed tokens, the registered blocks and the kept states."""

from __future__ import annotations

from pymllm.history.operations import RunStep
from pymllm.oracle.laws.blocks import (
    a_hash_has_the_block_that_came_first,
    blocks_partition_the_pool,
    slots_have_one_block,
    states_are_copied_bit_for_bit,
    states_are_kept_at_block_ends,
    unreferenced_blocks_lose_their_slots,
)
from pymllm.oracle.laws.every_class import what_a_pool_did_not_take_stays
from pymllm.oracle.laws.law import Broken, Found, demand, same
from pymllm.oracle.laws.request_admission import are_free, has_its_row, what_fails_is_told
from pymllm.oracle.laws.requests import (
    a_read_finds_what_a_cold_run_wrote,
    a_row_names_what_its_request_has,
    admission_succeeds_where_there_is_room,
    padding_lands_in_slot_0,
)
from pymllm.oracle.models.kind_model import DONE
from pymllm.oracle.models.request_model import DECODE
from pymllm.oracle.models.requests import BROKEN, COMMIT, CUT_SHORT, FORWARD, RequestsModel, SeenStep

# -- who takes part ----------------------------------------------------------------------------------------


@a_row_names_what_its_request_has.on(RunStep, kinds="requests")
@a_row_names_what_its_request_has.on(RunStep, fate=CUT_SHORT, kinds="requests")
def _the_batch_is_in_its_rows(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    """Compare the batch of a step: its decoding requests, then its chunks, with each row and its blocks."""
    runs, split = seen.result.requests, len(seen.decoding)
    told = [run.request for run in runs]
    batch = sorted(told[:split]), sorted(told[split:])
    wanted = [request.step for request in seen.decoding], [request.step for request in seen.chunks]
    if batch != wanted:
        return Broken("requests of the batch", wanted, batch)
    first = before.context.rows()[DECODE].start
    rows = [*range(first, first + len(told))]
    if [run.row for run in runs] != rows:
        return Broken("rows of the batch", rows, [run.row for run in runs])
    for request, run in seen.runs:
        found = has_its_row(request, run.blocks, before.context.missing(request))
        if not found:
            return found
    return True


@blocks_partition_the_pool.on(RunStep, kinds="requests")
@blocks_partition_the_pool.on(RunStep, fate=CUT_SHORT, kinds="requests")
def _free_blocks_are_handed_out(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    return are_free(before, seen, seen.new)


# -- what is computed --------------------------------------------------------------------------------------


@admission_succeeds_where_there_is_room.on(RunStep, kinds="requests")
@admission_succeeds_where_there_is_room.on(RunStep, fate=CUT_SHORT, kinds="requests")
def _each_computes_something(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    idle = [request.step for request, run in seen.runs if not run.count]
    return Broken("requests that compute nothing", [], idle) if idle else None


@a_read_finds_what_a_cold_run_wrote.on(RunStep, kinds="requests")
@a_read_finds_what_a_cold_run_wrote.on(RunStep, fate=CUT_SHORT, kinds="requests")
def _each_goes_on_where_it_stood(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    for request, run in seen.runs:
        wanted = request.start, request.stop - request.start
        if (run.start, run.count) != wanted:
            return Broken(f"tokens that request {request.step} computes", wanted, (run.start, run.count))
    return True if seen.runs else None


@padding_lands_in_slot_0.on(RunStep, kinds="requests")
@padding_lands_in_slot_0.on(RunStep, fate=CUT_SHORT, kinds="requests")
def _shared_blocks_are_left_alone(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    """Demand that tokens in shared blocks are written to their own places or to the dummy block."""
    return _are_placed(before, seen, is_padding=True)


@a_row_names_what_its_request_has.on(RunStep, kinds="requests")
@a_row_names_what_its_request_has.on(RunStep, fate=CUT_SHORT, kinds="requests")
def _each_token_goes_to_its_place(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    return _are_placed(before, seen, is_padding=False)


def _are_placed(before: RequestsModel, seen: SeenStep, *, is_padding: bool) -> Found:
    """Find a write to a wrong place, among tokens that padding may replace or among all others."""
    size, dummy, is_tested = before.context.block_size, before.context.dummy, False
    for request, run in seen.runs:
        place = request.start
        for first, count in run.writes:
            at, offset = divmod(place, size)
            if (at < request.matched or first // size == dummy) is is_padding:
                homes = [*run.blocks[at : at + 1], *([dummy] if at < request.matched else [])]
                if first not in [home * size + offset for home in homes] or not 0 < count <= size - offset:
                    what = f"where request {request.step} writes token {place}"
                    return Broken(what, f"block {' or '.join(map(str, homes))}", run.writes)
                is_tested = True
            place += count
        if place != request.stop and not is_padding:
            return Broken(f"end of what request {request.step} writes", request.stop, place)
    return is_tested or None


@states_are_kept_at_block_ends.on(RunStep, kinds="requests")
@states_are_kept_at_block_ends.on(RunStep, fate=CUT_SHORT, kinds="requests")
def _states_are_extracted_in_chunks(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    for request, run in seen.runs:
        offsets = before.context.offsets(request) if request.chunk else ()
        if offsets != run.offsets:
            return Broken(f"offsets of request {request.step}", offsets, run.offsets)
    return True if seen.runs else None


@a_read_finds_what_a_cold_run_wrote.on(RunStep, kinds="requests")
@a_read_finds_what_a_cold_run_wrote.on(RunStep, fate=CUT_SHORT, kinds="requests")
def _each_reads_a_cold_run(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    """Compare the sampling requests, states and KV reads with cold runs; a failed step may read no KV."""
    context, cold = before.context, before.context.cold
    for request, run in seen.runs:
        who = f"request {request.step}"
        if run.is_sampled != request.is_at_its_end:
            return Broken(f"whether {who} samples", request.is_at_its_end, run.is_sampled)
        if context.layers:
            state = cold.state_at(request.prefixes, request.tokens, request.start)
            if state != run.state:
                return Broken(f"state of {who} after {request.start} tokens", state, run.state)
        if run.kv or seen.fate == DONE:
            kv = cold.kv_until(request.prefixes, request.tokens, request.stop)
            kv += (0,) * (len(run.blocks) - len(kv))  # of blocks that it does not reach yet
            if kv != run.kv:
                return Broken(f"KV that {who} reads", kv, run.kv)
    return None


# -- what is registered and kept ---------------------------------------------------------------------------


@what_a_pool_did_not_take_stays.on(RunStep, kinds="requests")
def _a_forward_pass_fails(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    is_due = before.must_fail(FORWARD, len(seen.runs))
    return what_fails_is_told(before, operation, seen) if is_due else None


@a_hash_has_the_block_that_came_first.on(RunStep, kinds="requests")
def _whole_blocks_are_registered(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    return same("blocks that are registered", sorted(seen.registered), sorted(seen.result.registered))


@what_a_pool_did_not_take_stays.on(RunStep, kinds="requests")
def _a_commit_fails(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    is_due = before.context.has_states and before.must_fail(COMMIT) and seen.commit.new
    return what_fails_is_told(before, operation, seen) if is_due else None


@states_are_copied_bit_for_bit.on(RunStep, kinds="requests")
def _the_best_states_are_kept(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    """Compare the states that were kept where some had no room; law C8 judges steps with room for all."""
    return _compare_kept(seen) if seen.commit.left_out else None


@states_are_kept_at_block_ends.on(RunStep, kinds="requests")
def _all_states_are_kept(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    return None if seen.commit.left_out else _compare_kept(seen)


def _compare_kept(seen: SeenStep) -> Found:
    new, kept = sorted(seen.commit.new), sorted([each.block for each in seen.result.kept])
    what = f"blocks whose states are kept, {len(seen.commit.left_out)} left out"
    return same(what, new, kept) if new or kept else None


@unreferenced_blocks_lose_their_slots.on(RunStep, kinds="requests")
@unreferenced_blocks_lose_their_slots.on(RunStep, fate=CUT_SHORT, kinds="requests")
def _states_go_with_evicted_blocks(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    states = [block for block in seen.lost if block in before.context.slots.slot_of]
    told = [block for block in seen.lost if block in seen.result.dropped]
    return same("states of evicted blocks that go", states, told) if states else None


@unreferenced_blocks_lose_their_slots.on(RunStep, kinds="requests")
def _the_oldest_states_make_room(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    victims, dropped = sorted(seen.commit.victims), sorted(seen.dropped)
    return same("blocks that lose their states", victims, dropped) if victims or dropped else None


@slots_have_one_block.on(RunStep, kinds="requests")
def _new_states_have_slots_of_their_own(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    kept, slots = seen.result.kept, before.context.slots
    if not kept:
        return None
    new = {each.block: each.slot for each in kept}
    gone = {*new, *seen.lost, *seen.dropped}
    others = [slot for block, slot in slots.slot_of.items() if block not in gone]
    taken = [*others, *new.values()]
    is_right = len({*taken}) == len(taken) and all(0 <= slot < slots.total for slot in taken)
    return demand(
        is_right, "slots of new states", f"distinct ones of {slots.total}, none of {sorted(others)}", kept
    )


# -- a step that fails once it has begun -------------------------------------------------------------------


@states_are_copied_bit_for_bit.on(RunStep, fate=BROKEN, kinds="requests")
def _no_step_fails(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    return Broken("a step", "no error", seen.result.error)


@admission_succeeds_where_there_is_room.on(RunStep, fate=BROKEN, kinds="requests")
def _no_step_without_states_fails(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    """Demand that no step fails in a context without states; law C7 judges contexts with state slots."""
    return None if before.context.has_states else _no_step_fails(before, operation, seen)


@what_a_pool_did_not_take_stays.on(RunStep, fate=CUT_SHORT, kinds="requests")
def _a_step_that_fails_keeps_nothing(before: RequestsModel, operation: RunStep, seen: SeenStep) -> Found:
    """Demand that a failed step registers all its blocks or none, and loses only states that it replaced."""
    ran, is_early = seen.result, before.armed in FORWARD
    if is_early and ran.registered:
        return Broken("blocks that a failed forward pass registers", (), ran.registered)
    if sorted(seen.registered) != sorted(ran.registered):
        return Broken("blocks that are registered", sorted(seen.registered), sorted(ran.registered))
    if not before.context.has_states:
        return True
    if ran.kept:
        return Broken("states kept by a step that failed", (), ran.kept)
    asked = () if is_early else (*seen.commit.victims, *(each.block for each in seen.leaving))
    lost = [block for block in seen.dropped if block not in asked]
    return demand(not lost, "states lost by a step that failed", (), lost)
