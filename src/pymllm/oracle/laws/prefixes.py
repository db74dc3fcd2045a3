"""Laws of prefix caches: the prefixes that they match, own and evict."""

from __future__ import annotations

from itertools import pairwise

from pymllm.history.operations import Evict, Hash, Insert, Inspect, Lock, Match, Operation, Unlock
from pymllm.history.outcomes import Inserted, NoRoom
from pymllm.oracle.laws.law import LEFT_OUT, Broken, Found, demand, law, same
from pymllm.oracle.models.kind_model import DONE, NO_ROOM, REFUSED, STRUCK, Seen
from pymllm.oracle.models.prefix import CacheModel
from pymllm.oracle.models.prefix_seen import (
    FORGOTTEN,
    GARBLED,
    HIDDEN,
    OLDER,
    TOO_MANY,
    SeenEvict,
    SeenInsert,
    SeenMatch,
    tokens_of,
)
from pymllm.oracle.models.prefix_victims import find_orphans
from pymllm.oracle.models.shown_nodes import SeenLook
from pymllm.oracle.models.slot_ownership import Owner


@law("R1", Match, page="prefixes", ways="sop", kinds="prefix", is_of_tails=True)
def keys_are_cut_to_whole_pages(before: CacheModel, operation: Match, seen: SeenMatch) -> Found:
    """Keys and values are cut to whole pages.

    Page *i* of a key is its tokens `[i * page_size, (i + 1) * page_size)`. The tokens after the last whole
    page are the **tail**. It is never cached and never found: a match looks for the whole pages of its key,
    and an insert keeps them. So every length that a cache returns (`prefix_len`, `node_len`, `adopted`,
    sizes) is counted in tokens and is a multiple of `page_size`. A key that is shorter than a page is treated
    as an empty one.

    An insert brings exactly one slot for each token of its key, the tail included. It must be refused with a
    `ValueError` (X1, with the claim `refusals`) if

    - it brings more or fewer slots than its key has tokens;
    - it brings no slots at all (`slots` is null, which is not the same as an empty list) although there is a
      pool, or although the tokens are tuples;
    - there is a pool, and the slots of some whole page of the key are not one page of the pool in order:
      *s*, *s* + 1, ..., *s* + `page_size` - 1, where *s* is a multiple of `page_size`. With pages of one
      token every slot is such a page.

    A cache that keeps nothing (`retains` is false) checks nothing and refuses none of these inserts.

    The slots of the tail are counted; no other rule applies to them. Without a pool slots are plain numbers,
    and any numbers are valid; if `slots` is null, the token ids themselves are the slots.

    Why
    ---
    A page is the smallest unit of kernels, block tables and free lists. If the tail is cached, another
    request writes its own tokens into the rest of that page, and a later hit reads them. A node that is split
    inside a page is stored under a key that cannot be derived from its content: a production scheduler died
    in an eviction that could not find the child, long after the split.

    Choices
    -------
    Whether the key is cut on entry or during the walk. The order in which several mistakes of one call are
    noticed, since all of them are a `ValueError`. Whether the pool of a cache is its own.

    Caller
    ------
    To keep the slots of the tail, which stay the caller's (R4). To pass only its own slots, or the slots that
    the cache has for the same page of the key, and no slot twice.

    Engines
    -------
    - sglang cuts keys in the same way (`sglang/srt/mem_cache/radix_cache.py`, `RadixKey.page_aligned`), and
      cuts the value to the key's length without comparing the two lengths. It does not check the order of a
      page's slots.
    - vLLM registers full blocks (`vllm/v1/core/block_pool.py`, `BlockPool.cache_full_blocks`). With
      hashes finer than blocks it also registers a partial tail (`cache_partial_block`): different.
    - Megatron Core 0.16.1 has no prefix cache.
    """
    told = len(seen.result.slots)
    if told % before.page_size:
        return Broken(f"slots that match {seen.key.tokens}", len(seen.found.slots), told)
    return len(seen.key.tokens) % before.page_size > 0 or None


@keys_are_cut_to_whole_pages.on(Insert)
def _a_tail_is_left_out(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    """Count keys with an incomplete last page; other results of the insert show that it was left out."""
    return len(seen.key.tokens) > len(seen.plan.path.tokens) or None


@law("R2", Match, page="prefixes", ways="op", kinds="prefix")
def a_match_is_the_longest_usable_prefix(before: CacheModel, operation: Match, seen: SeenMatch) -> Found:
    """A match is the longest usable cached prefix, slots in order.

    A prefix of the key is **cached** if each of its pages is in the cache, in the key's namespace (K1). It is
    **usable** if a request may continue from its end: always in a plain cache, by S1 where there is a window,
    by M2 where there are states. `match` must return the longest prefix of the key, in whole pages, that is
    cached and usable. This may be the whole key. The empty prefix is always cached and usable; it ends at the
    root.

    | field | |
    | --- | --- |
    | `slots` | the cache's slot for each token of the prefix, in the order of the tokens |
    | `prefix_len` | the number of these slots |
    | `node_len` | the same number: the length of the returned node's path |
    | `dtype` | `int64`; left out without index tensors |

    A search that stops at the first prefix that is not usable is wrong: a longer prefix may be usable again.

    A match moves no memory: it has no effects, and no size is different afterwards. It makes the returned
    prefix recent (R8) and counts a hit on this prefix (R10). Pages of the key beyond the returned prefix do
    not change, even if they are cached.

    Where nodes are shown (`inspect`), a match may split the node in which the returned prefix ends. With the
    claim `lean_matches` no other node is split; without the claim, the node in which the cached part of the
    key ends may be split, too.

    Why
    ---
    Each cached page that is not found is computed again: the server is slow, for no visible reason. In a
    server for models with states every prompt of more than two state intervals missed, since the walk ended
    at the first node without a state. Where the returned node did not belong to the returned slots (in one
    engine it was the root, in another the parent), the hit was right, but the hold protected nothing.

    Choices
    -------
    How prefixes are looked up: in a tree, or in a dictionary of pages. Whether and when a node is split,
    within the bounds above. Whether `node_len` is reported.

    Caller
    ------
    To lock the matched prefix before any call that may evict (R6). To leave at least one token to compute,
    since a match may cover the whole key (E4).

    Engines
    -------
    - sglang: the same (`radix_cache.py`, `RadixCache.match_prefix`). Its unified tree splits a node where
      the cached part ends, though the match may end before it
      (`sglang/srt/mem_cache/unified_cache/unified_tree_core.py`, `_match_prefix_helper`), so
      `lean_matches` is not claimed.
    - vLLM: `FullAttentionManager.find_longest_cache_hit` in `vllm/v1/core/single_type_kv_cache_manager.py`
      goes from block to block by hash. Its caller never lets a hit cover the whole prompt
      (`kv_cache_manager.py`, `get_computed_blocks`).
    """
    if seen.effects:
        return Broken("effects of a match", "none", seen.effects)
    if seen.result.dtype != "int64":
        return Broken("dtype of a match's indices", "int64", seen.result.dtype)
    expected = len(seen.found.slots)
    return same(f"slots that match {seen.key.tokens}", expected, len(seen.result.slots))


@a_match_is_the_longest_usable_prefix.on(Match)
def _a_match_returns_the_slots_of_the_tree(before: CacheModel, operation: Match, seen: SeenMatch) -> Found:
    result = seen.result
    if result.slots != seen.found.slots:
        return Broken(f"slots that match {seen.key.tokens}", seen.found.slots, result.slots)
    return same("prefix_len of a match", len(result.slots), result.prefix_len)


@a_match_is_the_longest_usable_prefix.on(Match)
def _a_match_returns_its_last_node(before: CacheModel, operation: Match, seen: SeenMatch) -> Found:
    told = seen.result.node_len
    return None if told is None else same("length of last_node's path", len(seen.found.path.tokens), told)


@a_match_is_the_longest_usable_prefix.on(Inspect)
def _nodes_end_where_something_was_used(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    for birth, path, _, was_there in before.nodes.new_ends(seen):
        if was_there and birth not in before.nodes.splits:
            return Broken(f"nodes that end at {path.tokens}", "none: nothing was used up to here", "one")
    return None


@law("R3", Insert, page="prefixes", ways="sop", kinds="prefix")
def an_insert_says_what_was_there(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    """An insert reports the prefix cached before, and then the whole key is cached.

    `prefix_len` is the length of the longest prefix of the key that was cached before the call, in whole
    pages. Pages whose window is dead count (S2), and so do pages that no match would return. `prefix_len`
    does not depend on `prev_prefix_len`, on holds, or on the owner of the passed slots.

    Afterwards every whole page of the key is cached, and `node_len` is the length of all of them. A page that
    was cached keeps its slots; a page that was not cached has the slots that were passed for it. S7 makes one
    exception to each: it revives dead pages with incoming slots, and it refuses an insert as a whole. A valid
    insert has no other outcome. It never fails for lack of memory, and evicts nothing (R4), because it needs
    only the passed slots.

    A cache whose configuration has a `capacity` (and no pool, no window, no states) **takes its memory by
    itself**: it gets contents, which it copies to its own pages, as many as `capacity` says. An insert that
    needs more pages than are left evicts exactly the missing number, page by page, in the claimed order (R8
    or R11), as R5 says of an eviction; meanwhile it locks the cached part of its key. If the evictable pages
    are not enough, the answer is `no_room`, and nothing has changed.

    | key | before | `prefix_len` | `adopted` (R4) | `node_len` |
    | --- | --- | --- | --- | --- |
    | no whole page | anything | 0 | none | 0 |
    | `1 2 3 4`, pages of two | nothing | 0 | `[[0, 4]]` | 4 |
    | `1 2 3 4 5` | `1 2` | 2 | `[[2, 4]]` | 4 |
    | `1 2 3 4` | `1 2 3 4 5 6` | 4 | none | 4 |

    An insert without a whole page does nothing, but errors (S7) are still refused first. The arguments belong
    to the caller again when the call returns: the cache keeps no view of its key or slots (X5).

    A cache that keeps nothing (`retains` is false) answers 0 and adopts nothing, for any key; its `node_len`
    is not checked. It claims at most `pool`, `extra_key`, `bigrams` and `engine`.

    Why
    ---
    A caller frees its duplicates up to `prefix_len`. If `prefix_len` is one page too long, the caller frees
    slots that the cache now owns; if it is one page too short, slots leak at every request, until a leak
    check stops the server. One cache ignored the node that its split had returned and continued from the
    wrong half: keys that had never been inserted matched nine slots of foreign KV.

    Choices
    -------
    The structure; whether an insert that ends inside a node splits this node (a tree must, since `node_len`
    says that a node ends there). A cache without nodes leaves `node_len` out.

    Caller
    ------
    To have computed the KV that it passes: KV of exactly this key in this namespace (E1).

    Engines
    -------
    - sglang: the same (`radix_cache.py`, `RadixCache._insert_helper`). With pages of one token it keeps the
      passed array as the key, without a copy: different (X5).
    - vLLM: `BlockPool.cache_full_blocks` registers the request's own blocks, also under a hash that is
      registered already. Then several blocks have one hash, and a lookup finds any of them: different.
    """
    return same("prefix_len of an insert", seen.plan.prefix_len, seen.result.prefix_len)


@an_insert_says_what_was_there.on(Insert, fate=NO_ROOM)
def _what_finds_no_room_says_so(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    return same("an insert for which there is no room", NoRoom(), seen.result)


@an_insert_says_what_was_there.on(Insert)
def _an_insert_returns_its_last_node(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    told = seen.result.node_len
    if seen.plan.refused or told is None:
        return None
    return same("length of last_node's path", len(seen.plan.path.tokens), told)


@an_insert_says_what_was_there.on(Insert, fate=FORGOTTEN)
def _nothing_was_there(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    if not isinstance(seen.result, Inserted):
        return Broken("insert", "inserted", seen.result)
    return same("prefix_len of an insert", 0, seen.result.prefix_len)


@an_insert_says_what_was_there.on(Inspect)
def _what_was_there_is_still_there(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    if seen.lost:
        return Broken(f"page {seen.lost[0].tokens}", "in the tree", "lost")
    if seen.odd is not None:
        path, page, _, slots = seen.odd
        if slots != page.slots:
            return Broken(f"slots of page {path.tokens}", page.slots, slots)
    return len(before.cache.pages) > 0 or None


@law("R4", Insert, page="prefixes", ways="op", kinds="prefix")
def the_cache_owns_what_it_adopted(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    """The cache owns the slots that it adopted, and no others.

    Each slot has one owner at any time: the pool, the caller, or the cache. `adopted` says which of the
    incoming slots an insert took: ranges `[start, end)` of positions in the key, in whole pages, ascending,
    disjoint, and joined where they touch. From then on the cache owns the slots at these positions. All other
    slots keep their owner: duplicates of cached pages, the tail, and slots that the cache already owned,
    because the caller passed a matched prefix back.

    Without a window `adopted` is `[[prefix_len, n]]`, where *n* is the length of the key's whole pages, or
    empty if `prefix_len` is *n*. With a window there may be more ranges, also below `prefix_len` (S7).

    The cache gives back only its own slots, and each slot once. In particular

    - no operation frees an incoming slot;
    - an insert frees exactly the slots that S7 displaces, and without a window none. It evicts nothing, makes
      no callback, and frees no SWA half. (Where a cache has a `capacity`, R3, its inserts evict no slots of a
      pool, and their evictions are no effects);
    - where windows are followed, an insert may give back duplicates from `prev_prefix_len` on, in whole
      pages. A dead page below may take the new slots, if it is not held, or their halves. `adopted` and the
      effects show this, and the old slots of such a page are displaced;
    - a match, a lock, an unlock and a hash have no effects;
    - an eviction frees slots of the cache, and moves no half. A reset frees all slots of the cache (X7).

    Why
    ---
    Two owners of one slot free it twice, and then two requests write to this slot: both answer with fluent
    nonsense, while every total is still right. A slot without an owner is a leak: a server with its cache
    switched off lost every slot of every request, because its scheduler assumed that the insert had taken the
    slots.

    Choices
    -------
    Nothing about ownership. The number and order of calls that give slots back, except with the claim
    `call_order` (X2).

    The time is no choice, and there is no claim for another: the pool has the slots when the call returns. If
    a cache delays frees, for a stream or a batch, its adapter empties that queue within the operation. From
    outside a slot in transit looks lost (A2).

    Caller
    ------
    After an insert, to name the cache's slots in its own tables, and to free its duplicates: the slots from
    the length that it had matched, and holds, up to `prefix_len`, without the slots in `adopted`. To insert
    slots that the cache has at another place, or slots of another owner, is the caller's error, and is never
    tested.

    Engines
    -------
    - sglang's plain tree returns only `prefix_len`, and its caller frees the duplicates (`radix_cache.py`,
      `RadixCache._insert_cache`). The unified tree frees them itself inside the insert
      (`unified_tree_core.py`, `_insert_overlap_step`), and returns adopted ranges of each kind of memory on
      request: different.
    - vLLM: blocks stay in their request's table until the request ends, and are cached by their hash
      meanwhile; their owner does not change. So vLLM is judged as a cache that takes its memory by itself
      (R3). Megatron Core 0.16.1: not applicable, no cache.
    """
    if seen.involves_tombstones:
        return None
    return same("adopted ranges", seen.plan.adopted, seen.result.adopted)


@the_cache_owns_what_it_adopted.on(Insert)
def _what_comes_is_not_freed(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    incoming = set(seen.calls.freed) & set(seen.slots) - set(seen.plan.displaced)
    return Broken("incoming slots that were freed", "none", sorted(incoming)) if incoming else None


@the_cache_owns_what_it_adopted.on(Insert)
def _what_is_displaced_is_freed(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    if seen.calls.halves and not seen.is_followed:
        return Broken("SWA halves that an insert frees", "none", seen.calls.halves)
    return None if seen.involves_tombstones else gives_back_as_planned(seen)


@the_cache_owns_what_it_adopted.on(Insert, fate=FORGOTTEN)
def _nothing_is_adopted(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    if seen.effects:
        return Broken("effects of an insert", "none", seen.effects)
    return same("adopted ranges", (), seen.result.adopted)


@the_cache_owns_what_it_adopted.on(Lock, Unlock, fate=REFUSED)
@the_cache_owns_what_it_adopted.on(Lock, Unlock, Hash)
def _nothing_changes_hands(before: CacheModel, operation: Lock | Unlock | Hash, seen: Seen) -> Found:
    return Broken("effects where there must be none", "none", seen.effects) if seen.effects else None


@the_cache_owns_what_it_adopted.on(Evict, fate=GARBLED)
@the_cache_owns_what_it_adopted.on(Evict, fate=HIDDEN)
@the_cache_owns_what_it_adopted.on(Evict, fate=STRUCK)
@the_cache_owns_what_it_adopted.on(Evict)
def _only_what_is_the_caches_is_evicted(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    calls = seen.calls
    moved = [*calls.moves, *calls.halves] if before.tracks is not None else calls.moves
    if moved:
        return Broken("SWA halves that an eviction moves", "none", moved)
    foreign = seen.freed.of(Owner.CALLER) | seen.halves.of(Owner.CALLER)
    return Broken("owners of what was freed", Owner.CACHE.value, foreign) if foreign else None


def find_wrong_count(seen: SeenLook, name: str, counted: str) -> Broken | None:
    """Compare a count that a node shows with the model's count for its page, if `seen.odd` names a page."""
    if seen.odd is None:
        return None
    path, page, node, _ = seen.odd
    expected, shown = getattr(page, counted), getattr(node, name)
    return None if shown in (None, expected) else Broken(f"{name} of page {path.tokens}", expected, shown)


def gives_back_as_planned(seen: SeenInsert) -> Found:
    """Compare the slots that an insert frees or moves with the plan of the insert."""
    plan, calls = seen.plan, seen.calls
    if sorted(calls.freed) != sorted(plan.displaced):
        return Broken("slots that an insert frees", plan.displaced, calls.freed)
    return same("SWA halves that an insert moves", plan.moves, calls.moves)


@law("R5", Evict, page="prefixes", ways="sop", kinds="prefix")
def an_eviction_takes_just_enough(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    """An eviction takes enough, and not one leaf more.

    A page is a **leaf** if no cached page is directly below it. `evict(n)` with *n* > 0 removes leaves that
    are not locked (R6), whole pages each time, until at least *n* tokens are gone, or no such leaf is left.
    When a leaf is removed, the page above it may become a leaf, and is a candidate from then on. *n* <= 0
    asks for nothing; a negative *n* is no error.

    - **Right report.** `full` is the number of all removed tokens.
    - **Enough.** `full >= min(n, evictable_size before)`.
    - **Not too much.** Without the last victim fewer than *n* tokens would be gone. A **victim** is a page,
      or in a tree the whole node of a leaf. A cache that claims an order (`exact_lru` for R8, `exact_policy`
      for R11) takes victims in that order. So the evicted pages are determined, except where the last victim
      stops (below). Of all other caches only this is required: one of the victims could not have been left
      out.
    - **Whole and from below.** All slots of a page are removed together. No page is removed while a page
      below it stays (R9), or while there is a hold at or below it (R6).
    - **Callbacks.** With the claim `callbacks` there is one callback for each removed node, with a number
      that no other node ever had (X3). Where nodes are shown, the callbacks name exactly the removed nodes,
      and with an order they come in the order of removal. Where nodes are not shown, there is at least one
      callback (if anything was removed), and at most one for each removed page; a cache without nodes calls
      back for each page.

    **Where the last victim stops.** A tree cannot stop inside a node, and the ends of nodes are invisible
    from outside. So with an order, once enough tokens are gone, an eviction may continue to the page above
    the last removed page, and so on. Each such page (a) had no other child when the call began, (b) was last
    used by the same operation, (c) is not locked, and (d) does not follow a page that S4 removed as a
    consequence. Where nodes are shown there is no choice: the eviction stops at the end of a node.

    An eviction does not change recency. For windows and states see S3 and M5.

    Why
    ---
    The scheduler requests the tokens that it needs and relies on them: with one page too few the allocation
    fails and a running request is aborted. Pages that are evicted without need are computed again. One engine
    did not check the parent after the last child was removed, so that memory became unreachable; another
    freed one slot of each page; another counted pages for a request in tokens.

    Choices
    -------
    The order, where none is claimed. Whether whole nodes or single pages are removed. The number of calls of
    the pool. A cache that claims neither an order nor `inspect` may join a node with its only remaining child
    at any time, also while victims are chosen. An example: of the pages `1`, `1 2`, `1 1` and `1 1 1`, two
    nodes are left after the last two pages are removed, and `evict(3)` may remove all. With an order (a)
    limits this, and where nodes are shown R10 forbids it.

    Caller
    ------
    To evict when an allocation found no room: `alloc` never evicts. A cache with a window over a pool without
    SWA halves, and a cache without a pool, get evictions only if they claim an order, because their victims
    would be unknown.

    Engines
    -------
    - sglang: the same for whole nodes (`radix_cache.py`, `RadixCache.evict`), over a heap that starts
      with the leaves at that time. No callback; events report the removed pages (`record_remove`).
    - vLLM has no such call. `BlockPool.get_new_blocks` takes the oldest free block, cached or not: an insert
      evicts (R3), and for an eviction the adapter runs a request that has no cached prefix. A block whose
      parent in the chain of hashes is gone stays cached, where no lookup reaches it; with one group of
      layers, and requests one after the other, no block loses its parent first.
    """
    cache, full = before.cache, seen.full
    if cache.window is None and seen.swa:
        return Broken("window tokens evicted without a window", "none", seen.swa)
    if full is None:
        return None
    if seen.removed is not None and len(seen.removed) * before.page_size != full:
        return Broken("tokens evicted", len(seen.removed) * before.page_size, full)
    least = min(seen.tokens, cache.sizes()["evictable_size"])
    if full < least and least > 0:
        return Broken("tokens evicted", f">= {least}", full)
    return seen.removed is not None or least > 0 or None


@an_eviction_takes_just_enough.on(Evict)
def _no_more_goes_than_is_needed(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    if seen.odd is not None:
        return Broken(*seen.odd[1:]) if seen.odd[0] == TOO_MANY and seen.is_for_tokens else None
    if before.is_ordered:
        return len(seen.victims) > 0 or not before.retains or None
    is_free = before.follows_windows and seen.secondary > 0
    return (seen.is_for_tokens and not is_free) or None


@an_eviction_takes_just_enough.on(Evict)
def _each_node_is_called_back(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    if "callbacks" not in before.claims:
        return None
    found = [effect.node for effect in seen.calls.callbacks]
    if seen.ids is None:
        least, most = min(1, len(seen.victims)), len(seen.victims)
        return demand(least <= len(found) <= most, "callbacks", f"{least}..{most}", len(found))
    if sorted(seen.ids) != sorted(node for node in found if node is not None):
        return Broken("nodes called back", seen.ids, found)
    return len(seen.ids) > 0 or None


@an_eviction_takes_just_enough.on(Evict, fate=GARBLED)
def _whole_pages_go(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    if seen.freed.parts:
        return Broken("slots that share a page with those freed", "none", seen.freed.parts)
    # What else is no page of the cache is told by the laws before: A2, A7, M7, R4, S2.
    return Broken("SWA halves freed without a window", "none", seen.calls.halves)


@an_eviction_takes_just_enough.on(Insert)
def _an_insert_calls_nobody_back(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    callbacks = seen.calls.callbacks
    return Broken("callbacks of an insert", "none", callbacks) if callbacks else None


@law("R6", Inspect, page="prefixes", ways="sop", kinds="prefix")
def a_locked_node_stays(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    """Lock references balance, and a locked node stays.

    A **hold** is one `lock` that has not been released. It is taken *at* the node that a step returned, that
    is, at a path, and `unlock` releases it there. The lock count of a page is the number of holds at this
    page or below it. The count of a node is the count of its pages, which all have the same count. Counts are
    right after every call: a split gives both halves the count of the whole, and an insert below a held page
    changes no count. A release takes back exactly the counts of its own hold, even if nodes were split,
    inserted or evicted in between. Two holds at one path count as two.

    A page whose count is not zero is **locked**. No eviction removes a locked page, and its slots stay the
    same; S7 may revive it under the hold, but only by moving halves. A page that is not locked has no locked
    page below it.

    - A lock of the root, or of no node at all, does nothing, and neither does its release. A caller may do
      both at any time, also with the root from before a `reset`.
    - A release at a path without a hold, because the hold was released already or is only below, is misuse: a
      `LockError` (X1). A lock or release at a page that has left the cache, even where the same key is cached
      again, is a `StaleNodeError`. This is checked first. Neither changes any count.
    - Locks and releases make no page recent and have no effects. They change only `evictable_size`,
      `protected_size`, and the sizes of S6 and M6.
    - `reset` ends every hold (X7).

    Why
    ---
    A hold protects a running request from the evictions of others. If a count is too low by one, the KV that
    the request reads is handed to another request: the model answers with fluent nonsense, and nothing
    crashes. If it is too high by one, the pages are never evicted again, and the server runs out of memory
    hours later. Shipped engines have begun the walk at the parent, or refused the last release as an
    underflow.

    Choices
    -------
    How counts are kept: on each page or node of the path, at the held node alone, or in a table of holds.
    Whether a hold is named by its node or by a token of its own; without a window tokens are not checked.

    A hold must not cover more than its path, and there is no claim for such holds: a tree that locks whole
    edges splits the edge in which a hold ends. R5 counts the evicted pages, and from outside a hold that
    reaches too far looks like a hold that was never released.

    Caller
    ------
    To release each hold once, at the node where it was taken, and before the cache is reset. A request that
    locks a longer prefix than before takes the new hold first and then releases the old hold.

    Engines
    -------
    - sglang counts on each node up to the root, the same (`radix_cache.py`, `RadixCache.inc_lock_ref`,
      `dec_lock_ref`). The plain tree does not notice one release too many (the count becomes -1); the unified
      tree asserts, and compares the receipt's node (`unified_tree_core.py`, `_assert_receipt_anchor`).
    - vLLM: a reference count for each block of a request's table (`BlockPool.touch`, `free_blocks`), which
      has the same effect. A block with count zero is free and stays cached until it is handed out.
    """
    if (broken := find_wrong_count(seen, "lock_ref", "locks")) is not None:
        return broken
    return (before.cache.holds and any(node.lock_ref is not None for node in seen.nodes)) or None


@a_locked_node_stays.on(Evict, fate=HIDDEN)
@a_locked_node_stays.on(Evict, fate=STRUCK)
@a_locked_node_stays.on(Evict)
def _an_eviction_takes_no_locked_page(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    pages = before.cache.pages
    locked = [path for path in seen.gone if pages[path].locks]
    if locked:
        return Broken("removed pages with a hold at or below", "none", tokens_of(locked))
    is_tested = seen.fate == DONE and seen.tokens > 0 and before.cache.sizes()["protected_size"] > 0
    return is_tested or None


@law("R7", page="prefixes", ways="sop", kinds="prefix")
def sizes_are_recounts(before: CacheModel, operation: Operation, seen: Seen) -> Found:
    """Evictable and protected sizes are recounts.

    | size | tokens of |
    | --- | --- |
    | `evictable_size` | cached pages that are not locked |
    | `protected_size` | cached pages that are locked (R6) |
    | `total_size` | cached pages: the sum of the two |

    Tombstones count like other pages, since they keep their slots. The root counts nowhere. No size counts
    slots of callers or free slots.

    Every reported size must be right after every operation: after an insert below a held leaf, after a split,
    after a release, after an operation that was refused or whose pool failed, and inside a callback (X6). A
    cache leaves out sizes that it does not know. `pool` adds `available_size` (A2), a window the sizes of S6,
    states the sizes of M6.

    Why
    ---
    Admission adds `available_size` and `evictable_size`. If the sum is too large, requests are admitted that
    find no memory; if it is too small or negative, the server idles while requests wait. In one cache a
    leaf's tokens were subtracted when it got its first child, while locks and splits still moved them: -3
    evictable tokens after a handful of calls.

    Choices
    -------
    Which sizes it reports. Whether sizes are kept or counted on request. A scheduler reads them in every
    step, so their cost should not depend on the cache's content, but this is not measured.

    Caller
    ------
    Nothing.

    Engines
    -------
    - sglang: `evictable_size_` and `protected_size_` are kept (`radix_cache.py`), the same. `total_size`
      walks the tree there.
    - vLLM: one number, `BlockPool.get_num_free_blocks`, in blocks. It counts free blocks and unreferenced
      cached blocks together; held blocks are not reported.
    """


@law("R8", Evict, page="prefixes", ways="sop", kinds="prefix", needs="exact_lru")
def the_least_recent_goes_first(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    """The least recent goes first.

    Matches and inserts are counted, and each writes its number on every page of its path: a match on the
    pages of the prefix that it returns, an insert on all whole pages of its key, new and old. A match that
    returns nothing, an insert without a whole page, and an insert that S7 refuses write on no page. Nothing
    else makes a page recent: no lock, release, eviction, size, hash or look. Cached pages beyond the end of a
    match do not become recent, either.

    The **recency** of a page is the pair (number, length of the prefix that the page ends). Pairs are
    compared from the left; the smaller pair is less recent. Along one path numbers never grow downwards, and
    two pages with the same number lie on one path, so the order is strict. In other words: the page used
    longest ago goes first, and of the pages of one use the page nearest to the root.

    | step | number on `A` | on `A B` | on `A C` | leaves, least recent first |
    | --- | --- | --- | --- | --- |
    | 1 insert `A B` | 1 | 1 | | `A B` |
    | 2 insert `A C` | 2 | 1 | 2 | `A B`, `A C` |
    | 3 match `A B` | 3 | 3 | 2 | `A C`, `A B` |
    | 4 match `A` | 4 | 3 | 2 | `A C`, `A B` |

    An eviction takes the least recent candidate, again and again: leaves that are not locked (R5), pages with
    a window that no hold covers (S3), states without a hold (M5). Depth never decides among leaves, because
    no two leaves have the same number; it decides among windows and states of one path.

    In a tree all pages of a node have one number. Therefore a match that ends in the middle of a node splits
    it, and the lower half keeps the old number. Where nodes are shown, their `last_access` must order any two
    pages as the numbers do, equal numbers included. The unit of the counter is not prescribed.

    Why
    ---
    A cache is useful only if it still has a prompt when the prompt returns. In some shipped windowed caches a
    match refreshed nothing, or a hit on a system prompt made whole conversations below it recent. Where ties
    are broken by an address or by wall time, the ranks of one server evict different nodes, and the server
    hangs (X3).

    Choices
    -------
    Without the claim `exact_lru` any order is allowed. The clock may be anything that grows with each match
    and insert: a counter, or the protocol's own clock.

    Caller
    ------
    Nothing.

    Engines
    -------
    - sglang: one time of `time.monotonic` for the whole path (`radix_cache.py`, `_match_prefix_helper`), with
      other policies beside LRU. The child is stamped before it is split, so that the unused half becomes
      recent: different. The unified tree has a counter and makes each ancestor a little older than its child;
      its `_split_node` makes the lower half recent, too.
    - vLLM: blocks are queued in the order in which their last request released them, the end of a request
      first (`kv_cache_utils.py`, `FreeKVCacheBlockQueue`): the order of release, not of use. R11 has this
      order as policy `release`.
    """
    if seen.odd is not None:
        return Broken(*seen.odd[1:]) if seen.odd[0] == OLDER else None
    gone, states, sizes = len(seen.victims) * before.page_size, seen.states.pages, before.cache.sizes()
    if gone and sizes["evictable_size"] > gone:
        return True
    is_state_left = states and sizes["mamba_evictable_size"] > len(states)
    return (seen.secondary > 0 and bool(is_state_left)) or None


@the_least_recent_goes_first.on(Inspect)
def _nodes_tell_when_they_were_used(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    """Compare the order of the nodes' ``last_access`` with the order of accesses, including ties."""
    pairs = {(page.access, node.last_access) for _, page, node, _ in seen.rows}
    told = sorted((access, time) for access, time in pairs if time is not None)
    for one, two in pairwise(told):
        if not (one[0] < two[0] and one[1] < two[1]):
            expected = f"those of accesses {one[0]} and {two[0]}, in that order"
            return Broken("last access of two pages", expected, f"{one[1]} and {two[1]}")
    return len({time for _, time in told}) > 1 or None


@law("R9", Inspect, page="prefixes", ways="sop", kinds="prefix", is_of_content=True)
def the_tree_is_well_formed(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    """The tree is well formed, and no slot stands in it twice.

    For every cache: a page is cached only if the page above it is cached. No eviction leaves a page below a
    removed page. With a pool, the cache owns each cached slot at one place, and the slot is neither free nor
    the caller's.

    For a cache that shows its nodes (`inspect`) also:

    - each node but the root has at least one token, a whole number of pages, and as many slots as tokens;
    - `parent` names a node that was shown before it, or nothing for a child of the root, and is in the
      same namespace, with tokens of the same width (K1);
    - no two nodes contain the same page of the same path, so children of one node differ in their first page;
    - the pages of all nodes are exactly the pages cached by R3 and not evicted since, each with its slots.

    Why
    ---
    Unreachable pages are lost for good: their slots are neither found nor evicted. Two nodes over the same
    physical pages made a server count 160 tokens more than its pool holds. If a branch is below the wrong
    half of a split, prompts are answered with the KV of other prompts.

    Choices
    -------
    The length of nodes. A cache without a tree may show each page as a node of its own. So may a cache whose
    children branch off inside an edge; or it shows the edge as several nodes that end at its branches.
    Without the claim `inspect` it may branch anywhere. The shown tree branches only at the ends of nodes.

    Caller
    ------
    Never to insert slots that the cache has at another place (R4).

    Engines
    -------
    - sglang: the same; children are stored under their first page with `extra_key` (`radix_cache.py`,
      `RadixKey.child_key_at`). Its unified tree can check itself (`sanity_check`).
    - vLLM: no tree. A cached block may lack its parent, and two blocks may have one hash: different.
    """
    for path, slots in seen.strangers.items():
        return Broken(f"page {path.tokens}", "not in the tree", f"slots {slots}")
    return len(before.cache.pages) > 0 or None


@the_tree_is_well_formed.on(Inspect, fate=GARBLED)
def _nodes_are_a_tree(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    return None if seen.malformed is None else Broken(*seen.malformed)


@the_tree_is_well_formed.on(Evict, fate=HIDDEN)
@the_tree_is_well_formed.on(Evict, fate=STRUCK)
@the_tree_is_well_formed.on(Evict)
def _nothing_stays_below_what_goes(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    orphans = find_orphans(before.cache, seen.gone)
    if orphans:
        return Broken("pages that stay below removed ones", "none", tokens_of(orphans))
    return (seen.fate == DONE and 0 < len(seen.victims) < len(before.cache.pages)) or None


@law("R10", Inspect, page="prefixes", ways="sop", kinds="prefix", needs="inspect")
def a_split_keeps_the_lower_half(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    """A split keeps the lower half's identity and every count.

    When a node is split, the **lower half** (which ends where the whole ended) keeps the id, and with it
    every hold, hash and state that names the node. The **upper half** is the new node. Its id is larger than
    any id shown before (X3). Both halves keep the data of the whole:

    | | upper half, new | lower half |
    | --- | --- | --- |
    | `id` | a new one | that of the whole |
    | `lock_ref` (R6), `swa_lock_ref` (S6) | that of the whole | unchanged |
    | `is_alive` (S2), `last_access` (R8), `hit_count` | that of the whole | unchanged |
    | `boundary`, the token of a window's edge (S5) | that of the whole | none |
    | `page_hashes` (H2) | the first part of the list | the rest |
    | `state`, `state_lock_ref` (M3, M4) | none, 0 | unchanged |

    After the split the operation that caused it makes its own changes: for example, a match counts a hit on
    the upper half only. `hit_count` of a page is the number of matches whose returned prefix contained the
    page, since the page came into the cache; inserts are no hits. Hits are compared only with the claim
    `hit_counts`: other caches show their own counts.

    Two nodes are never joined. As long as the page at the end of a node is cached, a node with that id ends
    there. A new end appears only where an operation since the last look may split a node: where a match ended
    (R2), where an insert's key or its cached part ends, where S7 or S5 splits.

    Why
    ---
    Running requests keep references to the node. If the node suddenly means the first half of their hold, its
    release takes back too little, and pages stay locked for ever. If the upper half starts with a count of
    zero, the beginning of a prompt is evicted under a request that reads it. A pending copy that names a node
    loses a part of the node.

    Choices
    -------
    Which nodes are split, if the difference is invisible. A cache does not show counts that it does not keep.
    A cache that shows each page as a node never splits.

    Caller
    ------
    Nothing: a held node keeps its meaning.

    Engines
    -------
    - sglang: the same object becomes the lower half, and counts are copied (`radix_cache.py`,
      `_split_node`; `unified_tree_core.py`, `_split_node`). The time of access is not copied: see R8.
      `hit_count` counts inserts there, for backups: different.
    - vLLM: not applicable, nothing is split.
    """
    if "hit_counts" not in before.claims:
        return LEFT_OUT
    if (broken := find_wrong_count(seen, "hit_count", "hits")) is not None:
        return broken
    is_told = any(node.hit_count is not None for node in seen.nodes)
    return is_told or (LEFT_OUT if seen.nodes else None)


@a_split_keeps_the_lower_half.on(Inspect)
def _ends_of_nodes_keep_their_ids(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    nodes = before.nodes
    for birth, node in nodes.ends.items():
        if birth in seen.starts:
            shown = seen.ends[birth][1].id if birth in seen.ends else "no node"
            if shown != node.id:
                return Broken("id of the node at an end", node.id, shown)
    return len(nodes.find_splits(seen)) > 0 or None


@law("R11", Evict, page="prefixes", ways="sop", kinds="prefix", needs="exact_policy|ranked_policy")
def the_first_in_rank_goes_first(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    """The first in rank of a policy goes first.

    The configuration's `policy` names the order of evictions for tokens. An eviction takes the unlocked leaf
    (R5) with the smallest **rank**, again and again, and of equal ranks the least recent leaf (R8).

    | policy | rank of a page |
    | --- | --- |
    | `lru` | the same for all |
    | `lfu` | its hits: matches whose returned prefix contained the page, since it came into the cache (R10) |
    | `fifo` | the number of the insert that brought the page |
    | `mru` | the number of the last match or insert with the page on its path (R8), the largest first |
    | `filo` | the number of the insert that brought the page, the largest first |
    | `priority` | the highest priority of an insert of whole pages with the page on its path |
    | `slru` | 0 with fewer than 2 hits, 1 from then on |
    | `log-lfu` | 0 without hits, 1 with one, 2 with 2 or 3, 3 with 4 to 7: binary digits of its hits |
    | `release` | the number of the last insert or release of a hold with the page on its path |
    | `inserts` | the number of inserts of whole pages with the page on their paths, since the page came |

    A revived page (S7), a page that is split off, and a page that is inserted again while it is cached keep
    their time of arrival and their hits. A page that was evicted and returns starts again. An insert that S7
    refuses gives no priority. For `release`, inserts and releases share one counter, and a match does not
    count: an insert stands for a request that has started and ended.

    | step | hits of `A`, `B`, `C` | `lfu` | `fifo` | `mru` |
    | --- | --- | --- | --- | --- |
    | 1 insert `A` | 0 | `A` | `A` | `A` |
    | 2 insert `B` | 0, 0 | `A`, `B` | `A`, `B` | `B`, `A` |
    | 3 match `A` | 1, 0 | `B`, `A` | `A`, `B` | `A`, `B` |
    | 4 insert `C` | 1, 0, 0 | `B`, `C`, `A` | `A`, `B`, `C` | `C`, `A`, `B` |

    The policy applies to leaves only. Windows (S3) and states (M5) that pages lose while they stay cached are
    evicted in the order of recency, whatever the policy; so is a leaf that is evicted for its window or its
    state. In a tree the pages of a node have one rank; R5 says where the last victim stops.

    With `ranked_policy` alone, only the ranks are compared, not the order of equal ranks: no unlocked leaf
    from before the call stays if its rank is smaller than that of a removed page. This is tested without a
    window and without states.

    Why
    ---
    No order is best for every load. LRU evicts a system prompt that returns every minute for one long
    document that never returns; LFU keeps yesterday's popular prefixes. A comparison of policies on a trace
    is wrong if one of them forgets its counts when a node is split.

    Choices
    -------
    With neither claim any order is allowed; so a policy that is not in the table can be tested by all other
    laws. This applies to every policy that depends on more than the data of a page, such as the length of a
    node: implementations choose where nodes end, and the ranks of the table depend on hits, arrival, priority
    and recency alone.

    Caller
    ------
    To give priorities that can be compared: they are integers, larger ones stay longer.

    Engines
    -------
    - sglang has the same names except `log-lfu` (`evict_policy.py`, `EvictionStrategy`). It counts a hit when
      a prefix is inserted again, not when it is matched, and the first insert counts: its `lfu` is `inserts`
      here, and its threshold of 2 for `slru` is one reuse. The upper half of a split gets the time of the
      split as its arrival (`radix_cache.py`, `_split_node`): different. A policy `tlru` needs more data than
      a node has.
    - vLLM has one order, the order of its queue (R8).
    """
    if seen.odd is not None:
        return Broken(*seen.odd[1:]) if seen.odd[0] == OLDER else None
    gone = len(seen.victims) * before.page_size
    return (gone > 0 and before.cache.sizes()["evictable_size"] > gone) or None
