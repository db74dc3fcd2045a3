"""Laws of the recurrent states in a prefix cache."""

from __future__ import annotations

from collections import Counter

from pymllm.history.operations import AllocTrack, Evict, Insert, Inspect, Match, Reset
from pymllm.history.outcomes import NoRoom
from pymllm.oracle.laws.law import Broken, Found, law, same
from pymllm.oracle.models.kind_model import DONE, NO_ROOM, STRUCK
from pymllm.oracle.models.prefix import CacheModel
from pymllm.oracle.models.prefix_seen import (
    GARBLED,
    STATES,
    TOO_MANY,
    SeenEvict,
    SeenInsert,
    SeenMatch,
    SeenReset,
    tokens_of,
)
from pymllm.oracle.models.prefix_victims import find_bare_leaves
from pymllm.oracle.models.shown_nodes import SeenLook
from pymllm.oracle.models.slot_ownership import Owner
from pymllm.oracle.models.slots import SeenSlots


@law("M1", Match, page="recurrent-states", ways="sop", kinds="prefix", needs="mamba")
def a_state_belongs_to_the_end_of_a_key(before: CacheModel, operation: Match, seen: SeenMatch) -> Found:
    """A state belongs to the end of a key of whole pages.

    An insert may hand a **state** over: exactly one track slot of the caller's, which contains the state of
    the recurrent layers after the last token of the key. The key must not be empty and must consist of whole
    pages; anything else is a `ValueError` (X1), also a key whose tail would merely be cut off. Then

    | at the end of the key | `state_exists` | the track slot |
    | --- | --- | --- |
    | there is no state | false | the cache owns it from now on: the state of this path |
    | there is one | true | stays the caller's; the cached one is unchanged |

    States elsewhere on the path, above or below, do not count. `state_exists` is false for an insert without
    a state, with the claim `bare_inserts`. Whether the page was cached before does not matter either: a state
    may come later to KV that has lost its own, or that never had one, by an insert of a key that is cached
    already.

    KV is cached by R3 and R4 in any case. An insert without a state caches KV alone, which a later
    request may add a state to; it never takes a state away. Without the claim `bare_inserts` there is no such
    insert, unless the key has no whole page. The cache copies nothing and never writes to a state: the
    content of the slot stays until it is free (E1). `prev_prefix_len` and `swa_evicted_seqlen` are options of
    another cache, and are ignored.

    Why
    ---
    A recurrent state is the sum of all tokens so far. If it is stored at the end of a shorter prefix, tokens
    are absorbed twice: answers of a warm server differ from those of a cold one, a little, and always alike.
    That came of cutting the key to pages after the state was chosen. A flag that was raised by any ancestor's
    state made callers free slots that the tree had just taken.

    Choices
    -------
    How a state is found from its path.

    Caller
    ------
    To copy the working state into a track slot after exactly this key, and to free the slot where
    `state_exists` is true. To make states at ends of pages.

    Engines
    -------
    - sglang: the same rule of the final node (`sglang/srt/mem_cache/unified_cache/components/mamba.py`,
      `commit_insert_component_data`). The key is cut to pages without a word (`unified_tree_core.py`,
      `begin_insert`), so alignment is the scheduler's affair (`prepare_for_caching_req`). An empty key
      answers that a state is there.
    - vLLM: a state is a block of its own group, and registered under the hash of the tokens up to its end
      (`vllm/v1/core/single_type_kv_cache_manager.py`, `MambaManager`).
    - Megatron Core 0.16.1 caches no prefixes.
    """
    expected = before.ends.slots.get(seen.found.path)
    return same("state of a match", expected, seen.result.state)


@a_state_belongs_to_the_end_of_a_key.on(Insert)
def _an_insert_says_whether_there_is_a_state(
    before: CacheModel, operation: Insert, seen: SeenInsert
) -> Found:
    if seen.state is None and "bare_inserts" not in before.claims:
        return None
    return same("mamba_exist", seen.finds_state, seen.result.state_exists)


@a_state_belongs_to_the_end_of_a_key.on(Inspect)
def _nodes_have_the_states_of_their_ends(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    ends = before.ends.slots
    for path, node in seen.ends.values():
        if node.state != ends.get(path):
            return Broken(f"state at the end of {path.tokens}", ends.get(path), node.state)
    return None


@a_state_belongs_to_the_end_of_a_key.on(Inspect)
def _a_node_ends_at_each_state(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    pages = before.cache.pages
    there = [path for path in before.ends.slots if path in pages]
    missing = [path.tokens for path in there if pages[path].birth not in seen.ends]
    return Broken("states at whose place no node ends", "none", missing) if missing else None


@law("M2", Match, page="recurrent-states", ways="sop", kinds="prefix", needs="mamba")
def a_match_ends_at_a_state(before: CacheModel, operation: Match, seen: SeenMatch) -> Found:
    """A prefix is usable if it ends at a state.

    A cached prefix is usable if there is a state at exactly its end, or if it is empty. A match returns
    the longest usable one (R2): walks continue past places without a state, because a state may follow
    further down.

    | field of the match | |
    | --- | --- |
    | `slots`, `prefix_len`, `node_len` | those of the prefix that is returned |
    | `state` | the track slot of the state at its end; null for the empty prefix |
    | `branching` | *k*, if that is more than `prefix_len`; else null. With the claim `branching` |

    Here *k* is the length of the longest cached prefix of the key, in whole pages, with states or
    without. `branching` is there for the caller: KV is cached up to *k*, and a state would be useful there,
    where this request diverges from the cached prefix. It computes that part again, and may leave its state
    behind.

    With pages of one token, `a b c d` cached and one state at `b`:

    | match | `slots` | `state` | `branching` |
    | --- | --- | --- | --- |
    | `a` | none | null | 1 |
    | `a b` | 2 | that of `b` | null |
    | `a b c x` | 2 | that of `b` | 3 |
    | `x` | none | null | null |

    Recency (R8) and hits (R10) are those of the returned prefix alone: here `c` stays as it was.

    Why
    ---
    From KV without a state no recurrent layer can continue. A hit there would be a silent error, and a match
    that stops at the first place without a state is a miss: prompts of more than two state intervals never
    hit.

    Choices
    -------
    How the deepest state is found.

    Caller
    ------
    To copy the state out before it computes on: it belongs to the cache, and others use it.

    Engines
    -------
    - sglang: the same, over nodes (`components/mamba.py`, `create_match_validator`). Its branching length
      is rounded down to the grid at which the model can make states
      (`finalize_match_result_in_tree_core`): different where that is coarser than a page.
    - vLLM searches from the end for one cached state block (`MambaManager.find_longest_cache_hit`), and
      the kinds of layers agree on the shortest length (`vllm/v1/core/kv_cache_coordinator.py`,
      `HybridKVCacheCoordinator.find_longest_cache_hit`). It shows how much longer another kind's hit was.
    """
    found = seen.found
    if found.stored == len(found.slots):
        return None
    return same(f"slots that match {seen.key.tokens}", len(found.slots), len(seen.result.slots))


@a_match_ends_at_a_state.on(Match)
def _a_match_says_where_kv_goes_on(before: CacheModel, operation: Match, seen: SeenMatch) -> Found:
    found = seen.found
    if "branching" not in before.claims:
        return None
    branching = found.stored if found.stored > len(found.slots) else None
    return same("mamba_branching_seqlen", branching, seen.result.branching)


@law(
    "M3",
    Inspect,
    page="recurrent-states",
    ways="op",
    kinds="prefix",
    needs="mamba inspect",
    is_of_splits=True,
)
def a_split_leaves_the_state_below(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    """A split leaves the state with the lower half.

    If nodes are shown, each state is the `state` of the node with its path: the number of the track slot.
    There is always such a node, and a node without a state shows null.

    When a node with a state is split, the lower half ends where the whole ended, and keeps the state. The
    upper half ends at a place where no state was taken, and has none, until one is inserted for exactly its
    path. Its `state_lock_ref` begins at 0, though its `lock_ref` is that of the whole (R10): a hold at the
    lower half protects the state there, and no other (M4).

    Why
    ---
    A state that moves up is stored at a wrong prefix: a match of the shorter prompt
    resumes from a state that has seen more tokens. One that is named by both halves is freed twice. A
    state lock that was copied to the upper half was never given back, so no state could be evicted there
    any more.

    Choices
    -------
    A cache that shows each page as a node splits nothing, so this cannot be tested: it says so
    in its configuration (`splits`).

    Caller
    ------
    Nothing.

    Engines
    -------
    - sglang: the same; value and locks of the new upper node are reset (`components/mamba.py`,
      `redistribute_on_node_split`).
    - vLLM: not applicable, nothing is split.
    """
    ends = before.ends.slots
    known, pages = before.nodes.ends, before.cache.pages
    slots, is_tested = {*ends.values()}, None
    for birth, (path, node) in seen.ends.items():
        expected = ends.get(path)
        if node.state != expected and node.state in slots:
            return Broken(f"state at the end of {path.tokens}", expected, node.state)
        if expected is not None and birth in known and len(node.tokens) < len(path.tokens):
            upper = pages[path.upto(len(path.tokens) - len(node.tokens))]
            is_tested = is_tested or upper.birth not in known
    return is_tested or None


@law("M4", Inspect, page="recurrent-states", ways="sop", kinds="prefix", needs="mamba")
def a_state_is_locked_at_its_node(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    """A state is locked by the holds at exactly its node.

    The lock count of a state is the number of holds at exactly the path at whose end it stands
    (`state_lock_ref`, documented as `mamba_lock_ref`), and 0 where there is no state. Holds further down
    lock the KV of this path (R6) and not its state. So a state's count is never larger than the lock
    count of its node.

    A state whose count is not 0 is never evicted (M5). The order does not matter: a state
    that arrives where there are holds is protected by all of them at once, and the release of one takes
    nothing from the others. A hold at a path without a state is allowed (`bare_holds`); without that claim
    there is none. No token belongs to such holds.

    | steps | lock count of the KV at `a` | count of the state at `a` |
    | --- | --- | --- |
    | insert `a` without a state, lock it | 1 | 0 |
    | insert `a` with a state | 1 | 1 |
    | insert `a b`, lock that | 2 | 1 |
    | unlock `a` | 1 | 0 |

    Why
    ---
    Between a match and the copy of the state, only the hold keeps the track slot from being reused. If the
    count looks at the state's presence when the hold is taken and again when it is released, then a state
    that arrives in between is not protected, and the release takes away the protection of another request.

    Choices
    -------
    Whether it is counted or looked up in a table of holds.

    Caller
    ------
    To hold the node that a match returned, and not one below it, while it needs the state.

    Engines
    -------
    - sglang 0.5.23: the same. Nodes without a state are counted too, and a state that arrives under a
      lock is protected at once (`components/mamba.py`, `acquire_component_lock`; `unified_tree_core.py`,
      `set_component_device_value`). In 0.5.15 it was not.
    - vLLM: `ref_cnt` of the state's block.
    """
    ends = before.ends.slots
    held = Counter(hold.path for hold in before.cache.holds.values() if hold.path in ends)
    is_tested = False
    for path, node in seen.ends.values():
        if node.state_lock_ref is not None:
            locks = held[path]
            if node.state_lock_ref != locks:
                return Broken(f"mamba_lock_ref at {path.tokens}", locks, node.state_lock_ref)
            is_tested = is_tested or locks > 0
    return is_tested or None


@a_state_is_locked_at_its_node.on(Evict, fate=STRUCK)
@a_state_is_locked_at_its_node.on(Evict)
def _no_locked_state_goes(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    cache, states = before.cache, seen.states.pages
    locked = states.intersection(hold.path for hold in cache.holds.values())
    if locked:
        return Broken("evicted states with a hold at their node", "none", tokens_of(locked))
    if not states or seen.fate == STRUCK:
        return None
    is_spared = cache.sizes()["mamba_protected_size"] > 0
    return is_spared or any(cache.locks(path) for path in states.difference(seen.victims)) or None


@law("M5", Evict, page="recurrent-states", ways="sop", kinds="prefix", needs="mamba")
def a_state_eviction_takes_just_enough(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    """An eviction of states takes enough, the least recent first.

    `evict(tokens=n, secondary=m)` has two phases. The first is R5, for *n*: leaves go, each with its
    state if it has one. The second continues until at least *m* states are gone, those of the first phase
    counted, or no state is left whose count is 0 (M4). It takes the least recent such state by the order
    of R8, that of the page with the state. If there is a page below, the state goes alone, and
    its KV stays. If not, the leaf goes with it.

    **No bare leaves.** When a removal leaves a page as a leaf that has no state and is not locked, that
    page goes too, and so on upwards, to a page that has a state, another child, or a lock. That holds in
    both phases, whatever the recency and even if enough is gone. It is required with the claim
    `state_leaves`. It is about removals only: KV that was inserted without a state may be a leaf, until it
    goes as a victim of the first phase, and a leaf that a release unlocks stays.

    - **Told right.** `states` is the number of all states that went, `full` the number of all tokens that
      were removed. `swa` is 0.
    - **Enough.** `states >= min(m, mamba_evictable_size before)`, and R5's for `full`.
    - **Not too much.** With an order and `state_leaves` there is one right answer, wherever nodes end:
      what is said above. With an order alone, each bare leaf goes or stays. Without an order,
      there must be a victim among those taken without which there would be too little.
    - Each state that goes is given back by `free_state`; a page never goes without its state (M7).
    - Who claims `lone_states` evicts pages and states each by itself: a page may go and leave its state
      behind, which goes later as any other. Then a state may be the victim that was needed wherever its
      page is.
    - *m* <= 0 asks for nothing.

    Pages of one token; states at `b` and `d` of `a b c d`, one insert for each, `a b` first. Nothing is
    held.

    | call | goes | `full` | `states` |
    | --- | --- | --- | --- |
    | `evict(0, 1)` | the state at `b` | 0 | 1 |
    | `evict(0, 2)` | the state at `b`, then `d` with its state, then `c`, `b`, `a` | 4 | 2 |
    | `evict(1, 0)` | `d` with its state, then `c` | 2 | 1 |

    Why
    ---
    States are few and large, and run out long before KV does. A server that cannot get one crashed,
    instead of going on without. A leaf whose state is gone can never be matched; it fills the cache with KV
    from which no request resumes.

    Choices
    -------
    The order, where none is claimed. Whether bare leaves go, without `state_leaves`.

    Caller
    ------
    To continue without caching a state if there is no track slot (E3, E4).

    Engines
    -------
    - sglang: the same two ways, of an internal node and of a leaf (`components/mamba.py`,
      `_evict_device_next_node`). A leaf without a state stays, since full attention alone decides:
      different, and why `state_leaves` is a claim of its own. `MambaRadixCache` of 0.5.15 removed it. A
      match refreshes only the state that it returns (`refresh_lru`), and not those above: another order.
    - vLLM: state blocks and KV blocks are evicted from one queue, each by itself: `lone_states`.
    """
    cache, states = before.cache, seen.states.pages
    least = min(seen.secondary, cache.sizes()["mamba_evictable_size"])
    if len(states) < least:
        return Broken("states evicted", f">= {least}", len(states))
    is_strict = "state_leaves" in before.claims
    bare = find_bare_leaves(cache, before.ends, seen.gone, states) if is_strict else []
    if bare:
        return Broken("leaves without a state that a removal left", "none", tokens_of(bare))
    return least > 0 or None


@a_state_eviction_takes_just_enough.on(Evict)
def _no_more_states_go_than_needed(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    if seen.odd is not None:
        is_mine = seen.odd[0] == STATES or (seen.odd[0] == TOO_MANY and not seen.is_for_tokens)
        return Broken(*seen.odd[1:]) if is_mine else None
    if before.is_ordered:
        return len(seen.states.pages) > 0 or None
    return not seen.is_for_tokens or None


@law("M6", Evict, page="recurrent-states", ways="sop", kinds="prefix", needs="mamba")
def states_are_counted_one_by_one(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    """States are counted one by one, KV in tokens.

    | size | unit |
    | --- | --- |
    | `mamba_evictable_size` | states whose count is 0 (M4) |
    | `mamba_protected_size` | states with another count |
    | `available_track_slots` | track slots that are free (M7) |
    | `evictable_size`, `protected_size`, `total_size` | tokens of KV, with or without states |

    A state is 1, however long the node is at whose end it stands. The result `states` of an eviction
    counts in the same unit. All of them are recounts after every operation, like those of R7: after a
    lock that protects a state, a release, a state that arrives under a hold, a removal with its KV. A
    page may be locked while its state is evictable, by a hold further down.

    Why
    ---
    A counter that adds a node's tokens, and subtracts a state, tells 9 evictable and 1 protected for one
    state on ten tokens. The scheduler then waits for states that do not exist, or evicts for ever.

    Choices
    -------
    Which of them are reported, and how they are kept.

    Caller
    ------
    To ask for states, and not for tokens, in `secondary`.

    Engines
    -------
    - sglang: `component_evictable_size_` and `component_protected_size_` of the component count the
      indices of its value, which is one for each state (`components/mamba.py`, `acquire_component_lock`).
    - vLLM counts blocks of all groups in one number (`BlockPool.get_num_free_blocks`).
    """
    told = seen.told_states
    return None if told is None else same("states evicted", len(seen.states.pages), told)


@law("M7", Reset, page="recurrent-states", ways="sop", kinds="prefix", needs="mamba")
def a_track_slot_is_freed_once(before: CacheModel, operation: Reset, seen: SeenReset) -> Found:
    """A track slot has one owner, and is freed once.

    The configuration's `track_slots` says how many **track slots** there are, places for one state each.
    Which numbers they have is open. Each is free, or the caller's, or the cache's at exactly one path.

    - `alloc_track` hands out a free one, or answers `no_room` and changes nothing (X4). It evicts
      nothing. `free_track` takes one back from the caller.
    - An insert moves one from the caller to the cache, or leaves it (M1). It frees none, also where the
      state was there already.
    - An eviction gives back each state that it takes, by an effect
      `{"call": "free_state", "slots": [slot]}`, and each slot once. A removed page's state goes with it.
      A state goes alone only by M5. With the claim `lone_states` it may stay, owned by the cache and counted,
      without a page; nothing is found there (M2) until the page is cached again, with the state at its end.
    - A reset gives all states back (X7). If the pool of states refuses one of these calls, all others are
      still made, and the refused slot then belongs to the caller, who frees it later.
    - If the pool of states refuses a call of an eviction, the states taken by then are gone, and all others
      are still cached (X2). A page whose state was taken is a page without a state.

    `available_track_slots` is `track_slots` without those of the caller and of the cache, after every
    operation.

    Why
    ---
    A track slot with two owners is overwritten by one request while another resumes from it. One with
    none is gone until the server restarts, and there are few: requests that were aborted in the queue, or
    whose state another request had cached meanwhile, leaked them until a leak check ended the process.

    Choices
    -------
    Which free slot is handed out. Numbers. The order in which the states of one eviction go back.

    Caller
    ------
    To free every slot that it took and no insert adopted, at every exit (E3). It writes only to its own.

    Engines
    -------
    - sglang: slots of a `MambaSlotAllocator` (`sglang/srt/mem_cache/allocator/mamba.py`); the request
      hands its slot to the tree, and frees it where `mamba_exist` is told (`components/mamba.py`,
      `cleanup_after_caching_req`).
    - vLLM: a state is a block with a reference count, which may outlive the blocks with its KV:
      `lone_states`.
    """
    foreign = Counter(seen.calls.states) - Counter(seen.states)
    if foreign:
        return Broken("track slots that a reset frees twice, or not its own", "none", foreign)
    return len(seen.states) > 0 or None


@a_track_slot_is_freed_once.on(Evict, fate=STRUCK)
@a_track_slot_is_freed_once.on(Evict)
def _a_state_goes_with_its_page(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    states = seen.states.pages
    lost = [path for path in seen.gone if path in before.ends and path not in states]
    if lost and "lone_states" not in before.claims:
        return Broken("removed pages whose state was not freed", "none", tokens_of(lost))
    return (seen.fate == DONE and len(states) > 0) or None


@a_track_slot_is_freed_once.on(Evict, fate=GARBLED)
def _only_what_is_the_caches_goes(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    if seen.states.twice:
        return Broken("track slots freed twice", "none", seen.states.twice)
    foreign = seen.states.of(*Owner)
    return Broken("owners of the track slots that were freed", "the cache", foreign) if foreign else None


@a_track_slot_is_freed_once.on(Insert)
def _an_insert_frees_no_track_slot(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    freed = seen.calls.states
    return Broken("track slots that an insert frees", "none", freed) if freed else None


@a_track_slot_is_freed_once.on(AllocTrack)
def _a_free_one_is_handed_out(before: CacheModel, operation: AllocTrack, seen: SeenSlots) -> Found:
    tracks = before.tracks
    assert tracks is not None
    owners = [tracks.owner(slot) for slot in seen.slots]
    return same(f"owner of {seen.slots}, handed out", [Owner.POOL], owners)


@a_track_slot_is_freed_once.on(AllocTrack, fate=NO_ROOM)
def _none_is_handed_out(before: CacheModel, operation: AllocTrack, seen: SeenSlots) -> Found:
    return None if before.has_pool else same("a track slot", NoRoom(), seen.result)


@law("M8", Inspect, page="recurrent-states", ways="sop", kinds="prefix", needs="mamba inspect lru_lists")
def lists_order_their_members(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    """The two lists order exactly their members by recency.

    It is about caches that have two lists of nodes and show them (`lru_lists`, with `inspect`):
    `full_lru` has every node but the root, `mamba_lru` every node with a state. Each is shown as ids,
    **most recent first**, in the order of R8: by the number of the last match or insert that used the
    node's last page, and within one use by depth. The deeper node is the more recent one. No member is
    missing and none is there twice.

    So a match or an insert moves all nodes of its path to the front, the end of the path foremost; a
    split puts the upper half, unless it was just used, directly behind the lower one; locks and evictions
    move nothing. A state that arrives enters `mamba_lru` at the place of its node, which is in front,
    since that insert has just used it.

    | step | `full_lru` | `mamba_lru` |
    | --- | --- | --- |
    | insert `a b` with a state: node 1 | 1 | 1 |
    | insert `c` with a state: node 2 | 2, 1 | 2, 1 |
    | match `a` finds no state: nothing is used | 2, 1 | 2, 1 |
    | insert `a` with a state: node 1 is split, node 3 is new | 3, 2, 1 | 3, 2, 1 |
    | match `a b` | 1, 3, 2 | 1, 3, 2 |

    The documented class `LRUList` also has: `len`, `in` and walks from both ends that agree; sentinels as
    `head` and `tail`; a `UsageError` for inserting a member again and for removing or touching a node
    that is none; `touch_node_and_parents_mru`, which passes over ancestors that are no members and stops
    before the root; `get_lru_leaf_unlocked` and `get_lru_unlocked`, the least recent member that
    qualifies. No outcome shows these.

    Why
    ---
    With two sources of recency, times on nodes and places in lists, some path updates only one of them.
    Servers with a self-check stopped minutes after their start; and engines without it evicted states just
    used.

    Choices
    -------
    Everything, without the claim `lru_lists`: order can be kept by times, heaps or one list.

    Caller
    ------
    Nothing.

    Engines
    -------
    - sglang: one list for each kind but full attention, which goes by times (`unified_tree_core.py`,
      `UnifiedLRUList`). Members are nodes with a value of that kind. A match moves one state to the
      front, and not those above it (`components/mamba.py`, `refresh_lru`); a split puts the upper half
      next to the lower: different.
    - vLLM: one queue of free blocks (`FreeKVCacheBlockQueue`).
    """
    ends, shown = before.ends, seen.result
    with_state = [(path, node) for path, node in seen.ends.values() if path in ends]
    lists = (("full_lru", shown.full_lru, [*seen.ends.values()]), ("mamba_lru", shown.mamba_lru, with_state))
    tested: Found = None
    for name, ids, members in lists:
        if ids is not None:
            # No two nodes are in one place of the order, so ids never decide.
            order = [(before.cache.pages[path].access, len(path.tokens), node.id) for path, node in members]
            expected = tuple(node for _, _, node in sorted(order, reverse=True))
            if ids != expected:
                return Broken(f"ids in {name}", expected, ids)
            tested = len(expected) > 1 or tested
    return tested or None
