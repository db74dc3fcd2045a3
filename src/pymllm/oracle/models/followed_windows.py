"""The effects of inserts on sliding windows, worked out from the result and the pool calls of each insert.

Nothing says which pages of such a cache are to live. A page is alive as long as its slots have their halves,
and those go and come in sight: back to the pool, from one slot to another, and with slots that are adopted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pymllm.errors import ProgramError
from pymllm.oracle.models.prefix_model import InsertPlan, Page, Path, PrefixModel, merge_runs
from pymllm.oracle.models.prefix_seen import Calls
from pymllm.oracle.models.slot_ownership import SlotOwnership


def require_duties(
    cache: PrefixModel, ownership: SlotOwnership, path: Path, slots: Sequence[int], bounds: tuple[int, int]
) -> None:
    """Raise `ProgramError` where a caller's statements about its slots are false.

    The first ``prev_prefix_len`` are the cache's own, as it matched them; the others have their halves, but
    for the first ``swa_evicted_seqlen``.
    """
    (protected, evicted), size = bounds, cache.page_size
    for start, end in zip(range(0, len(path.tokens), size), cache.page_ends(path), strict=True):
        slot, is_known = slots[start], start < protected
        if (ownership.place(slot) == end) != is_known:
            whose = "the caller's" if is_known else "the cache's"
            raise ProgramError(f"slot {slot} is {whose}, and prev_prefix_len is {protected}")
        if not is_known and ownership.has_half(slot) == (start < evicted):
            there = "has" if start < evicted else "lacks"
            raise ProgramError(f"slot {slot} {there} its SWA half, and swa_evicted_seqlen is {evicted}")


def follow_insert(
    cache: PrefixModel,
    ownership: SlotOwnership,
    path: Path,
    slots: Sequence[int],
    protected: int,
    told: Collection[tuple[int, int]],
    calls: Calls,
) -> InsertPlan:
    """Return the plan of an insert that agrees with its observed choices, if the laws permit these.

    A dead page that nobody holds may take the slots that came, one that is held their halves. Duplicates from
    ``prev_prefix_len`` on may go back to the pool, and any halves of the cache's.
    """
    size, freed = cache.page_size, set(calls.freed)
    plan = InsertPlan(path, len(cache.stored(path)) * size)
    adopted: list[int] = []
    for start, end in zip(range(0, len(path.tokens), size), cache.page_ends(path), strict=True):
        incoming, page = tuple(slots[start : start + size]), cache.pages.get(end)
        has_half = ownership.has_half(incoming[0])
        if page is None:
            plan.new[end] = Page(incoming, has_half)
            adopted.append(start)
            continue
        if not page.alive:
            plan.dead.append(end)
        if page.slots == incoming:
            continue
        if not page.alive and has_half:
            halves = dict(zip(incoming, page.slots, strict=True))
            if not page.locks and any(first <= start and start + size <= last for first, last in told):
                plan.replaced[end] = incoming
                plan.displaced += page.slots
                adopted.append(start)
                continue
            if halves.items() <= calls.moves.items():
                plan.moved[end] = halves
        if start >= protected and freed.issuperset(incoming):
            plan.displaced += incoming
    plan.adopted = merge_runs(adopted, size)
    plan.splits = set(cache.page_ends(path))
    if calls.halves:
        plan.fallen = _find_fallen(cache, plan, set(calls.halves))
    return plan


def _find_fallen(cache: PrefixModel, plan: InsertPlan, gone: set[int]) -> dict[Path, tuple[int, ...]]:
    """Return the live pages that lost their SWA halves, including new and revived ones, with their slots."""
    live = {end: page.slots for end, page in (*cache.pages.items(), *plan.new.items()) if page.alive}
    live |= {end: cache.pages[end].slots for end in plan.moved} | plan.replaced
    return {end: slots for end, slots in live.items() if gone.issuperset(slots)}
