"""Laws of blocks found by hash, and of the states that are cached with blocks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Any

from pymllm.history.operations import (
    OPERATIONS_OF,
    AllocBlocks,
    AllocSlots,
    BeginTransfer,
    DropStates,
    EndTransfer,
    EvictSlots,
    Fault,
    FindSlots,
    Inspect,
    NameStates,
    Operation,
    ReadLive,
    ReadStates,
    RegisterBlocks,
    ReleaseBlocks,
    Reset,
    RestoreLive,
    RetainBlocks,
    SaveLive,
    SetClock,
    StampBlocks,
    StoreState,
    WriteLive,
)
from pymllm.history.outcomes import INJECTED, Failed, FoundSlots, NoRoom, Number
from pymllm.oracle.laws.every_class import (
    callbacks_run_after_the_update,
    misuse_is_refused,
    what_a_pool_did_not_take_stays,
    what_cannot_be_met_changes_nothing,
    what_is_cleared_is_as_good_as_new,
)
from pymllm.oracle.laws.law import Broken, Found, demand, law, same
from pymllm.oracle.models.block_states import PARTS
from pymllm.oracle.models.blocks import (
    NO_SLOTS,
    RAISED,
    BlocksModel,
    SeenBlocks,
    SeenLoss,
    SeenSlots,
    SeenStates,
)
from pymllm.oracle.models.kind_model import NO_ROOM, REFUSED, KindModel
from pymllm.oracle.models.slot_model import Remainder


@law("C1", AllocBlocks, page="blocks", ways="sop", kinds="blocks requests")
def blocks_partition_the_pool(before: BlocksModel, operation: AllocBlocks, seen: SeenLoss) -> Found:
    """Free, referenced and cached blocks partition the pool; children go before their parents.

    Blocks are 0 to `blocks` - 1; the next number is the dummy. Each block but the dummy is at any time
    exactly one of

    - **referenced**: its count of references is above 0, registered (C3) or not;
    - **cached**: its count is 0 and it is registered;
    - **free**: its count is 0 and it is not registered.

    | operation | effect on counts and blocks |
    | --- | --- |
    | `alloc_blocks` *n* | *n* different free blocks get the count 1, and the clock as their stamp |
    | `retain_blocks` | + 1 each time that a block is named; a cached block becomes referenced |
    | `release_blocks` | - 1 each time that a block is named |
    | `begin_transfer`, `end_transfer` | + 1, and - 1, for each different block of the transfer |

    **Release.** An unregistered block that reaches 0 is free. A registered block that reaches 0 stays cached
    with the policies `lru` and `release`. With `ref_zero` it is deregistered, together with all of its
    registered descendants; those with references stay referenced, without a hash, and the rest is free. All
    blocks of one call lose their references first. `ref_zero` caches no block without a reference: its cache
    consists of the blocks that running requests share.

    **Transfers** (claim `transfers`). Something outside may read or write blocks asynchronously: an offload,
    the other half of a disaggregated server, a step in flight. `begin_transfer` names referenced and cached
    blocks, and gets a reference of its own to each, + 1; `end_transfer` gives these references up, - 1, as a
    release does. No other release takes them away: a release of more references than there are without the
    transfer's is refused, and so is a second end of a transfer. A request that is aborted or paused meanwhile
    gives up only its own references. A `reset` ends all transfers.

    A cached block without a referenced registered descendant is **evictable**. `alloc_blocks` succeeds if and
    only if *n* <= free + evictable; otherwise it answers `no_room`, and nothing has changed (X4). It evicts
    exactly *n* - free blocks, and none if this is not above 0. Each is deregistered and free, and may be
    handed out by the same call. At its turn an evicted block must be evictable and have no registered child,
    so a chain is evicted from its end. With the claim `exact_lru`, each eviction takes a candidate with the
    smallest stamp. `exact_policy` requires the same, but with the policy `release` the candidate released
    first, where the blocks of one release count in the order in which it names them (for the last time). The
    observer is called with evicted blocks in the order of eviction (C6). With the claim `trusted_hashes`
    there are no parents and children (C3): every cached block is evictable.

    **The dummy** is never handed out, has no references that count, and is in no size. To retain or release
    the dummy, a free block or a block outside of the pool is an `OwnershipError`. So is the release of a
    block more often than it is held, counting every time that the call names the block. The call has then
    done nothing, not even to valid blocks that it names, too (X1).

    `pool_avail` is the number of free blocks, `evictable_blocks` the number of evictable blocks; cached
    blocks above a referenced block are in neither.

    In kind `requests` the same is followed through rows. A request has one reference to each of its blocks; a
    cut (`truncate`) takes away its references to the blocks behind the cut. A holder of a block holds every
    block before it, so every cached block is evictable. The block released longest ago is evicted first, and
    children before their parents; this is required with or without `exact_lru`. And paused requests may keep
    at most `paused_limit` different blocks together: a pause beyond this limit is `no_room`.
    `transfer_request` begins a transfer of the blocks that a request has, whatever happens to the request;
    blocks that the request gets later are not included. `end_transfer` ends the transfer: blocks that no row
    and no other transfer has are then cached or free.

    Why
    ---
    A block with two owners gets the KV of both. A block that is handed out while a transfer writes to it gets
    the KV of an aborted request; a block whose transfer never ends is lost. Where a count was lowered once
    although a call named a shared block twice, the block was kept for ever. An eviction by age alone takes
    the first block of a prompt first, since it is the oldest: all blocks below stay cached and can never be
    found. A parent whose count of children was raised twice could never be evicted again.

    Choices
    -------
    Which free blocks are handed out, and in which order. Which of equally old blocks is evicted. In kind
    `blocks` without `exact_lru` and `exact_policy`, which leaf is evicted. How leaves are found. Whether the
    dummy has any memory.

    In kind `blocks` the observer is not optional: `callbacks` must be claimed, since nothing else says which
    cached blocks an allocation has evicted. The adapter of an allocator without an observer compares the
    hashes and references before and after a call, and reports the difference, children before parents. Such
    an adapter cannot know the order, and claims none.

    Caller
    ------
    To move clock and stamps only forward, or recency has no meaning. Not to use released blocks.

    Engines
    -------
    - vLLM counts references per block (`vllm/v1/core/block_pool.py`, `BlockPool.touch`, `free_blocks`). Free
      and cached blocks are in one queue, cached blocks at its end, and `get_new_blocks` takes from its front.
      Parents and children have no order, except that a request frees its last block first (`trusted_hashes`,
      policy `release`). Block 0 is its null block.
    - Megatron Core 0.16.1: `BlockAllocator` in
      `megatron/core/inference/contexts/dynamic_block_allocator.py` is a stack without counts, hashes or a
      check of releases; its last block is the dummy, the same. Paused requests have a share of their own
      (`evict_overflow_paused_requests` in `dynamic_context.py`), counted by request.
    - Megatron-LM's `KVBlockAllocator` of August 2026 (`kv_block_allocator.py`) is this law for
      `careful_callers`: it evicts leaves, the smallest stamp first (`evict_lru_blocks`), and assumes that the
      parent of every held block is held.
    - sglang: not applicable, a tree of pages (R5, R6).
    """
    evicted = _leaves_are_evicted(before, operation, seen)
    if isinstance(evicted, Broken):
        return evicted
    blocks, count, taken = before.blocks, operation.count, seen.result.slots
    given = {block for block in taken if block in blocks.free or block in seen.lost}
    what = f"alloc of {count} blocks, {len(blocks.free)} free and {seen.lost} evicted"
    return demand(len(taken) == count == len(given), what, f"{count} of these", taken)


@law("C2", AllocSlots, page="blocks", ways="sop", kinds="blocks requests", needs="mamba")
def slots_have_one_block(before: BlocksModel, operation: AllocSlots, seen: SeenSlots) -> Found:
    """Slots are free, mapped to one block, or in a caller's hands.

    A **slot** has room for one cached state: both parts, all layers. Slots are 0 to `slots` - 1; there is
    no padding among them. Each is at any time exactly one of

    - **mapped** to one block, which has no other slot;
    - **in hand**: taken by the caller with `evict_slots`;
    - **free**.

    | operation | slots |
    | --- | --- |
    | `alloc_slots` | a block without a slot gets a free slot, or the slot of another block (C5, C6) |
    | `evict_slots` | from mapped to in hand |
    | `drop_states`; a block that is deregistered or becomes free (C6) | from mapped to free |
    | `reset` | all are free, slots in hand too |

    No other operation moves a slot. A block keeps its slot when it is retained, when it is released and stays
    cached, and when it is registered. Only a reset gives back a slot in hand. Such a slot can be written
    (`save_live`), and belongs to no block.

    All views must agree: `slot_of_block` and `block_of_slot` are inverse to each other, with -1 for none, and
    `free_slots` are the free slots in any order. `free_count` is their number. `find_slots` gives each
    block's slot or -1, and `has_state` is true exactly for blocks with a slot, whether written or not. A free
    block and the dummy have no slot.

    In kind `requests` a slot that a step gives to a block must be a slot of the pool, and of no other block.

    Why
    ---
    A slot with two blocks holds one state, so one of two conversations continues from the other's state. A
    slot without an owner is lost: there are few, since a state is as large as the KV of thousands of tokens,
    and the cache of states shrinks unnoticed until it is empty.

    Choices
    -------
    Which free slot a block gets. The order in which free slots are listed.

    Caller
    ------
    To take slots in hand only if it can spare them: they come back only with a reset.

    Engines
    -------
    - Megatron Core 0.16.1 has no slots for cached states. `MambaMetadata`
      (`contexts/attention_context/mamba_metadata.py`) hands out one row of live states for each request.
    - vLLM: a state is a block of a group of its own, from the same pool, so that blocks and slots are one
      (`vllm/v1/core/single_type_kv_cache_manager.py`, `MambaManager`).
    - sglang: track slots of a pool beside the tree (P5, M7).
    """
    slots, slot_of = before.slotted(), before.slotted().slot_of
    new, turn = seen.new, [slot_of[block] for block in seen.turn]
    allowed = Remainder(range(slots.total), slots.free.gone.difference(turn))
    is_right = len({*new}) == len(new) and {*turn} <= {*new} and allowed.issuperset(new)
    return demand(is_right, f"slots for blocks {seen.blocks}", f"new ones of {allowed}", new)


@law("C3", page="blocks", ways="sop", kinds="blocks requests")
def a_hash_has_the_block_that_came_first(before: Any, operation: Any, seen: Any) -> Found:
    """A hash has the block that came first with it, below its very parent, and no other.

    `register_blocks` goes through its entries in order. An entry is a block, a hash and a parent. The
    **parent's hash** is `parents[i]`, 0 for a first block; where `parents` is null, the first entry is a
    first block and each other entry follows the entry before it. The **parent** is a block: the last of the
    earlier entries of this call with that hash (with null simply the entry before), or else the block that is
    registered under that hash now. The entry

    1. is skipped if the block is registered under this hash already: its parent is unchanged;
    2. does nothing if another block has the hash: the first registration stays;
    3. does nothing if it is no first block and its parent is not registered, or there is no parent. Another
       block that is registered under the parent's hash does not count;
    4. otherwise registers the block, below its parent.

    "Does nothing" means that the answer is `done`, and no error. With `caching` false every entry does
    nothing. Registering changes no count, stamp or slot. A block has one hash, and a hash one block: `hashes`
    of the views has the hash of each block, -1 for none, and `block_of_hash` is exactly the inverse. A block
    that is deregistered (C1) loses its hash, and another block may be registered under this hash later. Its
    children are deregistered before it or with it, never after.

    **Trusted hashes.** With the claim `trusted_hashes` an implementation relies on a hash to identify the
    whole prefix of a block. Then 2 and 3 do not apply, and no block has a parent: a hash may have several
    blocks, each registered until it is deregistered itself. `block_of_hash` has each hash once, with any one
    of its blocks.

    Refused are (X1, with any of its errors): a block that is free, the dummy, or outside; more or fewer
    hashes or parents than blocks; a hash outside of 1 to 2<sup>63</sup> - 1, and a parent's hash outside of 0
    to 2<sup>63</sup> - 1; and a second hash for one block, whether the block has its first hash already or
    gets it in the same call. Then nothing at all was registered. A call never names a block before its
    parent.

    In kind `requests` the implementation computes hashes itself. Block *i* of a prompt has the chained
    page hash of H1 to H3 without a namespace, its digest being *d*<sub>i</sub>; the block's hash is the
    first 16 hexadecimal digits of *d*<sub>i</sub> as a number, modulo 2<sup>63</sup>, and 1 in place of
    0. With `hash_digits` = *k* the digest is cut: *d*<sub>i</sub> is its first *k* digits with zeros before
       them, 16 in all. So different blocks often have the same hash, and the hash alone does not make a hit:

    - the block found under the hash has exactly this block's tokens, and
    - its parent is exactly the block found before it (none for the first).

    A request **shares** the longest chain of blocks found in this way; the first block that fails ends the
    chain. All blocks that a step has made whole are offered in order, also blocks of generated tokens,
    requests in the order of the batch. If another block has the hash of a request's block, neither this block
    nor any later block of the request is registered, as long as the request lives, or until it is cut at or
    before that block.

    **Cuts.** When a request is cut in the middle of a registered block (claim `truncate`), other tokens will
    be written into that block. The block is deregistered with all of its registered descendants, before
    anything is written there, and registered with its new tokens once it is whole again. After a cut at a
    block's end every block keeps its hash.

    Why
    ---
    If a second registration wins, the first block is cached and never found, and its removal deletes the
    entry of the second block. If an equal hash counts as a parent, a chain is placed below a block with other
    tokens, and a collision gives one user's answer to another user: short hashes have done this in
    production. A block that is registered before its KV is written is read by others unwritten. If a block
    keeps its hash when a rejected draft in it is replaced, another user gets the KV of tokens that are not in
    the prompt.

    Choices
    -------
    How tokens and parents are compared. Whether a block's digest is kept.

    Caller
    ------
    To register only blocks whose KV is written, each after its parent, and to pass as the parent's hash the
    hash of the block before it in the request's table.

    Engines
    -------
    - vLLM: one hash may have several blocks, and any of them is found (`BlockHashToBlockMap` in
      `block_pool.py`); neither parents nor tokens are compared, since the hash is long and covers all tokens
      before (`kv_cache_utils.py`, `hash_block_tokens`): `trusted_hashes`. Drafts are not hashed before they
      are verified; where a request's end is replaced in another way, hashed blocks were overwritten.
    - Megatron Core 0.16.1: absent, no block is found by hash.
    - sglang: not applicable: children are found by their tokens.
    """


@law("C4", Inspect, page="blocks", ways="sop", kinds="blocks", needs="mamba")
def a_named_state_goes_with_its_block(before: BlocksModel, operation: Inspect, seen: SeenBlocks) -> Found:
    """The hash of a cached state names a block with a slot, and goes with that block only.

    A state can be found by hash only after `name_states`, which is called once a step has written the state.
    Each entry is a block and a hash. An entry with a hash of 0 or less has no hash and is skipped; for any
    other, `block_of_state` has the pair (hash, block) from then on. To name a block again by its hash changes
    nothing.

    A call is refused (X1, with any of its errors), with nothing named, if it has more or fewer hashes than
    blocks, a block outside of the pool, a block that has a hash in this call and no slot, or a hash other
    than the hash under which the block is registered now.

    So at any time each pair of `block_of_state` names a block that has a slot (C2) and is registered under
    exactly this hash (C3), and each hash and each block occurs once.

    A name is removed with the slot: when the block loses its slot to another block (C5), to a caller, by
    `drop_states`, or because the block was deregistered or became free (C6). Then exactly this name is
    removed. `drop_states` takes blocks, skips blocks without a slot, and treats a block named twice like a
    block named once. It frees their slots, has no effects and changes no block. `how` selects the call:

    | `how` | |
    | --- | --- |
    | `batch` | one call for all |
    | `one by one` | a call for each block |
    | `deregistered` | the call of the block allocator to its observer: with the blocks, and with `hashes` |

    The `hashes` passed with `deregistered` may be hashes of other blocks, or of no block: they remove
    nothing. A block outside of the pool is refused, with nothing dropped. The dummy and free blocks have no
    slot, and are skipped.

    Why
    ---
    A hash that outlives its slot leads a request to a slot that now has another state. If a hash is removed
    with the wrong block, a valid state can no longer be found, and its slot is never used again: an engine
    removed the hash without checking whether it still named this block.

    Choices
    -------
    Whether names are kept in a separate table, as long as the view is right.

    Caller
    ------
    To name a state once it is written, and by the hash of its block.

    Engines
    -------
    - vLLM removes a hash by hash and block id, so that a duplicate's entry stays
      (`block_pool.py`, `BlockHashToBlockMap.pop`).
    - Megatron Core 0.16.1: absent. sglang: not applicable, a state belongs to its node (M3).
    """
    names = {value: block for block, value in before.slotted().named.items()}
    return _wrong_view(before, ("hash_to_block_id", _pairs(names), seen.result.block_of_state))


@law("C5", AllocSlots, page="blocks", ways="op", kinds="blocks", needs="mamba")
def a_batch_is_met_whole(before: BlocksModel, operation: AllocSlots, seen: SeenSlots) -> Found:
    """A batch gets one slot per block, evicts none of its own, and is met whole or not at all.

    `alloc_slots` names referenced or cached blocks, in any order, perhaps with repeats, perhaps none at all.
    It answers with as many slots as it was given blocks, at the same positions:

    - for a block that has a slot, the answer is that slot, and the block keeps it with its name and its
      state;
    - equal blocks get equal slots;
    - the other blocks, *m* different ones, get *m* different slots: first the free slots, and then the slots
      of the blocks that C6 defines. A block loses its slot only if no slot is free.

    A call never takes the slots of blocks that it names, however old they are, with or without references. So
    the call succeeds if and only if *m* <= free slots + blocks with a slot and without references that it
    does not name. Otherwise it answers `failed` with `MambaSlotCapacityError`, and nothing has changed: no
    slot was taken, no block has lost its slot, and later calls give the same slots as if this call had never
    been made.

    A free block, the dummy or a block outside of the pool is refused (`OwnershipError`, `UsageError` or
    `IndexError`), again with nothing changed.

    The content of a new slot is undefined until it is written.

    Why
    ---
    The batch contains the states that one step wants to keep. If making room for the last state takes the
    slot of the first, the step writes into a slot of another owner: a server crashed while it committed a
    long prompt, because it evicted slots of its own blocks. If slots are taken before the call fails, they
    are lost.

    Choices
    -------
    Which free slots are given, and to which of the blocks the slots of victims go.

    Caller
    ------
    To choose the states worth keeping if the call fails: C7 defines the choice of a step.

    Engines
    -------
    - vLLM counts all blocks of a step before it takes any (`vllm/v1/core/kv_cache_manager.py`,
      `KVCacheManager.allocate_slots`), and touches the matched blocks first, so that they are not taken.
    - Megatron Core 0.16.1: absent; `MambaMetadata.allocate_slot` hands out single rows. sglang: not
      applicable, a track slot is taken one at a time (M1).
    """
    wanted, given, slot_of = seen.blocks, seen.result.slots, before.slotted().slot_of
    what = f"slots for blocks {wanted}"
    first: dict[int, int] = {}
    if len(given) != len(wanted):
        return Broken(f"how many {what}", len(wanted), given)
    for block, slot in zip(wanted, given, strict=True):
        if first.setdefault(block, slot_of.get(block, slot)) != slot:
            return Broken(what, "those that they have, one each", given)
    own = [block for block in _taken_from(before, seen) if block in wanted]
    return demand(not own, f"evictions for {what}", "none of the batch", f"blocks {own}")


@law("C6", page="blocks", ways="sop", kinds="blocks requests", needs="mamba")
def unreferenced_blocks_lose_their_slots(before: BlocksModel, operation: Operation, seen: SeenLoss) -> Found:
    """Only unreferenced blocks lose their slots to others, oldest first; free blocks have none.

    **To others.** A block may lose its slot to `alloc_slots` or `evict_slots` only if it has a slot and no
    references, and is not named by that `alloc_slots` (C5). Of these blocks, one with the smallest stamp
    loses its slot, and so on until there are enough; this order is required with or without `exact_lru`.
    Parents and children do not matter here. The block stays cached. With `ref_zero` no block without
    references has a slot, so there is no candidate.

    `evict_slots` takes exactly `count` slots and returns them in any order; they are then in hand (C2). If
    fewer blocks qualify, it answers `MambaSlotCapacityError`, and nothing has changed. Free slots do not
    count: `evict_slots` never hands them out. A `count` of 0 takes none.

    **With its block.** A block that is deregistered or becomes free loses its slot and the name of its state
    (C4), whatever the cause: an eviction, a release, or with `ref_zero` the release of an ancestor, even
    while the block still has references. Its slot is free at once.

    **The observer.** The observer of the block allocator informs other structures with data per block; the
    effect `callback` is its report. `slots` are the *blocks* that were deregistered or became free, `target`
    are the hashes that they had, ascending. Each block is reported once, also blocks that never had a hash,
    and nothing else is reported. A release and an eviction call the observer once or several times; where
    nothing is deregistered or freed there is no call. A reset calls no observer. With the claim
    `careful_callers`, blocks that never had a hash may be left out, because careful callers keep no data for
    such blocks. At the last call of the observer all trackers are up to date: `sizes` inside this call, if
    reported, are the sizes at the operation's end, except that blocks that an allocation is about to take
    still count as free (X6).

    In kind `requests`, `slots` of the callbacks are compared, `target` is not. Slots of blocks without
    references are taken in the order in which the blocks were released, the lower number first where one
    release names several. From this order the judge predicts which states are evicted for the states of a
    step.

    Why
    ---
    A state of a running request is about to be restored, or was just written. A state that outlives its block
    is never found, and its slot is lost; or it is found for the block's next content. Where observers were
    called only for blocks with a hash, the slots of all other blocks were never freed.

    Choices
    -------
    Which of equally old blocks loses its slot; in `requests`, where no outcome shows the choice, the block
    with the lowest number loses it. The number and order of the calls that report the blocks of a release.
    (For evictions the order of the calls is the order of eviction: C1.)

    Caller
    ------
    An observer that only reads (X6).

    Engines
    -------
    - vLLM: a state's block is in the same queue as all others, and is evicted when it is taken from the queue
      (`block_pool.py`, `_maybe_evict_cached_block`); watchers of blocks are called when the blocks are reused
      (`_notify_reuse`). There is no order between KV and states.
    - Megatron Core 0.16.1: absent. sglang: see M5.
    """


@law("C7", ReadStates, ReadLive, page="blocks", ways="op", kinds="blocks requests", needs="mamba")
def states_are_copied_bit_for_bit(before: BlocksModel, operation: Operation, seen: SeenStates) -> Found:
    """States are copied bit for bit, and nowhere else.

    A state has two parts, recurrent (SSM) and convolution, in each layer. Cached states are in slots, live
    states in rows of the context. All are zero at first. Then

    | operation | writes |
    | --- | --- |
    | `store_state` | one layer of the slot of one block, both parts |
    | `write_live` | one layer of the live state of one request, as a forward pass would |
    | `save_live` | into each slot, all layers of the live state of the request at the same position |
    | `restore_live` | all layers of the live state of one request, from the block's slot |

    These operations write nothing else, and other operations write no state. Numbers stand for bits, so
    nothing may be cast, rounded or made canonical: a NaN keeps its payload, and -0 is not 0. Reading
    (`read_states`, `read_live`) must return in every row exactly the last written values, in the configured
    shape and dtype; a dtype may be left empty. One exception: when a slot changes its owner (it is given to a
    block, taken in hand, or becomes free) its content is undefined until it is written, separately for each
    layer and part; values read meanwhile must not change.

    - `store_state` for a block without a slot is a `UsageError` or `OwnershipError`; for a block or a
      layer outside it is any error of X1.
    - `save_live` names different slots, each mapped or in hand, and as many requests, which may repeat.
      Another number of requests, or a request without a live state, is refused.
    - `restore_live` answers the number 1, or 0 if the block has no slot; then the live state is unchanged. A
      request without a live state is refused.

    In kind `requests` a step **commits** the states of C8: the state extracted inside a chunk, or the live
    state at a prompt's end. A committed state belongs to the block that ends there. Blocks without a
    registered hash are skipped, and if several requests leave the state of one block, one state is enough. A
    block that has a slot keeps its slot. Available are the free slots and those that C6 allows to take,
    except slots of blocks of the commit. If they run out, states at ends of prompts are kept before states
    inside chunks, each group from the deepest on, the lower row first among equals. The rest is dropped; a
    step never fails for lack of a slot. A cached state equals the state of a cold run (E1), read back by
    `inspect`.

    Why
    ---
    A wrong state affects every later token, and unlike wrong KV it never leaves the window: the model forgets
    the prompt, or continues another prompt. Shipped copies have missed a layer, rounded through another
    dtype, or reported success where nothing was copied.

    Choices
    -------
    The number of kernels, and whether the copy runs on the device.

    Caller
    ------
    To write live states only of requests that have a live state, and only numbers that fit every dtype: -128
    to 127. Not to save into a slot twice in one call.

    Engines
    -------
    - vLLM copies no states in general: a request takes over a state's block, by copy on write where a hit is
      partial (`single_type_kv_cache_manager.py`, `MambaManager`, `_apply_cow`).
    - Megatron Core 0.16.1: no copies; a new request's live state is zeroed (`dynamic_context.py`,
      `add_request`). sglang: see P5, M1.
    """
    states, read, cells = before.cells(), seen.result, seen.cells
    assert cells is not None
    count = len(cells.cells) // len(PARTS)
    rows, forms = (
        (read.recurrent, read.conv),
        (
            (read.recurrent_shape, read.recurrent_dtype),
            (read.conv_shape, read.conv_dtype),
        ),
    )
    for part, contents, (shape, dtype) in zip(PARTS, rows, forms, strict=True):
        width, wanted = states.widths[part], ((count, *states.shapes[part]), states.dtypes[part])
        if (shape, dtype or states.dtypes[part]) != wanted:
            return Broken(f"form of the {part} states", wanted, (shape, dtype))
        if len(contents) != count:
            return Broken(f"rows of the {part} states", count, len(contents))
        if {*map(len, contents)} != {width}:  # of a slot that may hold anything, too
            return Broken(f"numbers in the {part} states", width, contents)
    wrong = cells.find_wrong(seen.read)
    return cells.tested if wrong is None else Broken(*wrong)


@law("C8", page="blocks", ways="sop", kinds="requests", needs="mamba")
def states_are_kept_at_block_ends(before: Any, operation: Any, seen: Any) -> Found:
    """States are kept at block ends inside a chunk, and at prompt ends.

    A step that computes a chunk of a prompt must output the state at certain positions, so that later
    requests can continue from there. *B* is `block_size`, *K* `chunk_size`, *p* the length of the prompt, and
    *m* the number of blocks that the request found cached when it was added. *s* is the first token that the
    chunk computes, and *t* the end of the chunk. Then *s* is the number of tokens computed before, plus the
    tokens of a restored state (in the first chunk). The **candidates** are three positions:

    | candidate | position |
    | --- | --- |
    | where the cached KV ended, and prompts may diverge | *m* *B* |
    | the last block end of the prompt | floor(*p* / *B*) *B* |
    | the last block boundary before the chunk's end | (ceil(*t* / *B*) - 1) *B* |

    A candidate *c* is kept if *s* < *c* < *t* and *c* - *s* is a multiple of *K*: the kernel has a state at
    each multiple of *K*, counted from its start. The **offsets** of the request in this step are *c* - *s* of
    the kept candidates, each once, ascending; a request in decode has none. And if the chunk ends the prompt
    (*t* = *p*) and *p* is a multiple of *B*, the live state at its end is kept, too; this end is no offset.

    | *B* | *K* | *p* | *m* | *s*, *t* | candidates | offsets | kept |
    | --- | --- | --- | --- | --- | --- | --- | --- |
    | 4 | 2 | 10 | 0 | 0, 6 | 0, 8, 4 | 4 | 4 |
    | 4 | 2 | 10 | 0 | 6, 10 | 0, 8, 8 | 2 | 8 |
    | 4 | 2 | 8 | 2 | 4, 8 | 8, 8, 4 | | 8, the prompt's end |
    | 4 | 4 | 10 | 0 | 6, 10 | 0, 8, 8 | | |
    | 4 | 2 | 20 | 3 | 4, 20 | 12, 20, 16 | 8, 12 | 12, 16, 20 |

    Kept states are offered to the cache after the forward pass, by the rules of C7. The state at position
    *c* belongs to block *c* / *B* - 1 of the request.

    Offsets are in `ran`, and must be exactly these with the claim `mamba`. A request that is paused, or whose
    chunk is given up, leaves no state.

    Why
    ---
    A state that is kept one block too early or too late is useless, or is restored for the wrong prefix. One
    engine computed positions relative to the first chunk only, so that a prompt of several chunks never left
    a state at all, and every turn of every long conversation was computed from its start. Another engine
    divided by the block size of a different group.

    Choices
    -------
    How the kernel outputs the states.

    Caller
    ------
    To choose chunks that end where states are useful, if it wants more states.

    Engines
    -------
    - vLLM cuts chunks so that they end where a state is to be cached: at block ends, at the last block end
      that a prompt's next turn can use, and where a shared prefix ends (`vllm/v1/core/sched/scheduler.py`,
      `_mamba_block_aligned_split`; `MambaManager.reachable_block_mask`). Similar positions by another method.
    - Megatron Core 0.16.1: absent. sglang leaves states at multiples of its own interval, see M1.
    """


@law("C9", page="blocks", ways="op", kinds="blocks requests")
def a_reset_restores_the_first_state(before: Any, operation: Any, seen: Any) -> Found:
    """A reset restores the first state bit for bit.

    After `reset` the state is the same as in a new implementation with this configuration, even if blocks
    were referenced or cached, slots in hand, or requests live:

    - every block is free, without a hash, and every slot is free;
    - all views equal the first ones, entry by entry: counts, hashes, stamps, both maps of slots, the order of
      `free_slots`, the entries of the dummy and of free blocks;
    - cached and live states are zero, in every layer and row, the reserved row too;
    - the clock is 0;
    - in kind `requests` there are no requests; earlier requests count as released, and operations that name
      them are refused. KV need not be wiped.

    So later operations must have exactly the same outcomes as on a new implementation, including the numbers
    of the blocks handed out (X7). A reset answers `done`, calls no observer (X7), and cannot fail.

    The views are compared if they were read before any other operation, and again directly after the reset.

    Why
    ---
    A server is reset between measurements, after a change of weights, or when its counts are wrong. A hash
    that survives leads to KV of the old weights. If a reset leaves the free list in another order, the ranks
    of a server differ, and a bug cannot be reproduced.

    Choices
    -------
    Whether memory is zeroed or allocated again.

    Caller
    ------
    To forget all blocks, slots and requests that it was given: they have no owner any more.

    Engines
    -------
    - Megatron Core 0.16.1: `DynamicInferenceContext.reset` sets all tables back and lets
      `BlockAllocator.reset` rebuild its stack, which contains wrong ids by then; the live states are not
      wiped.
    - vLLM: `BlockPool.reset_prefix_cache` forgets every hash, and refuses while any block is in use. The
      order of the free queue stays unchanged: different.
    - sglang: see X7.
    """


# -- what the observer is told -----------------------------------------------------------------------------


def _the_observer_is_told(before: BlocksModel, seen: SeenLoss) -> Found:
    """Demand that the observer hears of each lost block once, with the hashes of each call, and of no other.

    A registered block that goes as if it had no hash was never registered (C3).
    """
    told = [block for call in seen.calls for block in call.slots]
    if sorted(told) != sorted(seen.lost):
        spared = (
            (block, call.target) for call in seen.calls for block in call.slots if block not in seen.lost
        )
        hash_of = before.blocks.hash_of
        is_bare = any(block in hash_of and hash_of[block] not in hashes for block, hashes in spared)
        law = "C3" if is_bare else ""
        return Broken("blocks that the observer is told of", sorted(seen.lost), told, law)
    for call in seen.calls:
        hashes = sorted(seen.hashes[block] for block in call.slots if block in seen.hashes)
        if [*call.target] != hashes:
            return Broken("hashes that the observer is told of", hashes, [*call.target])
    others = [call for call in seen.effects if call.call != "callback" or not call.slots]
    if others:
        return Broken("effects that tell nobody of a block", "none", others)
    return True if seen.lost else None


@blocks_partition_the_pool.on(AllocBlocks, ReleaseBlocks, EndTransfer, fate=RAISED, kinds="blocks")
@blocks_partition_the_pool.on(AllocBlocks, ReleaseBlocks, EndTransfer, kinds="blocks")
def _the_observer_is_told_of_all(before: BlocksModel, operation: Operation, seen: SeenLoss) -> Found:
    """Judge the calls of the observer for law C1; law C6 judges them where blocks with slots became free."""
    is_left = "mamba" in before.claims and seen.is_freed
    return None if is_left else _the_observer_is_told(before, seen)


@unreferenced_blocks_lose_their_slots.on(AllocBlocks, ReleaseBlocks, EndTransfer, fate=RAISED, kinds="blocks")
@unreferenced_blocks_lose_their_slots.on(AllocBlocks, ReleaseBlocks, EndTransfer, kinds="blocks")
def _the_observer_is_told_whose_slots_go(before: BlocksModel, operation: Operation, seen: SeenLoss) -> Found:
    """Judge the calls of the observer for law C6; C1 judges them where no blocks with slots became free."""
    return _the_observer_is_told(before, seen) if seen.is_freed else None


@blocks_partition_the_pool.on(RetainBlocks, BeginTransfer, StampBlocks, SetClock)
@a_hash_has_the_block_that_came_first.on(RegisterBlocks)
@a_named_state_goes_with_its_block.on(NameStates, DropStates)
@unreferenced_blocks_lose_their_slots.on(AllocSlots, EvictSlots, FindSlots, ReadStates, ReadLive)
@unreferenced_blocks_lose_their_slots.on(Fault, Inspect, kinds="blocks")
@states_are_copied_bit_for_bit.on(StoreState, WriteLive, SaveLive)
@misuse_is_refused.on(*OPERATIONS_OF["blocks"], fate=REFUSED, kinds="blocks")
def _nobody_is_told(before: BlocksModel, operation: Operation, seen: SeenBlocks) -> Found:
    """Demand that the observer was not called, so that no block was deregistered or freed."""
    return Broken("what the observer was told", "nothing", seen.effects) if seen.effects else None


@blocks_partition_the_pool.on(Fault, Inspect, kinds="blocks")
def _nobody_is_told_of_blocks(before: BlocksModel, operation: Operation, seen: SeenBlocks) -> Found:
    """Demand, in an allocator without slots, that the observer is not called; with slots, C6 demands that."""
    return None if "mamba" in before.claims else _nobody_is_told(before, operation, seen)


@callbacks_run_after_the_update.on(AllocBlocks, ReleaseBlocks, EndTransfer, fate=RAISED, kinds="blocks")
@callbacks_run_after_the_update.on(AllocBlocks, ReleaseBlocks, EndTransfer, kinds="blocks")
def _the_observer_runs_after_the_update(before: BlocksModel, operation: Operation, seen: SeenLoss) -> Found:
    """Compare the sizes seen in the observer's last call, and demand that calls from inside it are refused.

    Sizes that are told at the end, too, and are wrong there were written: whoever looks at them says so. An
    error of its own may have kept them from being written.
    """
    is_raised = seen.fate == RAISED
    for call in seen.calls[-1:]:
        told = {name: size for name, size in call.sizes.items() if name in seen.inside}
        wanted = {name: seen.inside[name] for name in told}
        is_release = isinstance(operation, ReleaseBlocks | EndTransfer)
        is_written = is_release and not is_raised and told == {name: seen.after.get(name) for name in told}
        if told != wanted:
            return None if is_written else Broken("sizes inside the observer", wanted, told)
    for call in seen.calls:
        expected = "RuntimeError" if call is seen.struck and not is_raised else ""
        if call.note != expected:
            return Broken("calls from inside the observer", expected or "none", call.note)
    return True if seen.calls else None


@what_a_pool_did_not_take_stays.on(AllocBlocks, ReleaseBlocks, EndTransfer, fate=RAISED, kinds="blocks")
def _the_observers_error_is_told(before: BlocksModel, operation: Operation, seen: SeenLoss) -> Found:
    is_told = isinstance(seen.result, Failed) and seen.result.error == INJECTED
    return demand(is_told, "the observer's error", "raised", seen.result)


# -- evictions, and what comes to nothing ------------------------------------------------------------------


@blocks_partition_the_pool.on(AllocBlocks, fate=RAISED)
def _leaves_are_evicted(before: BlocksModel, operation: AllocBlocks, seen: SeenLoss) -> Found:
    """Demand exactly as many evicted blocks as were missing, each evicted in its turn."""
    stamps, line = before.blocks.stamps, before.blocks.line
    if len(seen.lost) != seen.missing:
        return Broken(f"evictions for {operation.count} blocks", seen.missing, seen.lost)
    if not seen.lost:
        return None
    for block, leaves in zip(seen.lost, before.blocks.turns(seen.lost), strict=False):
        if block not in leaves:
            return Broken("an evicted block", f"one of {sorted(leaves)}", block)
        if not before.claims.isdisjoint({"exact_lru", "exact_policy"}):
            oldest = min(stamps[leaf] for leaf in leaves)
            turn = sorted(leaf for leaf in leaves if stamps[leaf] == oldest)
            if before.blocks.policy == "release":
                turn = [next(leaf for leaf in line if leaf in leaves)]
            if block not in turn:
                return Broken("the least recent block", f"one of {turn}", block)
    return True if len(before.blocks.hash_of) > 1 else None


@what_cannot_be_met_changes_nothing.on(AllocBlocks, fate=NO_ROOM)
def _no_room_changes_nothing(before: BlocksModel, operation: Operation, seen: SeenLoss) -> Found:
    if not isinstance(seen.result, NoRoom):
        return Broken(f"{seen.missing} blocks more than are free", "no room", seen.result)
    return Broken("what the observer was told", "nothing", seen.effects) if seen.effects else True


@blocks_partition_the_pool.on(AllocBlocks, fate=NO_ROOM)
def _too_many_blocks_are_refused(before: BlocksModel, operation: Operation, seen: SeenLoss) -> Found:
    """Demand that a refused allocation changes nothing; law X4 demands that where it is claimed."""
    return None if "pool" in before.claims else _no_room_changes_nothing(before, operation, seen)


def tells_no_room(before: KindModel, result: object, *errors: str) -> bool:
    """Tell whether a result is an error of too little room; without `capacity_errors`, any error is one."""
    is_any = "capacity_errors" not in before.claims
    return isinstance(result, Failed) and (result.error in errors or (is_any and result.error != INJECTED))


@a_batch_is_met_whole.on(AllocSlots, fate=NO_SLOTS)
@unreferenced_blocks_lose_their_slots.on(EvictSlots, fate=NO_SLOTS)
def _too_few_slots_change_nothing(before: BlocksModel, operation: Operation, seen: SeenSlots) -> Found:
    if not tells_no_room(before, seen.result, "MambaSlotCapacityError"):
        return Broken(f"{seen.missing} slots too many", "MambaSlotCapacityError", seen.result)
    return Broken("what the observer was told", "nothing", seen.effects) if seen.effects else True


@unreferenced_blocks_lose_their_slots.on(AllocSlots)
def _only_those_lose_slots_whose_turn_it_is(
    before: BlocksModel, operation: AllocSlots, seen: SeenSlots
) -> Found:
    taken = _taken_from(before, seen)
    if taken:
        return Broken(
            f"evictions for slots for blocks {seen.blocks}", f"blocks {seen.turn}", f"blocks {taken}"
        )
    return True if seen.turn and len(seen.turn) < len(before.slotted().slot_of) else None


def _taken_from(before: BlocksModel, seen: SeenSlots) -> list[int]:
    """Return the blocks that lose their slots to a batch out of turn."""
    slot_of = before.slotted().slot_of
    return [block for block, slot in slot_of.items() if slot in seen.new and block not in seen.turn]


@unreferenced_blocks_lose_their_slots.on(EvictSlots)
def _the_oldest_slots_are_taken(before: BlocksModel, operation: EvictSlots, seen: SeenSlots) -> Found:
    expected = sorted(before.slotted().slot_of[block] for block in seen.turn)
    return same(f"eviction of {operation.count} slots", expected, sorted(seen.result.slots))


@states_are_copied_bit_for_bit.on(RestoreLive)
def _it_is_told_whether_a_state_is_restored(
    before: BlocksModel, operation: RestoreLive, seen: SeenStates
) -> Found:
    if seen.effects:
        return _nobody_is_told(before, operation, seen)
    return same(f"restore of block {seen.blocks[0]}", Number(int(seen.slot is not None)), seen.result)


# -- what is looked at -------------------------------------------------------------------------------------


@slots_have_one_block.on(FindSlots)
def _slots_are_found(before: BlocksModel, operation: FindSlots, seen: SeenBlocks) -> Found:
    found = [before.slotted().slot_of.get(block, -1) for block in seen.blocks]
    expected = FoundSlots((*found,), tuple(slot >= 0 for slot in found))
    if seen.result != expected:
        return Broken(f"slots of {seen.blocks}", expected, seen.result, before.suspected)
    return (before.suspected,) if before.suspected else True


@blocks_partition_the_pool.on(Inspect, kinds="blocks")
def _counts_and_stamps_are_told(before: BlocksModel, operation: Inspect, seen: SeenBlocks) -> Found:
    """Compare the reference counts and timestamps, except for the dummy block and the stamps of free blocks.

    Who looks at everything tests what was done since the last look.
    """
    blocks, books, total = before.blocks, seen.result, before.blocks.usable
    has_stamps = blocks.policy == "lru" or "exact_lru" in before.claims
    shown = (books.refs, books.hashes, *([books.stamps] if has_stamps else []))
    sizes, told = [total + 1] * len(shown), [*map(len, shown)]
    if told != sizes:  # what comes next costs as much as was told, and no more
        return _wrong_view(before, ("sizes of the views", sizes, told))
    kept = [block for block in range(total) if has_stamps and block not in blocks.free]
    found = _wrong_view(
        before,
        ("block_ref_counts", [blocks.refs[it] for it in range(total)], [*books.refs[:total]]),
        ("block_timestamps", [blocks.stamps[it] for it in kept], [books.stamps[it] for it in kept]),
    )
    return tuple(before.untested) if found is None else found


@a_hash_has_the_block_that_came_first.on(Inspect, kinds="blocks")
def _hashes_are_told(before: BlocksModel, operation: Inspect, seen: SeenBlocks) -> Found:
    """Compare the hashes of blocks; where several blocks may have a hash, any of them may be found."""
    blocks, books = before.blocks, seen.result
    told = {value: block for value, block in books.block_of_hash if blocks.hash_of.get(block) == value}
    return _wrong_view(
        before,
        ("block_hashes", _listed(blocks.hash_of, blocks.usable), books.hashes[: blocks.usable]),
        ("kv_hash_to_block_id", _pairs({**blocks.block_of, **told}), books.block_of_hash),
    )


@slots_have_one_block.on(Inspect, kinds="blocks")
def _slots_are_told(before: BlocksModel, operation: Inspect, seen: SeenBlocks) -> Found:
    """Compare the views of the slots of blocks, ignoring the order of free slots."""
    slots, books = before.slotted(), seen.result
    block_of = {slot: block for block, slot in slots.slot_of.items()}
    return _wrong_view(
        before,
        ("block_to_slot", _listed(slots.slot_of, before.blocks.usable + 1), books.slot_of_block),
        ("slot_to_block", _listed(block_of, slots.total), books.block_of_slot),
        ("free_slots", [*slots.free], sorted(books.free_slots)),
    )


@a_reset_restores_the_first_state.on(Inspect, kinds="blocks")
def _all_is_as_it_was(before: BlocksModel, operation: Inspect, seen: SeenBlocks) -> Found:
    """Compare all views after a reset with the views of the new allocator, if these were inspected."""
    if before.suspected != "C9" or before.fresh is None:
        return None
    return same("every view after a reset", before.fresh, seen.result)


@what_is_cleared_is_as_good_as_new.on(Reset, kinds="blocks")
def _a_reset_tells_nobody(before: BlocksModel, operation: Reset, seen: SeenBlocks) -> Found:
    """Demand that a reset does not call the observer; this tests law X7 only if blocks are referenced."""
    if seen.effects:
        return _nobody_is_told(before, operation, seen)
    return True if before.blocks.held else None


def _wrong_view(before: BlocksModel, *views: tuple[str, object, object]) -> Broken | None:
    """Return the first wrong view, as a violation of the suspected operation's law or else of the view's."""
    for view, expected, observed in views:
        if expected != observed:
            return Broken(view, expected, observed, before.suspected)
    return None


def _pairs(numbers: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(numbers.items()))


def _listed(numbers: Mapping[int, int], count: int) -> tuple[int, ...]:
    return tuple(map(numbers.get, range(count), repeat(-1)))
