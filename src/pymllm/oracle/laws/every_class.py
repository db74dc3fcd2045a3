"""Laws that apply to every kind of implementation (X1 to X9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from pymllm.history.claims import ANY_REFUSAL
from pymllm.history.codec import name_of
from pymllm.history.operations import (
    OPERATIONS,
    Alloc,
    AllocTrack,
    Evict,
    FindSlots,
    Hash,
    Insert,
    Inspect,
    Lock,
    ReadHalves,
    ReadKV,
    ReadLive,
    ReadRows,
    ReadStates,
    Reset,
    TakeEvents,
    Unlock,
)
from pymllm.history.outcomes import INJECTED, Done, NoRoom
from pymllm.oracle.laws.law import LEFT_OUT, Broken, Found, demand, law, same
from pymllm.oracle.models.kind_model import NO_ROOM, REFUSED, STRUCK, UNDONE, Seen, SeenUndone
from pymllm.oracle.models.prefix import CacheModel, whole_moves
from pymllm.oracle.models.prefix_model import Path
from pymllm.oracle.models.prefix_seen import (
    GARBLED,
    HIDDEN,
    SeenEvict,
    SeenInsert,
    SeenReset,
    spell,
)
from pymllm.oracle.models.prefix_victims import Taken
from pymllm.oracle.models.shown_nodes import SeenLook
from pymllm.oracle.models.told_events import SeenEvents


@law("X1", page="every-class", ways="op", kinds="all", needs=ANY_REFUSAL)
def misuse_is_refused(before: Any, operation: Any, seen: Any) -> Found:
    """Bad input is refused before anything changes.

    Two sorts of calls must be refused. A **malformed** call has an argument that is never allowed: a float
    where a size is due, a token of 33 bits, a layer that does not exist. **Misuse** is a well-formed call
    that its caller may not make now: a second free of a slot, a release without a hold, a call with a node
    that has left the cache. The result is `failed`, and `error` names the class.

    - Misuse is answered with exactly the error that the tables of [refusals](every-class.md#refusals) demand.
      If several arguments of one call are wrong, the error of any of them is right.
    - A malformed call is answered with `TypeError`, `ValueError`, `IndexError`, `UsageError`,
      `OwnershipError`, `LockError` or `StaleNodeError`. Which of these it is makes no difference.
    - **Nothing has changed.** There are no effects, every size is unchanged, no cell of a buffer is
      different, nothing became recent, and the next allocation returns the same as without the call. This
      applies to the whole call: if one of ten slots may not be freed, none of them is freed.
    - An armed `fault` does not strike in a refused operation, and is forgotten after it.

    The law is checked three times: in the outcome of the refused operation, in the outcomes of later
    operations, and, for all kinds but `prefix`, by playing the same program on a new object without the
    refused operations. All other operations must have the same outcomes there.

    If a call is impossible for an implementation (a float, where its language has integers only), it answers
    `unsupported`, which breaks no law. Without the claim `refusals` an implementation is never misused; an
    implementation that claims only some of `refuses_malformed`, `refuses_bad_arguments`,
    `refuses_double_free`, `refuses_foreign`, `refuses_stale` and `refuses_unheld` is misused in these ways
    alone.

    Why
    ---
    Callers have bugs. If the seventh of ten slots is found wrong when six are free already, a caller that
    catches the error and continues has lost them, or frees them again. A batch that is refused halfway leaves
    a row without an owner. And a mistake that is not refused shows up elsewhere, hours later: after a free of
    slot 0, an allocator handed out the slot to which all padding is written.

    Choices
    -------
    The messages of errors, which are for people. The order of checks. Whether a call is checked before it is
    carried out, or carried out and then undone.

    Caller
    ------
    Not to continue as if the call had succeeded.

    Engines
    -------
    - sglang: misuse is undefined by contract. Some misuse meets an assertion (a group inside a group,
      `mem_cache/allocator/base.py`); ownership is checked only with `SGLANG_DEBUG_MEMORY_POOL`, after the
      fact (`allocator/paged.py`, `_debug_check_no_duplicate_pages`). A write of another dtype is cast
      (`memory_pool.py`, `MHATokenToKVPool.set_kv_buffer`).
    - vLLM: an allocation that is too large raises before anything is taken (`v1/core/block_pool.py`,
      `get_new_blocks`); one release too many makes a reference count negative (`free_blocks`).
    - Megatron Core 0.16.1 checks nothing (`core/inference/contexts/dynamic_block_allocator.py`,
      `BlockAllocator.release_memory_blocks`).
    """


@misuse_is_refused.on(Insert, Hash, Lock, Unlock, fate=REFUSED, kinds="prefix")
def _what_is_refused_calls_no_pool(before: CacheModel, operation: Any, seen: Seen) -> Found:
    return same("effects of what is refused", (), seen.effects)


@law("X2", page="every-class", ways="op", kinds="prefix blocks requests", needs="faults")
def what_a_pool_did_not_take_stays(before: Any, operation: Any, seen: Any) -> Found:
    """Slots that a pool refused are still in the tree; calls come in order.

    `fault` makes one call of the next operation fail: the *nth* call of the named function raises and takes
    nothing. The operation then answers `failed` with `InjectedFault`; to swallow that error breaks this law.
    Its effects are exactly the calls that were carried out. The table of [failures](every-class.md#failures)
    lists the calls that may fail, by operation.

    **Evictions, a pool call fails.** Slots taken by completed calls are gone. Everything else is as before
    the operation: cached, evictable, counted, owned, found by a match. The taken slots must be whole pages,
    and a part of a correct eviction. A page whose half was freed (`free_swa`) is a tombstone (S2), and a node
    whose state was freed (`free_state`) has no state. There are at most as many callbacks as removed pages;
    with states there are none. The same eviction can be called again, and then succeeds.

    **Evictions, a callback fails.** The eviction is complete: all memory is given back, the trackers are
    updated, and every callback is made, also after one has raised. The result is then the error of the first
    callback that raised.

    **Inserts, a pool call fails** (with a window, S7). If `move_swa` fails, pages whose halves were moved by
    earlier calls are revived, whole pages only; no other half has moved. If `free` fails, all moves were
    carried out and stay, and nothing was freed. In both cases nothing is adopted, no page is new, all
    incoming slots are still the caller's, and nothing becomes recent.

    **Blocks.** An observer that raises is called when the trackers are updated (X6). The reported blocks are
    deregistered, or free, for good. A release is then complete. An allocation that had to evict has evicted,
    and hands out nothing. **Requests.** [Their page](requests.md) describes the state after each failure. For
    a reset, see X7.

    **Order**, with the claim `call_order`. An eviction calls, in this order: `free_state` for each state;
    `free_swa` once, with all slots that only lose their half; `free` once, with all slots of all removed
    pages; each callback, in the order of removal. An insert calls `move_swa` once and then `free` once. None
    of these calls is made with nothing to free or move. So if `free` fails, no page was removed, and every
    half and state that was due is gone; if the *nth* `free_state` fails, *n* - 1 states are gone.

    Why
    ---
    A pool raises when its own trackers find an error, and servers catch that and continue. A tree that
    unlinks all nodes first and frees their slots afterwards has then lost the pages for ever; a tree that
    frees and unlinks node by node leaves half of them both in the tree and in the pool. In a block allocator
    a failed callback left the index without the block and the block without a place in the pool. An engine
    stopped because a pin was not released when the allocation failed.

    Choices
    -------
    Order and number of calls, without `call_order`. The sequence of victims that are given back together.

    Caller
    ------
    To read the effects of a failed call, because they have happened. Slots that a pool did not take are not
    the caller's, except after a reset (X7).

    Engines
    -------
    - sglang frees and unlinks node after node (`radix_cache.py`, `RadixCache.evict`): one call for each node.
      There is no callback; a removal is recorded as an event after the node is unlinked.
    - vLLM: `block_pool.py`, `get_new_blocks` calls its reuse watchers after blocks have left the free
      queue, and before they are taken out of the index of hashes and counted as used: different.
    - Megatron Core 0.16.1: not applicable, it neither evicts nor calls back.
    """


_SWALLOWED = Broken("what a failing call raises", INJECTED, "no error")


@what_a_pool_did_not_take_stays.on(Insert, Evict, fate=HIDDEN, kinds="prefix")
def _an_error_is_not_hidden(before: CacheModel, operation: Any, seen: Seen) -> Found:
    return _SWALLOWED


@what_a_pool_did_not_take_stays.on(Insert, kinds="prefix")
def _an_insert_calls_in_order(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    plan, names = seen.plan, seen.calls.names
    if before.must_strike("move_swa", plan.moves) or before.must_strike("free", plan.displaced):
        return _SWALLOWED
    if "call_order" not in before.claims or not names:
        return None
    expected = ["move_swa"] * bool(plan.moves) + ["free"] * bool(plan.displaced)
    return same("calls of an insert", expected, names)


@what_a_pool_did_not_take_stays.on(Insert, fate=STRUCK, kinds="prefix")
def _an_insert_that_failed_adopts_nothing(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    fault, plan, calls = before.fault, seen.plan, seen.calls
    assert fault is not None
    if not (plan.displaced if fault.call == "free" else plan.moves):
        law = "S7" if fault.call == "move_swa" or seen.involves_tombstones else "R4"
        return Broken(f"an insert that calls {fault.call}", "a reason to", "none", law)
    freed = [*calls.freed, *calls.halves]
    if freed:
        return Broken("slots freed by an insert that failed", "none", freed)
    moves = {source: target for each in whole_moves(seen).values() for source, target in each.items()}
    if calls.moves != moves:
        return Broken("SWA halves that a failed insert moved", moves, calls.moves)
    if "call_order" not in before.claims:
        return True
    due = plan.moves if fault.call == "free" else {}
    return same("moves before the call that failed", due, calls.moves)


@what_a_pool_did_not_take_stays.on(Evict, kinds="prefix")
def _an_eviction_calls_in_order(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    taken, calls, fault = seen.taken, seen.calls, before.fault
    assert taken is not None
    tested: Found = None
    # Not before: who asks for the wrong pages may have no need of the call that was to fail.
    if before.is_ordered and fault is not None:
        freed, tombstoned = before.has_pool and taken.removed, before.has_halves and taken.tombstoned
        if before.must_strike("free", freed) or before.must_strike("free_swa", tombstoned):
            return _SWALLOWED
        if before.tracks is not None and fault.call == "free_state":
            if len(taken.states) >= fault.nth:
                return _SWALLOWED
            tested = True
    if "call_order" not in before.claims or not calls.names:
        return tested
    names = ["free_state"] * len(taken.states)
    names += ["free_swa"] * bool(before.has_halves and taken.tombstoned)
    names += ["free"] * bool(before.has_pool and taken.removed)
    return same("calls of an eviction", names + ["callback"] * len(calls.callbacks), calls.names)


@what_a_pool_did_not_take_stays.on(Evict, kinds="prefix")
def _callbacks_come_in_order(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    if seen.ids is None or "callbacks" not in before.claims or not before.has_order:
        return None
    found = [effect.node for effect in seen.calls.callbacks]
    if found == seen.ids:
        return True
    # Who gives slots back in the same wrong order has chosen its victims in it.
    pages = dict.fromkeys(filter(None, map(before.ownership.place, seen.calls.freed)))
    law = "R8" if "exact_lru" in before.claims else "R11"
    return Broken(
        "order of callbacks", seen.ids, found, law if before.nodes.ids_of([*pages]) == found else ""
    )


@what_a_pool_did_not_take_stays.on(Evict, kinds="prefix")
def _what_a_callback_raises_is_raised(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    fault = before.fault
    if fault is None or fault.call != "callback" or "callbacks" not in before.claims:
        return None
    if len(seen.calls.callbacks) < fault.nth:
        return None
    return demand(seen.is_raised, "the error of a callback", "raised", seen.result)


@what_a_pool_did_not_take_stays.on(Evict, fate=STRUCK, kinds="prefix")
def _an_eviction_that_failed_took_what_it_called_for(
    before: CacheModel, operation: Evict, seen: SeenEvict
) -> Found:
    fault, removed, callbacks = before.fault, seen.gone, len(seen.calls.callbacks)
    assert fault is not None
    tombstoned = seen.tombstoned or frozenset()
    if before.tracks is not None:
        if callbacks:
            return Broken("callbacks of an eviction that failed", "none", callbacks)
        for plan in seen.allowed:
            found = _stops_at_its_call(before, plan, seen)
            if isinstance(found, Broken):
                return found
        return len(seen.allowed) > 0 or None
    if seen.allowed and not any(_may_stop(before, one, removed, tombstoned) for one in seen.allowed):
        what = f"{spell(removed)}, windows of {spell(tombstoned)}"
        return Broken("what was taken before a call failed", "the pages of whole calls, in order", what)
    return demand(callbacks <= len(removed), "callbacks", f"<= {len(removed)}", callbacks)


def _may_stop(
    before: CacheModel, taken: Taken, removed: frozenset[Path], tombstoned: frozenset[Path]
) -> bool:
    """Tell whether an eviction may have stopped at this point when a call to the pool failed."""
    fault = before.fault
    assert fault is not None
    if "call_order" not in before.claims:
        return removed <= set(taken.removed) and tombstoned <= taken.tombstoned | set(taken.removed)
    if removed or not (taken.removed if fault.call == "free" else taken.tombstoned):
        return False
    if fault.call == "free_swa":
        return not tombstoned
    # Without SWA halves no call says whether tombstoning came before the refusal: both are allowed.
    return tombstoned == taken.tombstoned or not (tombstoned or before.has_halves)


def _stops_at_its_call(before: CacheModel, plan: Taken, seen: SeenEvict) -> Found:
    """Compare the states that an eviction took before a failed call with the states that had to go first."""
    fault, removed, states = before.fault, seen.gone, seen.states.pages
    assert fault is not None
    is_late = fault.call == "free"
    due = len(plan.states) if is_late else fault.nth - 1
    if not (plan.removed if is_late else due < len(plan.states)):
        return Broken("a call that failed", "one that had to be made", "another")
    if not (states <= plan.states and removed <= set(plan.removed)):
        return Broken("what was taken", spell(plan.states), spell(states))
    if "call_order" not in before.claims:
        return True
    if removed:
        return Broken("pages removed before a call failed", "none", spell(removed))
    return same("states taken before a call failed", due, len(states))


@what_a_pool_did_not_take_stays.on(Reset, kinds="prefix")
def _a_reset_tells_what_failed(before: CacheModel, operation: Reset, seen: SeenReset) -> Found:
    return _SWALLOWED if seen.struck != "free" and before.must_strike("free", seen.slots) else None


@law("X3", page="every-class", ways="sop", kinds="all")
def the_same_program_has_the_same_outcomes(before: Any, operation: Any, seen: Any) -> Found:
    """The same program gives the same outcomes.

    Two runs of one program, on two new objects of one configuration and seed, have the same outcome at every
    step. Everything in an outcome is compared: the result with all of its fields, also numbers that the
    implementation may choose (slots, rows, blocks, ids of nodes, tokens of holds); all effects in their
    order; all sizes. Of `failed` only the error's name is compared, because the message is for people.
    Nothing outside of outcomes is compared: no time, no memory, no log. An `unsupported` operation must be
    `unsupported` again.

    In particular

    - recency is counted in operations, never by a wall clock. A program that orders by a clock declares this
      ([protocol](../protocol.md)) and gets the time: one tick before each operation, the same ticks in both
      runs;
    - since the start, also across a reset, neither `inspect` nor a callback has given the id of a node to
      another node. The id of a node that is new since the last look at the nodes is larger than all ids shown
      before;
    - without the claim `node_ids`, an implementation may count nodes in another way, for example by a counter
      of the process, and report clock times. Its ids and tokens are then compared only by whether they repeat
      earlier ids and tokens of the same run, and its times by their order;
    - nothing depends on the order of a hash table, on an address, on a thread, or on earlier operations of
      another object: a program that is started a second time has forgotten everything.

    Why
    ---
    The ranks of one server run the same scheduler side by side. If one rank evicts another node than the
    rest, they allocate differently, and the collective operations of the next step hang. Timestamps in whole
    seconds made an engine evict at random among all nodes used in one second, and the hit rate fell as the
    load rose. And a violation can be shrunk and reported only if it is repeatable.

    Choices
    -------
    Everything that the other laws leave open, as long as each run makes the same choices. A seed may be used.

    Caller
    ------
    To make the same calls. The judge plays one of eight programs again, as a whole, and each program that
    broke a law.

    Engines
    -------
    - sglang: `time.monotonic` is written on nodes (`radix_cache.py`, `_match_prefix_helper`): different. Only
      times of one process are compared.
    - vLLM: a queue, no clock (`kv_cache_utils.py`, `FreeKVCacheBlockQueue`). Block hashes are the same in
      each process, unless a non-cryptographic hash function is chosen, which starts from a random seed
      (`resolve_none_hash_seed`).
    - Megatron Core 0.16.1: a stack of block ids, deterministic.
    """


@the_same_program_has_the_same_outcomes.on(Evict, kinds="prefix")
def _ids_are_called_back_once(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    if not before.claims.issuperset(("callbacks", "node_ids")):
        return None
    found = [effect.node for effect in seen.calls.callbacks]
    is_new = None not in found and len({*found}) == len(found) and before.nodes.called_back.isdisjoint(found)
    return demand(is_new, "ids called back", "new ones", found)


@the_same_program_has_the_same_outcomes.on(Inspect, fate=GARBLED, kinds="prefix")
def _nodes_have_ids_of_their_own(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    return None if seen.doubled is None else Broken("ids of nodes", "distinct ones", f"{seen.doubled} twice")


@the_same_program_has_the_same_outcomes.on(Inspect, kinds="prefix")
def _new_nodes_have_new_ids(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    nodes = before.nodes
    if "node_ids" not in before.claims:
        return None
    for _, path, node, _ in nodes.new_ends(seen):
        if node.id <= nodes.last_id or node.id in nodes.called_back:
            return Broken(f"id of the new node at the end of {path.tokens}", f"> {nodes.last_id}", node.id)
    return any(node.id > nodes.last_id for node in seen.nodes) or None


@law("X4", page="every-class", ways="op", kinds="slots rows states prefix blocks requests", needs="pool")
def what_cannot_be_met_changes_nothing(before: Any, operation: Any, seen: Any) -> Found:
    """An allocation that cannot be met changes nothing.

    If and only if too little is free, the answer is `no_room` (`None` in Python), which is no error. The
    meaning of *too little* depends on the operation.

    | kind | operation | `no_room` if |
    | --- | --- | --- |
    | `slots`, `prefix` | `alloc` | fewer than ceil(`tokens` / `page_size`) pages or halves are free |
    | `rows` | `alloc_rows` | fewer than `count` rows are free |
    | `states`, `prefix` | `alloc_track` | no track slot is free |
    | `blocks` | `alloc_blocks` | fewer than `count` blocks are free or evictable (C1) |
    | `requests` | `add_request`, `schedule_chunk` | no row is free, or too few blocks are |

    Then nothing has changed: no size, no content, no owner, and not the order of later allocations. A failed
    allocation merges nothing (A4), evicts nothing and pins nothing. The choice of the next slots is compared
    only with the claim `merges`: without the claim, a failed allocation may merge. For all kinds but `prefix`
    the program is played again on a new object without the operations that found no room, and all other
    operations must have the same outcomes.

    (For a request, a cached block that can be evicted counts as free.) An operation that asks for nothing,
    such as `alloc` of 0 tokens, always succeeds. A step of requests that finds too few blocks answers with an
    error instead, `CapacityError` or `MambaSlotCapacityError`, and has done nothing either. Without the claim
    `capacity_errors` the error may have any name.

    Why
    ---
    Running out is the everyday state of a full server: it asks, is refused, evicts or retracts, and asks
    again. Traces of failed attempts add up. In one engine a request kept its pins on cached blocks when its
    allocation failed, and these blocks stayed unevictable until nothing could be scheduled. Another engine
    asserted instead of answering, and was killed sixteen times a day with half of its pool free.

    Choices
    -------
    The slots that it hands out, if there is enough room (A4).

    Caller
    ------
    To check the answer. To make room itself: only `blocks` and `requests` evict on their own.

    Engines
    -------
    - sglang: `None`, the same. With `need_sort` a failed allocation has merged the free list
      (`allocator/token.py`, `allocator/paged.py`, `alloc`), so the next one gets other slots: different.
    - vLLM: `KVCacheManager.allocate_slots` answers `None`; the block pool below it raises `ValueError`
      (`block_pool.py`, `get_new_blocks`). Neither has taken anything.
    - Megatron Core 0.16.1: `None`, the same (`BlockAllocator.allocate_memory_blocks`).
    """


@what_cannot_be_met_changes_nothing.on(Alloc, AllocTrack, fate=NO_ROOM, kinds="prefix")
def _no_room_is_told(before: CacheModel, operation: Any, seen: Seen) -> Found:
    return same("an allocation for which there is no room", NoRoom(), seen.result)


@law("X5", Inspect, page="every-class", ways="sop", kinds="slots prefix", needs="inspect")
def nothing_of_the_callers_is_kept(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    """No argument is kept, and no internal data is handed out.

    A cache copies the parts of an argument that it keeps. When a call has returned, the caller may overwrite
    the key's container and the tensors of slots and of the state that it passed, and nothing in the cache
    changes. A returned object belongs to the caller, who may overwrite this object, too. The judge's own
    adapters overwrite all of these objects right after each call.

    No outcome shows this. Where an adapter in Python is a `SlotAdapter` or a `PrefixAdapter`, the judge
    compares objects after the steps: the last 16 lists, arrays and tensors (of up to 1024 numbers) that
    `alloc` and `match` returned must have the same numbers as then, and the arguments of `free` and `insert`
    must be unchanged. An object that the adapter makes from an argument, such as a tensor, is checked only if
    the adapter watches the call (`self.calls.watch`). A changed object is a violation, also for allocators of
    slots. Unchanged objects do not prove the law, so for allocators X5 is either broken or not claimed.

    The data of a node keep nothing else alive. `kept_bytes` of a shown node must be 8 for each of its tokens:
    its slots are int64, and no view of a longer tensor. After a split this applies to both halves, whichever
    of them is evicted first. A removed node, or the root from before a reset, keeps no other node and no tree
    alive, even if a caller keeps a reference to this node: a caller that keeps the result of a match must not
    keep all later evicted data alive. (No outcome shows this; an internal walk does.)

    A program that is driven by lines of JSON shares no memory with its caller, so it cannot break the first
    part. The program is judged by `kept_bytes` alone; without `kept_bytes` X5 is not claimed.

    Buffers are shared by design: the buffers of keys and values and of states, and the table of rows, are
    handed out without a copy, because kernels read and write them.

    Why
    ---
    A tree that kept a view of a request's row of the table pointed at another request's pages as soon as the
    row was used again. Where both halves of a split were slices of one tensor, the whole tensor lived until
    the last slice was freed: a server ran out of memory while its tree was small.

    Choices
    -------
    When and how it copies. How tokens are kept: `kept_bytes` counts slots only.

    Caller
    ------
    Nothing. In particular it need not copy its arguments.

    Engines
    -------
    - sglang clones the values of both halves of a split (`radix_cache.py`, `_split_node`), the same. With
      pages of one token the tree keeps an inserted key without a copy: a caller that writes to its array
      changes the tree.
    - vLLM: not applicable. Blocks are objects that the pool and its callers share.
    """
    for node in seen.nodes:
        if node.kept_bytes not in (None, 8 * len(node.tokens)):
            what = f"bytes that the slots of node {node.id} keep"
            return Broken(what, 8 * len(node.tokens), node.kept_bytes)
    is_told = any(node.kept_bytes is not None for node in seen.nodes)
    return is_told or (LEFT_OUT if seen.nodes else None)


@law("X6", page="every-class", ways="op", kinds="prefix blocks", needs="callbacks faults")
def callbacks_run_after_the_update(before: Any, operation: Any, seen: Any) -> Found:
    """Callbacks run after the update and may not re-enter.

    A callback is made after all memory that its operation removes is given back to the pools and taken out of
    the trackers. So **every** callback of one eviction, the first included, sees the sizes at the operation's
    end: the `sizes` of its effect, if reported, must be these sizes. A size that is unchanged or only partly
    updated breaks this law. Of `blocks`, an observer sees `pool_avail` and `evictable_blocks` after the
    reported blocks are gone, and before any of them is handed out; where there are several calls, the last
    call must see these sizes.

    Inside a callback the caller may read sizes, compute hashes and print the tree. Every other call to the
    same object (`match`, `insert`, `evict`, `lock`, `unlock`, `reset`; of `blocks` each of its operations)
    must meet a `RuntimeError`, and change nothing. So must a `match`, because it makes pages recent and
    splits nodes. The eviction continues as if the call had not been made.

    `fault` with `reenter` tests this: the *nth* callback of the next operation makes such a call and puts the
    class of the resulting error into the `note` of its effect. The `note` must be `"RuntimeError"`; `""`
    means that the call succeeded.

    An eviction inside an operation never removes pages that the operation has matched or allocated, or will
    use. Only `blocks` and `requests` evict on their own; see C1, C5 and E4.

    Why
    ---
    A callback reads the free sizes, and gives back the data that it keeps for the node. If the trackers are
    not up to date at that moment, the callback frees twice or not at all. A callback that matches inside an
    eviction gets a node that is about to be removed; a callback that evicts runs the eviction loop inside
    itself.

    Choices
    -------
    Whether callbacks are made one by one at the end, or from a queue that is emptied before the operation
    returns. Which calls that change nothing are allowed inside a callback.

    Caller
    ------
    To keep callbacks short, and to change the cache only after the operation.

    Engines
    -------
    - sglang: no callbacks; removals are reported as events, in a list that is fetched later
      (`radix_cache.py`, `kv_events.record_remove`). Not applicable.
    - vLLM: watchers of reused blocks are called during the allocation, before the block
      is out of the index of hashes (`block_pool.py`, `_notify_reuse`): different.
    - Megatron Core 0.16.1: no callbacks.
    """


@callbacks_run_after_the_update.on(Evict, kinds="prefix")
def _callbacks_see_what_is_written(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    callbacks, fault, taken = seen.calls.callbacks, before.fault, seen.taken
    if not callbacks or taken is None or "callbacks" not in before.claims:
        return None
    sizes, tested = before.sizes_after(taken), None
    for effect in callbacks:
        told = {name: size for name, size in effect.sizes.items() if name in sizes}
        wanted = {name: sizes[name] for name in told}
        if told == wanted:
            tested = True
        elif fault is not None or told != {name: seen.sizes.get(name) for name in told}:
            return Broken("sizes in a callback", wanted, told)
        # Else the trackers were updated; whoever looks at the sizes at the end says what is wrong.
    if fault is not None and fault.call == "reenter" and len(callbacks) >= fault.nth:
        return same("a match from inside a callback", "RuntimeError", callbacks[fault.nth - 1].note)
    return tested


@law("X7", page="every-class", ways="op", kinds="slots rows states prefix blocks requests index")
def what_is_cleared_is_as_good_as_new(before: Any, operation: Any, seen: Any) -> Found:
    """Reset and clear make it as good as new.

    `clear` (of `slots`, `rows`, `states`) and `reset` (of all other kinds that have one) leave an object that
    behaves like a new one of the same configuration. To test this, the operations after the last `clear` or
    `reset` are played on a new object and must have the same outcomes. A reset of `prefix` is followed in the
    model instead, since ids of nodes go on counting (X3), and `rows` without the claim `zeroed_rows` are left
    out.

    - **Pools.** Everything is free again, whatever its owner: pages, halves, rows, track slots. An open group
      is closed and forgotten. Earlier allocations are void. All states are zero; so is the table of rows, row
      0 included, with the claim `zeroed_rows`.
    - **Prefix caches.** Every slot and every state that the cache owns goes back to its pool, once, whether
      held or not: effects `free` and `free_state`, and no callback. Slots of the caller stay the caller's.
      All holds end. Nodes from before are stale (`StaleNodeError`), except the root, which callers may still
      hold and release.
    - **Blocks and requests.** The state is the same as at the start (C9), and no observer is called.
    - **Indexes.** No worker has any block.

    **A pool that refuses.** If `free` or `free_state` fails in a reset, the reset does not stop: all
    remaining slots are still given back to each pool, the cache is empty afterwards, sizes are 0, and then
    the error is the result. Refused slots belong from then on to the caller, who frees them. Exactly one
    state, the state of the failed call, was not taken. Nothing is freed twice.

    Why
    ---
    Servers reset when weights are updated, and then continue. Slots that are not given back are lost until a
    restart; a ring or a counter that was not reset makes a pool hand out pages twice. If a reset ends at the
    first error, half of the tree is stale and half is not, and no second call can repair this.

    Choices
    -------
    The number and the order of the calls that give slots back. The contents of buffers of keys and values,
    which have no `clear`.

    Caller
    ------
    Not to use anything that it had before: slots, rows, nodes, holds. Before it clears a pool below a cache,
    it resets the cache.

    Engines
    -------
    - sglang: `reset` forgets the tree and frees nothing; the scheduler clears pools and tree together when
      the server is idle. Different. `clear` of its allocators is the same; `clear` of its rows keeps the
      entries (`memory_pool.py`, `ReqToTokenPool.clear`).
    - vLLM: a reset is refused, with false, while any block is in use (`block_pool.py`,
      `reset_prefix_cache`): different.
    - Megatron Core 0.16.1: `BlockAllocator.reset` rebuilds the whole stack, whether blocks are in use or not:
      the same.
    """


@what_is_cleared_is_as_good_as_new.on(Reset, kinds="prefix")
def _a_reset_calls_nobody_back(before: CacheModel, operation: Reset, seen: SeenReset) -> Found:
    callbacks = seen.calls.callbacks
    return Broken("callbacks of a reset", "none", callbacks) if callbacks else None


@what_is_cleared_is_as_good_as_new.on(Reset, kinds="prefix")
def _a_reset_frees_every_slot(before: CacheModel, operation: Reset, seen: SeenReset) -> Found:
    freed, slots = sorted(seen.calls.freed), sorted(seen.slots)
    if seen.struck == "free":
        foreign = Counter(freed) - Counter(slots)
        what = "slots that a reset frees twice, or that are not its own"
        return Broken(what, "none", sorted(foreign.elements())) if foreign else None
    if not seen.struck and seen.result != Done():
        return Broken("reset", Done(), seen.result)
    return same("slots that a reset frees", slots, freed)


@what_is_cleared_is_as_good_as_new.on(Reset, kinds="prefix")
def _a_reset_frees_every_state(before: CacheModel, operation: Reset, seen: SeenReset) -> Found:
    if before.tracks is None:
        return None
    due = len(seen.states) - (seen.struck == "free_state")
    return same("states that a reset frees", due, len(seen.calls.states))


@law(
    "X8",
    ReadHalves,
    ReadRows,
    ReadKV,
    ReadStates,
    ReadLive,
    FindSlots,
    Inspect,
    page="every-class",
    ways="op",
    kinds="slots rows buffers states prefix blocks requests index",
    needs_in={"slots": "swa", "prefix": "inspect", "blocks": "inspect", "requests": "inspect"},
)
def a_look_changes_nothing(before: Any, operation: Any, seen: Seen) -> Found:
    """A look changes nothing.

    These operations are looks. Whether and how often a look is made must not affect any other operation.

    | kind | looks |
    | --- | --- |
    | `slots` | `read_halves` |
    | `rows` | `read_rows` |
    | `buffers` | `read_kv` |
    | `states` | `read_states` |
    | `prefix` | `inspect`, `read_halves`, `read_states` |
    | `blocks` | `find_slots`, `read_live`, `read_states`, `inspect` |
    | `requests` | `inspect` |
    | `index` | `find_blocks`, `inspect` |

    A look has no effects. Nothing becomes recent, no node is split, freed pages are not merged, no reference
    is taken, no cell is different, and the next allocation returns the same as without the look. The answer
    of a look belongs to the caller (X5).

    The law is checked twice: in the outcome of the look, and, for all kinds but `prefix`, by playing the same
    program on a new object without its looks. All other operations must have the same outcomes there. Of
    `prefix`, each step is compared with the model, which no look changes, and other laws judge the
    difference: R8, where the order is claimed, if a look makes a page recent, R10 if it splits or counts. The
    choice of the next slots is judged for their pool, by the laws of `slots`.

    A `match` is no look: it makes its path recent (R8) and may split a node.

    Why
    ---
    Looks come from a monitor, from a router that asks every rank how much of a prompt it has, from a
    scheduler that sorts its queue, from an audit. If a look makes a page recent, pages that are often looked
    at survive instead of pages that are used. If a look merges, splits or fetches, a server behaves
    differently while it is watched, and its fault disappears when an engineer inspects the server.

    Choices
    -------
    The cost of a look. Values computed and kept for the next look, as long as no outcome shows them.

    Caller
    ------
    To remember that a match counts as a use. A caller that only needs the length must compute it itself.

    Engines
    -------
    - sglang 0.5.23 has no other way to ask for a prefix than `match_prefix`, which writes times and splits
      (`mem_cache/radix_cache.py`, `_match_prefix_helper`). In its port to JAX, a router that asked every rank
      in this way made unused nodes recent ([sglang-jax
      1414](https://github.com/sgl-project/sglang-jax/issues/1414)).
    - vLLM 0.33: `KVCacheManager.get_computed_blocks` takes no block out of the free queue; they are touched
      when slots are allocated (`v1/core/single_type_kv_cache_manager.py`). The same.
    - Megatron Core 0.16.1: not applicable, there is nothing to look at but its tensors.
    """
    return same("effects of a look", (), tuple(seen.effects))


ANSWERED = "X9"
"""The law that every result tests, even where the program tests no other law."""


@law(ANSWERED, page="every-class", ways="op", kinds="all")
def what_is_claimed_is_done(before: Any, operation: Any, seen: Any) -> Found:
    """Every claimed operation is carried out.

    Only an implementation without the needed claim may answer `unsupported`. With the claim, it has to carry
    the operation out in every state: `unsupported` in its place breaks this law. The pages of the kinds list
    the operations that each claim brings; every implementation gets the operations without a claim.

    `unsupported` is allowed, and breaks no law, where

    - a claim that the operation needs in this form is missing: an `insert` with a namespace needs
      `extra_key`, and with the claim `mamba`, an `insert` without a state needs `bare_inserts`;
    - the call is malformed, or misuse, and cannot be made on this implementation (X1); or a token does not
      fit its container (K1);
    - the operation is optional, and this implementation never carries it out: `clear`, of `slots` `move_swa`,
      of `buffers` `move_kv`, of `prefix` `free_swa`, `move_swa`, `read_halves`, `write_state` and
      `read_states`. Done once in a program, the operation must be done each time;
    - the operation names a step that was not done, or a node that an `insert` did not give.

    An implementation that claims an operation and cannot carry out some form of it declares this beforehand:
    a **declared limit** is the name of the operation, and the reason in words. With a declared limit
    `unsupported` breaks no law, and is counted: each verdict says how many steps were not done, for which
    reason, and where. If no step of the operation was done, a law that the operation tests is *unknown*.

    An unsupported operation changes nothing: there are no effects, and every size is the same as before. A
    size reported after one step is reported after every step of a program; an answer of `unsupported` may
    come without sizes. The kind, configuration, claims and limits of an implementation are declared once, and
    do not change.

    Why
    ---
    A judge believes the answers. A cache that evicted held pages passed all of its laws, since its adapter
    answered `unsupported` to each eviction while a page was held: these steps were not judged, and the laws
    were tested only where they are easy to keep. An operation left out at a critical moment looks like an
    impossible operation; only the earlier declaration distinguishes the two.

    Choices
    -------
    Its claims. Which limits to declare: the verdict reports each limit.

    Caller
    ------
    Not to use abilities that are not claimed.

    Engines
    -------
    - sglang: a hold is released only through its own node; the adapter here declares this as a limit of
      `unlock`.
    - vLLM: a running request is a hold; the same limit.
    - Megatron Core 0.16.1: no observer may fail, so `faults` is not claimed.
    """


@what_is_claimed_is_done.on(*OPERATIONS, fate=UNDONE)
def _a_claim_is_kept(before: Any, operation: Any, seen: SeenUndone) -> Found:
    if seen.effects:
        return Broken("effects of what was not done", (), tuple(seen.effects))
    if not seen.is_owed:
        return None
    what = f"{name_of(type(operation))}, which is claimed without a limit"
    return Broken(what, "done", f"unsupported ({seen.result.what})")


@law("X10", TakeEvents, page="every-class", ways="op", kinds="prefix blocks requests", needs="events")
def events_tell_what_is_cached(before: Any, operation: TakeEvents, seen: SeenEvents) -> Found:
    """The events, applied in order, give the cached blocks.

    `take_events` answers with the events since the last `take_events`, and forgets them. A reader that
    applies all events in order knows exactly the cached blocks at that moment:

    - `stored`: the blocks of `hashes` are cached from now on. Each was not reported before, or was removed
      since. Each is the child of the block before it. The first is the child of `parent`, which was stored
      and not removed; without a `parent` it begins a prompt. A run of blocks may be one event or several.
    - `removed`: these blocks are no longer cached. Each was reported as stored.
    - `cleared`: no block is cached. A `reset` is reported in this way, or by removals. The first event of a
      new object may be `cleared`.

    A block has parts, which are stored and removed separately. `kv` is its part for layers that see all
    tokens; with a window, `window` is cached while the page is no tombstone (S2); with states, `state` is a
    state after the block's last token (M1). A page of a cache (R1) is a block here.

    | kind | `hashes` | `tokens` |
    | --- | --- | --- |
    | `prefix` | of its own, one for each block of a namespace | of all blocks, as they were given |
    | `blocks` | those of `register_blocks` | null |
    | `requests` | those of C3 | of all blocks |

    Of `prefix`, `extra_key` gives the namespace where a prompt begins. The changes of a failed or refused
    operation are reported, too: slots that a pool refused are still cached (X2). Nodes and splits are not
    reported.

    Why
    ---
    Routers send a request to the machine where most of its prompt is cached, and know this from events alone.
    After an unreported removal they choose a machine that must compute the prompt again; a removal reported
    too early, or a block with a wrong parent, hides cached blocks. Nothing fails on the server itself:
    answers are right, and late.

    Choices
    -------
    The grouping of blocks into events. Whether an event is made at once or on request. The hash of kind
    `prefix`. The order of the removals of one operation.

    Caller
    ------
    To take events before too many of them fill the memory.

    Engines
    -------
    - vLLM: `BlockStored` and `BlockRemoved` name blocks by their hashes; while a second copy of a block
      stays, the removal of the first is reported (vllm#55092); see W5.
    - sglang: an event for each page of a node that comes or goes (`mem_cache/events.py`).
    """
    if seen.odd is not None:
        return Broken(*seen.odd)
    for part, cached in seen.cached.items():
        told = seen.told_of(part)
        if told != {*cached}:
            missing, gone = {*cached} - told, told.difference(cached)
            expected, observed = "what is cached", f"what is not: {_some(gone)}"
            if not gone:
                expected, observed = "all that is cached", f"not {_some(missing)}"
            return Broken(f"{part} of blocks, as events tell it", expected, observed)
    stray = {part for part, _ in seen.told} - seen.cached.keys()
    if stray:
        return Broken("parts that events tell", f"of {', '.join(seen.cached)}", ", ".join(sorted(stray)))
    return bool(seen.told) or None


def _some(contents: Collection[object]) -> str:
    """Return a few blocks as text: the tokens of paths, the hash of other blocks."""
    spelled = [str(it.tokens if isinstance(it, Path) else it[0]) for it in contents]  # type: ignore[index]
    spelled.sort(key=lambda text: (len(text), text))
    return ", ".join(spelled[:3]) + (", ..." if len(spelled) > 3 else "")
