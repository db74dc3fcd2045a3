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

    An insert may pass a **state**: exactly one track slot of the caller, which contains the state of the
    recurrent layers after the last token of the key. The key must not be empty and must consist of whole
    pages; any other key is a `ValueError` (X1), also a key whose tail could be cut off. Then

    | at the end of the key | `state_exists` | the track slot |
    | --- | --- | --- |
    | there is no state | false | the cache owns it from now on, as the state of this path |
    | there is a state | true | stays the caller's; the cached state is unchanged |

    States elsewhere on the path, above or below, do not count. `state_exists` is false for an insert without
    a state, with the claim `bare_inserts`. It also makes no difference whether the page was cached before: an
    insert of a key that is cached already may bring a state to KV that has lost its state, or never had one.

    KV is cached by R3 and R4 in any case. An insert without a state caches KV alone, and never removes a
    state; a later request may add a state. Without the claim `bare_inserts` there is no such insert, unless
    the key has no whole page. The cache copies nothing and never writes to a state: the content of the slot
    stays until the slot is free (E1). `prev_prefix_len` and `swa_evicted_seqlen` are options of another
    cache, and are ignored.

    Why
    ---
    A recurrent state is the sum of all tokens so far. If it is stored at the end of a shorter prefix, tokens
    are absorbed twice: the answers of a warm server differ from those of a cold server, slightly, and always
    in the same way. This happened where the key was cut to pages after the state was chosen. Where the flag
    was true for any ancestor's state, callers freed slots that the tree had just taken.

    Choices
    -------
    How a state is looked up by its path.

    Caller
    ------
    To copy the working state into a track slot after exactly this key, and to free the slot where
    `state_exists` is true. To make states at ends of pages.

    Engines
    -------
    - sglang: the same rule of the final node (`sglang/srt/mem_cache/unified_cache/components/mamba.py`,
      `commit_insert_component_data`). The key is silently cut to pages (`unified_tree_core.py`,
      `begin_insert`), so the scheduler must align it (`prepare_for_caching_req`). For an empty key the answer
      is that a state exists.
      - vLLM: a state is a block of its own group, registered under the hash of the tokens up to its end
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

    A cached prefix is usable if there is a state at exactly its end, or if it is empty. A match returns the
    longest usable prefix (R2): walks continue past places without a state, because a state may follow further
    down.

    | field of the match | |
    | --- | --- |
    | `slots`, `prefix_len`, `node_len` | those of the returned prefix |
    | `state` | the track slot of the state at its end; null for the empty prefix |
    | `branching` | with the claim `branching`: *k*, if it is more than `prefix_len`; else null |

    Here *k* is the length of the longest cached prefix of the key, in whole pages, with states or without.
    `branching` is a hint for the caller: KV is cached up to *k*, and a state would be useful there, where
    this request diverges from the cached prefix. The caller computes that part again, and may insert a state
    there.

    With pages of one token, `a b c d` cached and one state at `b`:

    | match | `slots` | `state` | `branching` |
    | --- | --- | --- | --- |
    | `a` | none | null | 1 |
    | `a b` | 2 | that of `b` | null |
    | `a b c x` | 2 | that of `b` | 3 |
    | `x` | none | null | null |

    Only the returned prefix becomes recent (R8) and gets a hit (R10): here `c` does not change.

    Why
    ---
    No recurrent layer can continue from KV without a state. A hit there would be a silent error. If a match
    stops at the first place without a state, prompts of more than two state intervals never hit.

    Choices
    -------
    How the deepest state is found.

    Caller
    ------
    To copy the state out before it continues to compute: the state belongs to the cache, and other requests
    use it.

    Engines
    -------
    - sglang: the same, over nodes (`components/mamba.py`, `create_match_validator`). Its branching length is
      rounded down to the grid at which the model can make states (`finalize_match_result_in_tree_core`):
      different where that grid is coarser than a page.
    - vLLM searches from the end for one cached state block (`MambaManager.find_longest_cache_hit`), and the
      kinds of layers agree on the shortest length (`vllm/v1/core/kv_cache_coordinator.py`,
      `HybridKVCacheCoordinator.find_longest_cache_hit`). The coordinator reports how much longer the hit of
      another kind was.
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
    upper half ends at a place where no state was taken, and has no state until one is inserted for exactly
    its path. Its `state_lock_ref` begins at 0, though its `lock_ref` is that of the whole (R10): a hold at
    the lower half protects only the state there (M4).

    Why
    ---
    A state that moves up is stored at a wrong prefix: a match of the shorter prompt resumes from a state that
    has seen more tokens. A state that both halves name is freed twice. A state lock that was copied to the
    upper half was never released, so no state there could be evicted any more.

    Choices
    -------
    A cache that shows each page as a node splits nothing, so this law cannot be tested: the cache declares
    this in its configuration (`splits`).

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

    The lock count of a state is the number of holds at exactly the state's path (`state_lock_ref`, documented
    as `mamba_lock_ref`), and 0 where there is no state. Holds further down lock the KV of this path (R6), but
    not its state. So a state's count is never larger than the lock count of its node.

    A state whose count is not 0 is never evicted (M5). The order does not matter: a state that arrives at a
    path with holds is protected by all of them at once, and the release of one hold does not affect the
    others. With the claim `bare_holds` a hold at a path without a state is allowed; without the claim there
    are no such holds. No hold has a token.

    | steps | lock count of the KV at `a` | count of the state at `a` |
    | --- | --- | --- |
    | insert `a` without a state, lock it | 1 | 0 |
    | insert `a` with a state | 1 | 1 |
    | insert `a b`, lock `a b` | 2 | 1 |
    | unlock `a` | 1 | 0 |

    Why
    ---
    Between a match and the copy of the state, only the hold keeps the track slot from being reused. If a lock
    and a release each count only where a state is present, then a state that arrives in between is not
    protected, and the release takes away the protection of another request.

    Choices
    -------
    Whether the number is counted or looked up in a table of holds.

    Caller
    ------
    To lock the node that a match returned, and not a node below, while it needs the state.

    Engines
    -------
    - sglang 0.5.23: the same. Nodes without a state are counted too, and a state that arrives under a lock is
      protected at once (`components/mamba.py`, `acquire_component_lock`; `unified_tree_core.py`,
      `set_component_device_value`). In 0.5.15 such a state was not protected.
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

    `evict(tokens=n, secondary=m)` has two phases. The first is R5, for *n*: leaves are removed, each with its
    state if it has one. The second continues until at least *m* states are gone, including the states of the
    first phase, or no state is left whose count is 0 (M4). It takes the least recent such state, by the
    recency (R8) of the page with the state. If there is a page below, only the state is removed, and its KV
    stays. Otherwise the leaf is removed with its state.

    **No bare leaves.** When a removal leaves a page as an unlocked leaf without a state, that page is
    removed, too, and so on upwards, to a page that has a state, another child, or a lock. This applies in
    both phases, whatever the recency and even if enough is gone. It is required with the claim
    `state_leaves`, and only after removals: KV that was inserted without a state may stay a leaf until the
    first phase removes it, and a leaf that a release unlocks stays.

    - **Right report.** `states` is the number of all removed states, `full` the number of all removed tokens.
      `swa` is 0.
    - **Enough.** `states >= min(m, mamba_evictable_size before)`, and for `full` the bound of R5.
    - **Not too much.** With an order and `state_leaves` exactly one answer is right, as described above,
      wherever nodes end. With an order alone, each bare leaf may be removed or stay. Without an order, one of
      the victims could not have been left out.
    - Each removed state is given back by `free_state`; a page is never removed without its state (M7).
    - With the claim `lone_states` pages and states are evicted separately: a page may be removed while its
      state stays, which is evicted later like any other state. Then a state may be the necessary victim
      wherever its page is.
    - *m* <= 0 asks for nothing.

    Pages of one token; states at `b` and `d` of `a b c d`, one insert for each, `a b` first. Nothing is
    held.

    | call | removed | `full` | `states` |
    | --- | --- | --- | --- |
    | `evict(0, 1)` | the state at `b` | 0 | 1 |
    | `evict(0, 2)` | the state at `b`, then `d` with its state, then `c`, `b`, `a` | 4 | 2 |
    | `evict(1, 0)` | `d` with its state, then `c` | 2 | 1 |

    Why
    ---
    States are few and large, and run out long before KV does. A server that could not get a state crashed,
    instead of continuing without. A leaf without its state can never be matched; it fills the cache with KV
    from which no request resumes.

    Choices
    -------
    The order, where none is claimed. Whether bare leaves are removed, without `state_leaves`.

    Caller
    ------
    To continue without caching a state if there is no track slot (E3, E4).

    Engines
    -------
    - sglang: the same, for an internal node and for a leaf (`components/mamba.py`,
      `_evict_device_next_node`). A leaf without a state stays, since full attention alone decides: different,
      and the reason why `state_leaves` is a claim. `MambaRadixCache` of 0.5.15 removed such a leaf. A match
      refreshes only the returned state (`refresh_lru`), and not the states above: another order.
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

    A state counts 1, whatever the length of its node. The result `states` of an eviction has the same unit.
    All sizes are recounts after every operation, like the sizes of R7: after a lock that protects a state, a
    release, a state that arrives under a hold, a removal with its KV. A hold further down may lock a page
    whose state is evictable.

    Why
    ---
    A counter that adds a node's tokens, and subtracts a state, reports 9 evictable and 1 protected for one
    state on ten tokens. The scheduler then waits for states that do not exist, or evicts for ever.

    Choices
    -------
    Which sizes are reported, and how they are kept.

    Caller
    ------
    To ask for states, and not for tokens, in `secondary`.

    Engines
    -------
    - sglang: `component_evictable_size_` and `component_protected_size_` of the component count the indices
      of its value, one for each state (`components/mamba.py`, `acquire_component_lock`).
    - vLLM counts blocks of all groups in one number (`BlockPool.get_num_free_blocks`).
    """
    told = seen.told_states
    return None if told is None else same("states evicted", len(seen.states.pages), told)


@law("M7", Reset, page="recurrent-states", ways="sop", kinds="prefix", needs="mamba")
def a_track_slot_is_freed_once(before: CacheModel, operation: Reset, seen: SeenReset) -> Found:
    """A track slot has one owner, and is freed once.

    The configuration's `track_slots` is the number of **track slots**, places for one state each. Their
    numbers are not prescribed. Each is free, or the caller's, or the cache's at exactly one path.

    - `alloc_track` hands out a free track slot, or answers `no_room` and changes nothing (X4). It evicts
      nothing. `free_track` takes a track slot back from the caller.
    - An insert moves a track slot from the caller to the cache, or leaves it with the caller (M1). It frees
      no track slot, also where a state was there already.
    - An eviction gives back each state that it takes, by an effect `{"call": "free_state", "slots": [slot]}`,
      and each slot once. A page is removed with its state. A state is removed alone only by M5. With the
      claim `lone_states` a state may stay without its page, owned by the cache and counted; no match finds
      this state (M2) until the page is cached again, with the state at its end.
    - A reset gives all states back (X7). If the pool of states refuses one of these calls, all others are
      still made, and the refused slot then belongs to the caller, who frees it later.
    - If the pool of states refuses a call of an eviction, the states taken by then are gone, and all others
      are still cached (X2). A page whose state was taken stays cached without a state.

    After every operation, `available_track_slots` is `track_slots` minus the track slots of the caller and of
    the cache.

    Why
    ---
    A track slot with two owners is overwritten by one request while another resumes from it. A track slot
    without an owner is lost until the server restarts, and there are few. Requests that were aborted in the
    queue, or whose state another request had cached meanwhile, leaked track slots until a leak check ended
    the process.

    Choices
    -------
    Which free slot is handed out. The numbers of slots. The order in which the states of one eviction are
    given back.

    Caller
    ------
    To free, at every exit (E3), every slot that it took and that no insert adopted. To write only to its own
    slots.

    Engines
    -------
    - sglang: slots of a `MambaSlotAllocator` (`sglang/srt/mem_cache/allocator/mamba.py`); the request hands
      its slot to the tree, and frees the slot where `mamba_exist` is true (`components/mamba.py`,
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

    This law is about caches that have two lists of nodes and show them (`lru_lists`, with `inspect`):
    `full_lru` has every node but the root, `mamba_lru` every node with a state. Each is shown as ids, **most
    recent first**, in the order of R8: by the number of the last match or insert that used the node's last
    page, and within one use by depth, where the deeper node is more recent. Each member is in its list
    exactly once.

    So a match or an insert moves all nodes of its path to the front, with the end of the path first. A split
    puts the upper half, unless it was just used, directly behind the lower half. Locks and evictions move
    nothing. A new state enters `mamba_lru` at the place of its node, which is at the front, since the insert
    has just used the node.

    | step | `full_lru` | `mamba_lru` |
    | --- | --- | --- |
    | insert `a b` with a state: node 1 | 1 | 1 |
    | insert `c` with a state: node 2 | 2, 1 | 2, 1 |
    | match `a` finds no state: nothing is used | 2, 1 | 2, 1 |
    | insert `a` with a state: node 1 is split, node 3 is new | 3, 2, 1 | 3, 2, 1 |
    | match `a b` | 1, 3, 2 | 1, 3, 2 |

    The documented class `LRUList` also has: `len`, `in` and walks from both ends that agree; sentinels as
    `head` and `tail`; a `UsageError` for inserting a member again and for removing or touching a node that is
    no member; `touch_node_and_parents_mru`, which skips ancestors that are no members and stops before the
    root; `get_lru_leaf_unlocked` and `get_lru_unlocked`, the least recent member that qualifies. No outcome
    shows these.

    Why
    ---
    With two sources of recency, times on nodes and places in lists, some code path updates only one of them.
    Servers with a self-check stopped minutes after their start; engines without this check evicted states
    that had just been used.

    Choices
    -------
    Without the claim `lru_lists`, everything: the order can be kept by times, heaps or one list.

    Caller
    ------
    Nothing.

    Engines
    -------
    - sglang: one list for each kind but full attention, which uses times (`unified_tree_core.py`,
      `UnifiedLRUList`). Members are nodes with a value of that kind. A match moves one state to the front,
      and not the states above (`components/mamba.py`, `refresh_lru`); a split puts the upper half next to the
      lower half: different.
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
