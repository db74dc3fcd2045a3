"""What a slot pool may hand out: whole free pages, in order, each with a free SWA page behind it."""

from __future__ import annotations

from collections.abc import Iterable

from pymllm.oracle.evidence import Evidence
from pymllm.oracle.slot_model import PageModel

__all__ = ["check_halves", "check_pages"]


def check_pages(
    evidence: Evidence,
    full: PageModel,
    page_size: int,
    tokens: int,
    slots: tuple[int, ...],
    suspect: str = "",
) -> list[int]:
    """Test slots that an allocation of so many tokens gave (A1, A2, A3), and return their pages in order.

    A page that is not free, or given twice, breaks the law that is suspect, where one is.
    """
    last = (full.pages + 1) * page_size - 1
    if slots and not (page_size <= min(slots) and max(slots) <= last):
        foreign = [slot for slot in slots if not page_size <= slot <= last]
        evidence.refuse("A1", f"alloc({tokens})", f"slots {page_size}..{last}", foreign)
    pages = [slot // page_size for slot in slots[::page_size]]
    _blame(evidence, suspect, f"pages of alloc({tokens})", full, pages)
    if len(slots) != tokens or [*slots] != _slots_of(pages, page_size)[:tokens]:
        evidence.refuse("A3", f"alloc({tokens})", f"{tokens} distinct slots of whole pages", slots)
    if taken := full.not_free(pages):
        evidence.refuse("A2", f"alloc({tokens})", "free pages", f"pages {taken}, which are not free")
    evidence.count("A1", "A3", "A2")
    return pages


def check_halves(
    evidence: Evidence,
    swa: PageModel,
    page_size: int,
    slots: tuple[int, ...],
    halves: tuple[int, ...],
    suspect: str = "",
) -> list[int]:
    """Test the SWA slots behind slots that were handed out (A7), and return their pages in order.

    What is suspect is as of `check_pages`.
    """
    what, pages = "SWA halves of an alloc", [half // page_size for half in halves[::page_size]]
    _blame(evidence, suspect, what, swa, pages)
    if len(halves) != len(slots) or [*halves] != _slots_of(pages, page_size)[: len(slots)]:
        evidence.refuse("A7", what, "a half page for each page", halves)
    if taken := swa.not_free(pages):
        evidence.refuse("A7", what, "free window pages", f"pages {taken}, which are not free")
    evidence.count("A7", "A7")
    return pages


def _blame(evidence: Evidence, suspect: str, what: str, model: PageModel, pages: list[int]) -> None:
    if suspect and (len(set(pages)) < len(pages) or model.not_free(pages)):
        evidence.refuse(suspect, what, "free pages, each once", pages)


def _slots_of(pages: Iterable[int], size: int) -> list[int]:
    slots: list[int] = []
    for page in dict.fromkeys(pages):
        slots += range(page * size, (page + 1) * size)
    return slots
