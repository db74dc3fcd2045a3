"""What a slot pool may hand out: whole free pages, in order, each with a free SWA page behind it."""

from __future__ import annotations

from collections.abc import Iterable

from pymllm.oracle.evidence import Evidence
from pymllm.oracle.slot_model import PageModel

__all__ = ["check_halves", "check_pages"]


def check_pages(
    evidence: Evidence, full: PageModel, page_size: int, tokens: int, slots: tuple[int, ...]
) -> list[int]:
    """Test slots that an allocation of so many tokens gave (A1, A2, A3), and return their pages in order."""
    what, last = f"alloc({tokens})", (full.pages + 1) * page_size - 1
    foreign = [slot for slot in slots if not full.has(slot // page_size)]
    evidence.demand("A1", not foreign, what, f"slots {page_size}..{last}", lambda: foreign)
    pages = [slot // page_size for slot in slots[::page_size]]
    is_whole = [*slots] == _slots_of(pages, page_size)[:tokens] and len(slots) == tokens
    evidence.demand("A3", is_whole, what, f"{tokens} distinct slots of whole pages", lambda: slots)
    taken = [page for page in pages if not full.is_free(page)]
    evidence.demand("A2", not taken, what, "free pages", lambda: f"pages {taken}, which are not free")
    return pages


def check_halves(
    evidence: Evidence, swa: PageModel, page_size: int, slots: tuple[int, ...], halves: tuple[int, ...]
) -> list[int]:
    """Test the SWA slots behind slots that were handed out (A7), and return their pages in order."""
    what, pages = "SWA halves of an alloc", [half // page_size for half in halves[::page_size]]
    is_whole = [*halves] == _slots_of(pages, page_size)[: len(slots)] and len(halves) == len(slots)
    evidence.demand("A7", is_whole, what, "a half page for each page", lambda: halves)
    taken = [page for page in pages if not swa.is_free(page)]
    evidence.demand("A7", not taken, what, "free window pages", lambda: f"pages {taken}, which are not free")
    return pages


def _slots_of(pages: Iterable[int], size: int) -> list[int]:
    return [page * size + place for page in dict.fromkeys(pages) for place in range(size)]
