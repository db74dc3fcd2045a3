"""How the less obvious situations of slot allocators are noticed."""

from __future__ import annotations

from collections.abc import Sequence, Set

from pymllm.oracle.evidence import Evidence
from pymllm.oracle.given_numbers import GivenNumbers
from pymllm.oracle.slot_model import PageModel, WindowModel

__all__ = ["note_alloc", "note_free"]


def note_alloc(evidence: Evidence, pool: PageModel | WindowModel, wanted: int) -> None:
    """Note what is worth reaching in an allocation that is about to be followed.

    Parameters
    ----------
    evidence : Evidence
        Where to note it.
    pool : PageModel or WindowModel
        Before the allocation.
    wanted : int
        Pages that it takes.
    """
    full = pool.full if isinstance(pool, WindowModel) else pool
    if not wanted:
        evidence.meet("nothing is asked for")
    if full.group_open and wanted:
        evidence.meet("pages are handed out while a group is open")
    if wanted and full.young:
        merges = full.needs_merge(wanted)
        evidence.meet("need merges" if merges else "freed pages wait while older ones suffice")
    if wanted < pool.free_count:
        return
    evidence.meet("the pool is exhausted")
    if isinstance(pool, WindowModel):
        evidence.meet("the window pool runs out first", pool.swa.free_count < full.free_count)
        evidence.meet("the full pool runs out first", full.free_count < pool.swa.free_count)


def note_free(
    evidence: Evidence,
    pool: PageModel | WindowModel,
    page_size: int,
    given: GivenNumbers,
    slots: Sequence[int],
) -> None:
    """Note what is worth reaching in a free that is about to be followed.

    Parameters
    ----------
    evidence : Evidence
        Where to note it.
    pool : PageModel or WindowModel
        Before the free.
    page_size : int
        Slots per page.
    given : GivenNumbers
        Which step gave which slot.
    slots : sequence of int
        As the caller names them; all of them are held.
    """
    full = pool.full if isinstance(pool, WindowModel) else pool
    pages = {slot // page_size for slot in slots}
    if not slots:
        evidence.meet("nothing is freed")
    if pages and full.held == pages:
        evidence.meet("the last page in somebody's hands is freed")
    if pages and full.pending:
        evidence.meet("a group collects pages of several calls")
    steps = {given.origin(page * page_size) for page in pages}
    is_part = any(_keeps_others(full, page_size, given, step, pages) for step in steps)
    evidence.meet("part of an allocation is freed", is_part)
    if isinstance(pool, WindowModel):
        evidence.meet("a free returns what is left of both", any(page not in pool.half for page in pages))
    if page_size > 1 and slots:
        evidence.meet("one slot frees its page", len(slots) == len(pages))
        evidence.meet("slots of a page are named twice", len({*slots}) < len(slots))
        beyond = pages - {slot // page_size for slot in slots if _is_asked_for(given, page_size, slot)}
        evidence.meet("a slot beyond those asked for frees its page", beyond)


def _keeps_others(full: PageModel, page_size: int, given: GivenNumbers, step: int, pages: Set[int]) -> bool:
    """Tell whether a page that a step gave last is held besides these."""
    firsts = given.given_by(step)[::page_size]
    return any(
        given.origin(slot) == step and (page := slot // page_size) in full.held and page not in pages
        for slot in firsts
    )


def _is_asked_for(given: GivenNumbers, page_size: int, slot: int) -> bool:
    """Tell whether the allocation of a slot's page answered the slot, too."""
    return given.origin(slot) == given.origin(slot // page_size * page_size)
