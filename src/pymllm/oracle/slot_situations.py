"""Situations that a search through slot allocators must reach, and how the less obvious ones are noticed."""

from __future__ import annotations

from collections.abc import Sequence, Set

from pymllm.oracle.evidence import Evidence
from pymllm.oracle.given_numbers import GivenNumbers
from pymllm.oracle.history import Header
from pymllm.oracle.slot_model import PageModel, WindowModel

__all__ = ["expected_situations", "note_alloc", "note_free"]

_ALWAYS = frozenset(
    {
        "the pool is exhausted",
        "an alloc fails",
        "nothing is asked for",
        "nothing is freed",
        "part of an allocation is freed",
        "a clear takes everything from its holders",
    }
)
_MERGES = frozenset(
    {
        "need merges",
        "freed pages wait while older ones suffice",
        "an explicit merge",
        "an alloc fails and the order stays",
    }
)
_GROUPS = frozenset(
    {
        "a group closes",
        "an alloc fails with pages pending",
        "a clear closes a group",
    }
)
_GROUP_ERRORS = frozenset({"a group in a group is refused", "an end without a group is refused"})
_REFUSALS = frozenset(
    {
        "a malformed call is refused",
        "a double free is refused",
        "padding is refused",
        "an index past the end is refused",
        "a negative index is refused",
        "good slots stay with a bad one",
    }
)
_PAGED = frozenset(
    {
        "one slot frees its page",
        "slots of a page are named twice",
        "a slot beyond those asked for frees its page",
    }
)
_WINDOW = frozenset(
    {
        "the window pool runs out first",
        "the full pool runs out first",
        "halves go before their slots",
        "a free returns what is left of both",
        "halves move",
        "a half is read",
        "a half that is gone is read",
    }
)
_WINDOW_GROUPS = frozenset({"halves go inside a group", "halves move inside a group"})
_WINDOW_REFUSALS = frozenset(
    {
        "a half that is gone is refused",
        "a half outside the pool is refused",
        "a move from a slot without a half is refused",
        "a move to a slot with a half is refused",
        "a move from a free slot is refused",
        "a move to a free slot is refused",
        "a move of unequal lengths is refused",
    }
)


def expected_situations(header: Header) -> frozenset[str]:
    """Return what a long run of this configuration, with these capabilities, must reach."""
    claims, is_paged = set(header.capabilities), header.config["page_size"] != 1
    parts: tuple[tuple[Set[str], set[str], bool], ...] = (
        (_ALWAYS, set(), True),
        (_MERGES, {"merges"}, True),
        (_GROUPS, {"groups"}, True),
        (_GROUP_ERRORS, {"group_errors"}, True),
        (_REFUSALS, {"refusals"}, True),
        ({"a double free inside a group is refused"}, {"refusals", "groups"}, True),
        ({"a slot named twice is refused"}, {"refusals"}, not is_paged),
        (_PAGED, set(), is_paged),
        (_WINDOW, {"swa"}, True),
        (_WINDOW_GROUPS, {"swa", "groups"}, True),
        (_WINDOW_REFUSALS, {"swa", "refusals"}, True),
        ({"a move across pages is refused"}, {"swa", "refusals"}, is_paged),
    )
    return frozenset[str]().union(*(names for names, needs, applies in parts if applies and needs <= claims))


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
    evidence.meet("nothing is asked for", not wanted)
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
    evidence.meet("nothing is freed", not slots)
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
