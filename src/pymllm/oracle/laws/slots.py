"""Laws of slot allocators: which slots are free, and which owner has each other slot."""

from __future__ import annotations

from functools import partial

from pymllm.history.operations import (
    Alloc,
    BeginGroup,
    BeginTransfer,
    Clear,
    EndGroup,
    EndTransfer,
    Evict,
    Free,
    FreeSWA,
    Merge,
    MoveSWA,
    ReadHalves,
)
from pymllm.history.outcomes import Done, Slots
from pymllm.oracle.laws.every_class import what_is_cleared_is_as_good_as_new
from pymllm.oracle.laws.goal import Condition, Met, make_goals
from pymllm.oracle.laws.law import Asked, Broken, Found, KindLaws, demand, law, same
from pymllm.oracle.models.kind_model import DONE, NO_ROOM, REFUSED, Seen
from pymllm.oracle.models.prefix import CacheModel
from pymllm.oracle.models.prefix_seen import GARBLED, SeenEvict, SeenHalves
from pymllm.oracle.models.slot_model import PageModel
from pymllm.oracle.models.slot_ownership import Owner
from pymllm.oracle.models.slots import SeenAlloc, SeenSlots, SeenTransfer, SlotModel

# A1, A2, A3 and A7 look at an allocation in the same way wherever slots are handed out: of `SlotModel`, and
# of the pool below a prefix cache, they ask ``page_size``, ``full`` and ``window``.


@law("A1", Alloc, page="slots", ways="sop", kinds="slots prefix", needs="pool")
def padding_is_never_handed_out(before: SlotModel, operation: Alloc, seen: SeenAlloc) -> Found:
    """Slot 0 and page 0 are never handed out.

    A pool of *n* pages has the pages 1 to *n*. Page *p* is the slots from *p* `page_size` to (*p* + 1)
    `page_size` - 1, so it hands out only slots from `page_size` to (*n* + 1) `page_size` - 1. With pages of
    one token these are 1 to *n*. With 12 pages of 4 tokens they are 4 to 51: the slots 1, 2 and 3 belong to
    page 0, and are padding like slot 0.

    This applies at all times: after a `clear`, after any free, and also to SWA halves, whose pool has pages
    of its own, from 1 on. By A5, page 0 cannot be given back.

    Why
    ---
    A batch that is padded to a fixed size writes the KV of its empty places somewhere: to slot 0. If a
    request has slot 0, its first token's KV changes at every step, and its answers with it. An allocator
    without a lower bound in `free` took slot 0 back and handed it out next. Another numbered pages from 1
    over a buffer of `size` + 1 rows: the last page was beyond the end of the buffer.

    Choices
    -------
    Nothing.

    Caller
    ------
    To make buffers of `size` + `page_size` rows, where `size` is the tokens of all pages.

    Engines
    -------
    - sglang: the same (`sglang/srt/mem_cache/allocator/token.py`, `paged.py`, `clear`).
    - vLLM reserves the first block of its pool as a null block (`vllm/v1/core/block_pool.py`,
      `BlockPool.__init__`), so block 0 has the same role. Padded places have slot -1
      (`v1/attention/backends/utils.py`, `PAD_SLOT_ID`).
    - Megatron Core 0.16.1 sets the **last** block aside as a dummy
      (`core/inference/contexts/dynamic_block_allocator.py`).
    """
    size, slots = before.page_size, seen.slots
    last = (before.full.pages + 1) * size - 1
    if not slots or (size <= min(slots) and max(slots) <= last):
        return isinstance(seen.result, Slots)
    foreign = [slot for slot in slots if not size <= slot <= last]
    return Broken(f"alloc({operation.tokens})", f"slots {size}..{last}", foreign)


@law("A2", Alloc, page="slots", ways="sop", kinds="slots prefix", needs="pool")
def pages_partition_the_pool(before: SlotModel, operation: Alloc, seen: SeenAlloc) -> Found:
    """Free, pending, parked and handed-out pages partition the pool.

    After each operation every page is exactly one of

    - **free**: it can be handed out. `available_size` is the number of these, times `page_size`;
    - **handed out**: an allocation has returned it, and it was not given back since. Its owner, a caller or a
      cache, makes no difference here;
    - **pending**: it was given back inside a group that is still open (A6);
    - **parked**: it was given back while it was **under transfer**, and still is under transfer.

    An allocation returns free pages only. A free only moves pages from *handed out* to one of the other sets,
    always whole pages, however many of their slots are named (A5).

    **Transfers** (claim `transfers`). Something outside may read or write slots asynchronously: an offload,
    the other half of a disaggregated server, a step in flight. `begin_transfer` names handed-out slots, as
    `free` does, and `end_transfer` names the `begin_transfer`. A page is under transfer from the beginning of
    its first transfer to the end of its last, and so is its half, wherever the half moves. A transfer changes
    nothing else: the page is handed out, counted and freed as usual, but pages given back meanwhile are
    parked at once, also in a group. When the last transfer of a parked page ends, the page is given back at
    that moment: it is free and young (A4), or pending where a group is open. The success of a transfer makes
    no difference: an aborted transfer also ends once, and only then is the memory returned. `clear` ends all
    transfers.

    Pages that were freed since the last merge are free, and count (A4). Whole pages are counted, so
    `available_size` is a multiple of `page_size`, and a page with one used token does not count.

    Why
    ---
    If a page under transfer is handed out again, the transfer writes to it, too: the next request gets the KV
    of the aborted request, without any error. A transfer that never ends keeps its memory for ever.

    A page with two owners is written by two requests, and the sum of all sizes is still right: an engine
    reported a leak long after its cause, and three earlier steps went unnoticed, until sets were compared
    instead of totals. A page without an owner is lost, and a pool that loses one page per request is empty
    within a day.

    Choices
    -------
    How free pages are kept: a list, a ring, a bit for each.

    Caller
    ------
    To give back each page once. Under a prefix cache, the cache gives back the slots that it adopted (R4). To
    end each transfer when nothing uses its memory any more, and to clear only then.

    Engines
    -------
    - sglang: the same; pages that wait in a group are in no list and are not counted (`allocator/base.py`).
    - vLLM: a block with no reference is free although it is still cached: `get_num_free_blocks` counts
      it.
    - Megatron Core 0.16.1: a stack of ids and a count (`BlockAllocator.total_avail`).
    """
    taken = before.full.not_free(seen.pages)
    return demand(not taken, "pages of an allocation", "free ones", taken)


@law("A3", Alloc, page="slots", ways="op", kinds="slots prefix", needs="pool")
def an_allocation_is_whole_pages_in_order(before: SlotModel, operation: Alloc, seen: SeenAlloc) -> Found:
    """An allocation gives distinct slots in whole pages, in order.

    `alloc(n)` takes ceil(*n* / `page_size`) free pages *p*<sub>1</sub>, *p*<sub>2</sub>, ..., all different,
    and returns *n* slots: those of *p*<sub>1</sub> in ascending order, then those of *p*<sub>2</sub>, and so
    on, with the last page cut where *n* ends. With pages of 4, an `alloc(6)` that takes pages 5 and 2 returns
    `20 21 22 23 8 9`. The rest of the last page (10 and 11) is the caller's, too: the caller may use these
    next slots without an allocation.

    `alloc(0)` returns no slots and takes nothing. If there are too few pages, X4 defines the answer, which is
    never a smaller allocation. A4 defines which pages are taken, and in which order.

    An allocation over SWA halves takes as many pages of the second pool, and returns their slots in
    `swa_slots` in the same way (A7).

    Why
    ---
    Attention kernels find a token by its page and its place in the page. Slots that are not consecutive
    inside a page are read as other tokens' KV. A caller that gets a page and a half, and does not know that
    it owns the rest, leaks this rest; a caller that wrongly assumes that it owns the rest of a page
    overwrites another owner's data.

    Choices
    -------
    Which free pages (A4). They need not be neighbours.

    Caller
    ------
    To free the last page once, by any of its slots, even one that was not returned.

    Engines
    -------
    - sglang: `PagedTokenToKVPoolAllocator.alloc` is for whole pages and rounds other sizes down;
      requests grow by `alloc_extend` and `alloc_decode`, which fill the last page first. Different.
    - vLLM and Megatron Core 0.16.1 hand out blocks, not slots; the same for these.
    """
    tokens, slots = operation.tokens, seen.slots
    if not isinstance(seen.result, Slots):
        room = f"{tokens} slots" if seen.wanted <= before.pool.free_count else "no room"
        return Broken(f"alloc({tokens})", f"{room}: {before.pool.free_count} pages are free", seen.result)
    if len(slots) == tokens and [*slots] == _slots_of(seen.pages, before.page_size)[:tokens]:
        return True
    return Broken(f"alloc({tokens})", f"{tokens} distinct slots of whole pages", slots)


@law("A4", Alloc, page="slots", ways="sop", kinds="slots", needs="pool merges")
def freed_slots_wait_for_a_merge(before: SlotModel, operation: Alloc, seen: SeenAlloc) -> Found:
    """Freed slots wait until a merge; sorted pools give the lowest first.

    Free pages are **old** or **young**. A page that becomes free is young; at the start and after a `clear`
    all pages are old. A **merge** makes all young pages old. A merge happens

    - on request (`merge`);
    - when an allocation takes more pages than are old, and can be met. The merge comes first, and then the
      pages are taken. If the allocation cannot be met, nothing is merged (X4).

    So an allocation of *k* > 0 pages may take, if *o* pages are old:

    | | `sorted` claimed | not claimed |
    | --- | --- | --- |
    | *k* <= *o* | the *k* lowest of the old pages, ascending | any *k* old pages, in any order |
    | *k* > *o* | the *k* lowest of all free pages, ascending | any *k* free pages, in any order |

    So if a page is freed while old pages suffice, it is not handed out next. Pages that become free at the
    end of a group (A6) become young at that moment. A refused operation, an allocation of nothing and a
    failed allocation change no page from young to old.

    Where there are SWA halves, each pool has old and young pages of its own. An allocation merges only the
    pool that needs more pages; `merge` and `clear` affect both. Without `merges` nothing of this law is
    required.

    Why
    ---
    A page that was just freed may still be read by a running step on the accelerator. Waiting pages are safe,
    and can be sorted all at once, so that long contexts get neighbouring pages. If instead each free sorts
    the pool, a full server sorts a million slots at every step.

    Choices
    -------
    Without `merges`, everything. The cost is not measured, but a free should cost no more than the number of
    freed pages.

    Caller
    ------
    Nothing.

    Engines
    -------
    - sglang with `need_sort`: the same, except for failed allocations (X4): freed pages are staged and merged
      on need. Without it pages of one token go to the end of the list, larger pages to its front
      (`allocator/paged.py`, `_release_page_ids`), and are handed out next. The merge by request of its SWA
      allocator raises `TypeError`, since that allocator has no list of its own.
      - vLLM: blocks that are not cached go to the front of the queue, cached blocks to its end
        (`BlockPool.free_blocks`). Megatron Core 0.16.1: a stack, last in, first out.
    """
    found = _is_their_turn(before, "pages", before.full, seen.pages)
    if before.window_pool is None or isinstance(found, Broken):
        return found
    halves = _is_their_turn(before, "SWA halves", before.window_pool.swa, seen.half_pages)
    return found if halves is None else halves


@law("A5", page="slots", ways="sop", kinds="slots", needs="pool refuses_double_free|refuses_foreign")
def a_page_is_freed_once(before: SlotModel, operation: Free, seen: SeenSlots) -> Found:
    """A page is freed once, and only after it was handed out.

    `free` names slots, and gives back the page of each. With pages of several tokens a page may be named by
    any of its slots, by several, by all, by a slot that the allocation did not return (A3), and by one slot
    several times: the page is given back once. A free of no slots does nothing.

    A free is refused with `OwnershipError`, as a whole (X1), if any slot

    - is of page 0 (with pages of one token, slot 0), is negative, or is beyond the last page;
    - is of a page that is free, parked, or pending in the open group: each call in a group is checked at
      once, and not at its end;
    - with pages of one token only, is named twice by this call.

    Two frees of one page are a double free even where they name different slots of it. A pool does not know
    the owner of a page, only that it has one.

    `begin_transfer` (A2) accepts only slots that could be freed, and is otherwise refused in the same way. A
    transfer ends once: an `end_transfer` of a transfer that has ended, also by a `clear`, is refused with
    `OwnershipError`.

    Why
    ---
    A page that is freed twice is handed out twice. This happens if two code paths that end a request both
    free its pages, or if a request's tail is freed in two pieces that meet inside a page. Without the check
    nothing happens for minutes, and then two users read each other's words.

    Choices
    -------
    Without `refusals`, misuse is undefined. An allocator on an accelerator may leave the check out by
    default, since it has to wait for the device: the claim then depends on the configuration.

    Caller
    ------
    Not to free slots of one page in two calls. If a range begins inside a page that a cache has, to free from
    the next page on.

    Engines
    -------
    - sglang: pages of a call are made unique (`allocator/paged.py`, `free`), and not compared with the free
      pages, except in a debug mode. With pages of one token nothing is checked.
    - vLLM counts references: one release too many makes the count negative, and is not noticed
      (`BlockPool.free_blocks`). Megatron Core 0.16.1 writes ids back on the stack, unchecked.
    """


@law("A6", page="slots", ways="sop", kinds="slots", needs="pool groups")
def groups_do_not_nest(before: SlotModel, operation: BeginGroup | EndGroup, seen: Seen) -> Found:
    """Groups do not nest, and end once.

    Between `begin_group` and `end_group` a group is open. Pages and halves that are freed meanwhile become
    pending: they are not available, and no allocation returns them. `end_group` makes all of them free and
    young (A4). Everything else works as without a group: allocations take free pages, merges merge, halves
    move.

    - A pending page cannot be freed again (A5); its half is not read any more.
    - `begin_group` inside an open group, and `end_group` without one, are refused with `RuntimeError`,
      with the claim `group_errors`, and change nothing: pending pages stay pending. Without the claim neither
      is tested.
    - A group without any free has no effect: beginning and ending it change nothing.
    - `clear` closes an open group, and frees the pending pages with all others. An `end_group` after a
      `clear` has no group to end.

    Why
    ---
    A scheduler collects the frees of a step so that the pool is changed once. If an exception leaves a group
    open, all later frees stay pending and the free memory only shrinks; if `begin` silently starts over, the
    collected pages are lost. If a second group closes the first, it ends too early: pages are handed out
    while the step that reads them is still running.

    Choices
    -------
    Whether frees in a group are done at once and hidden, or kept and done at its end.

    Caller
    ------
    To end each group, also where something fails in between.

    Engines
    -------
    - sglang: a group inside a group is an assertion; an end without a group does nothing
      (`allocator/base.py`, `free_group_begin`, `free_group_end`). SWA halves are resolved when they are
      freed, and given back at the end (`allocator/swa.py`).
    - vLLM, Megatron Core 0.16.1: not applicable, no groups.
    """


@law("A7", Alloc, page="slots", ways="sop", kinds="slots prefix", needs="pool swa")
def every_slot_has_its_half(before: SlotModel, operation: Alloc, seen: SeenAlloc) -> Found:
    """Every slot has its own SWA half, until that is freed or moved.

    An allocator with halves has two pools with pages of one size: the full one (`pages`) and the second one
    (`swa_pages`). Each page is handed out with a free page of the second pool, its **half**, or nothing is
    handed out at all (X4). The half of slot *s* is slot *q* `page_size` + *s* mod `page_size`, where *q* is
    the half of the page of *s*: places inside a page are kept. A1 to A6 apply to both pools.

    | operation | does |
    | --- | --- |
    | `alloc` | returns in `swa_slots` the halves of all slots, in the same order |
    | `free_swa` | takes halves of whole pages back, however many slots are named; the slots stay handed out |
    | `free` | takes pages back, with their remaining halves |
    | `move_swa` | pair by pair, the half of a source becomes the half of the target; the source loses it |
    | `read_halves` | returns the half of each slot, 0 if it has none, as free slots and padding |

    Half pages are free, handed out or pending like others: `swa_available_size` counts the free ones,
    `full_available_size` those of the full pool, and `available_size` is the smaller of the two.

    **Refused** (X1), with the claim `refusals`:

    | misuse | error |
    | --- | --- |
    | `free_swa` of what A5 refuses to `free`, or of a page whose half is gone | `OwnershipError` |
    | `move_swa` from or to a page that is not handed out | `OwnershipError` |
    | `move_swa` from a page without a half, or to one that has a half | `OwnershipError` |
    | with pages of one token, a source or a target that is named twice | `OwnershipError` |
    | different numbers of sources and targets | `ValueError` |
    | one page to two, or two to one; a slot to another place inside its page | `ValueError` |
    | `read_halves` of a slot below 0 or beyond the last page | `OwnershipError` |

    A move may name some slots of a page: the whole half moves. A move of nothing does nothing.

    Why
    ---
    Layers with a window need KV of few tokens, so their pool is small, and halves of old tokens are given
    back early. A half given back with the wrong page is read by another request; lost halves exhaust the
    small pool while the large pool is unused. In one engine all slots without a half pointed to slot 0; a
    free that did not skip these slots gave page 0 back, again and again.

    Choices
    -------
    Which free page becomes a half, within A4.

    Caller
    ------
    In a prefix cache: to free no half of a slot that the cache has.

    Engines
    -------
    - sglang: a table from full to SWA slots, 0 for none (`allocator/swa.py`, `SWATokenToKVPoolAllocator`);
      `alloc` is for pages of one token only. `free_swa` skips missing halves where pages are larger. There is
      no move; a table entry is overwritten (`set_full_to_swa_mapping`).
    - vLLM: not applicable, each kind of layer has blocks of its own.
    """
    window, slots, halves = before.window_pool, seen.slots, seen.halves
    if window is None:
        return None
    what = "SWA halves of an allocation"
    if len(halves) != len(slots) or [*halves] != _slots_of(seen.half_pages, before.page_size)[: len(slots)]:
        return Broken(what, "a half page for each page", halves)
    taken = window.swa.not_free(seen.half_pages)
    return demand(not taken, what, "free window pages", taken)


@every_slot_has_its_half.on(ReadHalves, kinds="prefix")
def _halves_under_a_cache(before: CacheModel, operation: ReadHalves, seen: SeenHalves) -> Found:
    return same(f"halves of {seen.slots}", (*seen.expected,), seen.result.swa_slots)


@pages_partition_the_pool.on(Alloc, kinds="prefix")
def _halves_are_of_the_pool(before: CacheModel, operation: Alloc, seen: SeenAlloc) -> Found:
    """Compare the SWA halves of slots where no law about halves is claimed."""
    window = before.window_pool
    if window is None or "swa" in before.claims or all(map(window.swa.has, seen.half_pages)):
        return None
    return Broken("SWA halves of an allocation", f"pages 1..{window.swa.pages}", seen.half_pages)


@pages_partition_the_pool.on(Evict, fate=GARBLED, kinds="prefix")
def _only_cached_pages_are_evicted(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    if seen.freed.twice:
        return Broken("slots freed twice", "none", seen.freed.twice)
    foreign = seen.freed.of(Owner.POOL, Owner.NOBODY) | seen.halves.of(Owner.POOL, Owner.NOBODY)
    return Broken("owners of what was freed", Owner.CACHE.value, foreign) if foreign else None


@every_slot_has_its_half.on(Evict, fate=GARBLED, kinds="prefix")
def _only_halves_that_are_there_are_freed(before: CacheModel, operation: Evict, seen: SeenEvict) -> Found:
    if seen.gone_halves:
        return Broken("slots without an SWA half whose half was freed", "none", seen.gone_halves)
    twice = seen.halves.twice
    return Broken("slots whose SWA halves were freed twice", "none", twice) if twice else None


@every_slot_has_its_half.on(ReadHalves, kinds="slots")
def _halves_are_where_they_are(before: SlotModel, operation: ReadHalves, seen: SeenSlots) -> Found:
    """Compare the SWA half of each slot, where 0 stands for none."""
    window, size = before.window_pool, before.page_size
    assert window is not None
    pages = [window.half.get(slot // size, 0) for slot in seen.slots]
    halves = [page and page * size + slot % size for page, slot in zip(pages, seen.slots, strict=True)]
    return demand(seen.result.swa_slots == (*halves,), f"halves of {seen.slots}", halves, seen.result)


def _slots_of(pages: list[int], size: int) -> list[int]:
    slots: list[int] = []
    for page in dict.fromkeys(pages):
        slots += range(page * size, (page + 1) * size)
    return slots


def _is_their_turn(before: SlotModel, what: str, model: PageModel, pages: list[int]) -> Found:
    """Tell whether free pages were handed out in order; otherwise name the law that may have spoilt it."""
    count, suspect = len(pages), before.order_suspect
    if not pages:
        return None
    turn: object
    if "sorted" in before.claims:
        lowest = turn = model.lowest(count)
        is_right = lowest == pages
    elif model.young and not model.needs_merge(count):
        turn, is_right = f"pages of {model.old}", model.old.issuperset(pages)
    else:
        return None  # any free page would have been right
    if not is_right:
        return Broken(f"{what} of an allocation", turn, pages, suspect)
    return ("A4", suspect) if suspect else True


@what_is_cleared_is_as_good_as_new.on(Alloc, kinds="slots")
def _no_clear_spoilt_the_pool(before: SlotModel, operation: Alloc, seen: SeenAlloc) -> Found:
    """Report pages handed out twice or while held, in a pool that handed out pages rightly before a clear."""
    if not before.is_as_cleared or min(seen.wanted, 2) > before.most_taken:
        return None
    for what, model, pages in _pools(before, seen):
        if len({*pages}) < len(pages) or model.not_free(pages):
            return Broken(f"{what} of an allocation", "free pages, each once", pages)
    return None


def _pools(before: SlotModel, seen: SeenAlloc) -> list[tuple[str, PageModel, list[int]]]:
    pools = [("pages", before.full, seen.pages)]
    if before.window_pool is not None:
        pools.append(("SWA halves", before.window_pool.swa, seen.half_pages))
    return pools


def _law_of_free(before: SlotModel, operation: Free, seen: SeenSlots) -> str:
    """Return law A5 where several slots of one page were named, which may have counted as several pages."""
    is_repeated = "refuses_double_free" in before.claims and len(seen.slots) > len(seen.pages)
    return "A5" if is_repeated else "A2"


def _law_of_merge(before: SlotModel, operation: Merge, seen: Seen) -> str:
    return "A4" if "merges" in before.claims else "A2"


# -- coverage goals ------------------------------------------------------------------------------------------

_SINGLE = Condition("pages of one token", lambda config: config.get("page_size") == 1)
_PAGED = Condition("pages of several tokens", lambda config: config.get("page_size") != 1)

_goals = partial(make_goals, "slots")

GOALS = (
    *_goals(
        ("the pool is exhausted", "A2 A3", "B95"),
        ("an alloc fails", "X4"),
        ("nothing is asked for", "A3"),
        ("nothing is freed", "A5"),
        ("part of an allocation is freed", "A2 A5", "B97 B98"),
        ("the last page in somebody's hands is freed", "A2", "B100"),
        ("a clear takes everything from its holders", "X7"),
    ),
    *_goals(
        ("need merges", "A4"),
        ("freed pages wait while older ones suffice", "A4"),
        ("an explicit merge", "A4"),
        ("an alloc fails and the order stays", "X4 A4", "B82"),
        needs="merges",
    ),
    *_goals(
        ("a group closes", "A2 A6"),
        ("a group collects pages of several calls", "A2 A6", "B97"),
        ("pages are handed out while a group is open", "A2 A6", "B94"),
        ("an alloc fails with pages pending", "A2 X4"),
        ("a clear closes a group", "A6 X7", "B94"),
        needs="groups",
    ),
    *_goals(
        ("a group in a group is refused", "A6", "B94"),
        ("an end without a group is refused", "A6", "B94"),
        needs="groups group_errors",
    ),
    *_goals(("a malformed call is refused", "X1"), needs="refuses_malformed"),
    *_goals(
        ("padding is refused", "A1 A5", "B91 B92"),
        ("an index past the end is refused", "A5", "B95"),
        ("a negative index is refused", "A5", "B148"),
        needs="refuses_foreign",
    ),
    *_goals(
        ("a double free is refused", "A5", "B104 B163"),
        ("good slots stay with a bad one", "X1 A5"),
        needs="refuses_double_free",
    ),
    *_goals(
        ("a double free inside a group is refused", "A5 A6", "B97"),
        needs="refuses_double_free groups",
    ),
    *_goals(
        ("pages are freed under transfer", "A2"),
        ("an alloc fails for pages under transfer", "A2 X4"),
        ("every page is under transfer", "A2"),
        ("a transfer ends before its pages are freed", "A2"),
        ("a transfer ends after its pages were freed", "A2 A4"),
        ("a page is in two transfers", "A2"),
        ("a freed page waits for another transfer", "A2"),
        ("a clear ends a transfer", "A2 X7"),
        needs="transfers",
    ),
    *_goals(
        ("pages are freed under transfer inside a group", "A2 A6"),
        ("a transfer ends inside a group", "A2 A6"),
        needs="transfers groups",
    ),
    *_goals(
        ("a double free under transfer is refused", "A2 A5"),
        ("the end of a transfer that is over is refused", "A5"),
        needs="transfers refuses_double_free",
    ),
    *_goals(
        ("halves are freed under transfer", "A2 A7"),
        ("halves move under transfer", "A2 A7"),
        needs="transfers swa",
    ),
    *_goals(("a slot named twice is refused", "A5"), needs="refuses_double_free", when=(_SINGLE,)),
    *_goals(
        ("an allocation ends inside a page", "A3", "B95 B98"),
        ("one slot frees its page", "A5", "B98"),
        ("slots of a page are named twice", "A5", "B97"),
        ("a slot beyond those asked for frees its page", "A3 A5", "B98"),
        when=(_PAGED,),
    ),
    *_goals(
        ("the window pool runs out first", "A7 X4", "B82"),
        ("the full pool runs out first", "A7 X4", "B82"),
        ("halves go before their slots", "A7"),
        ("a free returns what is left of both", "A7"),
        ("halves move", "A7"),
        ("a half is read", "A7"),
        ("a half that is gone is read", "A7"),
        needs="swa",
    ),
    *_goals(
        ("halves go inside a group", "A6 A7"),
        ("halves move inside a group", "A6 A7"),
        needs="swa groups",
    ),
    *_goals(
        ("a half that is gone is refused", "A7"),
        ("a move from a free slot is refused", "A7"),
        ("a move to a free slot is refused", "A7"),
        needs="swa refuses_double_free",
    ),
    *_goals(("a half outside the pool is refused", "A5 A7"), needs="swa refuses_foreign"),
    *_goals(
        ("a move from a slot without a half is refused", "A7"),
        ("a move to a slot with a half is refused", "A7"),
        ("a move of unequal lengths is refused", "A7"),
        needs="swa refuses_bad_arguments",
    ),
    *_goals(("a move across pages is refused", "A7"), needs="swa refuses_bad_arguments", when=(_PAGED,)),
)
"""Coverage goals that a search for violations must reach on slot allocators."""


def _met_by_alloc(pool: SlotModel, operation: Alloc, seen: SeenAlloc) -> Met:
    full, wanted, window = pool.full, seen.wanted, pool.window_pool
    is_last, waits = wanted >= pool.pool.free_count, full.young
    if not wanted:
        return {"nothing is asked for": True, "the pool is exhausted": is_last}
    pools = _pools(pool, seen) if pool.order_suspect == "X4" and "merges" in pool.claims else ()
    return {
        "the pool is exhausted": is_last,
        "the window pool runs out first": is_last and window and window.swa.free_count < full.free_count,
        "the full pool runs out first": is_last and window and full.free_count < window.swa.free_count,
        "need merges": waits and full.needs_merge(wanted),
        "freed pages wait while older ones suffice": waits and not full.needs_merge(wanted),
        "an alloc fails and the order stays": any(_is_their_turn(pool, *each) for each in pools),
        "pages are handed out while a group is open": full.group_open,
        "an allocation ends inside a page": operation.tokens % pool.page_size,
    }


def _met_by_failure(pool: SlotModel, operation: Alloc, seen: SeenAlloc) -> Met:
    full = pool.full
    return {
        "an alloc fails": True,
        "an alloc fails with pages pending": full.pending,
        "an alloc fails for pages under transfer": full.parked,
    }


def _met_by_free(pool: SlotModel, operation: Free, seen: SeenSlots) -> Met:
    full, window, pages, slots, size = pool.full, pool.window_pool, {*seen.pages}, seen.slots, pool.page_size
    if not slots:
        return {"nothing is freed": True}
    origin, given = pool.given.origin, pool.given.given_by
    met = {
        "the last page in somebody's hands is freed": full.held == pages,
        "a group collects pages of several calls": full.pending,
        "pages are freed under transfer": pages & full.transfers.keys(),
        "pages are freed under transfer inside a group": full.group_open and pages & full.transfers.keys(),
        "part of an allocation is freed": any(
            origin(slot) == step and (page := slot // size) in full.held and page not in pages
            for step in {origin(page * size) for page in pages}
            for slot in given(step)[::size]
        ),
        "a free returns what is left of both": window is not None and not window.half.keys() >= pages,
    }
    if size > 1:
        asked = {slot // size for slot in slots if origin(slot) == origin(slot // size * size)}
        met["one slot frees its page"] = len(slots) == len(pages)
        met["slots of a page are named twice"] = len({*slots}) < len(slots)
        met["a slot beyond those asked for frees its page"] = pages - asked
    return met


def _met_by_refusal(pool: SlotModel, operation: Free, seen: SeenSlots) -> Met:
    return {"good slots stay with a bad one": len({*seen.slots}) > len(seen.wrong)}


def _met_by_halves(pool: SlotModel, operation: FreeSWA, seen: SeenSlots) -> Met:
    is_inside = seen.pages and pool.full.group_open
    return {
        "halves go before their slots": seen.pages,
        "halves go inside a group": is_inside,
        "halves are freed under transfer": _are_halves_busy(pool, seen),
    }


def _are_halves_busy(pool: SlotModel, seen: SeenSlots) -> bool:
    """Tell whether the SWA half of any of these pages is in a transfer."""
    window = pool.window_pool
    return window is not None and any(window.half[page] in window.swa.transfers for page in seen.pages)


def _met_by_move(pool: SlotModel, operation: MoveSWA, seen: SeenSlots) -> Met:
    is_inside = seen.slots and pool.full.group_open
    return {
        "halves move": seen.slots,
        "halves move inside a group": is_inside,
        "halves move under transfer": _are_halves_busy(pool, seen),
    }


def _met_by_begin(pool: SlotModel, operation: BeginTransfer, seen: SeenTransfer) -> Met:
    full = pool.full
    return {
        "every page is under transfer": len({*seen.pages, *full.transfers}) == full.pages,
        "a page is in two transfers": not full.transfers.keys().isdisjoint(seen.pages),
    }


def _met_by_end_of_transfer(pool: SlotModel, operation: EndTransfer, seen: SeenTransfer) -> Met:
    full, pages = pool.full, seen.pages
    back = full.coming_back(pages)
    return {
        "a transfer ends before its pages are freed": not full.held.isdisjoint(pages),
        "a transfer ends after its pages were freed": back,
        "a freed page waits for another transfer": full.parked.intersection(pages) - back,
        "a transfer ends inside a group": back and full.group_open,
    }


def _met_by_reading(pool: SlotModel, operation: ReadHalves, seen: SeenSlots) -> Met:
    halves = seen.result.swa_slots
    return {"a half is read": any(halves), "a half that is gone is read": 0 in halves}


def _met_by_merge(pool: SlotModel, operation: Merge, seen: Seen) -> Met:
    return {"an explicit merge": pool.full.young}


def _met_by_end(pool: SlotModel, operation: EndGroup, seen: Seen) -> Met:
    return {"a group closes": pool.full.pending}


def _met_by_clear(pool: SlotModel, operation: Clear, seen: Seen) -> Met:
    full = pool.full
    return {
        "a clear takes everything from its holders": full.held,
        "a clear closes a group": full.group_open,
        "a clear ends a transfer": pool.transfers,
    }


SLOTS = KindLaws(
    order="A1 X7 A3 A2 A7 A4",
    asked={
        Alloc: Asked(None, "A2"),
        Free: Asked(Done, _law_of_free),
        FreeSWA: Asked(Done, "A7"),
        MoveSWA: Asked(Done, "A7"),
        ReadHalves: Asked(Slots, "A7"),
        Merge: Asked(Done, _law_of_merge, "A2"),
        BeginGroup: Asked(Done, "A6"),
        EndGroup: Asked(Done, "A6"),
        BeginTransfer: Asked(Done, "A2"),
        EndTransfer: Asked(Done, "A2"),
        Clear: Asked(Done, "X7"),
    },
    sizes={("A2", "swa_available_size"): "A7"},
    sizes_law="A2",
    met={
        (Alloc, DONE): _met_by_alloc,
        (Alloc, NO_ROOM): _met_by_failure,
        (Free, DONE): _met_by_free,
        (Free, REFUSED): _met_by_refusal,
        (FreeSWA, DONE): _met_by_halves,
        (FreeSWA, REFUSED): _met_by_refusal,
        (MoveSWA, DONE): _met_by_move,
        (ReadHalves, DONE): _met_by_reading,
        (ReadHalves, REFUSED): _met_by_refusal,
        (Merge, DONE): _met_by_merge,
        (EndGroup, DONE): _met_by_end,
        (BeginTransfer, DONE): _met_by_begin,
        (BeginTransfer, REFUSED): _met_by_refusal,
        (EndTransfer, DONE): _met_by_end_of_transfer,
        (Clear, DONE): _met_by_clear,
    },
)
