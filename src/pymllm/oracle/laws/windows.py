"""Laws of sliding windows in a prefix cache: tombstones, and the pages that each window needs alive."""

from __future__ import annotations

from collections.abc import Collection

from pymllm.history.operations import Evict, Insert, Inspect, Lock, Match, ReadHalves, Unlock
from pymllm.oracle.laws.law import LEFT_OUT, Broken, Found, demand, law, same
from pymllm.oracle.laws.prefixes import find_wrong_count, gives_back_as_planned
from pymllm.oracle.models.kind_model import DONE, STRUCK
from pymllm.oracle.models.prefix import CacheModel
from pymllm.oracle.models.prefix_model import Hold, Path
from pymllm.oracle.models.prefix_seen import (
    DEAD_LEAVES,
    GARBLED,
    HIDDEN,
    TOO_MANY,
    WINDOWS,
    SeenEvict,
    SeenHalves,
    SeenInsert,
    SeenMatch,
    SeenNode,
    tokens_of,
)
from pymllm.oracle.models.prefix_victims import find_dead_leaves
from pymllm.oracle.models.shown_nodes import SeenLook
from pymllm.oracle.models.slot_ownership import Owner


@law("S1", Match, page="windows", ways="sop", kinds="prefix", needs="swa")
def a_prefix_needs_its_last_window(before: CacheModel, operation: Match, seen: SeenMatch) -> Found:
    """A prefix is usable if its last window is alive.

    Let *W* be the configuration's `window`, in tokens. A cached prefix is **usable** if all of its pages are
    alive, or if the live pages at its end, without a gap, have at least *W* tokens. In pages: the last
    ceil(*W* / `page_size`) of them, or all. Pages before these may be dead. The empty prefix is usable.

    A match returns the longest cached prefix that is usable (R2), with all of its slots, dead pages included.
    It must check every prefix: dead pages may make one prefix unusable, while a longer prefix is usable
    again.

    With pages of one token and *W* = 3, cached as `a` to `g`, where `b` and `e` are dead:

    | prefix | alive at its end | usable |
    | --- | --- | --- |
    | `a` | 1, which is all | yes |
    | `a b` | 0 | no |
    | `a b c` | 1 | no |
    | `a b c d` | 2 | no |
    | `a b c d e` | 0 | no |
    | `a b c d e f` | 1 | no |
    | `a b c d e f g` | 2 | no |
    | the same with `h`, alive | 3 | yes |

    So a match of `a b c d e f g` returns `a`, and a match of `a b c d e f g h` returns all eight.

    Why
    ---
    Layers with a window read the last *W* tokens, and a dead token has nothing to read there: its half has
    another owner. A hit on such a prefix gives wrong answers without any error. A cache that reset its count
    of live tokens at the wrong place accepted matches that end just after a gap; a cache that refuses too
    much recomputes whole conversations.

    Choices
    -------
    How aliveness is found: page by page from the end, with running counts, or on the way down.

    Caller
    ------
    To pass the whole key: the cache cannot find pages beyond the end of a shorter key.

    Engines
    -------
    - sglang: the same rule, node by node; a validator counts live tokens since the last gap and begins at
      infinity, so that a path without a gap is usable
      (`sglang/srt/mem_cache/unified_cache/components/swa.py`, `create_match_validator`).
    - vLLM looks from the end for ceil((*W* - 1) / block) cached blocks in a row, or for all from the
      start (`vllm/v1/core/single_type_kv_cache_manager.py`, `SlidingWindowManager`): one token less,
      since the next token is in its own window.
    - Megatron Core 0.16.1: not applicable, no prefix cache.
    """
    found = seen.found
    if before.tracks is not None or found.stored == len(found.slots):
        return None
    return same(f"slots that match {seen.key.tokens}", len(found.slots), len(seen.result.slots))


@law("S2", Evict, page="windows", ways="sop", kinds="prefix", needs="swa")
def a_tombstone_frees_its_half(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    """A tombstone frees its SWA half and keeps the full one.

    A page that loses its window becomes a **tombstone**: it is **dead**. It stays cached, with its slots, its
    place, its holds and its recency. It counts in `total_size`, in `evictable_size` or `protected_size`, and
    in `prefix_len` of an insert, but in no size of S6.

    Over a pool with SWA halves (`pool` is `swa`), tombstoning gives the halves of the page's slots back by
    `free_swa`: an effect `{"call": "free_swa", "slots": [...]}`, whose slots are the page's slots, not the
    numbers of the halves. A page dies as a whole, so all of its slots are named, each once. Their full halves
    are not freed. When the page is removed later, `free` names its slots, and gives back their full halves. A
    page that is alive when it is removed needs no `free_swa`, since `free` gives back both halves.

    So over such a pool, a slot that the cache owns has a half if and only if its page is alive (`read_halves`
    shows this). Over a pool without halves, and without a pool, the cache alone records that a page is dead,
    and makes no call. In everything else such a page must behave the same.

    Where windows are followed, an insert may tombstone pages, too: new pages, revived pages, or any others.

    Why
    ---
    Most of a long prompt is outside every window. Halves that are not given back fill the smaller pool, and
    nothing can be admitted; halves given back twice belong to two requests. If a full half is freed with
    them, KV is lost that the full layers still read.

    Choices
    -------
    The number of calls of `free_swa` that give back the halves of one eviction, unless `call_order` is
    claimed (X2). Without that claim, a page that one eviction tombstones and removes may be named by both
    calls.

    Caller
    ------
    Never to free halves of slots that the cache owns.

    Engines
    -------
    - sglang: an internal node loses the value of its SWA component and keeps the full value; `free_swa` is
      called with the full indices (`components/swa.py`, `evict_component`).
    - vLLM: each kind of layer has blocks of its own, so no block has halves. In a group with a window, a
      block that left the window is freed, and its place in the request's table gets a null block
      (`SingleTypeKVCacheManager.remove_skipped_blocks`).
    """
    return (before.has_halves and seen.taken is not None and len(seen.taken.tombstoned) > 0) or None


@a_tombstone_frees_its_half.on(Evict, fate=GARBLED)
def _halves_of_whole_pages_go(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    parts = seen.halves.parts
    return (
        Broken("slots that share a page with those whose halves were freed", "none", parts) if parts else None
    )


@a_tombstone_frees_its_half.on(Insert)
def _an_insert_frees_halves_of_the_cache(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    if not seen.is_followed:  # or else it frees none (R4)
        return None
    fallen = sorted(slot for slots in seen.plan.fallen.values() for slot in slots)
    freed = sorted(seen.calls.halves)
    return same("SWA halves of the cache's pages that an insert frees", fallen, freed) if freed else None


@a_tombstone_frees_its_half.on(ReadHalves)
def _to_be_alive_is_to_have_a_half(before: CacheModel, operation: ReadHalves, seen: SeenHalves) -> Found:
    owned = [slot for slot in seen.slots if before.ownership.owner(slot) is Owner.CACHE]
    told = zip(seen.slots, seen.expected, seen.result.swa_slots, strict=False)
    slot, expected, half = next((each for each in told if each[1] != each[2]), (0, 0, 0))
    if slot in owned and bool(expected) != bool(half):
        return Broken(f"SWA half of slot {slot}", expected, half)
    return len(owned) > 0 or None


@a_tombstone_frees_its_half.on(Inspect)
def _tombstones_are_shown(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    cache = before.cache
    if cache.window is None:
        return None
    if seen.odd is not None:
        path, page, node, _ = seen.odd
        if node.is_alive != page.alive:
            return Broken(f"whether alive: page {path.tokens}", page.alive, node.is_alive)
    return not all(page.alive for page in cache.pages.values()) or None


@law("S3", Evict, page="windows", ways="sop", kinds="prefix", needs="swa")
def a_window_eviction_takes_just_enough(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    """A window eviction takes enough, the least recent first.

    `evict(tokens=n, secondary=m)` has two phases. The first is R5, for *n*. The second continues until at
    least *m* live tokens are gone, including the live tokens of the first phase, or nothing evictable is
    left: it takes the least recent live page (R8) that is in no hold's window (S6). A page with a page below
    it is tombstoned (S2). A leaf is removed, and dead pages above it with it (S4). The first phase counts
    tokens of any kind and may stop at dead pages; the second takes a dead page only by S4.

    - **Right report.** `swa` is the number of live tokens that were removed or tombstoned in both phases,
      each counted once. `full` is the number of all removed tokens, in both phases and by S4.
    - **Enough.** `swa >= min(m, swa_evictable_size before)`, and for `full` the bound of R5.
    - **Not too much.** As in R5: without the last victim one of the two amounts would be too small. A page
      that is locked, but in no hold's window, is a victim like others; it is tombstoned, and never removed.
    - *m* <= 0 asks for nothing. Without a window *m* is ignored, and `swa` is 0.

    **Where the last victim stops**, with the claim of an order (R5). In a tree the node dies as a whole. So
    once enough tokens are gone, the second phase may continue from the page that it tombstoned last to the
    page below, again and again. That page must be the least recent live page that no window covers, was last
    used by the same operation, and has the same lock count; the upper page had no other child when the call
    began. This may continue down to the leaf, which is then removed with all the dead pages above it. Where
    nodes are shown, there is no choice.

    Pages of two tokens, *W* = 4; one insert of `1 2 3 4 5 6 7 8`, nothing held, `evict(0, 4)`. The pages have
    equal numbers, so the page nearest to the root is the least recent.

    | allowed | tombstoned | removed | `full` | `swa` |
    | --- | --- | --- | --- | --- |
    | page by page | `1 2`, `3 4` | | 0 | 4 |
    | one page more | `1 2`, `3 4`, `5 6` | | 0 | 6 |
    | a tree with one node | | all four | 8 | 8 |

    Where windows are **followed**, a cache may take any windows, and with them any leaves. *Not too much* is
    required, for pages, only where *m* <= 0. The *report* of `swa` must be *right*, and `swa` must be
    *enough*: `swa >= min(m, s)`, where *s* is the `swa_evictable_size` reported before. The two window sizes
    reported afterwards add up to the tokens of all live pages.

    Why
    ---
    The pool of halves is the smaller pool and runs out first; a scheduler that needs *m* tokens and gets
    fewer cannot admit requests. Engines crashed on a leaf that was locked but outside of every window, or
    skipped this leaf and freed too little. One engine counted the length of a dead leaf as window memory and
    so stopped too early.

    Choices
    -------
    The order, where none is claimed. Whole nodes or pages.

    Caller
    ------
    To ask for both amounts at once where both pools are short. A windowed cache over a pool without halves,
    or without a pool, gets evictions only where it claims an order: no call shows the dead pages.

    Engines
    -------
    - sglang: the same two walks, by lists for each kind of memory, over whole nodes (`components/swa.py`,
      `_evict_device_next_node`). A match refreshes only the nodes near the end, of about a window and a
      page (`refresh_lru`): another order.
    - vLLM: not applicable; blocks of all groups are in one queue (`BlockPool.free_block_queue`).
    """
    cache, size = before.cache, before.page_size
    told, tombstoned = seen.swa, seen.tombstoned
    if cache.window is None or told is None:
        return None
    is_known = seen.removed is not None and tombstoned is not None
    if is_known:
        alive = sum(cache.pages[path].alive for path in seen.gone | (tombstoned or frozenset())) * size
        if told != alive:
            return Broken("window tokens evicted", alive, told)
    sizes = before.told if before.follows_windows else cache.sizes()
    least = min(seen.secondary, sizes.get("swa_evictable_size", 0))
    if told < least and least > 0:
        return Broken("window tokens evicted", f">= {least}", told)
    return is_known or least > 0 or None


@a_window_eviction_takes_just_enough.on(Evict)
def _what_may_go_and_what_may_not_is_all_that_lives(
    before: CacheModel, operation: Evict, seen: SeenEvict
) -> Found:
    """Compare the sum of both window sizes with the number of live tokens, as each size alone is unknown."""
    names = ("swa_evictable_size", "swa_protected_size")
    if not before.follows_windows or seen.taken is None or not all(name in seen.sizes for name in names):
        return None
    live = sum(page.alive for page in before.cache.pages.values()) * before.page_size - seen.taken.swa
    return same(f"{names[0]} and {names[1]} together", live, sum(seen.sizes[name] for name in names))


@a_window_eviction_takes_just_enough.on(Evict)
def _no_more_windows_go_than_needed(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    if before.cache.window is None:
        return None
    if seen.odd is not None:
        is_mine = seen.odd[0] == WINDOWS or (seen.odd[0] == TOO_MANY and not seen.is_for_tokens)
        return Broken(*seen.odd[1:]) if is_mine else None
    if before.is_ordered:
        return (seen.taken is not None and bool(seen.taken.tombstoned)) or None
    return not (seen.is_for_tokens or before.follows_windows) or None


@law("S4", Evict, page="windows", ways="sop", kinds="prefix", needs="swa exact_windows")
def every_leaf_is_alive(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    """Every leaf is alive.

    After each operation every dead page has a page below it. Inserts cannot make a dead leaf, since the last
    page of a key is alive if the key is usable, and S7 refuses all other keys. Tombstoning cannot make one
    either, since only pages with a page below are tombstoned (S3). Only the removal of a leaf remains: if the
    page above it is dead and has no other child, that page is removed in the same call, too. This continues
    upwards to the first page that is alive or has another child.

    These pages are removed like any other: their slots are freed, they count in `full` (and not in `swa`,
    since they had no live tokens), and there are callbacks for them. They are removed whatever their recency,
    and also if enough is already gone. They cannot be locked: a hold needs a live window, so it is never at a
    dead page, and a hold further down would lock a page below.

    Pages of one token, *W* = 2, `a b c d`, of which `b` and `c` are dead. `evict(1)` removes `d`, and with it
    `c` and `b`. `a` stays. `full` is 3, `swa` is 1.

    Why
    ---
    A dead leaf is useless: no match can end there. But it keeps its full slots, and a cache with dead leaves
    looks full and never hits. Engines ran the cascade after one kind of eviction and not after the other.

    Choices
    -------
    Whether the pages are removed at once or after all victims are chosen. The order of the calls (X2).

    Caller
    ------
    Nothing. More tokens may be removed than requested, and `full` counts them all.

    Engines
    -------
    - sglang keeps a dead leaf: full attention alone decides whether a node stays (`unified_tree_core.py`,
      `_is_device_leaf`, `_iteratively_delete_tombstone_ancestors`): different.
    - vLLM: not applicable, no leaves.
    """
    cache = before.cache
    if cache.window is None:  # without windows nothing is dead
        return None
    if seen.removed is not None:
        bare = find_dead_leaves(cache, seen.removed, seen.tombstoned or frozenset())
        if bare:
            return Broken("dead leaves", "none", tokens_of(bare))
    elif seen.odd is not None and seen.odd[0] == DEAD_LEAVES:  # all that counts can tell of them
        return Broken(*seen.odd[1:])
    return any(not cache.pages[path].alive for path in seen.victims) or None


@law("S5", Lock, page="windows", ways="sop", kinds="prefix", needs="swa")
def a_hold_locks_its_window(before: CacheModel, operation: Lock, seen: SeenNode) -> Found:
    """A hold locks exactly its window, and its token releases exactly that.

    A hold at a path of *L* tokens locks the whole path (R6), and also the **window** of the hold: the pages
    with any of the last *W* tokens. The window begins at the **edge**, *E* = max(0, *L* - *W*) rounded down
    to a whole page. The page that begins at *E* is the **edge page**. All pages from *E* to *L* get one more
    window lock (S6), pages before *E* get none.

    - **Refused.** A hold at a prefix that is not usable (S1) is a `ValueError`. This happens if a page has
      died since the step that returned the prefix.
    - **Token**, with the claim `hold_tokens`. `lock` answers with a token, a number or a string. The token is
      null if and only if *E* is 0, that is, if the window, in whole pages, covers the whole path. Otherwise
      it stands for the edge page. Two outstanding holds have equal tokens if and only if their edge pages are
      the same page, of the same path. So all holds at one path have one token, and holds at two paths may
      share a token.
    - **Release.** `unlock` passes the token of the hold, null where it was null. It removes exactly the locks
      of that hold, even if pages were split, inserted, revived or evicted in between. Any other token, or a
      missing token, is a `LockError` and changes nothing. Stale nodes and missing holds are noticed first
      (R6).
    - **Nodes**, with the same claim. Where nodes are shown, a node begins at *E*: the lock splits a node if
      necessary. This **edge node** shows the token as its `boundary`, and no other node shows the token of a
      hold. If the edge node is split, its upper half has the boundary (R10). When no hold has the token any
      more, the node may show any value.

    Where windows are **followed**, a hold locks at least its window: until the release none of these pages
    loses its halves, through an eviction, an insert, or in any other way. No caller takes a hold at a prefix
    that is not usable.

    Pages of two tokens, *W* = 5, one path of twelve tokens:

    | hold at | *L* - *W* | *E* | window | token |
    | --- | --- | --- | --- | --- |
    | 4 | -1 | 0 | 0 to 4 | null |
    | 6 | 1 | 0 | 0 to 6 | null |
    | 8 | 3 | 2 | 2 to 8 | `x`, of page 2 to 4 |
    | 12 | 7 | 6 | 6 to 12 | `y`, of page 6 to 8 |

    With the last two holds alone, page 6 to 8 has two window locks and page 0 to 2 has none. So page 0 to 2
    may die, though the whole path is locked and none of its pages can be removed.

    Why
    ---
    A request needs only the halves of its last window. If more is locked, the small pool stays full; if less
    is locked, a running request reads halves of another request. Releases without the token continued to the
    root and took other requests' window locks; ids that a split moved twice, or to neither half, stopped
    servers hours later with an assertion on every rank.

    Choices
    -------
    The form of a token. How a release finds its pages: by a mark on a node, or in a table of holds. A cache
    without a tree can use the number of the edge page, which no other page ever has.

    Caller
    ------
    To keep the token with the hold and pass it back. To lock only a prefix that was just matched or inserted.

    Engines
    -------
    - sglang locks whole nodes upwards until *W* tokens are covered, and marks the last node with an id
      (`components/swa.py`, `acquire_component_lock`, `release_component_lock`). Fresh leaves are split so
      that they cover one window (`_maybe_split_leaf_for_swa_lock`), but a hold splits nothing, so it may lock
      more.
      - vLLM: not applicable; a request has references to the blocks of its window only.
    """
    cache, hold, token = before.cache, seen.hold, seen.token
    if cache.window is None or hold is None:
        return None
    if "hold_tokens" not in before.claims:
        return LEFT_OUT
    if (token is None) != (hold.edge == 0):
        rule = "a token where the window ends inside the path, and only there"
        return Broken("token of a hold", rule, token)
    for number, taken in cache.holds.items():
        if hold.edge and taken.edge:
            is_same = first_of_window(before, hold) == first_of_window(before, taken)
            if (before.tokens[number] == token) != is_same:
                expected = f"{'that' if is_same else 'not that'} of step {number}: {before.tokens[number]!r}"
                return Broken("token of a hold", expected, token)
    return True


@a_hold_locks_its_window.on(Unlock)
def _a_token_is_taken_back(before: CacheModel, operation: Unlock, seen: SeenNode) -> Found:
    return (before.cache.window is not None and seen.token is not None and seen.here > 0) or None


@a_hold_locks_its_window.on(Evict)
def _a_held_window_stays(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    """Check held windows after an eviction of windows that are followed; elsewhere law S6 checks them."""
    taken = seen.tombstoned if before.follows_windows else None
    return _keeps_held_windows(before, taken) if taken else None


@a_hold_locks_its_window.on(Insert)
def _an_insert_leaves_held_windows(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    return _keeps_held_windows(before, seen.plan.fallen) if seen.plan.fallen else None


@a_hold_locks_its_window.on(ReadHalves)
def _held_windows_have_halves(before: CacheModel, operation: ReadHalves, seen: SeenHalves) -> Found:
    pages, place = before.cache.pages, before.ownership.place
    pairs = [*zip(seen.slots, seen.result.swa_slots, strict=False)] if before.follows_windows else []
    held = [pair for pair in pairs if (path := place(pair[0])) is not None and pages[path].swa_locks]
    lost = [slot for slot, half in held if not half]
    return demand(not lost, "slots in a hold's window without an SWA half", [], lost) if held else None


def _keeps_held_windows(before: CacheModel, fallen: Collection[Path]) -> Found:
    pages = before.cache.pages
    covered = [path for path in fallen if path in pages and pages[path].swa_locks]
    if covered:
        return Broken("pages in a hold's window that lost their halves", "none", tokens_of(covered))
    return before.cache.sizes()["swa_protected_size"] > 0 or None


@a_hold_locks_its_window.on(Inspect)
def _a_held_window_starts_at_a_node(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    """Check that the first node of each held window, and no other node, carries the hold's token."""
    cache, carriers = before.cache, {}
    for number, hold in cache.holds.items() if "hold_tokens" in before.claims else ():
        if not hold.edge:
            continue
        node, place = seen.starts[cache.pages[first_of_window(before, hold)].birth]
        token = before.tokens[number]
        if place:
            return Broken(f"nodes that end at the edge of {hold.path.tokens}", "one", "none")
        if node.boundary != token:
            return Broken(f"boundary at the edge of {hold.path.tokens}", token, node.boundary)
        carriers[node.id] = token
    for node in seen.nodes if carriers else ():
        if node.id not in carriers and node.boundary in carriers.values():
            return Broken(f"boundary of node {node.id}", "none that a hold has elsewhere", node.boundary)
    return len(carriers) > 0 or None


def first_of_window(before: CacheModel, hold: Hold) -> Path:
    """Return the first page of the window that a hold protects."""
    return hold.path.upto(hold.edge + before.page_size)


@law("S6", Inspect, page="windows", ways="sop", kinds="prefix", needs="swa exact_windows")
def window_locks_count_holds(before: CacheModel, operation: Inspect, seen: SeenLook) -> Found:
    """Window lock references count the holds that cover a page.

    The window lock count of a page (`swa_lock_ref` of its node) is the number of outstanding holds whose
    window (S5) contains the page. It is never larger than the lock count of R6, and is 0 on a dead page: a
    window is alive when it is locked, and stays alive while it is held. A page whose count is not 0 is
    neither tombstoned nor removed. A page that is revived under a hold (S7) gets no count from holds whose
    window does not cover it.

    | size | tokens of |
    | --- | --- |
    | `swa_evictable_size` | live pages with count 0 |
    | `swa_protected_size` | live pages with another count |

    They are recounts after each operation, like the sizes of R7. A page with two holds counts once. A locked
    page without a window lock counts in `protected_size` and in `swa_evictable_size`. Without a window both
    sizes are 0, or are not reported.

    Over a pool with halves `swa_available_size` and `full_available_size` are the free tokens of each kind,
    and `available_size` is the smaller (A7).

    Why
    ---
    Admission of a windowed model counts halves. If a counter moves before a change instead of after it, or
    tests for a tombstone both at the lock and at the release, it goes below zero, or protects unheld pages
    for ever. With a count copied from another request's window, live halves are freed.

    Choices
    -------
    How holds are counted. `inspect` leaves out counts that are not kept.

    Caller
    ------
    Nothing.

    Engines
    -------
    - sglang counts on each node from the held node to the marked node, dead nodes included, so that the
      release need not remember the skipped nodes (`components/swa.py`, `acquire_component_lock`); nodes count
      as a whole. Only nodes with a value count in sizes: `component_evictable_size_`,
      `component_protected_size_`.
    - vLLM: `ref_cnt` of each block of the group with the window.
    """
    cache = before.cache
    if cache.window is None:
        return None
    if (broken := find_wrong_count(seen, "swa_lock_ref", "swa_locks")) is not None:
        return broken
    return (cache.holds and any(node.swa_lock_ref is not None for node in seen.nodes)) or None


@window_locks_count_holds.on(Evict, fate=HIDDEN)
@window_locks_count_holds.on(Evict, fate=STRUCK)
@window_locks_count_holds.on(Evict)
def _an_eviction_takes_no_held_window(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    covered = [path for path in seen.tombstoned or () if before.cache.pages[path].swa_locks]
    if covered:
        return Broken("tombstoned pages in a hold's window", "none", tokens_of(covered))
    is_tested = seen.fate == DONE and seen.taken is not None and seen.taken.tombstoned
    return (is_tested and before.cache.sizes()["swa_protected_size"] > 0) or None


@law("S7", Insert, page="windows", ways="op", kinds="prefix", needs="swa exact_windows")
def a_tombstone_is_revived_by_the_rules(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    """A tombstone is revived by the rules, or the insert is refused whole.

    `insert(key, slots, prev_prefix_len=p, swa_evicted_seqlen=e)`. The caller declares that its first *p*
    tokens are its matched prefix, and that it has returned the SWA halves of its first *e* slots already.
    Both count tokens of the key, the tail included, and are 0 by default. Let *c* be `prefix_len` (R3). These
    values are refused with a `ValueError`:

    - *p* or *e* below 0 or beyond the length of the key, whether there is a window or not;
    - with a window, *p* rounded down to whole pages beyond *c*, or *e* that is not a multiple of
      `page_size`.

    Without a window both have no other meaning. A cache with states ignores them (M1).

    **Page by page.** A page of the key begins at *t*, and its incoming slots are *s*.

    | the page is | and | then | `adopted` | effect |
    | --- | --- | --- | --- | --- |
    | not cached | *t* >= *e* | it is cached with *s*, alive | yes | |
    | not cached | *t* < *e* | it is cached with *s*, dead | yes | |
    | cached, alive | | stays | no | |
    | cached, dead | *t* < *p* or *t* < *e* | stays, dead | no | |
    | cached, dead | *s* are its own slots | stays, dead | no | |
    | cached, dead | not locked | takes *s*, alive; its old slots are displaced | yes | `free` |
    | cached, dead | locked, pool with halves | keeps its slots, halves of *s*, alive | no | `move_swa` |
    | cached, dead | locked, any other pool, or none | stays, dead | no | |

    The first row that fits decides. *Locked* has R6's meaning: there is a hold at the page or below it.
    `move_swa` names the incoming slots in `slots` and, pair by pair, the cached slots in `target`; the
    incoming slots stay the caller's, without halves. Displaced slots go back to the pool, if there is a pool,
    in the same call, and their `free` gives back nothing else. All moves come before all frees.

    **All or nothing.** If the key, in whole pages, would not be usable (S1) afterwards, the insert is
    **refused whole**. This is no error: it answers `prefix_len` *c* and an empty `adopted`, nothing is
    cached, moved, freed or split, and nothing becomes recent. `node_len` is the length of the longest cached
    prefix of the key that is usable. Where nodes are shown, it is the deepest such place at which a node
    ends, and it may be 0. A cache without nodes may answer with the length of any cached prefix of the key
    that is usable, or leave `node_len` out.

    **Halves.** Over a pool with halves, the slots of each new page that will be dead must have lost their
    halves. The incoming slots of each page that will be alive must have their halves, also where only the
    halves are moved. Otherwise the insert is an `OwnershipError` (with the claim `refusals`). This is checked
    last, and not for an insert that is refused whole.

    **Nodes.** A tree splits where *c* ends, where *p* (rounded up to a page) or *e* ends, and at both ends of
    the revived part; a node is alive or dead as a whole.

    Pages of two tokens, *W* = 4. `1 2 3 4 5 6 7 8` is cached, and its first two pages are dead.

    | insert | happens | `adopted` |
    | --- | --- | --- |
    | `1 2 3 4 9 10`, nothing held | two pages revived, their slots displaced; one new page | `[[0, 6]]` |
    | the same, a hold at 8 | halves of two pages moved; one new page | `[[4, 6]]` |
    | the same, *p* = 4 | refused whole: only `9 10` would be alive at the end | none |
    | the same, *p* = 2 | page `3 4` revived and `9 10` new: four live tokens | `[[2, 6]]` |
    | `1 2 3 4 9 10 11 12`, *p* = 4 | two new pages, nothing revived | `[[4, 8]]` |
    | the same, *e* = 6 | refused whole | none |

    Why
    ---
    The full layers of running requests still read the slots of a dead page. An engine that replaced them
    under a hold freed slots that were being read: corrupted answers. A fully dead leaf, inserted because *e*
    was computed from a window smaller than a page, was a leak that an assertion found later. Where *e* was
    not passed on, pages were cached as alive although their halves belonged to others.

    Choices
    -------
    How the plan is made, as long as nothing changes before it is clear that the insert is not refused.

    Caller
    ------
    To return the halves of its own first *e* slots before it inserts, and to free duplicates without the
    ranges in `adopted` (R4). After an insert that was refused whole all incoming slots are the caller's.

    Engines
    -------
    - sglang: the two ways of revival are the same (`components/swa.py`, `_recover_from_incoming`: an unlocked
      node takes the incoming indices, a locked one their halves). From *e* on it revives every node that
      reaches beyond *p*, and so also tokens before *p*; it refuses nothing and keeps a leaf that no match can
      return (`unified_tree_core.py`, `_insert_commit_step`); and it frees duplicates itself: different.
      - vLLM: not applicable; a block is registered under its hash or not (`reachable_block_mask` leaves out
        blocks that no hit could need).
    """
    plan, result, cache, nodes = seen.plan, seen.result, before.cache, before.nodes
    if not seen.involves_tombstones:
        return any(seen.bounds) or None
    if result.adopted != plan.adopted:
        return Broken("adopted ranges", plan.adopted, result.adopted)
    if not plan.refused or result.node_len is None:
        return True
    usable = [end for end in cache.stored(plan.path) if cache.is_usable(end)]
    known = [end for end in usable if nodes.cut(end)]
    least = len(known[-1].tokens) if known else 0
    allowed = [0, *(len(end.tokens) for end in usable if nodes.cut(end) is not False)]
    allowed = [place for place in allowed if place >= least]
    return demand(result.node_len in allowed, "last_node", f"one of {allowed} tokens deep", result.node_len)


@a_tombstone_is_revived_by_the_rules.on(Insert)
def _what_a_revival_displaces_is_freed(before: CacheModel, operation: Insert, seen: SeenInsert) -> Found:
    return gives_back_as_planned(seen) if seen.involves_tombstones else None
